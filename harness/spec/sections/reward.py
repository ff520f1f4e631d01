"""`reward`: parts and their weights."""

from __future__ import annotations

from pydantic import Field, model_validator

from harness.errors import nearest
from harness.rewards.parts import PARTS
from harness.spec.sections.base import GraderName, Section


class RewardSpec(Section):
    parts: dict[str, float] = Field(
        {"correct": 1.0}, min_length=1, description="reward parts and their weights; the sum is the reward"
    )
    grader: GraderName = Field(description="grader behind the part `correct`")

    @model_validator(mode="after")
    def _parts_exist(self) -> RewardSpec:
        unknown = [name for name in self.parts if name not in PARTS]
        if unknown:
            raise ValueError(
                f"unknown parts {', '.join(unknown)}{nearest(unknown[0], PARTS)} Known: {', '.join(PARTS)}"
            )
        return self
