"""Completions of several turns, with the words of the task's environment between the model's own.

A completion's tokens, log-probs and length are those of the model alone. The environment answers after each turn, and
its words are kept next to the completion as interjections. The model reads them, but they are masked from training.
`Woven` is what the model reads.

Shapes: N rows, T longest completion, S longest completion with its interjections.
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
    """[N] int64."""
    places: Tensor | None
    """[N, T] int64: the position of each of the completion's own tokens in `tokens`, 0 in padding. None: each is at its
    own position, since there are no interjections."""

    @classmethod
    def of(cls, completions: Tensor, lengths: Tensor, interjections: Sequence[Sequence[Interjection]]) -> Woven:
        """Insert the interjections into completions.

        completions [N, T] int64, right-padded; lengths [N]; interjections: N lists.
        """
        rows, places = [], torch.zeros_like(completions)
        for row, (own, length) in enumerate(zip(completions.tolist(), lengths.tolist(), strict=True)):
            woven: list[int] = []
            begin = 0
            # An empty interjection at the end flushes the completion's last tokens.
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
    """Token ids."""
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
        """What the model reads before its next turn."""
        context, begin = [*self.prompt], 0
        for end, said in self.interjections:
            context += [*self.tokens[begin:end], *said]
            begin = end
        return [*context, *self.tokens[begin:]]


@dataclass(frozen=True)
class Dialogue:
    """Samples completions of several turns.

    A conversation ends when the environment says so, or after its last allowed turn. It is truncated if a turn is, or
    if no tokens are left for the next turn. The limits are `params.max_completion_tokens`, for all turns together, and
    the model's context. in_chat: whether prompts are messages, so that replies are framed as such.
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
        """Complete conversations that have not begun, one turn of all of them at a time.

        key_of: (row, turn) -> the key of that turn's noise, both from 0. A row's noise does not depend on the other
        rows. on_ended: called with each row that ends. Raises as `Engine.generate`.
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
        """Return how many tokens the next turn may have."""
        left, context_tokens = self.params.max_completion_tokens - len(one.tokens), self.model.context_tokens
        if context_tokens is None or not one.turns:
            # On the first turn the engine itself refuses prompts that are too long.
            return left
        return min(left, context_tokens - len(one.context))

    def _calls(self, going: Mapping[int, Conversation]) -> Iterator[tuple[list[int], int]]:
        """Yield rows that one call of the engine samples together, with its limit.

        The limit is the largest room among them for which the longest of their contexts leaves space.
        """
        waiting = {row: self._room(one) for row, one in going.items()}
        while waiting:
            most_tokens = max(waiting.values())
            context_tokens = self.model.context_tokens
            if context_tokens is not None and any(going[row].turns for row in waiting):
                most_tokens = min(most_tokens, context_tokens - max(len(going[row].context) for row in waiting))
            # Rows with more room wait for the next call, whose longest context may be shorter. Each call takes the row
            # with the longest context at least, so the loop ends.
            yield [row for row, room in waiting.items() if room <= most_tokens], most_tokens
            waiting = {row: room for row, room in waiting.items() if room > most_tokens}

    def _take(self, one: Conversation, drawn: Completions, place: int) -> None:
        """Add a turn to a conversation, and the environment's answer to it.

        The call's limit may exceed the row's own. Noise is by position, so the tokens within the row's limit are those
        that a call with that limit would have sampled.
        """
        drawn_tokens = int(drawn.lengths[place])
        length = min(drawn_tokens, self._room(one))
        own = drawn.tokens[place, :length].tolist()
        one.tokens += own
        one.logps += drawn.logps[place, :length].tolist()
        one.said.append(self.model.decode(own))
        # Characters of the whole text, not the sum over turns: decoding turn by turn may split a character.
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
            # The model will not read it, as no turn of its own follows.
            one.interjections.pop()
            one.truncated = one.ended = True


def generate_rows(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    keys: Sequence[int],
    params: SamplingParams,
    on_finished: Callable[[int, list[int], bool], None] = lambda row, tokens, truncated: None,
) -> Completions:
    """Continue each of N prompts once, with the noise of its key; equal prompts are computed once.

    on_finished: called with row, tokens and whether they are truncated. Raises as `Engine.generate`.
    """
    with_prompt: dict[tuple[int, ...], list[int]] = {}
    for row, prompt in enumerate(prompts):
        with_prompt.setdefault(tuple(prompt), []).append(row)
    # One call of an engine samples each of its prompts equally often, so prompts are grouped by their count.
    by_count: dict[int, list[list[int]]] = {}
    for rows in with_prompt.values():
        by_count.setdefault(len(rows), []).append(rows)
    order: list[int] = []
    parts: list[Completions] = []
    for groups in by_count.values():
        own = [row for rows in groups for row in rows]

        # `own` is bound as a default, because the loop's next round rebinds the name.
        def told(place: int, tokens: list[int], truncated: bool, own: list[int] = own) -> None:
            on_finished(own[place], tokens, truncated)

        noise = torch.tensor([[keys[row] for row in rows] for rows in groups])
        parts.append(engine.generate([prompts[rows[0]] for rows in groups], noise, params, told))
        order += own
    drawn = Completions.joined(parts).rows(torch.tensor(order).argsort())
    return replace(drawn, cost=sum((part.cost for part in parts), GenerationCost()))
