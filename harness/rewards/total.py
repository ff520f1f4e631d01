"""The reward of a completion: the weighted sum of the parts that a spec names.

A part may be shipped, from a plug-in, or a user's function.
"""

from __future__ import annotations

import ast
import bisect
import math
from collections.abc import Callable, Iterator, Sequence
from numbers import Real
from typing import TYPE_CHECKING

from harness import plugins
from harness.errors import RefusedError, nearest
from harness.rewards.base import PARTS, Attempt, RewardContext, RewardPart

if TYPE_CHECKING:
    from torch import Tensor


LARGEST_REWARD = 1e15
"""The largest absolute reward of a completion. Its square still fits into float32."""
PartFunction = Callable[[Sequence[Attempt], RewardContext], list[float]]


class TotalReward:
    """The reward parts of one run, with their weights."""

    def __init__(self, context: RewardContext) -> None:
        """Look up the parts.

        context: of the complete run; its step and its token limit are ignored.
        Raises RefusedError if a user's function cannot be imported.
        """
        self._parts: dict[str, tuple[float, PartFunction]] = {}
        self._of_steps: list[tuple[float, RewardPart]] = []
        self.judges_reasoning = False
        """True if no part depends on what a completion writes after the marker that opens its answer."""
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
        weighing = [name for name, (weight, _) in self._parts.items() if weight] + [
            part.name for _, part in self._of_steps
        ]
        self.judges_reasoning = all(not is_reference(name) and PARTS.find(name).gold_scored_by for name in weighing)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all parts that are measured, including those of weight 0."""
        return tuple(self._parts)

    def of_groups(
        self, groups: Sequence[Sequence[Attempt]], context: RewardContext
    ) -> tuple[list[float], dict[str, list[float]]]:
        """Return the total reward of each attempt, group after group, and the unweighted value of each part by name.

        NaN means that an attempt cannot be scored. A part of weight 0 is measured, but cannot make the total NaN.
        Raises RefusedError if a user's function does not return one number per attempt, or if a total exceeds
        `LARGEST_REWARD`.
        """
        parts = {
            name: [value for group in groups for value in rewards(group, context)]
            for name, (_, rewards) in self._parts.items()
        }
        # Parts of weight 0 are dropped here, because 0 x NaN is NaN.
        weighted = [(weight, parts[name]) for name, (weight, _) in self._parts.items() if weight]
        rows = range(sum(map(len, groups)))
        totals = [sum((weight * values[row] for weight, values in weighted), 0.0) for row in rows]
        for row in (row for row, total in enumerate(totals) if abs(total) > LARGEST_REWARD):
            summed = " + ".join(
                f"{weight:g} x {parts[name][row]:g} ({name})" for name, (weight, _) in self._parts.items()
            )
            raise RefusedError(
                "rewards.reward_too_large", reward=totals[row], summed=summed, largest_reward=LARGEST_REWARD
            )
        return totals, parts

    def at_steps(
        self,
        attempts: Sequence[Attempt],
        context: RewardContext,
        tokens: Tensor,
        decode: Callable[[Sequence[int]], str],
    ) -> Tensor | None:
        """Return the rewards of individual steps [N, T], each at the token where the step ends, and NaN elsewhere.

        Returns None if no part rewards steps, or if `objective.credit` is not `steps`. These rewards are not in the
        totals of `of_groups`.

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
                    at = end - 1 if part.rewards_turns else token_at(end, completion, decode)
                    # Several steps may end in the same token. The first of them replaces the NaN.
                    rewards[row, at] = rewards[row, at].nan_to_num() + weight * reward
        return rewards


def _named_and_implied(context: RewardContext) -> Iterator[tuple[str, float | None]]:
    """Yield (name, weight in `reward.parts`) for all parts. The weight of an implied part is None."""
    yield from context.options.parts.items()
    yield from ((name, None) for name, part in PARTS.all().items() if part.implied_by)


def token_at(end: int, completion: Sequence[int], decode: Callable[[Sequence[int]], str]) -> int:
    """Return the position of the token that completes the first `end` characters of the completion's text."""
    # Tokens are decoded together, because one may contain half a character. The text grows with every token, so
    # bisection works.
    return bisect.bisect_left(range(len(completion)), end, key=lambda token: len(decode(completion[: token + 1])))


def is_reference(name: str) -> bool:
    """Return whether a part's name has the form `module:function`. The module may contain dots."""
    module, colon, function = name.partition(":")
    return bool(colon) and all(part.isidentifier() for part in [*module.split("."), function])


def source_digest(part: str) -> str | None:
    """Return the digest of a part's module and of its imports from the user's folders, or None for a shipped part.

    Nothing is executed. Raises RefusedError if the part is a function whose module is missing, is not valid Python, or
    does not define it.
    """
    if not is_reference(part):
        source = PARTS.source(part)
        return None if source is None else source.digest
    module, _, function = part.partition(":")
    source = plugins.source_of(module, f"reward.parts.{part}")
    names = _names(ast.parse(source.contents[module]))
    if function not in names and "*" not in names:
        raise RefusedError(
            "rewards.no_such_function", part=part, path=source.path, function=function, nearest=nearest(function, names)
        )
    return source.digest


def load_function(reference: str) -> Callable[[Sequence[Attempt], RewardContext], list[float]]:
    """Import a user's function, and wrap it to check that it returns one number, finite or NaN, for each attempt.

    Raises RefusedError if the function cannot be imported or is not callable.
    """
    module, _, name = reference.partition(":")
    function = getattr(plugins.imported(module, f"reward.parts.{reference}"), name, None)
    if not callable(function):
        raise RefusedError("rewards.not_a_function", reference=reference, name=name, module=module)

    def checked(group: Sequence[Attempt], context: RewardContext) -> list[float]:
        return _numbers(reference, function(group, context), len(group))

    return checked


def _numbers(reference: str, given: object, count: int) -> list[float]:
    """Return a function's result as floats. Raises RefusedError unless it is `count` numbers, finite or NaN."""
    values = given if isinstance(given, list | tuple) else None
    if values is None or len(values) != count:
        what = type(given).__name__ if values is None else f"{len(values)} values"
        raise RefusedError("rewards.wrong_number_of_rewards", reference=reference, given=what, count=count)
    for value in values:
        if not isinstance(value, Real) or math.isinf(value):
            raise RefusedError("rewards.reward_not_a_number", reference=reference, given=value)
    return [float(value) for value in values]


def _names(tree: ast.Module) -> set[str]:
    """Return the names that a file binds anywhere, including `*` if a star import binds unknown names."""
    nodes = list(ast.walk(tree))
    return (
        {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
        | {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        | {node.asname or node.name for node in nodes if isinstance(node, ast.alias)}
    )
