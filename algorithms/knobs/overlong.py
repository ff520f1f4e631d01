"""`overlong`: what happens to completions that were cut at the limit."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from algorithms.knobs.base import Knobs


class Penalise(Knobs):
    """They keep the reward that they earned, plus a penalty."""

    type: Literal["penalise"] = "penalise"
    penalty: float = Field(
        default=0.0,
        le=0,
        description="added to the reward of a truncated completion; default: off, as in most trainers",
    )


class MaskAfter(Knobs):
    """They count in baselines and stds; their tokens do not enter the loss (overlong filtering, 2503.14476)."""

    type: Literal["mask_after"] = "mask_after"


class MaskBefore(Knobs):
    """They count neither in baselines and stds nor in the loss, but in its denominator over completions."""

    type: Literal["mask_before"] = "mask_before"


class Drop(Knobs):
    """They are removed from the batch, also from its denominators."""

    type: Literal["drop"] = "drop"


class Soft(Knobs):
    """DAPO's soft overlong punishment (2503.14476, eq. 13), added to the reward.

    0 up to L - C tokens, then linear to -factor at the limit L, with C = cache_frac x L; -factor if cut at L.
    """

    type: Literal["soft"] = "soft"
    cache_frac: float = Field(
        default=0.2,
        gt=0,
        le=1,
        description="C as a share of rollout.max_completion_tokens; default: the paper, 4096 of 20480",
    )
    factor: float = Field(default=1.0, gt=0, description="largest punishment; default: the paper")


Overlong = Annotated[Penalise | MaskAfter | MaskBefore | Drop | Soft, Field(discriminator="type")]
