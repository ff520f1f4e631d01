"""Points of the space of policy gradients for tests: every knob with values to move it to, and a random walk."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from algorithms import Objective, preset, presets, with_overrides
from algorithms.aggregation import AGGREGATIONS
from algorithms.kl import ESTIMATORS
from algorithms.rules import RATIOS
from harness.settings import knobs_of

POLICY_GRADIENT_KNOBS = tuple(knobs_of(Objective))

VALUES: dict[str, tuple[Any, ...]] = {
    "baseline": (
        "none",
        "batch_mean",
        "group_mean",
        "leave_one_out",
        "length_weighted",
        "random_peer",
        "critic",
    ),
    "scale": ("none", "group_std", "batch_std", "mini_batch_std", "whiten_tokens", "nonzero_frac"),
    "scale_ddof": (0, 1),
    "scale_eps": (1e-6, 1e-4),
    "pass_k": (1, 2, 3),
    "advantage_sign": ("both", "positive", "negative"),
    "credit": ("completion", "steps"),
    "ratio": tuple(RATIOS),
    "rule.type": ("policy_gradient", "supervised", "weighted", "ppo_clip", "cispo", "sapo", "gmpo"),
    "rule.clip_low": (0.2, 0.1),
    "rule.clip_high": (0.2, 0.28),
    "rule.dual_clip": (None, 3.0),
    "rule.weight_min": (0.0, 0.8, 1.5),
    "rule.weight_max": (None, 5.0, 0.5, 1.2),
    "rule.mask": ("none", "unified"),
    "rule.temperature_positive": (1.0, 2.0),
    "rule.temperature_negative": (1.05, 2.0),
    "rule.log_ratio_low": (0.4, 0.1),
    "rule.log_ratio_high": (0.4, 0.1),
    "select.type": ("none", "clip_cov", "kl_cov", "top_entropy"),
    "select.fraction": (0.3, 0.1),
    "select.cov_low": (1.0, -0.5),
    "select.cov_high": (5.0, 9.0),
    "select.coef": (1.0, 0.1),
    "aggregation": tuple(AGGREGATIONS),
    "kl.where": ("none", "reward", "loss"),
    "kl.estimator": tuple(sorted(ESTIMATORS)),
    "kl.beta": (0.001, 0.2),
    "kl.reference": ("initial", "refreshed", "iteration_start"),
    "kl.refresh_every_steps": (50, 7),
    "kl.control": ("fixed", "adaptive"),
    "kl.target_nats": (0.1, 0.3),
    "kl.horizon_sequences": (10_000, 500),
    "distill.where": ("none", "reward", "loss"),
    "distill.coef": (1.0, 0.3),
    "distill.verifier_coef": (1.0, 0.0),
    "distill.discount": (0.0, 0.5),
    "distill.beta": (0.5, 0.0, 1.0),
    "distill.temperature": (1.0, 2.0),
    "distill.top_k": (None, 5),
    "sequence_penalty": (0.0, 0.7),
    "entropy.bonus": (0.0, 0.01),
    "entropy.adaptive.type": ("none", "step_both_ways", "step_up_only"),
    "entropy.adaptive.target_nats": (0.2, 0.9),
    "entropy.adaptive.delta": (0.005, 0.1),
    "entropy.adaptive.coef_min": (0.0, 0.001),
    "entropy.adaptive.coef_max": (1.0, 0.5),
    "entropy.adaptive.estimator": ("full", "sampled"),
    "critic.gamma": (1.0, 0.99),
    "critic.lam": (0.95, 1.0),
    "critic.value_clip": (0.2, None),
    "critic.coef": (0.5, 0.1),
    "critic.trunk": ("own", "shared"),
    "critic.learning_rate_factor": (1.0, 10.0),
    "critic.warmup_steps": (0, 5),
    "critic.whiten_rewards": (False, True),
    "overlong.type": ("penalise", "mask_after", "mask_before", "drop", "soft"),
    "overlong.penalty": (0.0, -0.5),
    "overlong.cache_frac": (0.2, 0.5),
    "overlong.factor": (1.0, 0.3),
    "zero_std": ("keep", "mask", "drop", "refill"),
    "refill_max_rounds": (8, 3),
    "sampler_correction.type": (
        "none",
        "in_ratio",
        "token_unbounded",
        "token_truncate",
        "sequence_truncate",
        "token_band",
        "sequence_band",
        "geometric_veto",
    ),
    "sampler_correction.weight_max": (2.0, 1.1),
    "sampler_correction.weight_min": (0.5, 0.9),
    "sampler_correction.mean_min": (0.99, 0.5),
    "sampler_correction.mean_max": (1.01, 2.0),
    "sampler_correction.veto_below": (1e-4, 0.0),
}

_COMPANY: dict[tuple[str, Any], dict[str, Any]] = {
    ("rule.type", "weighted"): {"ratio": "token"},
    ("rule.type", "ppo_clip"): {"ratio": "token"},
    ("rule.type", "cispo"): {"ratio": "token", "rule.weight_max": 2.0},
    ("rule.type", "sapo"): {"ratio": "token"},
    ("rule.type", "gmpo"): {"ratio": "sequence_mean"},
    ("baseline", "none"): {"scale": "none"},
    ("baseline", "batch_mean"): {"scale": "none"},
    ("baseline", "random_peer"): {"scale": "none"},
    ("baseline", "critic"): {"scale": "none"},
    ("credit", "steps"): {"baseline": "group_mean", "scale": "none"},
    ("entropy.adaptive.coef_min", 0.001): {"entropy.bonus": 0.01},
}
"""What must move with a knob for it to make sense wherever it comes from."""


def moved(objective: Objective, knob: str, value: Any) -> Objective | None:
    """The objective with one knob at a value, and what must go with it; none where that makes no sense."""
    try:
        return with_overrides(objective, _COMPANY.get((knob, value), {}) | {knob: value})
    except ValueError:
        return None


def corners() -> list[Objective]:
    """GRPO with each value of each selector, and with pairs of them where one needs another."""
    grpo = preset("grpo", Objective)
    single = [
        found for knob, values in VALUES.items() for value in values if (found := moved(grpo, knob, value)) is not None
    ]
    further = [
        found
        for start in single
        for knob in ("kl.reference", "kl.control")
        for value in VALUES[knob]
        if (found := moved(start, knob, value)) is not None
    ]
    return list(dict.fromkeys([*single, *further]))


@st.composite
def points(draw: st.DrawFn) -> Objective:
    """A preset after up to ten moves of single knobs."""
    objective = preset(draw(st.sampled_from(presets("policy_gradient"))), Objective)
    for knob in draw(st.lists(st.sampled_from(POLICY_GRADIENT_KNOBS), max_size=10)):
        objective = moved(objective, knob, draw(st.sampled_from(VALUES[knob]))) or objective
    return objective
