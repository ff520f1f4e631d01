"""Which differences between two objectives cannot change any gradient: an ablation of them would measure noise.

With exactly one optimiser step per rollout every importance ratio is 1. Write the loss as sum_it u_it rule(A_i, r_it)
with the aggregation's weights u_it and completion lengths n_i. The gradient by token log-prob l_it is then

    policy_gradient, cispo with bound weight w = clip(1, weight_min, weight_max)     -u_it A_i w   (w = 1 without)
    weighted and ppo_clip: token ratio, dr_it / dl_it = 1                            -u_it A_i
        sequence_mean: each of n_i equal terms has dr_i / dl_it = 1 / n_i            -u_it A_i
        sequence_product: each of n_i equal terms has dr_i / dl_it = 1               -u_it A_i n_i

(the clip range always contains 1 and dual_clip bounds only ratios above it). This relies on A and u being constant
within a completion, which holds for every knob of `Objective`.
"""

from __future__ import annotations

from typing import NamedTuple

from algorithms.objective import Aggregation, Cispo, Objective, PpoClip, Weighted, active_knobs

# Aggregation -> its denominator over the step, and the power of n_i in a token's weight.
_TOKEN_WEIGHT: dict[Aggregation, tuple[str, int]] = {
    "token_mean": ("tokens", 0),
    "seq_mean_token_mean": ("sequences", -1),
    "seq_mean_token_sum": ("sequences", 0),
    "constant_length": ("sequences x max_completion_tokens", 0),
}
_CLIP_KNOBS = ("rule.clip_low", "rule.clip_high", "rule.dual_clip")


class _RatioOne(NamedTuple):
    """Factor of -u_it A_i in the gradient where every ratio is 1: weight x n_i ^ length_power."""

    weight: float
    length_power: int


def differences_that_cannot_act(a: Objective, b: Objective, updates_per_rollout: int) -> dict[str, str]:
    """The active knobs in which `a` and `b` differ without any effect on the gradient, each with the reason.

    `updates_per_rollout` counts the optimiser steps taken on one rollout batch: mini-batches times epochs. From 2 on
    ratios leave 1 and nothing is excluded. A knob that is not returned may act; one that is returned cannot, provided
    that the old log-probs come from the trainer itself, without dropout.
    """
    if updates_per_rollout < 1:
        raise ValueError(f"updates_per_rollout={updates_per_rollout}: a rollout has at least one optimiser step")
    if updates_per_rollout > 1:
        return {}
    knobs_a, knobs_b = active_knobs(a), active_knobs(b)
    differing = [
        knob
        for knob in dict.fromkeys([*knobs_a, *knobs_b])
        if (knob in knobs_a, knobs_a.get(knob)) != (knob in knobs_b, knobs_b.get(knob))
    ]
    same_factor = _at_ratio_one(a) == _at_ratio_one(b)
    same_gradient = _gradient_weight(a) == _gradient_weight(b)
    inert: dict[str, str] = {}
    for knob in differing:
        if knob in _CLIP_KNOBS:
            inert[knob] = "with one optimiser step per rollout every ratio is 1, inside any clip range"
        elif (knob == "ratio" or knob.startswith("rule.")) and (same_factor or same_gradient):
            inert[knob] = (
                "with one optimiser step per rollout every ratio is 1, where both objectives have one gradient"
            )
        elif knob == "aggregation" and same_gradient:
            inert[knob] = (
                "with one optimiser step per rollout the gradient of a sequence_product ratio carries the completion's "
                "length, which cancels the difference in aggregation"
            )
    return inert


def _at_ratio_one(objective: Objective) -> _RatioOne:
    rule = objective.rule
    if isinstance(rule, Cispo):
        return _RatioOne(weight=max(rule.weight_min, min(1.0, rule.weight_max or 1.0)), length_power=0)
    through_product = isinstance(rule, Weighted | PpoClip) and objective.ratio == "sequence_product"
    return _RatioOne(weight=1.0, length_power=int(through_product))


def _gradient_weight(objective: Objective) -> tuple[str, int, float]:
    denominator, power = _TOKEN_WEIGHT[objective.aggregation]
    factor = _at_ratio_one(objective)
    return denominator, power + factor.length_power, factor.weight
