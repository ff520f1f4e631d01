"""A probe file becomes a design: the resolved spec of every objective at every point. This module needs no torch.

A probe file lists objectives, and the sizes of group and batch at which their gradient estimates are measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from algorithms import AnyObjective, Objective
from evals.yaml_file import load_yaml
from harness.config.resolve import Layer, resolve
from harness.config.run_spec import RunSpec
from harness.errors import RefusedError
from harness.plan.profile import find_profile, profile_layer
from harness.plan.sweep_file import (
    ArmName,
    find_file,
    parse_settings,
    shipped_probes,
    use_plugins,
    validated,
)
from harness.settings import Listed, Settings

# REINFORCE estimates the gradient of the expected reward without bias if its baseline does not contain the reward
# itself.
_EXPECTED_REWARD = {"algorithm": "reinforce", "objective.baseline": "leave_one_out"}


class ProbePoint(NamedTuple):
    """The number of completions per prompt, and per gradient estimate."""

    group_size: int
    batch_size: int


@dataclass(frozen=True)
class Design:
    """The measurement that `bench probe` makes."""

    file: ProbeFile
    profile: str
    reference: RunSpec
    """The spec of the large-sample gradient."""
    points: dict[ProbePoint, dict[str, RunSpec]]
    """Point -> objective -> spec, in the order of the file. The rollout of a spec is one gradient estimate."""

    @property
    def baseline(self) -> str:
        return self.file.baseline or next(iter(self.file.objectives))

    def estimates(self, point: ProbePoint) -> int:
        """Return the number of independent gradient estimates per objective."""
        return self.file.completions // point.batch_size


def make_design(given: str, profile: str | None = None, settings: Sequence[str] = ()) -> Design:
    """Build the design of a probe file (path or shipped name) with the command line's overrides (key=value).

    Raises RefusedError for faulty files or overrides, and for objectives or settings that cannot be measured this way.
    """
    file, path = load_probe(given)
    profile_name = profile or file.profile
    overrides = parse_settings(settings)
    misplaced = [key for key in overrides if is_of_objective(key)]
    if misplaced:
        raise RefusedError("shelves.probe.objective_setting", setting=misplaced[0], path=path)
    layers = [
        profile_layer(find_profile(profile_name, beside=path)),
        Layer(f"{path}: base", file.base),
        *([Layer("--set", overrides)] if overrides else []),
    ]
    size = {"rollout.samples_per_prompt": file.reference.samples, "rollout.prompts_per_step": file.reference.prompts}
    # The two lines of points cross at the rollout of the settings.
    crossing = resolve([*layers, Layer(str(path), {"algorithm": "reinforce"})], file.seed)
    reference = resolve([*layers, Layer(f"{path}: reference", _EXPECTED_REWARD | size | _ONE_UPDATE)], file.seed)
    points = _points(file, crossing)
    problems = [*_bad_sizes(file, points), *_unmeasurable_settings(reference)]
    if problems:
        raise RefusedError("\n".join(f"{path}: {problem}" for problem in problems))
    specs: dict[ProbePoint, dict[str, RunSpec]] = {point: {} for point in points}
    for name, own in file.objectives.items():
        origin = f"{path}: objectives.{name}"
        for point in points:
            size = {
                "rollout.samples_per_prompt": point.group_size,
                "rollout.prompts_per_step": point.batch_size // point.group_size,
            }
            try:
                specs[point][name] = resolve([*layers, Layer(origin, own | size | _ONE_UPDATE)], file.seed)
            except RefusedError as error:
                # All faults are collected, so that one message names them together.
                problems += str(error).splitlines()
                continue
            problems += [f"{origin}: {problem}" for problem in _unmeasurable(specs[point][name].objective)]
    if problems:
        raise RefusedError("\n".join(dict.fromkeys(problems)))
    return Design(file, profile_name, reference, specs)


# A gradient estimate is the gradient of one optimiser step on its whole batch.
_ONE_UPDATE = {"train.updates_per_rollout": 1}


def _points(file: ProbeFile, crossing: RunSpec) -> list[ProbePoint]:
    group_size = crossing.rollout.samples_per_prompt
    batch_size = crossing.rollout.prompts_per_step * group_size
    by_group = [ProbePoint(size, batch_size) for size in file.group_sizes]
    by_batch = [ProbePoint(group_size, size) for size in file.batch_sizes]
    # The lines share the point where they cross, which is measured once.
    return list(dict.fromkeys([*by_group, *by_batch]))


def _bad_sizes(file: ProbeFile, points: Sequence[ProbePoint]) -> Iterator[str]:
    for group_size, batch_size in points:
        if batch_size % group_size:
            yield (
                f"a batch of {batch_size} completions with groups of {group_size}: it must hold whole groups. Change "
                "batch_sizes, group_sizes, or the rollout of base"
            )
        if file.completions % batch_size or file.completions < MIN_ESTIMATES * batch_size:
            yield (
                f"completions is {file.completions} with a batch of {batch_size}: it must be a multiple of every "
                f"batch, and at least {MIN_ESTIMATES} of them. Change completions, or batch_sizes"
            )


def _unmeasurable_settings(spec: RunSpec) -> Iterator[str]:
    if spec.model.cold_start.type != "none":
        yield (
            f"model.cold_start.type is {spec.model.cold_start.type}: a probe takes a model as it is. Make one with "
            "`bench coldstart` and set model.source to path:DIR and model.cold_start.type to none"
        )
    if spec.rollout.sampler != "policy":
        yield f"rollout.sampler={spec.rollout.sampler}: a probe has one policy. Set rollout.sampler to policy"
    if spec.rollout.staleness_steps:
        yield f"rollout.staleness_steps={spec.rollout.staleness_steps}: a probe has one policy. Set it to 0"
    if spec.rollout.partial.type != "none":
        yield f"rollout.partial.type={spec.rollout.partial.type}: a probe has one step. Set it to none"
    for part in spec.reward.scored:
        yield f"reward.parts.{part.name}: a probe has no use for {part.noun}. Leave the part out"
    if spec.reward.gold_scorers:
        yield (
            f"reward.parts.{' and reward.parts.'.join(spec.reward.gold_parts)}: a probe asks no model how likely a "
            "gold text is, and measures no supervised term. Leave such parts out"
        )
    if spec.task.filter.type != "none":
        yield (
            f"task.filter.type is {spec.task.filter.type}: a probe measures no pass rates. Set task.filter.type to none"
        )


def _unmeasurable(objective: AnyObjective) -> Iterator[str]:
    """Yield the settings that need more than the policy at its frozen weights, or another number of completions."""
    if not isinstance(objective, Objective):
        yield (
            f"objective.link={objective.link} is of a preference algorithm: a probe measures the gradient of rewards. "
            "Choose a policy-gradient algorithm"
        )
        return
    if objective.baseline == "critic":
        yield "objective.baseline=critic: a probe has no critic that has learned. Choose another baseline"
    if objective.kl.where != "none":
        yield (
            f"objective.kl.where={objective.kl.where}: a probe has no reference policy beside the frozen one, to which "
            "the KL is 0. Set objective.kl.where to none"
        )
    if objective.distill.where != "none":
        yield (
            f"objective.distill.where={objective.distill.where}: a probe asks no teacher. Set objective.distill.where "
            "to none"
        )
    if objective.zero_std == "refill":
        yield (
            "objective.zero_std=refill: an estimate would hold more completions than its batch size. Set "
            "objective.zero_std to keep, mask or drop"
        )
    if objective.entropy.adaptive.type != "none":
        yield (
            f"objective.entropy.adaptive.type={objective.entropy.adaptive.type}: its coefficient is found in training. "
            "Set objective.entropy.adaptive.type to none, and objective.entropy.bonus to a coefficient"
        )
    if objective.token_weight.depends_on_split:
        yield (
            f"objective.aggregation={objective.aggregation}: it depends on how a step is split into micro-batches, and "
            "an estimate is not split. Set objective.aggregation to token_mean"
        )


REFERENCE_PARTS = 16
"""The number of independent estimates whose mean is the reference gradient; their spread tells its noise."""
MIN_ESTIMATES = 4

Size = Annotated[int, Field(ge=1)]


class ReferenceSample(Settings):
    """Completions behind the large-sample gradient of the expected reward."""

    prompts: int = Field(1024, ge=REFERENCE_PARTS, multiple_of=REFERENCE_PARTS, description="drawn for it alone")
    samples: int = Field(8, ge=2, description="completions per prompt")


class ProbeFile(Settings):
    """Which gradients are measured, and how well.

    Two lines of points (group size, batch size) that cross where the settings have their rollout: every group size at
    its batch of completions, every batch size at its group size.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    question: str
    profile: str = Field(description="name of a shipped profile, or path of your own; --profile overrides it")
    plugins: Listed[str] = Field((), description="modules of your own that add things: beside this file, or installed")
    base: dict[str, Any] = Field({}, description="settings on top of the profile; none of the objective")
    objectives: dict[ArmName, dict[str, object]] = Field(min_length=1, description="name -> algorithm and objective.*")
    baseline: str | None = Field(None, description="objective with which others are compared; none = the first")
    group_sizes: Listed[Size] = Field((), description="completions per prompt, at the batch of the settings")
    batch_sizes: Listed[Size] = Field((), description="completions a gradient estimate, at the group of the settings")
    completions: int = Field(
        2048, ge=1, description="drawn at each point; its gradient estimates are their disjoint batches"
    )
    reference: ReferenceSample = ReferenceSample()
    seed: int = Field(0, ge=0)

    def contradictions(self) -> Iterator[str]:
        if self.baseline is not None and self.baseline not in self.objectives:
            yield f"baseline is {self.baseline!r}, but the objectives are {', '.join(self.objectives)}"
        if not self.group_sizes and not self.batch_sizes:
            yield "neither group_sizes nor batch_sizes given: list the sizes at which to measure"
        for name, settings in self.objectives.items():
            if others := [key for key in settings if not is_of_objective(key)]:
                yield (
                    f"objectives.{name} sets {others[0]}: objectives differ in `algorithm` and `objective.*` only. Put "
                    "it under base"
                )
        if of_objective := [key for key in self.base if is_of_objective(key)]:
            yield f"base sets {of_objective[0]}: put what is of an objective under objectives"


def is_of_objective(key: str) -> bool:
    """Return whether a setting belongs to the objective or its pairs, not to what it is measured on."""
    return key.partition(".")[0] in ("algorithm", "objective", "pairs")


def load_probe(given: str) -> tuple[ProbeFile, Path]:
    """Load a probe file by its path or shipped name. Raises RefusedError with all faults of the file."""
    path = find_file(given, shipped_probes(), "probe")
    document = load_yaml(path)
    use_plugins(document, path)
    return validated(ProbeFile, document, path), path
