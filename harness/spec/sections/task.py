"""`task`: the prompts of training."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from harness.spec.sections.base import Section, TaskName, TemplateName


class TaskSpec(Section):
    train: TaskName = Field(description="task whose train split gives the prompts")
    template: TemplateName = Field(description="prompt template in training")
    order: Literal["uniform"] = Field("uniform", description="every prompt once an epoch, reshuffled each epoch")
