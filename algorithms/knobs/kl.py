"""`kl`: a penalty on the divergence from a reference policy."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from algorithms.knobs.base import Knobs

RewardEstimator = Literal["k1", "k1_clamped", "k2", "k3"]
LossEstimator = Literal["k1", "k1_clamped", "k2", "k3", "k3_ratio", "k3_straight"]


class NoKl(Knobs):
    """No penalty."""

    where: Literal["none"] = "none"


class _Penalty(Knobs):
    beta: float = Field(
        default=0.001, gt=0, description="coefficient (where control=adaptive: the first one); default: DeepSeek-R1"
    )
    reference: Literal["initial", "refreshed", "iteration_start"] = Field(
        default="initial",
        description="the policy before reinforcement learning; its copy, renewed every refresh_every_steps; the policy "
        "that the rollout was drawn from",
    )
    refresh_every_steps: int = Field(
        default=50, ge=1, description="rollout batches between renewals of the reference; default: ours"
    )
    control: Literal["fixed", "adaptive"] = Field(
        default="fixed", description="adaptive: beta follows the measured KL (Ziegler et al. 1909.08593, section 2.2)"
    )
    target_nats: float = Field(default=0.1, gt=0, description="KL a token that beta is steered to; default: verl")
    horizon_sequences: int = Field(
        default=10_000, ge=1, description="completions over which beta can change by a fifth; default: verl"
    )


class KlInReward(_Penalty):
    """-beta KL is part of every token's reward, without gradient."""

    where: Literal["reward"] = "reward"
    estimator: RewardEstimator = Field(
        default="k1",
        description="k1: log-ratio, as in PPO for language models; k1_clamped: at least 0 (AlpacaFarm); k2: half its "
        "square; k3: r - 1 - log r (Schulman 2020, Approximating KL divergence)",
    )


class KlInLoss(_Penalty):
    """+beta KL is a term of the loss, with gradient, under the objective's aggregation."""

    where: Literal["loss"] = "loss"
    estimator: LossEstimator = Field(
        default="k3",
        description="k3: r - 1 - log r as in GRPO, whose gradient is biased; k2: half the squared log-ratio, whose "
        "gradient is the reverse KL's; k3_ratio: k3 times the importance ratio (TRL); k3_straight: the value of k3 "
        "with the gradient of k2 (verl); k1: its gradient has mean 0 on fresh samples; k1_clamped: k1, at least 0",
    )


Kl = Annotated[NoKl | KlInReward | KlInLoss, Field(discriminator="where")]
