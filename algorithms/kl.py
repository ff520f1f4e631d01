"""`kl`: knobs and estimators of a penalty on the divergence from a reference policy, and the controller of its beta.

With d = log pi - log pi_ref at tokens sampled from pi, the estimators are k1 = d, k2 = d^2 / 2 and
k3 = exp(-d) - 1 + d (Schulman 2020, "Approximating KL divergence"). Their gradients differ more than their values. On
fresh samples, the gradient of k1 has mean 0, that of k2 is the gradient of the reverse KL, and that of k3 is biased.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from algorithms.rules import bounded_exp, k2_of, k3_of
from harness.errors import InvalidError
from harness.settings import OnlyWith, Settings

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class KlEstimator:
    """An estimate of the KL at a token: all that is known of a value of the knobs `kl.estimator`."""

    in_loss: str
    """The words of the knob's description for the value; `in_reward` is "" if a KL in the reward cannot have it."""
    in_reward: str
    formula: str
    of: Callable[[Tensor, Tensor], Tensor]
    """Returns the estimates [B, T], from d and log r."""
    gradient_of: str = ""
    """The estimator whose gradient it has, or has where r is 1."""
    gradient_at_ratio_one: str = ""
    slope_at_zero: bool = False
    """True if it can have a gradient at d = 0."""
    reads_reference: bool = True
    """True if its gradient depends on the reference."""


def _straight(log_ratio: Tensor, log_r: Tensor) -> Tensor:
    # Straight-through: the bracket is 0 in value and has k2's gradient.
    k2 = k2_of(log_ratio)
    return k3_of(log_ratio).detach() + (k2 - k2.detach())


ESTIMATORS: Mapping[str, KlEstimator] = {
    "k3": KlEstimator(
        "r - 1 - log r as in GRPO, whose gradient is biased",
        "r - 1 - log r (Schulman 2020, Approximating KL divergence)",
        "exp(-d) - 1 + d (not multiplied by r)",
        lambda d, log_r: k3_of(d),
    ),
    "k2": KlEstimator(
        "half the squared log-ratio, whose gradient is the reverse KL's",
        "half its square",
        "d^2 / 2",
        lambda d, log_r: k2_of(d),
    ),
    "k3_ratio": KlEstimator(
        "k3 times the importance ratio (TRL)",
        "",
        "(exp(-d) - 1 + d) r (k3 multiplied by the token's ratio r)",
        lambda d, log_r: k3_of(d) * bounded_exp(log_r),
        gradient_at_ratio_one="k2",
    ),
    "k3_straight": KlEstimator(
        "the value of k3 with the gradient of k2 (verl)",
        "",
        "exp(-d) - 1 + d in value, d^2 / 2 in gradient (k3 not multiplied by r)",
        _straight,
        gradient_of="k2",
    ),
    "k1": KlEstimator(
        "its gradient has mean 0 on fresh samples",
        "log-ratio, as in PPO for language models",
        "d",
        lambda d, log_r: d,
        slope_at_zero=True,
        reads_reference=False,
    ),
    "k1_clamped": KlEstimator(
        "k1, at least 0", "at least 0 (AlpacaFarm)", "max(d, 0)", lambda d, log_r: d.clamp(min=0), slope_at_zero=True
    ),
}
"""In the order in which the knob of the loss describes them."""

_IN_REWARD = sorted(name for name, one in ESTIMATORS.items() if one.in_reward)

if TYPE_CHECKING:
    RewardEstimator = str
    LossEstimator = str
else:
    RewardEstimator, LossEstimator = Literal[*_IN_REWARD], Literal[*sorted(ESTIMATORS)]

MAX_KL_ERROR = 0.2
"""The controller clips the relative error of the measured KL to +-MAX_KL_ERROR (1909.08593, section 2.2)."""


class NoKl(Settings):
    """No penalty."""

    where: Literal["none"] = "none"


class _Penalty(Settings):
    beta: float = Field(
        default=0.001,
        gt=0,
        description="coefficient of the penalty; with control=adaptive its initial value; default: DeepSeek-R1",
    )
    reference: Literal["initial", "refreshed", "iteration_start"] = Field(
        default="initial",
        description="initial: the policy before reinforcement learning; refreshed: a copy of the policy, renewed every "
        "refresh_every_steps; iteration_start: the policy that sampled the rollout",
    )
    refresh_every_steps: Annotated[int, OnlyWith("reference", ("refreshed",))] = Field(
        default=50, ge=1, description="rollout batches between renewals of the reference; default: ours"
    )
    control: Literal["fixed", "adaptive"] = Field(
        default="fixed",
        description="fixed: beta is constant; adaptive: beta follows the measured KL (Ziegler et al. 1909.08593, "
        "section 2.2)",
    )
    target_nats: Annotated[float, OnlyWith("control", ("adaptive",))] = Field(
        default=0.1, gt=0, description="KL per token that beta is steered to; default: verl"
    )
    horizon_sequences: Annotated[int, OnlyWith("control", ("adaptive",))] = Field(
        default=10_000, ge=1, description="completions over which beta changes by at most 20 %; default: verl"
    )


class KlInReward(_Penalty):
    """-beta KL is part of every token's reward, without gradient."""

    where: Literal["reward"] = "reward"
    estimator: RewardEstimator = Field(
        default="k1",
        description="; ".join(f"{name}: {ESTIMATORS[name].in_reward}" for name in _IN_REWARD),
    )


class KlInLoss(_Penalty):
    """+beta KL is a term of the loss, with gradient, under the objective's aggregation."""

    where: Literal["loss"] = "loss"
    estimator: LossEstimator = Field(
        default="k3",
        description="; ".join(f"{name}: {one.in_loss}" for name, one in ESTIMATORS.items()),
    )


Kl = Annotated[NoKl | KlInReward | KlInLoss, Field(discriminator="where")]


def kl_estimate(estimator: LossEstimator, logp: Tensor, ref_logp: Tensor, old_logp: Tensor) -> Tensor:
    """Estimate the KL at every token, in nats.

    All arguments and the result have one shape. Gradients flow to `logp` alone. With r = pi / pi_old.

    Exponentials are bounded: below d = -LOG_RATIO_LIMIT, k3 is constant and has no gradient. k3 has no other bound.
    (verl clips k3 at 10, so tokens that became e^2.6 times less likely have no gradient.)
    """
    return ESTIMATORS[estimator].of(logp - ref_logp.detach(), logp - old_logp.detach())


def kl_penalties(kl: KlInReward, old_logp: Tensor, ref_logp: Tensor, coefficient: float, mask: Tensor) -> Tensor:
    """Compute -coefficient x estimated KL of the rollout policy at every token: [B, T], 0 outside the mask.

    The result has no gradient. All tensors are [B, T]. coefficient: kl.beta, or the controller's current value.
    """
    # The policy at the rollout is pi_old, so `old_logp` is passed for both policies.
    estimates = kl_estimate(kl.estimator, old_logp.detach(), ref_logp, old_logp)
    return (-coefficient * estimates).where(mask.bool(), 0)


def next_kl_coefficient(kl: KlInReward | KlInLoss, beta: float, measured_kl: float, sequences: int) -> float:
    """Return the new beta after `sequences` completions with this KL per token in nats (1909.08593, section 2.2).

        beta (1 + clip(KL / target - 1, -0.2, 0.2) sequences / horizon)
    Raises ValueError if the batch is so large relative to the horizon that beta could become 0 or negative.
    """
    # For any KL the factor is at least 1 - 0.2 sequences / horizon. So the check does not depend on the measured KL.
    if MAX_KL_ERROR * sequences >= kl.horizon_sequences:
        raise InvalidError(
            "algorithms.horizon_too_short",
            horizon=kl.horizon_sequences,
            sequences=sequences,
            least=MAX_KL_ERROR * sequences,
        )
    error = min(max(measured_kl / kl.target_nats - 1, -MAX_KL_ERROR), MAX_KL_ERROR)
    return beta * (1 + error * sequences / kl.horizon_sequences)
