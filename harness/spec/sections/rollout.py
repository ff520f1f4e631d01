"""`rollout`: how completions are drawn in training."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from harness.spec.sections.base import Listed, Section


class RolloutSpec(Section):
    engine: Literal["torch"] = "torch"
    prompts_per_step: int = Field(32, ge=1)
    samples_per_prompt: int = Field(8, ge=1, description="group size G")
    max_completion_tokens: int = Field(ge=1)
    temperature: float = Field(1.0, gt=0, description="of sampling and of both log-probs in the loss")
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0, description="0 = off")
    stop: Listed[str] = Field((), description="strings that end a completion, besides the end-of-sequence token")

    @model_validator(mode="after")
    def _sampling_matches_training(self) -> RolloutSpec:
        if self.top_p < 1 or self.top_k:
            raise ValueError(
                f"top_p={self.top_p}, top_k={self.top_k} in training: the loss scores tokens under the untruncated "
                "policy, so truncated sampling would bias every ratio. Set top_p: 1, top_k: 0 (evaluation may truncate)"
            )
        return self
