"""`eval`: the one frozen evaluation of all arms."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator

from harness.spec.sections.base import GraderName, Listed, Section, TaskName, TemplateName


def _not_none(grader: object) -> object:
    if grader is None:
        raise ValueError(
            "the first of eval.tasks has no grader, so nothing could be compared: name a held-out task with answers "
            "first, or set eval.grader"
        )
    return grader


class EvalSpec(Section):
    tasks: Listed[TaskName] = Field(min_length=1, description="held-out tasks; the first is the compared one")
    problems: int | None = Field(None, ge=1, description="the first this many problems of each task; none = all")
    template: TemplateName = Field(description="prompt template in evaluation")
    every: int = Field(0, ge=0, description="steps between evaluations for the learning curve; 0 = only the final one")
    samples: int = Field(16, ge=1, description="samples a problem in the final evaluation")
    curve_samples: int = Field(4, ge=1, description="samples a problem in the evaluations along the curve")
    k: Listed[int] = Field(min_length=1, description="k of pass@k; at most eval.samples")
    temperature: float = Field(1.0, ge=0, description="0 = greedy")
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0, description="0 = off")
    max_completion_tokens: int = Field(ge=1)
    grader: Annotated[GraderName, BeforeValidator(_not_none)]

    @model_validator(mode="after")
    def _k_within_samples(self) -> EvalSpec:
        too_large = [k for k in self.k if not 1 <= k <= self.samples]
        if too_large:
            raise ValueError(
                f"k={too_large} with samples={self.samples}: pass@k needs 1 <= k <= samples. Raise samples or drop "
                "these k"
            )
        return self
