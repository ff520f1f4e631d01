"""SAPO: a soft gate in place of the clip."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from algorithms.rules import Ratio, Rule, Sign

if TYPE_CHECKING:
    from torch import Tensor

_ANY_TEMPERATURE = "every ratio is 1, where the gate has slope 1 at any temperature"


class Sapo(Rule):
    """-A sigmoid(tau (r - 1)) 4 / tau: a soft gate in place of the clip (SAPO, 2511.20347)."""

    type: Literal["sapo"] = "sapo"
    temperature_positive: float = Field(default=1.0, gt=0, description="tau where A > 0; default: the paper")
    temperature_negative: float = Field(
        default=1.05, gt=0, description="tau where A <= 0, which decays faster; default: the paper"
    )

    ratios: ClassVar[tuple[Ratio, ...]] = ("token", "sequence_mean")
    acts_without_advantage: ClassVar[bool] = False
    inert_at_ratio_one: ClassVar[Mapping[str, str]] = {
        "temperature_positive": _ANY_TEMPERATURE,
        "temperature_negative": _ANY_TEMPERATURE,
    }

    def loss(self, logp: Tensor, ratio: Tensor, advantages: Tensor) -> Tensor:
        import torch

        # A sigmoid has slope 1/4 at 0, so the factor 4 / tau makes the slope at r = 1 equal to 1 at any temperature.
        temperature = torch.where(advantages > 0, self.temperature_positive, self.temperature_negative).to(ratio.dtype)
        return -advantages * torch.sigmoid(temperature * (ratio - 1)) * 4 / temperature

    def formula(self) -> str:
        return (
            f"-A sigmoid(tau (r - 1)) 4 / tau, tau = {self.temperature_positive:g} where A > 0, else "
            f"{self.temperature_negative:g}"
        )

    def slope_at_ratio_one(self, sign: Sign) -> float:
        return 1.0

    def acts_on_sign(self) -> Mapping[str, Sign]:
        return {"temperature_positive": "positive", "temperature_negative": "negative"}
