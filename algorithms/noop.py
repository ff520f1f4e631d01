"""Differences in settings that leave every gradient unchanged. An ablation of them would measure only noise.

With exactly one optimiser step per rollout, pi = pi_old in that step. So every log-ratio delta_it is 0 and every
importance ratio is 1. If the ratio is to the sampler (sampler_correction.type=in_ratio), none of this is assumed.
Write the policy term of the loss as sum_it u_it w_it s_it rule(A_it, r_it). u is the aggregation's weight (a
denominator, and a power of the completion's length n_i), w the sampler correction and s the selection, all without
gradient. With g_it = -u_it w_it s_it A_it, the gradient with respect to the log-prob of token t is

    through log pi alone (policy_gradient, cispo)                            c g_it
    token ratio, d r_it / d l_it = 1                                         c g_it
    sequence_mean, every r_i has d r_i / d l_it = 1 / n_i                    c G_i, the mean of c g over the completion
    sequence_product, every r_i has d r_i / d l_it = 1                       n_i c G_i

where l_it is the token's log-prob and c the rule's slope at ratio 1 (`Rule.slope_at_ratio_one`). c is 1 for most rules:
clip ranges contain 1, dual_clip applies only above 1, gmpo clips log-ratios away from 0, and sapo multiplies a sigmoid
of slope 1/4 by 4 at any temperature. For cispo, c is the weight of a token at ratio 1: 1 clamped to the
bounds or, with the unified mask, 1 or 0 by the sign of A.

G_i equals g_it if A and w are constant within a completion. They are not constant with a critic, with credit=steps,
with returns to go (baseline=none with the KL in the reward), with a teacher in the reward, or with per-token sampler
weights. Further facts at delta = 0:

* |delta| (kl_cov) and delta^2 (sequence_penalty) have gradient 0.
* k3_ratio has the gradient of k2 here, and k3_straight has it everywhere. If the reference is pi_old
  (kl.reference=iteration_start), k2, k3 and both variants of k3 have gradient 0, but k1 does not.
* The values equal the old values, so they are inside any value_clip.

Some differences have no effect with any number of optimiser steps:

* k2 instead of k3_straight, which has k2's gradient by definition.
* Another reference for k1, whose derivative with respect to l_it is always 1.
* A bound that applies only to advantages of a sign that advantage_sign removes.
* Masking groups that add nothing to the gradient anyway.
* The computation of advantages from rewards, if distill.verifier_coef is 0 or the rule ignores advantages.
* The policy term itself, if the loss consists only of the teacher's term.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple, TypeVar

from algorithms.kl import ESTIMATORS
from algorithms.objective import GROUP_BASELINES, Objective, acts_without_advantage
from algorithms.rules import RATIOS, Ratio, Rule, Sign
from harness import plugins
from harness.errors import InvalidError
from harness.settings import KnobValue, active_knobs, knobs_of
from harness.settings.marks import CannotAct

Said = TypeVar("Said")

_ONE_STEP = "with one optimiser step per rollout "


def differences_that_cannot_act(a: Objective, b: Objective, updates_per_rollout: int) -> dict[str, str]:
    """Map each active knob that differs without any effect on the gradient to the reason.

    updates_per_rollout: optimiser steps on one rollout batch, which is mini-batches times epochs. A differing knob that
    is not returned may have an effect. The returned knobs have none, even together, on two conditions: the trainer
    itself computed the old log-probs, without dropout, and no log-ratio to the reference is beyond +-20 nats. Raises
    ValueError for updates_per_rollout below 1.
    """
    if updates_per_rollout < 1:
        raise InvalidError("algorithms.no_update", updates_per_rollout=updates_per_rollout)
    if a == b:
        return {}
    pair = _Pair(a, b)
    # A reason that holds for any number of steps takes precedence, because it does not depend on the run's settings.
    reasons = pair.without_effect_ever()
    if updates_per_rollout == 1 and all(one.sampler_correction.type != "in_ratio" for one in (a, b)):
        reasons = {knob: _ONE_STEP + reason for knob, reason in pair.without_effect_in_one_step().items()} | reasons
    return {knob: reasons[knob] for knob in pair.differing if knob in reasons}


class _PolicyTerm(NamedTuple):
    """The gradient of a token's policy term where every ratio is 1, in terms of g (see the module docstring)."""

    slopes: tuple[float | None, ...]
    """c for each sign of advantages in use; None if the rule does not define c."""
    unsaid: tuple[Rule, Ratio] | None
    """The rule and its ratio if the rule does not define c. Two such terms are equal only if both agree."""
    shared: bool
    """True if the token's gradient has the mean of g over the completion instead of the token's g."""
    length_power: int
    """The gradient has a further factor n_i to this power."""


@plugins.cached
def _marked() -> dict[str, CannotAct]:
    """Map each knob that is annotated with `CannotAct` to that annotation."""
    return {name: mark for name, knob in knobs_of(Objective).items() if (mark := knob.mark(CannotAct))}


_active_knobs = lru_cache(maxsize=1024)(active_knobs)
"""Cached, because each of hundreds of arms is compared with all others."""


class _Pair:
    """Two objectives and the knobs in which they differ."""

    def __init__(self, a: Objective, b: Objective) -> None:
        self.both = (a, b)
        self.knobs = (_active_knobs(a), _active_knobs(b))
        # `dict.fromkeys` keeps the order of the knobs, in which reasons are reported.
        self.differing = [knob for knob in dict.fromkeys([*self.knobs[0], *self.knobs[1]]) if self._differs(knob)]

    def _differs(self, knob: str) -> bool:
        # A knob that does not exist in one objective differs from a knob with the value None.
        values = [(knob in knobs, knobs.get(knob)) for knobs in self.knobs]
        return values[0] != values[1]

    def _values(self, knob: str) -> set[KnobValue]:
        return {knobs.get(knob) for knobs in self.knobs}

    def without_effect_ever(self) -> dict[str, str]:
        reasons = {}
        for knob, sign in self._rule_knob_facts(lambda rule: rule.acts_on_sign()).items():
            if sign not in self._signs():
                reasons[knob] = f"it acts on {sign} advantages only, which advantage_sign removes"
        every = ESTIMATORS.items()
        shared = [f"{name} has the gradient of {one.gradient_of}" for name, one in every if one.gradient_of]
        free = [f"that of {name} does not depend on the reference" for name, one in every if not one.reads_reference]
        reasons |= dict.fromkeys(self._inert_kl(first_step=False), ", and ".join([*shared, *free]))
        if self._values("zero_std") == {"keep", "mask"} and all(map(_equal_rewards_add_nothing, self.both)):
            reasons["zero_std"] = (
                "groups of equal rewards have no advantage and no other term of the loss, and stay in the denominator "
                "over completions either way"
            )
        return reasons | self._unheard()

    def _unheard(self) -> dict[str, str]:
        """Map knobs to a reason if neither objective uses reward-based advantages, or neither has a policy term."""
        if any(
            objective.baseline == "critic" for objective in self.both
        ):  # the critic is trained on rewards in any case
            return {}
        reasons = {}
        if not any(map(hears_rewards, self.both)):
            reasons = {name: mark.without_rewards for name, mark in _marked().items() if mark.without_rewards}
        if not any(map(_has_policy_term, self.both)):
            of_policy = ("ratio", *self._group("rule"), *self._group("sampler_correction"))
            reasons |= dict.fromkeys(of_policy, "distill.verifier_coef=0 leaves only the teacher's term")
        return reasons

    def without_effect_in_one_step(self) -> dict[str, str]:
        reasons = {name: mark.at_ratio_one for name, mark in _marked().items() if mark.at_ratio_one}
        reasons |= self._rule_knob_facts(lambda rule: rule.inert_at_ratio_one)
        # Either the policy terms are equal, or the factor n_i of a sequence ratio cancels another aggregation.
        same_term, same_weight = self._same_policy_term(), self._same_token_weight()
        if same_term or same_weight:
            one_gradient = "every ratio is 1, where both objectives have one gradient"
            reasons = dict.fromkeys(("ratio", *self._group("rule")), one_gradient) | reasons
        if same_weight:
            reasons["aggregation"] = (
                "the gradient of a sequence_product ratio carries the completion's length, which cancels the "
                "difference in aggregation"
            )
        if self._values("select.type") <= {"none", "kl_cov"}:
            reasons |= dict.fromkeys(
                self._group("select"), "every log-ratio is 0, where kl_cov's penalty has gradient 0"
            )
        return reasons | dict.fromkeys(
            self._inert_kl(first_step=True), "every ratio is 1, where the KL terms of both have one gradient"
        )

    def _group(self, field: str) -> list[str]:
        return [knob for knob in self.differing if knob.startswith(f"{field}.")]

    def _rule_knob_facts(self, says: Callable[[Rule], Mapping[str, Said]]) -> dict[str, Said]:
        """Map dotted rule knobs to what the rules say about them. If both rules have a knob, both must say the same."""
        rules = [objective.rule for objective in self.both]
        return {
            f"rule.{knob}": said
            for speaker in rules
            for knob, said in says(speaker).items()
            if all(says(rule).get(knob) == said for rule in rules if knob in type(rule).model_fields)
        }

    def _inert_kl(self, first_step: bool) -> list[str]:
        a, b = (_kl_gradient(objective, first_step) for objective in self.both)
        if a == b:
            return self._group("kl")
        return ["kl.estimator"] if a[0] == b[0] != "reward" else []

    def _same_policy_term(self) -> bool:
        a, b = map(self._policy_term, self.both)
        return a == b

    def _same_token_weight(self) -> bool:
        """Return whether policy term and aggregation together give every token the same gradient in both objectives."""
        # The aggregation also weights the KL and the teacher's term of the loss, which have no ratio to cancel it.
        if any(_kl_gradient(objective, first_step=True)[0] not in ("none", "reward") for objective in self.both):
            return False
        if any(objective.distill.where == "loss" for objective in self.both):
            return False
        weights = []
        for objective in self.both:
            term, weight = self._policy_term(objective), objective.token_weight
            power = term.length_power - weight.length_power
            weights.append((set(weight.counts), power, term._replace(length_power=0)))
        return weights[0] == weights[1]

    def _policy_term(self, objective: Objective) -> _PolicyTerm:
        rule, ratio = objective.rule, RATIOS.get(objective.ratio)
        slopes = tuple(rule.slope_at_ratio_one(sign) for sign in self._signs())
        return _PolicyTerm(
            slopes=slopes,
            unsaid=(rule, objective.ratio) if None in slopes else None,
            shared=ratio is not None
            and rule.differentiates_ratio
            and ratio.of_completion
            and not all(map(_constant_within_completions, self.both)),
            length_power=ratio.length_power if ratio and rule.differentiates_ratio else 0,
        )

    def _signs(self) -> list[Sign]:
        """Return the signs of advantages that at least one of the objectives uses."""
        chosen = self._values("advantage_sign")
        signs: tuple[Sign, ...] = ("positive", "negative")
        return [sign for sign in signs if chosen & {"both", sign}]


def hears_rewards(objective: Objective) -> bool:
    """Return whether rewards affect training: through the advantages in the loss, or through a critic."""
    if objective.baseline == "critic":
        return True
    distill = objective.distill
    if distill.where != "none" and distill.verifier_coef == 0:
        return False
    return objective.rule.reads_advantage or objective.select.type != "none"


def _has_policy_term(objective: Objective) -> bool:
    """Return whether the policy term can have a gradient at all."""
    # A teacher in the reward contributes advantages even if the advantages from rewards are multiplied by 0.
    acts = objective.rule.acts_without_advantage or objective.select.type != "none"
    return acts or objective.distill.where != "loss" or objective.distill.verifier_coef > 0


def _constant_within_completions(objective: Objective) -> bool:
    """Return whether advantages and sampler weights are the same for all tokens of a completion."""
    # geometric_veto and the sequence_* corrections give a completion a single weight, so they are not excluded.
    returns_to_go = objective.baseline == "none" and objective.kl.where == "reward"
    return (
        objective.baseline != "critic"
        and objective.credit == "completion"
        and not returns_to_go
        and objective.distill.where != "reward"
        and objective.sampler_correction.type not in ("token_unbounded", "token_truncate", "token_band")
    )


def _kl_gradient(objective: Objective, first_step: bool) -> tuple[KnobValue, ...]:
    """Return the values that determine the KL's gradient. The first is "none", "reward", or the loss's estimator."""
    kl, knobs = objective.kl, _active_knobs(objective.kl)
    if kl.where == "none":
        return ("none",)
    estimator = ESTIMATORS[kl.estimator]
    if kl.where == "reward":
        return ("reward", *knobs.values())
    # The policy is its own reference in the first step: d is 0.
    if first_step and kl.reference == "iteration_start" and not estimator.slope_at_zero:
        return ("none",)
    form = kl.estimator
    # An adaptive beta follows the value of the estimate too, so equal gradients are not enough there.
    if kl.control == "fixed":
        if not estimator.reads_reference:
            return (form, kl.beta)
        form = (first_step and estimator.gradient_at_ratio_one) or estimator.gradient_of or form
    return (form, *(value for knob, value in knobs.items() if knob != "estimator"))


def _equal_rewards_add_nothing(objective: Objective) -> bool:
    """Return whether a group of equal rewards adds exactly 0 to every gradient, masked or not."""
    # Masking removes tokens from denominators over tokens, so only denominators over completions qualify.
    return (
        objective.baseline in (*GROUP_BASELINES, "random_peer")
        and objective.scale in ("none", "group_std")
        and objective.credit == "completion"
        and objective.kl.where != "reward"
        and objective.distill.where != "reward"
        and not acts_without_advantage(objective)
        and set(objective.token_weight.counts) <= {"sequences", "limit"}
    )
