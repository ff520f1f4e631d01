"""Conflicts of `rollout.staleness_steps` and `rollout.partial`, whose samples are of weights older than the policy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from algorithms import Objective
from evals.prompts import get_template
from harness.config.rollout import Slices

if TYPE_CHECKING:
    from harness.config.run_spec import RunSpec


def off_policy_problems(spec: RunSpec) -> Iterator[str]:
    """Yield all problems; each names the knobs with their values, the rule and the remedy."""
    if staleness_steps := spec.rollout.staleness_steps:
        yield from _staleness_problems(spec, staleness_steps)
    if isinstance(spec.rollout.partial, Slices):
        yield from _slice_problems(spec, spec.rollout.partial.slice_tokens)


def _staleness_problems(spec: RunSpec, staleness_steps: int) -> Iterator[str]:
    train, given = spec.train, f"rollout.staleness_steps={staleness_steps}"
    # The first staleness_steps + 1 batches come from the starting weights; one more step makes the delay visible.
    if train.steps < staleness_steps + 2:
        yield (
            f"{given} with train.steps={train.steps}: all completions would be of the starting weights, as those of "
            f"the first {staleness_steps + 1} steps are. Lower rollout.staleness_steps, raise train.steps, or set "
            "rollout.sampler to initial"
        )
    if train.processes > 1 and train.sharding == "fully":
        yield (
            f"{given} with train.processes={train.processes} and train.sharding=fully: split weights can only sample "
            "from the current policy. Set staleness_steps to 0, or sharding to rows"
        )


def _slice_problems(spec: RunSpec, slice_tokens: int) -> Iterator[str]:
    rollout, objective, sliced = spec.rollout, spec.objective, "rollout.partial.type=slices"
    slices = rollout.max_completion_tokens // slice_tokens
    if slices > spec.train.steps:
        yield (
            f"rollout.partial.slice_tokens={slice_tokens} with rollout.max_completion_tokens="
            f"{rollout.max_completion_tokens} and train.steps={spec.train.steps}: a completion of {slices} slices "
            "would not end before training does. Raise slice_tokens, or train.steps"
        )
    if stop := (*rollout.stop, *get_template(spec.task.template).stop):
        yield (
            f"{sliced} with the stop strings {', '.join(map(repr, stop))} (rollout.stop, task.template="
            f"{spec.task.template}): a string that two slices share would not be seen. Leave rollout.stop out and take "
            "a template without stop strings, or set rollout.partial.type to none"
        )
    if isinstance(objective, Objective) and objective.zero_std == "refill":
        yield (
            f"{sliced} with objective.zero_std=refill: a step that draws other prompts would wait for all of their "
            "completions. Set objective.zero_std to drop, or rollout.partial.type to none"
        )
    if spec.teacher.type != "none":
        yield (
            f"{sliced} with teacher.type={spec.teacher.type}: a teacher is asked about completions of this step alone. "
            "Leave the teacher out, or set rollout.partial.type to none"
        )
