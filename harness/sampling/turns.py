"""Completions of several turns, with the answers of the task's environment in between.

A completion's tokens, log-probs and length are only the model's own. The environment answers after each turn, and its
answers are kept next to the completion as interjections. The model reads them, but they are masked from training.
`Woven` has completions and interjections together, as the model reads them.

Shapes: N rows, T tokens of the longest completion, S tokens of the longest completion with its interjections.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from evals.tasks.base import Environment, Problem
from evals.tasks.environment import Interjection, Turn
from harness.engines.base import Completions, Engine, GenerationCost, SamplingParams
from harness.models.language_model import LanguageModel


@dataclass(frozen=True)
class Woven:
    """N completions with their interjections, as a model reads them after the prompts."""

    tokens: Tensor
    """[N, S] int64, right-padded with any token."""
    lengths: Tensor
    """[N] int64 number of tokens, including interjections."""
    places: Tensor | None
    """[N, T] int64: the position in `tokens` of each of the model's own tokens, 0 in padding. None if there are no
    interjections, so that positions are equal."""

    @classmethod
    def of(cls, completions: Tensor, lengths: Tensor, interjections: Sequence[Sequence[Interjection]]) -> Woven:
        """Insert the interjections into completions.

        completions [N, T] int64, right-padded. lengths [N]: the model's own tokens. interjections: one list per row.
        """
        rows, places = [], torch.zeros_like(completions)
        for row, (own, length) in enumerate(zip(completions.tolist(), lengths.tolist(), strict=True)):
            woven: list[int] = []
            begin = 0
            # An empty interjection at the end makes the loop copy the completion's last tokens.
            for end, said in (*interjections[row], Interjection(length, [])):
                places[row, begin:end] = torch.arange(len(woven), len(woven) + end - begin)
                woven += [*own[begin:end], *said]
                begin = end
            rows.append(torch.tensor(woven, dtype=torch.int64))
        return cls(pad_sequence(rows, batch_first=True), torch.tensor([len(row) for row in rows]), places)


@dataclass
class Conversation:
    """A completion in progress."""

    prompt: Sequence[int]
    """The prompt's token ids."""
    problem: Problem
    tokens: list[int] = field(default_factory=list)
    """The model's own tokens."""
    logps: list[float] = field(default_factory=list)
    interjections: list[Interjection] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    """The texts of the model's turns."""
    turns: list[Turn] = field(default_factory=list)
    truncated: bool = False
    ended: bool = False

    @property
    def context(self) -> list[int]:
        """The token ids that the model reads before its next turn: prompt, own turns and interjections."""
        context, begin = [*self.prompt], 0
        for end, said in self.interjections:
            context += [*self.tokens[begin:end], *said]
            begin = end
        return [*context, *self.tokens[begin:]]


@dataclass(frozen=True)
class Dialogue:
    """Samples completions of several turns.

    A conversation ends when the environment says so, or after the last allowed turn. It is truncated if one of its
    turns is truncated, or if no tokens are left for the next turn. The limits are `params.max_completion_tokens`, for
    all turns together, and the model's context.

    in_chat: whether prompts are messages, so that replies are rendered as messages too.
    """

    engine: Engine
    model: LanguageModel
    environment: Environment
    params: SamplingParams
    in_chat: bool

    def converse(
        self,
        conversations: Sequence[Conversation],
        key_of: Callable[[int, int], int],
        on_ended: Callable[[int], None] = lambda row: None,
    ) -> GenerationCost:
        """Complete new conversations, turn by turn: each turn is sampled for all conversations together.

        key_of: maps (row, turn), both from 0, to the key of the turn's noise.
        on_ended: called with the row of each conversation that ends.

        A row's noise does not depend on the other rows. Raises the errors of `Engine.generate`.
        """
        cost = GenerationCost()
        for turn in range(self.environment.max_turns):
            going = {row: one for row, one in enumerate(conversations) if not one.ended}
            for rows, most_tokens in self._calls(going):
                drawn = generate_rows(
                    self.engine,
                    [going[row].context for row in rows],
                    [key_of(row, turn) for row in rows],
                    replace(self.params, max_completion_tokens=most_tokens),
                )
                cost += drawn.cost
                for place, row in enumerate(rows):
                    self._take(going[row], drawn, place)
            for row in (row for row, one in going.items() if one.ended):
                on_ended(row)
        return cost

    def _room(self, one: Conversation) -> int:
        """Return the maximum number of tokens of the next turn."""
        left, context_tokens = self.params.max_completion_tokens - len(one.tokens), self.model.context_tokens
        if context_tokens is None or not one.turns:
            # On the first turn, the engine itself refuses prompts that are too long.
            return left
        return min(left, context_tokens - len(one.context))

    def _calls(self, going: Mapping[int, Conversation]) -> Iterator[tuple[list[int], int]]:
        """Yield (rows, max tokens) of each call of the engine that together sample the next turn.

        The limit of a call is the largest room of the waiting rows, reduced to what the longest of their contexts
        allows.
        """
        waiting = {row: self._room(one) for row, one in going.items()}
        while waiting:
            most_tokens = max(waiting.values())
            context_tokens = self.model.context_tokens
            if context_tokens is not None and any(going[row].turns for row in waiting):
                most_tokens = min(most_tokens, context_tokens - max(len(going[row].context) for row in waiting))
            # Rows with more room wait for the next call, whose longest context may be shorter. Each call takes at least
            # the row with the longest context, so the loop ends.
            yield [row for row, room in waiting.items() if room <= most_tokens], most_tokens
            waiting = {row: room for row, room in waiting.items() if room > most_tokens}

    def _take(self, one: Conversation, drawn: Completions, place: int) -> None:
        """Add a turn, and the environment's answer to it, to a conversation.

        The call's limit may exceed the row's own limit. Noise depends on the position, so the tokens within the row's
        limit are the same as from a call with that limit.
        """
        drawn_tokens = int(drawn.lengths[place])
        length = min(drawn_tokens, self._room(one))
        own = drawn.tokens[place, :length].tolist()
        one.tokens += own
        one.logps += drawn.logps[place, :length].tolist()
        one.said.append(self.model.decode(own))
        # The end counts characters of the complete text, because decoding turn by turn may split a character.
        end = Turn(len(self.model.decode(one.tokens)), len(one.tokens))
        if length < drawn_tokens or drawn.truncated[place]:
            one.turns.append(end)
            one.truncated = one.ended = True
            return
        reply = self.environment.answer(one.problem, tuple(one.said))
        one.turns.append(replace(end, reply=reply.text, reward=reply.reward))
        one.ended = reply.done or len(one.turns) == self.environment.max_turns
        if one.ended:
            return
        said = self.model.encode_reply(reply.text, self.in_chat, behind=own[-1])
        one.interjections.append(Interjection(len(one.tokens), said))
        if self._room(one) < 1:
            # Remove the interjection, because no turn follows in which the model would read it.
            one.interjections.pop()
            one.truncated = one.ended = True


def generate_rows(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    keys: Sequence[int],
    params: SamplingParams,
    on_finished: Callable[[int, list[int], bool], None] = lambda row, tokens, truncated: None,
) -> Completions:
    """Sample one completion for each of N prompts, with the noise of its key. Equal prompts are computed once.

    on_finished: called as on_finished(row, tokens, truncated) for each completion.
    Raises the errors of `Engine.generate`.
    """
    with_prompt: dict[tuple[int, ...], list[int]] = {}
    for row, prompt in enumerate(prompts):
        with_prompt.setdefault(tuple(prompt), []).append(row)
    # A call of an engine samples every prompt equally often, so prompts are grouped by how often they occur.
    by_count: dict[int, list[list[int]]] = {}
    for rows in with_prompt.values():
        by_count.setdefault(len(rows), []).append(rows)
    order: list[int] = []
    parts: list[Completions] = []
    for groups in by_count.values():
        own = [row for rows in groups for row in rows]

        # `own` is bound as a default argument, because the loop rebinds the name.
        def told(place: int, tokens: list[int], truncated: bool, own: list[int] = own) -> None:
            on_finished(own[place], tokens, truncated)

        noise = torch.tensor([[keys[row] for row in rows] for rows in groups])
        parts.append(engine.generate([prompts[rows[0]] for rows in groups], noise, params, told))
        order += own
    drawn = Completions.joined(parts).rows(torch.tensor(order).argsort())
    return replace(drawn, cost=sum((part.cost for part in parts), GenerationCost()))
