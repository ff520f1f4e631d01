"""`sampler_correction`: importance weights for completions that a slightly different policy sampled.

pi_sampler is the policy that sampled a token, known only by the log-prob that the engine reported. pi_old is the
trainer's policy at the start of the update. The two differ if the engine rounds differently or its weights are some
steps old (`rollout.staleness_steps`, `rollout.partial`). The weight w = pi_old / pi_sampler, of a token or of its
completion, multiplies the policy term of the loss and carries no gradient. It is 1 if the engine samples exactly from
pi_old.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from pydantic import Field

from algorithms.rules import importance_ratio
from harness.errors import InvalidError
from harness.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor


class NoCorrection(Settings):
    """w = 1. The raw ratios are still logged."""

    type: Literal["none"] = "none"


class InRatio(Settings):
    """w = 1, and the rule's ratio is pi / pi_sampler, so the clip range is centred on the sampler.

    This is PPO as published, verl's bypass mode, and AReaL without its decoupled objective.
    """

    type: Literal["in_ratio"] = "in_ratio"


class TokenUnbounded(Settings):
    """w of each token, unbounded. With rule.type=ppo_clip: the decoupled objective (2110.00641), AReaL (2505.24298)."""

    type: Literal["token_unbounded"] = "token_unbounded"


class _Truncate(Settings):
    weight_max: float = Field(default=2.0, gt=0, description="upper bound of w; default: oat, verl, open-instruct")


class TokenTruncate(_Truncate):
    """Truncated importance sampling: min(w, weight_max) of each token."""

    type: Literal["token_truncate"] = "token_truncate"


class SequenceTruncate(_Truncate):
    """min(w, weight_max) of each completion."""

    type: Literal["sequence_truncate"] = "sequence_truncate"


class _Band(Settings):
    weight_min: float = Field(default=0.5, ge=0, description="below it the weight is 0; default: IcePop, OpenRLHF")
    weight_max: float = Field(default=5.0, gt=0, description="above it the weight is 0; default: IcePop, OpenRLHF")

    def contradictions(self) -> Iterator[InvalidError]:
        if self.weight_max <= self.weight_min:
            yield InvalidError("algorithms.band_is_empty", high=self.weight_max, low=self.weight_min)


class TokenBand(_Band):
    """w where it lies in [weight_min, weight_max], else 0, for each token (IcePop)."""

    type: Literal["token_band"] = "token_band"


class SequenceBand(_Band):
    """w where it lies in [weight_min, weight_max], else 0, for each completion."""

    type: Literal["sequence_band"] = "sequence_band"


class GeometricVeto(Settings):
    """1 if a completion's tokens have a geometric mean w in [mean_min, mean_max] and none below veto_below, else 0.

    Geometric rejection with a token veto: Liu, Li et al. 2025, "When Speed Kills Stability"; verl.
    """

    type: Literal["geometric_veto"] = "geometric_veto"
    mean_min: float = Field(
        default=0.99, gt=0, lt=1, description="smallest geometric mean; default: verl's recipes (if long: 0.999)"
    )
    mean_max: float = Field(
        default=1.01, gt=1, description="largest geometric mean; default: verl's recipes (if long: 1.001)"
    )
    veto_below: float = Field(
        default=1e-4,
        ge=0,
        lt=1,
        description="a completion with a token of lower w is rejected; default: verl's recipes; 0: off",
    )


Weighing = TokenUnbounded | TokenTruncate | SequenceTruncate | TokenBand | SequenceBand | GeometricVeto
"""The corrections that have a weight w."""

Correcting = InRatio | Weighing
SamplerCorrection = Annotated[NoCorrection | Correcting, Field(discriminator="type")]


class SamplerWeights(NamedTuple):
    """The weights of a sampler correction, without gradient."""

    weights: Tensor
    """[B, T] factor of each token's policy term."""
    bounded: Tensor
    """[B, T] bool: true if a bound changed the weight or the completion was rejected."""


def corrected(
    correction: Correcting, old_logp: Tensor, sampler_logp: Tensor, mask: Tensor
) -> tuple[SamplerWeights | None, Tensor]:
    """Return the weights, or None for in_ratio, and the log-probs [B, T] of the importance ratio's denominator.

    old_logp, sampler_logp [B, T]: log pi_old and log pi_sampler, without gradient, 0 outside the mask.
    mask [B, T]: bool.
    """
    if isinstance(correction, InRatio):
        return None, sampler_logp
    return _weights(correction, old_logp - sampler_logp, mask), old_logp


def _weights(correction: Weighing, log_ratio: Tensor, mask: Tensor) -> SamplerWeights:
    match correction:
        case TokenUnbounded():
            weights = ratio = importance_ratio("token", log_ratio, mask)
        case TokenTruncate() | SequenceTruncate():
            ratio = _ratio(correction, log_ratio, mask)
            weights = ratio.clamp(max=correction.weight_max)
        case TokenBand() | SequenceBand():
            ratio = _ratio(correction, log_ratio, mask)
            # The band includes its bounds, as in IcePop.
            weights = ratio.where((ratio >= correction.weight_min) & (ratio <= correction.weight_max), 0)
        case GeometricVeto(mean_min=least, mean_max=most, veto_below=veto):
            mean = importance_ratio("sequence_mean", log_ratio, mask)
            # Padding has log-ratio 0, which never triggers the veto, because veto_below is less than 1.
            lowest = log_ratio.amin(1, keepdim=True)
            accepted = (mean >= least) & (mean <= most) & (lowest >= (math.log(veto) if veto else -math.inf))
            # An accepted completion has weight 1, not its ratio. Only rejection counts as bounded.
            return SamplerWeights(accepted.to(log_ratio.dtype), ~accepted)
    return SamplerWeights(weights, weights != ratio)


def _ratio(correction: _Truncate | _Band, log_ratio: Tensor, mask: Tensor) -> Tensor:
    of_tokens = isinstance(correction, TokenTruncate | TokenBand)
    return importance_ratio("token" if of_tokens else "sequence_product", log_ratio, mask)
