"""The reward of a completion: the parts that a spec names, and their weighted sum."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from harness.errors import RefusedError
from harness.rewards.base import PARTS, Attempt, RewardContext, RewardPart
from harness.rewards.user_function import is_reference, load_function

if TYPE_CHECKING:
    from torch import Tensor

LARGEST_REWARD = 1e15
PartFunction = Callable[[Sequence[Attempt], RewardContext], list[float]]


class TotalReward:
    """The parts of one run, looked up once."""

    def __init__(self, context: RewardContext) -> None:
        """context: that of the run; its step and its limit do not count.

        Raises RefusedError if a part of the user's own cannot be imported.
        """
        self._parts: dict[str, tuple[float, PartFunction]] = {}
        self._of_steps: list[tuple[float, RewardPart]] = []
        for name, given in _named_and_implied(context):
            if is_reference(name):
                self._parts[name] = (context.options.parts[name], load_function(name))
                continue
            part = context.options.of(PARTS.find(name))
            weight = part.weight(given, context)
            if weight is not None:
                self._parts[name] = (weight, part.rewards)
            if context.credit == "steps" and part.rewards_steps and given is not None:
                self._of_steps.append((given, part))

    def of_groups(
        self, groups: Sequence[Sequence[Attempt]], context: RewardContext
    ) -> tuple[list[float], dict[str, list[float]]]:
        """For each attempt, group after group: the sum of its parts, and each part before its weight.

        NaN is what cannot be scored. A part of weight 0 is measured, and cannot make the sum NaN.

        Raises RefusedError if a part of the user's own gives something else than its numbers, and for a sum above
        `LARGEST_REWARD`.
        """
        parts = {
            name: [value for group in groups for value in rewards(group, context)]
            for name, (_, rewards) in self._parts.items()
        }
        weighted = [(weight, parts[name]) for name, (weight, _) in self._parts.items() if weight]
        rows = range(sum(map(len, groups)))
        totals = [sum((weight * values[row] for weight, values in weighted), 0.0) for row in rows]
        for row in (row for row, total in enumerate(totals) if abs(total) > LARGEST_REWARD):
            summed = " + ".join(
                f"{weight:g} x {parts[name][row]:g} ({name})" for name, (weight, _) in self._parts.items()
            )
            raise RefusedError(
                f"a completion's reward is {totals[row]:g} = {summed}, but the largest is {LARGEST_REWARD:g}, whose "
                "square fits into 32 bits. Lower the weights in reward.parts, or what the function gives."
            )
        return totals, parts

    def at_steps(
        self,
        attempts: Sequence[Attempt],
        context: RewardContext,
        tokens: Tensor,
        decode: Callable[[Sequence[int]], str],
    ) -> Tensor | None:
        """Rewards of single steps [N, T], at the token where a step ends; NaN where none does. They are not in the sum.
        None unless `objective.credit` is `steps`.

        tokens [N, T]: the completions of the N attempts, right-padded.
        """
        import torch

        if not self._of_steps:
            return None
        rewards = torch.full(tokens.shape, torch.nan)
        for row, attempt in enumerate(attempts):
            completion = tokens[row, : attempt.n_tokens].tolist()
            for weight, part in self._of_steps:
                for end, reward in part.step_rewards(attempt, context):
                    at = token_at(end, completion, decode)
                    rewards[row, at] = rewards[row, at].nan_to_num() + weight * reward
        return rewards


def _named_and_implied(context: RewardContext) -> Iterator[tuple[str, float | None]]:
    """Names with the weights that `reward.parts` gives them."""
    yield from context.options.parts.items()
    yield from ((name, None) for name, part in PARTS.all().items() if part.implied_by)


def token_at(end: int, completion: Sequence[int], decode: Callable[[Sequence[int]], str]) -> int:
    """Position of the token with which the first `end` characters of the completion's text are complete."""
    return bisect.bisect_left(range(len(completion)), end, key=lambda token: len(decode(completion[: token + 1])))
