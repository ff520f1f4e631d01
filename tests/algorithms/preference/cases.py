"""Inputs that the tests of preference objectives share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, get_args

import torch
from hypothesis import strategies as st
from torch import Tensor

import algorithms
from algorithms import PreferenceObjective, presets, with_overrides
from algorithms.preference import PreferenceLoss, preference_loss
from algorithms.preference.objective import Link
from harness.settings import knobs_of

PREFERENCE_KNOBS = tuple(knobs_of(PreferenceObjective))


def preset(name: str, **overrides: object) -> PreferenceObjective:
    """A preset of this family."""
    return algorithms.preset(name, PreferenceObjective, **overrides)


DPO = preset("dpo")

VALUES: dict[str, tuple[Any, ...]] = {
    "link": get_args(Link),
    "logp": ("sum", "mean"),
    "reference": ("initial", "none", "round_start"),
    "beta": (0.1, 2.0),
    "margin": (0.0, 0.5),
    "label_smoothing": (0.0, 0.1),
    "smoothing": ("conservative", "robust"),
    "nll_coef": (0.0, 0.3),
    "positive_penalty": (0.0, 5.0),
    "desirable_weight": (1.0, 2.0),
    "undesirable_weight": (1.0, 0.5),
    "ld_alpha": (1.0, 0.3),
    "weighting": ("none", "wpo"),
    "matching": ("pairs", "sorted", "sorted_unpaired"),
    "discopop_tau": (0.05, 0.5),
}

_COMPANY: dict[tuple[str, Any], dict[str, Any]] = {
    ("link", "exo"): {"label_smoothing": 0.1},
    ("link", "odds_ratio"): {"reference": "none"},
}
"""What must move with a knob for it to make sense."""


def moved(objective: PreferenceObjective, knob: str, value: Any) -> PreferenceObjective | None:
    """The objective with one knob at a value, and what must go with it; none where that makes no sense."""
    try:
        return with_overrides(objective, _COMPANY.get((knob, value), {}) | {knob: value})
    except ValueError:
        return None


def corners() -> list[PreferenceObjective]:
    """Every preset, and discopop, with each value of each knob."""
    starts = [*(preset(name) for name in presets("preference")), preset("dpo", link="discopop")]
    found = [moved(start, knob, value) for start in starts for knob, values in VALUES.items() for value in values]
    return list(dict.fromkeys([*starts, *(point for point in found if point is not None)]))


@st.composite
def points(draw: st.DrawFn) -> PreferenceObjective:
    """A preset after up to eight moves of single knobs."""
    objective = preset(draw(st.sampled_from(presets("preference"))))
    for knob in draw(st.lists(st.sampled_from(PREFERENCE_KNOBS), max_size=8)):
        objective = moved(objective, knob, draw(st.sampled_from(VALUES[knob]))) or objective
    return objective


@dataclass(frozen=True, eq=False)
class Pairs:
    """The arguments of `preference_loss`, in its order and float64: chosen [P, T], rejected [P, T']."""

    chosen_logp: Tensor
    rejected_logp: Tensor
    chosen_mask: Tensor
    rejected_mask: Tensor
    ref_chosen_logp: Tensor
    ref_rejected_logp: Tensor

    def loss(self, objective: PreferenceObjective, **arguments: Any) -> PreferenceLoss:
        return preference_loss(
            objective,
            self.chosen_logp,
            self.rejected_logp,
            self.chosen_mask,
            self.rejected_mask,
            self.ref_chosen_logp,
            self.ref_rejected_logp,
            **arguments,
        )

    def gradients(self, loss: PreferenceLoss) -> tuple[Tensor, Tensor]:
        """By chosen_logp and rejected_logp; zeros where the loss does not depend on them."""
        inputs = (self.chosen_logp, self.rejected_logp)
        found = torch.autograd.grad(loss.value, inputs, allow_unused=True, retain_graph=True)
        chosen, rejected = (
            torch.zeros_like(of) if grad is None else grad for of, grad in zip(inputs, found, strict=True)
        )
        return chosen, rejected

    def take(self, rows: Tensor) -> Pairs:
        """Some of the pairs; gradients still reach the tensors that they were taken from."""
        return Pairs(*(tensor[rows] for tensor in vars(self).values()))

    def swapped(self) -> Pairs:
        """Chosen as rejected and the reverse."""
        return Pairs(
            self.rejected_logp,
            self.chosen_logp,
            self.rejected_mask,
            self.chosen_mask,
            self.ref_rejected_logp,
            self.ref_chosen_logp,
        )

    def as_leaves(self) -> Pairs:
        """A copy whose log-probs take gradients."""
        return replace(
            self,
            chosen_logp=self.chosen_logp.detach().clone().requires_grad_(),
            rejected_logp=self.rejected_logp.detach().clone().requires_grad_(),
        )

    def log_ratios(self) -> tuple[Tensor, Tensor]:
        """[P] summed log-ratios to the reference, written down once more."""
        chosen = ((self.chosen_logp - self.ref_chosen_logp) * self.chosen_mask).sum(1)
        rejected = ((self.rejected_logp - self.ref_rejected_logp) * self.rejected_mask).sum(1)
        return chosen, rejected


def random_pairs(seed: int, rows: int = 6, drift: float = 0.4) -> Pairs:
    """Random lengths, at least 1; the two sides are padded to different widths."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    tensors = []
    for width in (7, 5):
        mask = torch.arange(width) < torch.randint(1, width + 1, (rows,), generator=generator)[:, None]
        ref = -normal(rows, width).abs() - 0.05
        tensors.append((ref + drift * normal(rows, width), mask, ref))
    (chosen, chosen_mask, ref_chosen), (rejected, rejected_mask, ref_rejected) = tensors
    chosen, rejected = chosen.clamp(max=-0.01).requires_grad_(), rejected.clamp(max=-0.01).requires_grad_()
    return Pairs(chosen, rejected, chosen_mask, rejected_mask, ref_chosen, ref_rejected)
