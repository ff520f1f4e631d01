"""`critic`: the value function of PPO (1707.06347) and its generalised advantage estimation (1506.02438)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from algorithms.knobs.base import Knobs


class Critic(Knobs):
    """Exists with baseline=critic."""

    gamma: float = Field(default=1.0, gt=0, le=1, description="discount a token; default: PPO for language models")
    lam: float = Field(default=0.95, ge=0, le=1, description="lambda of GAE; default: TRL (verl, OpenRLHF: 1)")
    value_clip: float | None = Field(
        default=0.2,
        gt=0,
        description="new values count at most this far from the old ones; none: unbounded. Default: TRL (verl: 0.5)",
    )
    coef: float = Field(
        default=0.5, gt=0, description="of the value loss beside the policy loss; default: OpenAI baselines (TRL: 0.1)"
    )
    trunk: Literal["own", "shared"] = Field(
        default="own",
        description="own: a copy of the starting model carries the value head; shared: the policy's hidden states do",
    )
    learning_rate_factor: float = Field(
        default=1.0,
        gt=0,
        description="times train.learning_rate, for the critic's own weights; default: one rate (verl's scripts: 10)",
    )
    warmup_steps: int = Field(
        default=0, ge=0, description="first rollout batches, in which only the critic learns; default: verl"
    )
    whiten_rewards: bool = Field(
        default=False, description="token rewards are divided by their std over the batch, their mean kept (TRL)"
    )
