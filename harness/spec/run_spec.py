"""The resolved run spec: every knob of one cell, with every default written out. Dotted field names are the knobs."""

from __future__ import annotations

from pydantic import Field, model_validator

from algorithms import Objective
from harness.spec.sections.base import Section
from harness.spec.sections.evaluation import EvalSpec
from harness.spec.sections.model import ModelSpec
from harness.spec.sections.reward import RewardSpec
from harness.spec.sections.rollout import RolloutSpec
from harness.spec.sections.task import TaskSpec
from harness.spec.sections.train import TrainSpec


class BudgetSpec(Section):
    tokens: int | None = Field(
        default=None, ge=1, description="generated tokens that arms are matched on; none = train.steps"
    )


class RunSpec(Section):
    """Everything that one cell does."""

    model: ModelSpec
    task: TaskSpec
    reward: RewardSpec
    rollout: RolloutSpec
    objective: Objective
    train: TrainSpec
    eval: EvalSpec
    budget: BudgetSpec = BudgetSpec()
    seed: int = Field(ge=0)

    @model_validator(mode="after")
    def _updates_split_whole_groups(self) -> RunSpec:
        prompts, updates = self.rollout.prompts_per_step, self.train.updates_per_rollout
        if prompts % updates:
            raise ValueError(
                f"rollout.prompts_per_step={prompts} with train.updates_per_rollout={updates}: mini-batches hold whole "
                f"groups and equally many. Choose updates_per_rollout among the divisors of {prompts}"
            )
        return self

    @property
    def optimizer_steps_per_rollout(self) -> int:
        return self.train.updates_per_rollout * self.train.epochs
