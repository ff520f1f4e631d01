"""Controllers: the coefficients that follow a measurement, one pure step at a time. They need no torch."""

from __future__ import annotations

from algorithms.knobs.entropy import StepBothWays, StepUpOnly
from algorithms.knobs.kl import KlInLoss, KlInReward

MAX_KL_ERROR = 0.2
"""The relative error of the KL counts at most this much, either way (1909.08593, section 2.2)."""


def next_entropy_coefficient(adaptive: StepBothWays | StepUpOnly, coefficient: float, entropy: float) -> float:
    """The coefficient after a measured entropy, in nats (Skywork-OR1, 2505.22312, section 4.4).

    Below the target up by delta; above it down by delta (step_both_ways) or as it was (step_up_only); at it as it was;
    always within the bounds.
    """
    if entropy < adaptive.target_nats:
        coefficient += adaptive.delta
    elif entropy > adaptive.target_nats and adaptive.type == "step_both_ways":
        coefficient -= adaptive.delta
    return min(max(coefficient, adaptive.coef_min), adaptive.coef_max)


def applied_entropy_coefficient(adaptive: StepBothWays | StepUpOnly, coefficient: float, entropy: float) -> float:
    """What the bonus is multiplied by at this entropy, in nats: the coefficient at or below the target, 0 above it."""
    return coefficient if entropy <= adaptive.target_nats else 0.0


def next_kl_coefficient(kl: KlInReward | KlInLoss, beta: float, measured_kl: float, sequences: int) -> float:
    """beta after a batch of `sequences` completions with this KL a token, in nats (1909.08593, section 2.2).

        beta (1 + clip(KL / target - 1, -0.2, 0.2) sequences / horizon)

    Raises ValueError for a batch so large against the horizon that beta could turn to 0 or negative.
    """
    if MAX_KL_ERROR * sequences >= kl.horizon_sequences:
        raise ValueError(
            f"kl.horizon_sequences={kl.horizon_sequences} with {sequences} completions a batch: one batch below the "
            f"target could turn kl.beta to 0 or negative; set it above {MAX_KL_ERROR * sequences:g}"
        )
    error = min(max(measured_kl / kl.target_nats - 1, -MAX_KL_ERROR), MAX_KL_ERROR)
    return beta * (1 + error * sequences / kl.horizon_sequences)
