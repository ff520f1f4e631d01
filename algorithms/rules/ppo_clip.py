"""PPO's clipped ratio, and its dual clip."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from algorithms.rules import Rule, Sign

if TYPE_CHECKING:
    from torch import Tensor


class PpoClip(Rule):
    """-min(A r, A clip(r, 1 - clip_low, 1 + clip_high)): PPO's L^CLIP (1707.06347, eq. 7)."""

    type: Literal["ppo_clip"] = "ppo_clip"
    clip_low: float = Field(
        default=0.2, gt=0, description="r is clipped from below at 1 - clip_low; default: PPO, section 6.1"
    )
    clip_high: float = Field(
        default=0.2,
        gt=0,
        description="r is clipped from above at 1 + clip_high; default: PPO, section 6.1 (DAPO: 0.28)",
    )
    dual_clip: float | None = Field(
        default=None,
        gt=1,
        description="c: where A < 0 the loss is at most -A c (1912.09729). Default: off, as in PPO (some trainers set "
        "3 or 10)",
    )

    acts_without_advantage: ClassVar[bool] = False
    inert_at_ratio_one: ClassVar[Mapping[str, str]] = {
        "clip_low": "every ratio is 1, inside any clip range",
        "clip_high": "every ratio is 1, inside any clip range",
        "dual_clip": "every ratio is 1, below any dual clip",
    }

    def loss(self, logp: Tensor, ratio: Tensor, advantages: Tensor) -> Tensor:
        clipped = ratio.clamp(*self.bounds())
        losses = (-advantages * ratio).maximum(-advantages * clipped)
        if self.dual_clip is None:
            return losses
        # For A < 0, the clip bounds r only from below, so the loss -A r grows with r without bound.
        return losses.minimum(-advantages * self.dual_clip).where(advantages < 0, losses)

    def formula(self) -> str:
        bound = "" if self.dual_clip is None else f", and at most -{self.dual_clip:g} A where A < 0 (dual clip)"
        return f"-min(A r, A clip(r, {1 - self.clip_low:g}, {1 + self.clip_high:g})){bound}"

    def bounds(self) -> tuple[float, float]:
        return 1 - self.clip_low, 1 + self.clip_high

    def clip_metrics(self, ratio: Tensor, advantages: Tensor) -> dict[str, Tensor]:
        metrics = super().clip_metrics(ratio, advantages)
        return metrics if self.dual_clip is None else metrics | {"dual_frac": self._beyond_dual(ratio, advantages)}

    def treatment(self, ratio: Tensor, advantages: Tensor) -> tuple[Tensor, Tensor]:
        beyond, left_out = super().treatment(ratio, advantages)
        return beyond | self._beyond_dual(ratio, advantages), left_out

    def slope_at_ratio_one(self, sign: Sign) -> float:
        return 1.0

    def acts_on_sign(self) -> Mapping[str, Sign]:
        return {"clip_low": "negative", "clip_high": "positive", "dual_clip": "negative"}

    def _beyond_dual(self, ratio: Tensor, advantages: Tensor) -> Tensor:
        return (advantages < 0) & (ratio > (float("inf") if self.dual_clip is None else self.dual_clip))
