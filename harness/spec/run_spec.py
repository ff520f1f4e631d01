"""The resolved run spec: every knob of one cell, with every default written out. Dotted field names are the knobs."""

from __future__ import annotations

from typing import Annotated

from pydantic import Discriminator, Field, Tag, model_validator

from algorithms import Objective
from algorithms.preference import PreferenceObjective
from harness.spec.clashes import clashes
from harness.spec.sections.base import Section
from harness.spec.sections.evaluation import EvalSpec
from harness.spec.sections.model import ModelSpec
from harness.spec.sections.pairs import NoPairs, Pairs
from harness.spec.sections.reward import RewardSpec
from harness.spec.sections.rollout import RolloutSpec
from harness.spec.sections.task import TaskSpec
from harness.spec.sections.train import TrainSpec


def _family(objective: object) -> str:
    """Preference objectives alone have a link."""
    has_link = "link" in objective if isinstance(objective, dict) else isinstance(objective, PreferenceObjective)
    return "preference" if has_link else "policy_gradient"


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
    objective: Annotated[
        Annotated[Objective, Tag("policy_gradient")] | Annotated[PreferenceObjective, Tag("preference")],
        Discriminator(_family),
    ]
    pairs: Pairs = NoPairs()
    train: TrainSpec
    eval: EvalSpec
    budget: BudgetSpec = BudgetSpec()
    seed: int = Field(ge=0)

    @model_validator(mode="after")
    def _sections_fit_together(self) -> RunSpec:
        problems = list(clashes(self))
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def absent_fields(self) -> list[str]:
        return ["pairs"] if self.pairs.type == "none" else []

    @property
    def policy_gradient(self) -> Objective:
        """The objective of a cell that learns from rewards. TypeError for one that learns from pairs."""
        if not isinstance(self.objective, Objective):
            raise TypeError("a preference objective where a policy-gradient objective is needed")
        return self.objective

    @property
    def preference(self) -> PreferenceObjective:
        """The objective of a cell that learns from pairs. TypeError for one that learns from rewards."""
        if isinstance(self.objective, Objective):
            raise TypeError("a policy-gradient objective where a preference objective is needed")
        return self.objective

    @property
    def rollout_grader(self) -> str:
        """The grader of completions drawn in training. TypeError where there are none and none is needed."""
        if self.reward.grader is None:
            raise TypeError("no grader: nothing is drawn in training that it could grade")
        return self.reward.grader

    @property
    def optimizer_steps_per_rollout(self) -> int:
        return self.train.updates_per_rollout * self.train.epochs
