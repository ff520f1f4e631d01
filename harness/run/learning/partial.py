"""Completions that are drawn a slice a step (`rollout.partial`): one that reaches its slice waits, and goes on under
newer weights in the next step (Kimi k1.5, 2501.12599, section 2.6.2)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from evals.tasks.base import Problem
from harness.config.rollout import Slices
from harness.config.run_spec import RunSpec
from harness.engines.base import Completions, Engine, GenerationCost, SamplingParams
from harness.random_keys import random_key
from harness.training.batch import Batch
from harness.training.optimizer import DivergedError


@dataclass(frozen=True)
class Begun:
    """A completion, as far as it has got. Its lists are equally long."""

    tokens: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    """Under the weights that drew each token."""
    weights_steps: list[int] = field(default_factory=list)
    """The step after which the policy had these weights."""
    ended: bool = False
    """By itself, before any limit."""


@dataclass(frozen=True)
class BegunGroup:
    """The completions of a prompt."""

    step: int
    """In which the prompt was drawn."""
    example: int
    """Its number in that step."""
    problem: Problem
    prompt: list[int]
    """Token ids."""
    members: list[Begun]

    def unfinished(self, limit_tokens: int) -> list[int]:
        """The members that go on, by their numbers."""
        return [at for at, one in enumerate(self.members) if not one.ended and len(one.tokens) < limit_tokens]


class _Row(NamedTuple):
    group: int
    member: int


class SlicedRollouts:
    """Draws for each step a slice of every completion that is under way. A prompt is learned from in the step in which
    the last of its completions ends: as many prompts are begun in each step as without slices, and in the long run as
    many are learned from."""

    def __init__(
        self,
        spec: RunSpec,
        partial: Slices,
        encode: Callable[[Problem], list[int]],
        engine: Engine,
        pad_token_id: int,
        problems: Sequence[Problem],
    ) -> None:
        """encode: gives the token ids of a problem's prompt. engine: draws from the policy that samples. problems: the
        training pool."""
        self._problems = {problem.id: problem for problem in problems}
        self._spec, self._encode, self._engine, self._pad = spec, encode, engine, pad_token_id
        rollout = spec.rollout
        self._limit_tokens = rollout.max_completion_tokens
        self._params = SamplingParams(partial.slice_tokens, rollout.temperature, rollout.top_p, rollout.top_k, ())
        self.under_way: list[BegunGroup] = []
        """What the steps so far have begun and not learned from."""

    def draw(self, problems: Sequence[Problem], step: int, weights_step: int) -> tuple[Batch, list[BegunGroup]]:
        """Begin a step's prompts, and draw a slice of all that is under way. Returns what is complete as an ungraded
        batch, in the order in which it was begun, and what is under way then; nothing is changed here.

        If no prompt is complete another slice is drawn at once: a step with nothing to learn from would change no
        weight. weights_step: the step after which the policy had the weights that draw. Raises DivergedError if
        log-probs are not finite.
        """
        started_s = time.perf_counter()
        empty = [Begun()] * self._spec.rollout.samples_per_prompt
        begun = [BegunGroup(step, at, problem, self._encode(problem), empty) for at, problem in enumerate(problems)]
        groups, cost, drawn_tokens = [*self.under_way, *begun], GenerationCost(), 0
        complete: list[BegunGroup] = []
        while not complete:
            for rows in (self._fresh(groups), self._going_on(groups)):
                if rows:
                    groups, drawn = self._with_slice(groups, rows, weights_step)
                    cost, drawn_tokens = cost + drawn.cost, drawn_tokens + int(drawn.lengths.sum())
            complete = [group for group in groups if not group.unfinished(self._limit_tokens)]
        return (
            replace(
                self._batch(complete, step),
                cost=cost,
                drawn_tokens=drawn_tokens,
                rollout_s=time.perf_counter() - started_s,
            ),
            [group for group in groups if group.unfinished(self._limit_tokens)],
        )

    def _fresh(self, groups: Sequence[BegunGroup]) -> list[_Row]:
        samples = range(self._spec.rollout.samples_per_prompt)
        return [_Row(at, one) for at, group in enumerate(groups) if not group.members[0].tokens for one in samples]

    def _going_on(self, groups: Sequence[BegunGroup]) -> list[_Row]:
        begun = ((at, group) for at, group in enumerate(groups) if group.members[0].tokens)
        return [_Row(at, one) for at, group in begun for one in group.unfinished(self._limit_tokens)]

    def _with_slice(
        self, groups: Sequence[BegunGroup], rows: Sequence[_Row], weights_step: int
    ) -> tuple[list[BegunGroup], Completions]:
        """The groups with a slice more of these rows, which are either all fresh, of whole groups, or all going on."""
        is_fresh = not groups[rows[0].group].members[0].tokens
        together = self._spec.rollout.samples_per_prompt if is_fresh else 1
        asked = [[*groups[at].prompt, *groups[at].members[one].tokens] for at, one in rows[::together]]
        keys = torch.tensor([self._key(groups[at], one) for at, one in rows]).view(-1, together)
        drawn = self._engine.generate(asked, keys, self._params)
        if not torch.isfinite(drawn.logps).all():
            raise DivergedError("the policy's log-probs are not finite")
        lengths, cut = drawn.lengths.tolist(), drawn.truncated.tolist()
        members = [list(group.members) for group in groups]
        for row, (at, one) in enumerate(rows):
            before, length = groups[at].members[one], lengths[row]
            members[at][one] = Begun(
                before.tokens + drawn.tokens[row, :length].tolist(),
                before.logps + drawn.logps[row, :length].tolist(),
                before.weights_steps + [weights_step] * length,
                ended=not cut[row],
            )
        return [replace(group, members=own) for group, own in zip(groups, members, strict=True)], drawn

    def _key(self, group: BegunGroup, member: int) -> int:
        """The noise of a slice. The first has that of a completion without slices; noise is counted from the first
        token that is drawn at once, so that each later slice has a key of its own."""
        before = len(group.members[member].tokens)
        example = f"{group.example}/{before}" if before else group.example
        return random_key(self._spec.seed, "rollout", group.step, example, member)

    def _batch(self, groups: Sequence[BegunGroup], step: int) -> Batch:
        members = [one for group in groups for one in group.members]
        lengths = torch.tensor([len(one.tokens) for one in members])
        drawn = Completions(
            _padded([one.tokens for one in members], self._pad),
            _padded([one.logps for one in members], 0.0),
            lengths,
            torch.tensor([not one.ended for one in members]),
        )
        newest = step - 1
        return replace(
            Batch.of_completions([group.prompt for group in groups], drawn, 0, self._limit_tokens),
            problems=[group.problem for group in groups for _ in group.members],
            steps_old=newest - _padded([one.weights_steps for one in members], newest),
        )

    def state_dict(self) -> list[dict[str, Any]]:
        """Plain values."""
        return [
            {
                "step": group.step,
                "example": group.example,
                "problem_id": group.problem.id,
                "members": [asdict(one) for one in group.members],
            }
            for group in self.under_way
        ]

    def load_state_dict(self, state: Sequence[Mapping[str, Any]]) -> None:
        self.under_way = [
            BegunGroup(
                one["step"],
                one["example"],
                self._problems[one["problem_id"]],
                self._encode(self._problems[one["problem_id"]]),
                [Begun(**member) for member in one["members"]],
            )
            for one in state
        ]


def _padded(rows: Sequence[Sequence[float]], padding: float) -> Tensor:
    """[N, T] of the rows' own type."""
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=padding)
