"""`select`: tokens of an optimiser step that are treated differently, chosen over the whole step."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from algorithms.knobs.base import Knobs


class NoSelection(Knobs):
    """All tokens are treated alike."""

    type: Literal["none"] = "none"


class ClipCov(Knobs):
    """Clip-Cov (2505.22617): tokens drawn from those of high covariance of A and log pi lose their gradient."""

    type: Literal["clip_cov"] = "clip_cov"
    fraction: float = Field(default=2e-4, gt=0, le=1, description="share of the step's tokens; default: the paper")
    cov_low: float = Field(default=1.0, description="covariances above this can be drawn; default: the authors' code")
    cov_high: float = Field(default=5.0, description="covariances below this can be drawn; default: the authors' code")

    @model_validator(mode="after")
    def _bounds_in_order(self) -> Self:
        if self.cov_high <= self.cov_low:
            raise ValueError(
                f"cov_high={self.cov_high:g} is not above cov_low={self.cov_low:g}: no token could be drawn"
            )
        return self


class KlCov(Knobs):
    """KL-Cov (2505.22617): the tokens of highest covariance of A and log pi get a penalty on |log r|."""

    type: Literal["kl_cov"] = "kl_cov"
    fraction: float = Field(
        default=2e-3, gt=0, le=1, description="share of the step's tokens; default: the paper's 7B (32B: 2e-4)"
    )
    coef: float = Field(default=1.0, gt=0, description="of the penalty; default: the paper (a trainer: 0.1)")


class TopEntropy(Knobs):
    """Only the tokens of highest entropy keep their policy gradient (2506.01939)."""

    type: Literal["top_entropy"] = "top_entropy"
    fraction: float = Field(default=0.2, gt=0, le=1, description="share of the step's tokens; default: the paper")


Select = Annotated[NoSelection | ClipCov | KlCov | TopEntropy, Field(discriminator="type")]
