"""A probe file: objectives, and the sizes of group and batch at which their gradient estimates are measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from harness.plan.sweep_file import ArmName, find_file, shipped_probes, validated
from harness.spec.sections.base import Listed, Section
from harness.spec.yaml12 import load_yaml

REFERENCE_PARTS = 16
"""The reference gradient is the mean of this many independent ones, whose spread tells how noisy it is."""
MIN_ESTIMATES = 4

Size = Annotated[int, Field(ge=1)]


class ReferenceSample(Section):
    """Completions behind the large-sample gradient of the expected reward."""

    prompts: int = Field(1024, ge=REFERENCE_PARTS, multiple_of=REFERENCE_PARTS, description="drawn for it alone")
    samples: int = Field(8, ge=2, description="completions a prompt")


class ProbeFile(Section):
    """Which gradients are measured, and how well.

    Two lines of points (group size, batch size) that cross where the settings have their rollout: every group size at
    its batch of completions, every batch size at its group size.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    question: str
    profile: str = Field(description="name of a shipped profile or path of one's own; --profile overrides it")
    base: dict[str, Any] = Field({}, description="settings on top of the profile; none of the objective")
    objectives: dict[ArmName, dict[str, Any]] = Field(min_length=1, description="name -> algorithm and objective.*")
    baseline: str | None = Field(None, description="objective with which others are compared; none = the first")
    group_sizes: Listed[Size] = Field((), description="completions a prompt, at the batch of the settings")
    batch_sizes: Listed[Size] = Field((), description="completions a gradient estimate, at the group of the settings")
    completions: int = Field(
        2048, ge=1, description="drawn at each point; its gradient estimates are their disjoint batches"
    )
    reference: ReferenceSample = ReferenceSample()
    seed: int = Field(0, ge=0)

    @model_validator(mode="after")
    def _baseline_is_there(self) -> ProbeFile:
        if self.baseline is not None and self.baseline not in self.objectives:
            raise ValueError(f"baseline is {self.baseline!r}, but the objectives are {', '.join(self.objectives)}")
        return self

    @model_validator(mode="after")
    def _has_points(self) -> ProbeFile:
        if not self.group_sizes and not self.batch_sizes:
            raise ValueError("neither group_sizes nor batch_sizes given: list the sizes at which to measure")
        return self

    @model_validator(mode="after")
    def _objectives_hold_nothing_else(self) -> ProbeFile:
        for name, settings in self.objectives.items():
            others = [key for key in settings if not is_of_objective(key)]
            if others:
                raise ValueError(
                    f"objectives.{name} sets {others[0]}: objectives differ in `algorithm` and `objective.*` only. Put "
                    "it under base"
                )
        return self

    @model_validator(mode="after")
    def _base_holds_no_objective(self) -> ProbeFile:
        of_objective = [key for key in self.base if is_of_objective(key)]
        if of_objective:
            raise ValueError(f"base sets {of_objective[0]}: put what is of an objective under objectives")
        return self


def is_of_objective(key: str) -> bool:
    """Whether a setting is one of the objective or of its pairs, not of what it is measured on."""
    return key.partition(".")[0] in ("algorithm", "objective", "pairs")


def load_probe(given: str) -> tuple[ProbeFile, Path]:
    """The probe of a path or of a shipped name. Raises RefusedError with all faults of the file."""
    path = find_file(given, shipped_probes(), "probe")
    return validated(ProbeFile, load_yaml(path), path), path
