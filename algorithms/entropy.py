"""`entropy`: the knobs of a bonus on the policy's entropy, and the controller of its adaptive coefficient."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from harness.errors import InvalidError
from harness.settings import Settings


class NotAdaptive(Settings):
    """The coefficient stays at entropy.bonus."""

    type: Literal["none"] = "none"


class _Adaptive(Settings):
    target_nats: float = Field(default=0.2, gt=0, description="target entropy; default: Skywork-OR1, section 4.4")
    delta: float = Field(
        default=0.005, gt=0, description="change of the coefficient per rollout batch; default: as target_nats"
    )
    coef_min: float = Field(default=0.0, ge=0, description="lower bound of the coefficient; default: TRL")
    coef_max: float = Field(default=1.0, gt=0, description="upper bound of the coefficient; default: TRL")
    estimator: Literal["full", "sampled"] = Field(
        default="full",
        description="the entropy that is compared with the target. full: over the whole vocabulary (the paper, TRL); "
        "sampled: the mean of -log pi of the sampled tokens (the authors' code)",
    )

    def contradictions(self) -> Iterator[InvalidError]:
        if self.coef_max <= self.coef_min:
            yield InvalidError("algorithms.coef_max_not_above_min", high=self.coef_max, low=self.coef_min)


class StepBothWays(_Adaptive):
    """The coefficient rises by delta below the target; above it, it falls and is off (Skywork-OR1 2505.22312)."""

    type: Literal["step_both_ways"] = "step_both_ways"


class StepUpOnly(_Adaptive):
    """The coefficient rises by delta below the target; above it, it is kept but not applied (Skywork-OR1's notes)."""

    type: Literal["step_up_only"] = "step_up_only"


Adaptive = Annotated[NotAdaptive | StepBothWays | StepUpOnly, Field(discriminator="type")]


class Entropy(Settings):
    """Subtract coefficient x mean entropy over the optimiser step's tokens from the loss, under any aggregation."""

    bonus: float = Field(
        default=0.0, ge=0, description="coefficient of the bonus; if it is adaptive, its initial value; default: off"
    )
    adaptive: Adaptive = NotAdaptive()


def next_entropy_coefficient(adaptive: StepBothWays | StepUpOnly, coefficient: float, entropy: float) -> float:
    """Return the new coefficient for a measured entropy in nats (Skywork-OR1, 2505.22312, section 4.4).

    Below the target, the coefficient rises by delta. Above it, the coefficient falls by delta (step_both_ways) or is
    unchanged (step_up_only). At the target it is unchanged. It always stays within [coef_min, coef_max].
    """
    if entropy < adaptive.target_nats:
        coefficient += adaptive.delta
    elif entropy > adaptive.target_nats and adaptive.type == "step_both_ways":
        coefficient -= adaptive.delta
    return min(max(coefficient, adaptive.coef_min), adaptive.coef_max)


def applied_entropy_coefficient(adaptive: StepBothWays | StepUpOnly, coefficient: float, entropy: float) -> float:
    """Return the factor of the bonus at this entropy in nats: the coefficient up to the target, 0 above it."""
    # `<=` as in the paper (eq. 3.2). The authors' scripts compare with `<`.
    return coefficient if entropy <= adaptive.target_nats else 0.0
