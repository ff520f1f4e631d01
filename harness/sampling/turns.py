"""Completions of several turns: after each of them the task's environment answers, and its words stand between the
model's own.

A completion's tokens, log-probs and length are those of the model alone. What the environment said is kept beside them
as interjections: the model reads it, and nothing is learned from it. `Woven` is what the model reads.

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
    """N completions with their interjections, as a model reads them behind the prompts."""

    tokens: Tensor
    """[N, S] int64, right-padded with any token."""
    lengths: Tensor
    """[N] int64."""
    places: Tensor | None
    """[N, T] int64: where each of the completion's own tokens stands, 0 in padding; None: at its own place, since there
    are no interjections."""

    @classmethod
    def of(cls, completions: Tensor, lengths: Tensor, interjections: Sequence[Sequence[Interjection]]) -> Woven:
        """completions [N, T] int64, right-padded; lengths [N]; interjections: N lists."""
        rows, places = [], torch.zeros_like(completions)
        for row, (own, length) in enumerate(zip(completions.tolist(), lengths.tolist(), strict=True)):
            woven: list[int] = []
            begin = 0
            for end, said in (*interjections[row], Interjection(length, [])):
                places[row, begin:end] = torch.arange(len(woven), len(woven) + end - begin)
                woven += [*own[begin:end], *said]
                begin = end
            rows.append(torch.tensor(woven, dtype=torch.int64))
        return cls(pad_sequence(rows, batch_first=True), torch.tensor([len(row) for row in rows]), places)


@dataclass
class Conversation:
    """A completion, as far as it has got."""

    prompt: Sequence[int]
    """Token ids."""
    problem: Problem
    tokens: list[int] = field(default_factory=list)
    """The model's own."""
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
    """Draws completions of several turns.

    A conversation ends where the environment says so, or after its most turns. It is truncated where a turn is cut, and
    where nothing is left for the next one: of `params.max_completion_tokens`, the limit of all turns together, or of
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
        """Fill conversations that have not begun, a turn of all of them at a time.

        key_of: (row, turn) -> the noise of that turn, both from 0: what else is drawn beside it changes nothing.
        on_ended: is told each row. Raises as `Engine.generate`.
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
        """How many tokens the next turn may have."""
        left, context_tokens = self.params.max_completion_tokens - len(one.tokens), self._context_tokens
        if context_tokens is None or not one.turns:
            return left  # the engine itself refuses prompts that are too long
        return min(left, context_tokens - len(one.context))

    @property
    def _context_tokens(self) -> int | None:
        return getattr(self.model.model.config, "max_position_embeddings", None)

    def _calls(self, going: Mapping[int, Conversation]) -> Iterator[tuple[list[int], int]]:
        """Rows that are drawn by one call of the engine, with its limit: the largest of theirs for which the longest of
        their contexts leaves room."""
        waiting = {row: self._room(one) for row, one in going.items()}
        while waiting:
            most_tokens = max(waiting.values())
            if self._context_tokens is not None and any(going[row].turns for row in waiting):
                most_tokens = min(most_tokens, self._context_tokens - max(len(going[row].context) for row in waiting))
            yield [row for row, room in waiting.items() if room <= most_tokens], most_tokens
            waiting = {row: room for row, room in waiting.items() if room > most_tokens}

    def _take(self, one: Conversation, drawn: Completions, place: int) -> None:
        """Add a turn to a conversation, and the environment's answer to it.

        The call's limit may exceed the row's own. Noise is by position, so what stands within the row's limit is what a
        call with that limit would have drawn.
        """
        drawn_tokens = int(drawn.lengths[place])
        length = min(drawn_tokens, self._room(one))
        own = drawn.tokens[place, :length].tolist()
        one.tokens += own
        one.logps += drawn.logps[place, :length].tolist()
        one.said.append(self.model.decode(own))
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
            one.interjections.pop()  # nothing of the model's follows it
            one.truncated = one.ended = True


def generate_rows(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    keys: Sequence[int],
    params: SamplingParams,
    on_finished: Callable[[int, list[int], bool], None] = lambda row, tokens, truncated: None,
) -> Completions:
    """Continue each of N prompts once, with the noise of its key; equal prompts are computed once. on_finished: is told
    row, tokens and whether they are truncated. Raises as `Engine.generate`."""
    with_prompt: dict[tuple[int, ...], list[int]] = {}
    for row, prompt in enumerate(prompts):
        with_prompt.setdefault(tuple(prompt), []).append(row)
    # An engine draws equally many samples of each prompt of a call.
    by_count: dict[int, list[list[int]]] = {}
    for rows in with_prompt.values():
        by_count.setdefault(len(rows), []).append(rows)
    order: list[int] = []
    parts: list[Completions] = []
    for groups in by_count.values():
        own = [row for rows in groups for row in rows]

        def told(place: int, tokens: list[int], truncated: bool, own: list[int] = own) -> None:
            on_finished(own[place], tokens, truncated)

        noise = torch.tensor([[keys[row] for row in rows] for rows in groups])
        parts.append(engine.generate([prompts[rows[0]] for rows in groups], noise, params, told))
        order += own
    drawn = Completions.joined(parts).rows(torch.tensor(order).argsort())
    return replace(drawn, cost=sum((part.cost for part in parts), GenerationCost()))
