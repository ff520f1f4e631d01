"""Rewards learned from pairs of completions. They are proxies of the grader's verdict, which is recorded too."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field, field_validator

from algorithms import Objective
from evals.grading.asked_model import Asking
from evals.prompts import get_template
from evals.tasks import get_task
from harness.config.scored import HeldModel, ScoredPart
from harness.rewards import Attempt, RewardContext
from harness.settings.marks import Hashed
from harness.shelves.learned.judging import AskedJudge, comparison_of, read_pair_judge

if TYPE_CHECKING:
    from harness.config.run_spec import RunSpec


class LearnedReward(ScoredPart):
    """The score of a Bradley-Terry model of the verdict, in standard deviations over the starting weights' completions.

    The model is trained once, on completions of the starting weights, and shared by all arms and seeds. The options say
    how; see `harness.shelves.learned.reward_model`.
    """

    name = "reward_model"
    noun = "a reward model"
    stage = "reward_model"

    prompts: int = Field(512, ge=10, description="training prompts whose completions it learns from; a tenth held out")
    samples_per_prompt: int = Field(8, ge=2, le=100_000, description="completions per prompt, drawn as in training")
    label_noise_rate: float = Field(0.0, ge=0, lt=0.5, description="share of pairs with a flipped label")
    steps: int = Field(200, ge=1, le=10_000_000, description="optimiser steps")
    batch_size: int = Field(32, ge=1, le=1_000_000, description="pairs per optimiser step")
    learning_rate: float = Field(1e-3, gt=0, description="peak; warms up over 5 % of the steps, then falls to 2 %")
    seed: int = Field(0, ge=0, description="fixes the order of pairs, their labels and which of them are kept")

    def rewards(self, group: Sequence[Attempt], context: RewardContext) -> list[float]:
        scores = [attempt.scores.get(self.name) for attempt in group]
        return [score if isinstance(score, float) else math.nan for score in scores]

    def problems(self, spec: RunSpec) -> Iterator[str]:
        first = spec.eval.tasks[0]
        trained = (
            f"eval.tasks begins with {first} and a reward model is trained, whose best of n is taken of completions on "
            "that task"
        )
        if get_task(first).gives_choices:
            yield f"{trained}: it has choices only. Name a task first whose answers are written"
        if get_task(first).environment is not None:
            yield (
                f"{trained}: it would read them without the environment's words. Name a task first that has no "
                "environment"
            )

    def held(self, spec: RunSpec) -> HeldModel:
        return HeldModel("reward_model", in_float32=True)


class PairwiseJudge(ScoredPart):
    """1 where a generative judge prefers the completion to one random completion of its group, -1 where it does not.

    The pairwise reward of Writing-Zero (2506.00103). The judge is a language model that reads the problem and both
    completions and writes two scores. It is asked in both orders. The completion gets 1 if both verdicts prefer it, -1
    if both prefer the reference, `tie` if the scores are equal or the verdicts differ, and NaN if no scores can be
    read. The reference itself gets 0; the paper leaves it out, which multiplies the step by G / (G - 1).

    With algorithm=brpo or objective.baseline=none the reward is the advantage; brpo uses the same reference.

    With `judge` the file says which model is asked and how its reply is read. Without, the judge starts from the
    starting weights and is trained once for all arms and seeds: supervised on labelled pairs,
    then by GRPO, with reward 1 if the better completion gets the higher score. The paper also rewards format, margin
    and equal verdicts in both orders, lets the judge write critiques before the scores, and skips groups in which more
    than 80 % of the comparisons agree. It leaves open whether differing verdicts should count 0 or -1.

    Traps: a judge that flips often (judge/flip_frac) gives few rewards, since a tie teaches nothing. judge/right_frac
    falls once the policy moves away from the completions that the judge was trained on. If the judge is as large as the
    policy, two questions per completion cost more than the policy's own step; no token budget counts them.
    """

    name = "pairwise"
    noun = "a pairwise judge"
    stage = "judge"

    prompts: int = Field(512, ge=10, description="training prompts whose completions it learns from; a tenth held out")
    samples_per_prompt: int = Field(8, ge=2, le=100_000, description="completions per prompt, drawn as in training")
    label_noise_rate: float = Field(
        0.0, ge=0, lt=0.5, description="share of pairs with a flipped label; contradictory pairs are left out"
    )
    template: Annotated[str | None, Hashed("template")] = Field(
        None, description="prompt template with {problem}, {first} and {second}; default: the task's"
    )
    max_completion_tokens: int = Field(
        8, ge=4, le=10_000_000, description="limit for the judge's answer, which ends with its two scores"
    )
    cold_start_steps: int = Field(
        200, ge=1, le=10_000_000, description="supervised optimiser steps on scores that follow the labels"
    )
    cold_start_learning_rate: float = Field(
        1e-3, gt=0, description="peak; warms up over 5 % of the steps, then falls to 2 %"
    )
    batch_size: int = Field(32, ge=1, le=1_000_000, description="pairs per optimiser step, supervised or not")
    steps: int = Field(100, ge=0, le=10_000_000, description="policy-gradient steps after the cold start")
    samples_per_pair: int = Field(8, ge=2, le=100_000, description="judgements per pair in a policy-gradient step")
    learning_rate: float = Field(1e-4, gt=0, description="learning rate of the policy-gradient steps")
    tie: float = Field(
        0.0, ge=-1, le=1, description="reward if the two orders do not agree on a winner; the paper leaves 0 or -1 open"
    )
    seed: int = Field(0, ge=0, description="fixes the order of pairs, their labels and which of them are kept")

    judge: Annotated[str | None, Hashed("judge", at_default=False)] = Field(
        None, description="YAML file of a judge that is asked at an address, or in process; default: one is trained"
    )
    TRAINING: ClassVar[tuple[str, ...]] = (
        *("prompts", "samples_per_prompt", "label_noise_rate", "template", "max_completion_tokens"),
        *("cold_start_steps", "cold_start_learning_rate", "batch_size", "steps", "samples_per_pair"),
        *("learning_rate", "seed"),
    )
    """The options that only a trained judge has."""

    @field_validator("judge")
    @classmethod
    def _judge_can_be_read(cls, name: str | None) -> str | None:
        if name is not None:
            read_pair_judge(name)
        return name

    def contradictions(self) -> Iterator[str]:
        for name in self.TRAINING if self.judge is not None else ():
            if (value := getattr(self, name)) != type(self).model_fields[name].default:
                yield (
                    f"{name}={value} has no effect with judge={self.judge}, which is not trained: leave one of them out"
                )

    @property
    def asked(self) -> AskedJudge | None:
        """The judge of a file; None for one that is trained."""
        return None if self.judge is None else read_pair_judge(self.judge)

    def rewards(self, group: Sequence[Attempt], context: RewardContext) -> list[float]:
        found = [comparison_of(attempt) for attempt in group]
        return [0.0 if one is None else self._reward(one.preference.agreed) for one in found]

    def _reward(self, agreed: float) -> float:
        """Return the reward of a verdict; NaN stays NaN."""
        return self.tie if agreed == 0 else agreed

    def problems(self, spec: RunSpec) -> Iterator[str]:
        for template in self.templates(spec).values():
            missing = [hole for hole in ("{first}", "{second}") if hole not in get_template(template).text]
            if missing:
                yield (
                    f"reward.pairwise.template={template}: the template has no {' and no '.join(missing)} to hold the "
                    "completions. Put both into its text, or name another template (`bench ls templates`)"
                )
        if spec.rollout.samples_per_prompt == 1:
            yield (
                "rollout.samples_per_prompt=1 with reward.parts.pairwise: the judge compares two completions of a "
                "prompt, and there is only one. Raise samples_per_prompt, or leave the part out"
            )
        objective = spec.objective if isinstance(spec.objective, Objective) else None
        if objective and objective.baseline == "random_peer" and objective.overlong.type == "drop":
            yield (
                "objective.overlong.type=drop with objective.baseline=random_peer and reward.parts.pairwise: a "
                "truncated reference would be dropped, and the baseline would use another completion than the judge "
                "did. Set overlong.type to mask_after, or baseline to none"
            )

    def asks(self) -> dict[str, Asking]:
        return {} if self.asked is None else {"reward.pairwise.judge": self.asked}

    def templates(self, spec: RunSpec) -> dict[str, str]:
        return {"judge_template": self.template_of(spec)} if self.asked is None else {}

    def template_of(self, spec: RunSpec) -> str:
        """Return the template with which a trained judge is asked."""
        return self.template or get_task(spec.task.train).judge_template

    def held(self, spec: RunSpec) -> HeldModel | None:
        """Return the trained judge. Each of its two questions per completion shows the completion and its reference."""
        rollout = spec.rollout
        questions = 2 * rollout.prompts_per_step * rollout.samples_per_prompt
        tokens = 2 * rollout.max_completion_tokens + self.max_completion_tokens
        return HeldModel("judge", False, "judging", questions, tokens) if self.asked is None else None

    def cannot_act(self, a: RunSpec, b: RunSpec) -> dict[str, str]:
        """Map knobs that change the size but not the sign of the rewards to the reason, if only the sign counts."""
        if not all(map(_decides_sign, (a, b))):
            return {}
        (weight, tie), (other_weight, other_tie) = (
            (spec.reward.parts[self.name], spec.reward.of(PairwiseJudge).tie) for spec in (a, b)
        )
        inert = []
        if weight != other_weight:
            inert.append(f"reward.parts.{self.name}")
        # Ties of one sign act alike. 0 is a sign of its own.
        if tie != other_tie and tie * other_tie > 0:
            inert.append(f"reward.{self.section}.tie")
        reason = "objective.baseline=random_peer takes the sign of the reward, and the judge alone gives it"
        return dict.fromkeys(inert, reason)


def _decides_sign(spec: RunSpec) -> bool:
    """Return whether advantages are the signs of a judge's verdicts, and nothing else depends on the rewards."""
    objective = spec.objective
    return (
        isinstance(objective, Objective)
        and (objective.baseline, objective.scale) == ("random_peer", "none")
        and objective.kl.where != "reward"
        and (objective.overlong.type != "soft" and not getattr(objective.overlong, "penalty", 0.0))
        and spec.rollout.staged.type != "converged"
        and [name for name, weight in spec.reward.parts.items() if weight] == [PairwiseJudge.name]
        and spec.reward.parts[PairwiseJudge.name] > 0
    )
