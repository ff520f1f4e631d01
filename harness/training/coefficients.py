"""Coefficients of the loss that a controller moves while training."""

from __future__ import annotations

from dataclasses import dataclass, field

from algorithms import (
    Coefficients,
    Objective,
    applied_entropy_coefficient,
    next_entropy_coefficient,
    next_kl_coefficient,
)


@dataclass
class ControlledCoefficients:
    """Coefficients of the entropy bonus and of the KL that follow a measurement from batch to batch; fixed ones stay
    where the objective puts them."""

    objective: Objective
    entropy: float = field(init=False)
    kl: float = field(init=False)

    def __post_init__(self) -> None:
        self.entropy = self.objective.entropy.bonus
        self.kl = 0.0 if self.objective.kl.where == "none" else self.objective.kl.beta

    def in_force(self, entropy_nats: float) -> Coefficients:
        """The coefficients for a batch whose policy has this entropy. The entropy controller takes its step after
        it."""
        adaptive = self.objective.entropy.adaptive
        if adaptive.type == "none":
            return Coefficients(entropy=self.entropy, kl=self.kl)
        applied = applied_entropy_coefficient(adaptive, self.entropy, entropy_nats)
        self.entropy = next_entropy_coefficient(adaptive, self.entropy, entropy_nats)
        return Coefficients(entropy=applied, kl=self.kl)

    def observe_kl(self, kl_nats: float, completions: int) -> None:
        """Let the KL controller take its step after a batch of so many completions with this KL per token."""
        kl = self.objective.kl
        if kl.where != "none" and kl.control == "adaptive":
            self.kl = next_kl_coefficient(kl, self.kl, kl_nats, completions)

    def state_dict(self) -> dict[str, float]:
        return {"entropy": self.entropy, "kl": self.kl}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.entropy, self.kl = state["entropy"], state["kl"]
