"""The resolved run spec: every knob of one cell, with every default written out. Dotted field names are the knobs."""

from __future__ import annotations

from pydantic import Field, model_validator

from algorithms import Objective
from algorithms.controllers import MAX_KL_ERROR
from algorithms.objective import GROUP_BASELINES
from harness.spec.sections.base import Section
from harness.spec.sections.evaluation import EvalSpec
from harness.spec.sections.model import ModelSpec
from harness.spec.sections.reward import RewardSpec, reward_problems
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

    @model_validator(mode="after")
    def _rewards_fit_the_task(self) -> RunSpec:
        problems = list(reward_problems(self.reward, self.objective, self.task.train))
        if problems:
            raise ValueError("; ".join(problems))
        return self

    @model_validator(mode="after")
    def _groups_can_be_compared(self) -> RunSpec:
        baseline = self.objective.baseline
        if self.rollout.samples_per_prompt == 1 and baseline in (*GROUP_BASELINES, "random_peer"):
            raise ValueError(
                f"rollout.samples_per_prompt=1 with objective.baseline={baseline}: a completion is compared with "
                "others of its prompt, so every advantage would be 0. Raise samples_per_prompt, or set "
                "objective.baseline to batch_mean, critic or none"
            )
        return self

    @model_validator(mode="after")
    def _groups_can_differ(self) -> RunSpec:
        zero_std = self.objective.zero_std
        if self.rollout.samples_per_prompt == 1 and zero_std != "keep":
            raise ValueError(
                f"rollout.samples_per_prompt=1 with objective.zero_std={zero_std}: the rewards of a group of one are "
                "all equal, so nothing would be trained on. Raise samples_per_prompt, or set objective.zero_std to keep"
            )
        return self

    @model_validator(mode="after")
    def _offline_samples_have_no_ratio(self) -> RunSpec:
        rule = self.objective.rule.type
        if self.rollout.sampler == "initial" and rule != "policy_gradient":
            raise ValueError(
                f"rollout.sampler=initial with objective.rule.type={rule}: the importance ratio is to the policy of "
                "the step, which did not draw these completions. Set objective.rule.type to policy_gradient, or "
                "rollout.sampler to policy"
            )
        return self

    @model_validator(mode="after")
    def _kl_coefficient_stays_positive(self) -> RunSpec:
        kl, rollout = self.objective.kl, self.rollout
        completions = rollout.prompts_per_step * rollout.samples_per_prompt
        if kl.where == "none" or kl.control == "fixed":
            return self
        if MAX_KL_ERROR * completions >= kl.horizon_sequences:
            raise ValueError(
                f"objective.kl.horizon_sequences={kl.horizon_sequences} with {completions} completions a step "
                "(rollout.prompts_per_step x rollout.samples_per_prompt): one step below the target could turn beta "
                f"negative. Set horizon_sequences above {MAX_KL_ERROR * completions:g}"
            )
        return self

    @model_validator(mode="after")
    def _last_stage_is_reached(self) -> RunSpec:
        staged = self.rollout.staged
        if staged.type == "at_step" and staged.step > self.train.steps:
            raise ValueError(
                f"rollout.staged.step={staged.step} with train.steps={self.train.steps}: the limit never rises. Lower "
                "rollout.staged.step, or raise train.steps"
            )
        return self

    @property
    def optimizer_steps_per_rollout(self) -> int:
        return self.train.updates_per_rollout * self.train.epochs
