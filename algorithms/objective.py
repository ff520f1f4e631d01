"""The objective: one point in the knob space of policy-gradient post-training.

A knob is one dotted field (`baseline`, `rule.clip_high`). GRPO, Dr. GRPO, DAPO, ... are named points of this space
(`algorithms.presets`). An ablation changes one knob and keeps the others. In symbols, with r the importance ratio and w
the sampler correction:

    A    = (R - baseline) / scale                 advantages, one for each completion or each token
    loss = aggregation over tokens of [w rule(A, r) + beta KL + sequence penalty] - c entropy     minimised

With `distill`, a teacher adds a term to the advantages or to the loss. `overlong`, `zero_std`, `advantage_sign` and
`select` decide which rows and tokens enter the loss. Not every knob exists at every point; see `harness.settings`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from algorithms.aggregation import AGGREGATIONS, Aggregation, TokenWeight
from algorithms.critic import Critic
from algorithms.distillation import Distill, NoDistillation
from algorithms.entropy import Entropy
from algorithms.kl import Kl, NoKl
from algorithms.rules import RATIOS, RULES, Ratio, Rule
from algorithms.rules.policy_gradient import PolicyGradient
from algorithms.sampler_correction import NoCorrection, SamplerCorrection
from algorithms.selection import NoSelection, Select
from harness.errors import InvalidError
from harness.settings import InWords, OneOf, OnlyWith, Settings
from harness.settings.marks import YOUNGER, CannotAct

Baseline = Literal["none", "batch_mean", "group_mean", "leave_one_out", "length_weighted", "random_peer", "critic"]
Scale = Literal["none", "group_std", "batch_std", "mini_batch_std", "whiten_tokens", "nonzero_frac"]
AdvantageSign = Literal["both", "positive", "negative"]
Credit = Literal["completion", "steps"]
ZeroStd = Literal["keep", "mask", "drop", "refill"]

GROUP_BASELINES: tuple[Baseline, ...] = ("group_mean", "leave_one_out", "length_weighted")
_WITH_STD: tuple[Scale, ...] = ("group_std", "batch_std", "mini_batch_std", "whiten_tokens")


class Penalise(Settings):
    """A truncated completion keeps its reward, plus a penalty."""

    type: Literal["penalise"] = "penalise"
    penalty: float = Field(
        default=0.0,
        le=0,
        description="added to the reward of a truncated completion; default: off, as in most trainers",
    )


class MaskAfter(Settings):
    """A truncated completion counts in baselines and stds but not in the loss (overlong filtering, 2503.14476)."""

    type: Literal["mask_after"] = "mask_after"


class MaskBefore(Settings):
    """A truncated completion counts only in the denominators over completions, not in baselines, stds and the loss."""

    type: Literal["mask_before"] = "mask_before"


class Drop(Settings):
    """A truncated completion is removed from the batch and from all denominators."""

    type: Literal["drop"] = "drop"


class Soft(Settings):
    """DAPO's soft overlong punishment (2503.14476, eq. 13), added to the reward.

    It is 0 up to L - C tokens, then falls linearly to -factor at the limit L. C is cache_frac x L. A truncated
    completion gets -factor.
    """

    type: Literal["soft"] = "soft"
    cache_frac: float = Field(
        default=0.2,
        gt=0,
        le=1,
        description="C as a share of rollout.max_completion_tokens; default: the paper, 4096 of 20480",
    )
    factor: float = Field(default=1.0, gt=0, description="largest punishment; default: the paper")


Overlong = Annotated[Penalise | MaskAfter | MaskBefore | Drop | Soft, Field(discriminator="type")]
"""The treatments of truncated completions."""


OF_REWARDS = CannotAct(without_rewards="the loss uses no rewards")


class Objective(Settings):
    """The loss of a policy update. Knobs that do not exist at this point must keep their defaults."""

    baseline: Annotated[Baseline, OF_REWARDS] = Field(
        default="none",
        description="what is subtracted from each reward. none: nothing; batch_mean: the mean of the batch; "
        "group_mean: the mean of the prompt's group (GRPO, 2402.03300); leave_one_out: the mean of the group's other "
        "members (RLOO, 2402.14740); length_weighted: the group's mean weighted by completion length (OPO, "
        "2505.23585); random_peer: the reward of one random member of the group, and only the sign of the difference "
        "counts (BRPO, 2506.00103); critic: the critic's value of each token, by GAE (PPO)",
    )
    scale: Annotated[Scale, OF_REWARDS] = Field(
        default="none",
        description="what the centred rewards are divided by. none: nothing (Dr. GRPO, 2503.20783); group_std: the "
        "std of the group's rewards (GRPO); batch_std: the std of the batch's raw rewards (LitePPO, 2508.08221); "
        "mini_batch_std: the std of the centred rewards over the optimiser step (Magistral, 2506.10910); "
        "whiten_tokens: the std over all tokens, after their mean is subtracted, so that a completion counts once for "
        "each of its tokens (REINFORCE++, 2501.03262); nonzero_frac: the share of rewards that are not 0 (GPG, "
        "2504.02546)",
    )
    scale_ddof: Annotated[int, OnlyWith("scale", _WITH_STD), OF_REWARDS] = Field(
        default=1,
        ge=0,
        le=1,
        description="the std divides by n - ddof; default 1, as in TRL, verl, OpenRLHF's group norm (numpy: 0)",
    )
    scale_eps: Annotated[float, OnlyWith("scale", _WITH_STD), OF_REWARDS] = Field(
        default=1e-6,
        gt=0,
        description="added to the std, or with whiten_tokens to the variance; default: verl (elsewhere 1e-4 to 1e-9)",
    )
    advantage_sign: Annotated[AdvantageSign, OF_REWARDS] = Field(
        default="both",
        description="which completions enter the policy loss. both: all; positive: only A > 0 (as in "
        "rejection-sampling fine-tuning); negative: only A < 0. The others still count in the denominators",
    )
    credit: Annotated[Credit, OF_REWARDS] = Field(
        default="completion",
        description="what is rewarded. completion: the completion as a whole; steps: each of its steps. The step "
        "rewards are standardised over the group, and a token's advantage is their sum over all steps that end at this "
        "token or later (process supervision, 2402.03300, section 4.1.3)",
    )
    pass_k: Annotated[int, OnlyWith("baseline", ("group_mean", "leave_one_out")), OF_REWARDS, YOUNGER] = Field(
        default=1,
        ge=1,
        description="k of pass@k training (2508.10751). For every set of k completions of a group, take the best "
        "reward; a completion's reward is the mean over the sets that contain it. group_mean is then the mean over all "
        "sets, leave_one_out the mean over the sets without the completion, and group_std the std over all sets. "
        "Default 1: each completion's own reward",
    )
    ratio: Ratio = Field(
        default="none",
        description="importance ratio r of the current policy to the rollout policy. "
        f"{'; '.join(f'{name}: {ratio.about}' for name, ratio in RATIOS.items())}; none: for rules that have no ratio",
    )
    rule: Annotated[Rule, OneOf(RULES)] = PolicyGradient()
    select: Select = NoSelection()
    aggregation: Annotated[Aggregation, InWords(default="the algorithm's")] = Field(
        description="how token losses become one number over the whole optimiser step. "
        f"{'; '.join(f'{name}: {weight.about}' for name, weight in AGGREGATIONS.items())}. No default: trainers "
        "disagree under the same algorithm's name",
    )
    kl: Kl = NoKl()
    sequence_penalty: Annotated[
        float, CannotAct(at_ratio_one="every log-ratio is 0, where the penalty's gradient is 0")
    ] = Field(
        default=0.0,
        ge=0,
        description="tau: tau / 2 times the square of a completion's log-ratio to the rollout policy is added to the "
        "sum of its token losses (Kimi k1.5, 2501.12599, section 2.3.2); default: off",
    )
    entropy: Entropy = Entropy()
    distill: Annotated[Distill, YOUNGER] = NoDistillation()
    critic: Annotated[Critic, OnlyWith("baseline", ("critic",))] = Critic()
    overlong: Overlong = Penalise()
    zero_std: ZeroStd = Field(
        default="keep",
        description="what happens to groups whose rewards are all equal. keep: nothing; mask: their tokens do not "
        "enter the loss; drop: they are removed from the loss and its denominators; refill: they are removed, and "
        "other prompts are sampled until the batch is full (DAPO's dynamic sampling)",
    )
    refill_max_rounds: Annotated[int, OnlyWith("zero_std", ("refill",))] = Field(
        default=8, ge=1, description="maximum rounds of sampling, after which the batch is used as it is; default: ours"
    )
    sampler_correction: SamplerCorrection = NoCorrection()

    @property
    def token_weight(self) -> TokenWeight:
        """The entry of `AGGREGATIONS` for the knob's value."""
        return AGGREGATIONS[self.aggregation]

    def contradictions(self) -> Iterator[InvalidError]:
        yield from _ratio_problems(self)
        yield from _sampler_problems(self)
        yield from _scale_problems(self)
        yield from _penalty_problems(self)


def acts_without_advantage(objective: Objective) -> bool:
    """Return whether a completion whose advantages are all 0 can have a gradient, or change that of others."""
    # A selection ranks all tokens of the step, and kl_cov penalises those it selects at any advantage. A completion
    # counts in the tokens of its micro-batch only if it is part of it; other denominators are of the whole step.
    return (
        objective.rule.acts_without_advantage
        or objective.kl.where == "loss"
        or objective.distill.where == "loss"
        or objective.entropy.bonus > 0
        or objective.entropy.adaptive.type != "none"
        or objective.sequence_penalty > 0
        or objective.baseline == "critic"
        or objective.select.type != "none"
        or objective.token_weight.depends_on_split
    )


def _ratio_problems(objective: Objective) -> Iterator[InvalidError]:
    rule, ratio, select = objective.rule, objective.ratio, objective.select.type
    if rule.ratios and ratio not in rule.ratios:
        instead = f"{' or '.join(rule.ratios)}{', or rule.type to policy_gradient' if ratio == 'none' else ''}"
        yield InvalidError("algorithms.ratio_of_other_rules", ratio=ratio, rule=rule.type, instead=instead)
    # These selections set losses of tokens to 0. With one ratio for the whole completion the gradient of every other
    # token still reaches the log-probs of those tokens.
    shared = ratio != "none" and RATIOS[ratio].of_completion and rule.differentiates_ratio
    if select in ("clip_cov", "top_entropy") and shared:
        yield InvalidError("algorithms.selection_by_completions", select=select, ratio=ratio)


def _sampler_problems(objective: Objective) -> Iterator[InvalidError]:
    rule, select = objective.rule, objective.select.type
    if objective.sampler_correction.type != "in_ratio":
        return
    if not rule.ratios:
        yield InvalidError("algorithms.in_ratio_without_ratio", rule=rule.type)
    if select != "none":
        yield InvalidError("algorithms.in_ratio_with_selection", select=select)


def _scale_problems(objective: Objective) -> Iterator[InvalidError]:
    baseline, scale = objective.baseline, objective.scale
    # If all rewards are equal, their std is 0. The numerator must then be 0 too, or A becomes R / eps, which is huge.
    if scale == "group_std" and baseline not in GROUP_BASELINES:
        groups = ", ".join(GROUP_BASELINES)
        yield InvalidError("algorithms.group_std_without_groups", baseline=baseline, groups=groups)
    if scale in ("batch_std", "mini_batch_std") and baseline == "none":
        yield InvalidError("algorithms.batch_std_uncentred", scale=scale)
    if baseline == "critic" and scale not in ("none", "whiten_tokens", "group_std"):
        yield InvalidError("algorithms.std_with_critic", scale=scale)
    if objective.pass_k > 1 and scale not in ("none", "group_std"):
        yield InvalidError("algorithms.std_with_sets", scale=scale, pass_k=objective.pass_k)
    if baseline == "random_peer" and scale not in ("none", "group_std"):
        yield InvalidError("algorithms.std_with_signs", scale=scale)
    if objective.credit == "steps" and objective.zero_std != "keep":
        yield InvalidError("algorithms.zero_std_with_steps", zero_std=objective.zero_std)
    if objective.credit == "steps" and objective.pass_k > 1:
        yield InvalidError("algorithms.sets_of_steps", pass_k=objective.pass_k)
    standardises_steps = baseline == "group_mean" and scale in ("none", "group_std")
    if objective.credit == "steps" and baseline != "critic" and not standardises_steps:
        yield InvalidError("algorithms.steps_not_standardised", baseline=baseline, scale=scale)


def _penalty_problems(objective: Objective) -> Iterator[InvalidError]:
    kl, entropy, distill = objective.kl, objective.entropy, objective.distill
    if distill.where == "reward" and objective.advantage_sign != "both":
        yield InvalidError("algorithms.sign_with_teacher", sign=objective.advantage_sign)
    if distill.where == "reward" and not objective.rule.reads_advantage:
        yield InvalidError("algorithms.teacher_unheard", rule=objective.rule.type)
    if kl.where == "reward" and objective.credit == "steps" and objective.baseline != "critic":
        yield InvalidError("algorithms.kl_as_steps")
    if kl.where != "none" and kl.reference == "iteration_start":
        # Both the rewards and the controller's KL are computed before the first optimiser step, where this KL is 0.
        if kl.where == "reward":
            yield InvalidError("algorithms.kl_reward_is_zero")
        elif kl.control == "adaptive":
            yield InvalidError("algorithms.kl_measured_is_zero")
    adaptive = entropy.adaptive
    if adaptive.type != "none" and not adaptive.coef_min <= entropy.bonus <= adaptive.coef_max:
        yield InvalidError(
            "algorithms.bonus_outside_bounds", bonus=entropy.bonus, low=adaptive.coef_min, high=adaptive.coef_max
        )
