"""`model`: where the policy comes from, and how it is prepared for reinforcement learning."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from harness.spec.sections.base import Section, TemplateName


class NoColdStart(Section):
    """Reinforcement learning starts from the model as it is."""

    type: Literal["none"] = "none"


class SupervisedColdStart(Section):
    """Supervised fine-tuning on demonstrations before reinforcement learning; cached and shared by arms and seeds."""

    type: Literal["sft"] = "sft"
    data: str = Field(description="`demonstrations:arithmetic`, or a JSONL file with `problem` and `solution` a line")
    template: TemplateName = Field("plain", description="prompt template that frames each problem")
    steps: int = Field(1000, ge=1)
    batch_size: int = Field(64, ge=1, description="demonstrations an optimiser step")
    learning_rate: float = Field(1e-3, gt=0, description="peak; warms up over 5 % of the steps, then falls to 2 %")
    weight_decay: float = Field(0.01, ge=0)
    max_completion_tokens: int = Field(256, ge=1, description="longer demonstrations are left out")
    seed: int = Field(0, ge=0)


ColdStart = Annotated[NoColdStart | SupervisedColdStart, Field(discriminator="type")]


class ModelSpec(Section):
    source: str = Field(description="builtin:tiny, hf:<id>[@revision], path:<dir>, gguf:<file>")
    dtype: Literal["float32"] = Field("float32", description="dtype of weights and computation")
    cold_start: ColdStart = NoColdStart()
