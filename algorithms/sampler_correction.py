"""`sampler_correction`: weights for the mismatch between the sampler's and the trainer's log-probs.

w = pi_old / pi_sampler, of a token or of its completion (the product over its tokens), multiplies the policy term of
the loss and carries no gradient. It is 1 for an exact sampler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from algorithms.rules import importance_ratio
from algorithms.space import Knobs

if TYPE_CHECKING:
    from torch import Tensor


class NoCorrection(Knobs):
    """w = 1; the raw ratios are still logged."""

    type: Literal["none"] = "none"


class _Truncate(Knobs):
    weight_max: float = Field(default=2.0, gt=0, description="upper bound of w; default: oat, verl, open-instruct")


class TokenTruncate(_Truncate):
    """Truncated importance sampling: min(w, weight_max) of each token."""

    type: Literal["token_truncate"] = "token_truncate"


class SequenceTruncate(_Truncate):
    """min(w, weight_max) of each completion."""

    type: Literal["sequence_truncate"] = "sequence_truncate"


class _Band(Knobs):
    weight_min: float = Field(default=0.5, ge=0, description="below it the weight is 0; default: IcePop, OpenRLHF")
    weight_max: float = Field(default=5.0, gt=0, description="above it the weight is 0; default: IcePop, OpenRLHF")

    @model_validator(mode="after")
    def _bounds_in_order(self) -> Self:
        if self.weight_max <= self.weight_min:
            raise ValueError(
                f"weight_max={self.weight_max:g} is not above weight_min={self.weight_min:g}: every weight would be 0; "
                "raise weight_max or lower weight_min"
            )
        return self


class TokenBand(_Band):
    """w where it lies in [weight_min, weight_max], else 0, for each token (IcePop)."""

    type: Literal["token_band"] = "token_band"


class SequenceBand(_Band):
    """w where it lies in [weight_min, weight_max], else 0, for each completion."""

    type: Literal["sequence_band"] = "sequence_band"


SamplerCorrection = Annotated[
    NoCorrection | TokenTruncate | SequenceTruncate | TokenBand | SequenceBand, Field(discriminator="type")
]


def raw_weights(correction: SamplerCorrection, log_ratio: Tensor, mask: Tensor) -> Tensor:
    """[B, T] pi_old / pi_sampler of each token or of its completion, whichever the correction looks at; no gradient.

    log_ratio [B, T]: log pi_old - log pi_sampler, 0 outside the mask; mask [B, T] bool.
    """
    log_ratio = log_ratio.detach()
    match correction:
        case NoCorrection():
            return log_ratio.new_ones(log_ratio.shape)
        case TokenTruncate() | TokenBand():
            return importance_ratio("token", log_ratio, mask)
        case SequenceTruncate() | SequenceBand():
            return importance_ratio("sequence_product", log_ratio, mask)


def bounded_weights(correction: SamplerCorrection, weights: Tensor) -> Tensor:
    """The raw weights (any shape) as the correction lets them count."""
    match correction:
        case NoCorrection():
            return weights
        case TokenTruncate() | SequenceTruncate():
            return weights.clamp(max=correction.weight_max)
        case TokenBand() | SequenceBand():
            inside = (weights >= correction.weight_min) & (weights <= correction.weight_max)
            return weights.where(inside, 0)
