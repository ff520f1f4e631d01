"""Losses of single pairs against their formulas, written down once more with the math module."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch

from algorithms import PreferenceObjective
from algorithms.preference.links import LogRatios, pair_losses
from tests.algorithms.preference.cases import preset

C, R, Z = 1.5, -2.5, 0.7


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def softplus(x: float) -> float:
    """-log sigmoid(-x)."""
    return math.log1p(math.exp(x))


def log_odds(logp: float) -> float:
    return math.log(math.exp(logp) / (1 - math.exp(logp)))


def loss_of(objective: PreferenceObjective, chosen: float, rejected: float, zero_point: float = 0.0) -> float:
    c, r = torch.tensor([chosen], dtype=torch.float64), torch.tensor([rejected], dtype=torch.float64)
    (loss,) = pair_losses(objective, LogRatios(c, r, c - r), torch.tensor(zero_point, dtype=torch.float64)).tolist()
    return float(loss)


CASES: dict[str, tuple[PreferenceObjective, Callable[[float, float], float]]] = {
    "dpo": (preset("dpo"), lambda c, r: softplus(-0.1 * (c - r))),
    "margin": (preset("dpo", margin=0.5), lambda c, r: softplus(-(0.1 * (c - r) - 0.5))),
    "cdpo": (preset("cdpo"), lambda c, r: 0.9 * softplus(-0.1 * (c - r)) + 0.1 * softplus(0.1 * (c - r))),
    "robust_dpo": (
        preset("robust_dpo", label_smoothing=0.2),
        lambda c, r: (0.8 * softplus(-0.1 * (c - r)) - 0.2 * softplus(0.1 * (c - r))) / 0.6,
    ),
    "hinge": (preset("hinge", margin=0.2), lambda c, r: max(0.0, 1 - 0.1 * (c - r) + 0.2)),
    "square": (preset("ipo_sum", beta=0.25), lambda c, r: (c - r - 2) ** 2),
    "exo": (
        preset("exo", beta=0.5),
        lambda c, r: sum(
            q * math.log(q / p) for q, p in ((sigmoid((c - r) / 2), 0.999), (1 - sigmoid((c - r) / 2), 0.001))
        ),
    ),
    "discopop": (
        preset("dpo", link="discopop", discopop_tau=0.5),
        lambda c, r: (
            (1 - sigmoid(0.2 * (c - r))) * softplus(-0.1 * (c - r)) + sigmoid(0.2 * (c - r)) * math.exp(-0.1 * (c - r))
        ),
    ),
    "kto": (
        preset("kto", desirable_weight=1.2, undesirable_weight=0.8),
        lambda c, r: (1.2 * (1 - sigmoid(0.1 * (c - Z))) + 0.8 * (1 - sigmoid(0.1 * (Z - r)))) / 2,
    ),
    "bco": (preset("dpo", link="bco"), lambda c, r: softplus(-0.1 * c) + softplus(0.1 * r)),
    "nca": (preset("nca"), lambda c, r: softplus(-0.1 * c) + softplus(0.1 * c) / 2 + softplus(0.1 * r) / 2),
    "apo_zero": (preset("apo_zero"), lambda c, r: 1 - sigmoid(0.1 * c) + sigmoid(0.1 * r)),
    "apo_down": (preset("dpo", link="apo_down"), lambda c, r: sigmoid(0.1 * c) + 1 - sigmoid(0.1 * (c - r))),
    "sppo_hard": (preset("sppo_hard", beta=0.25), lambda c, r: (c - 2) ** 2 + (r + 2) ** 2),
}


@pytest.mark.parametrize("case", CASES)
def test_closed_form(case: str) -> None:
    objective, formula = CASES[case]
    for chosen, rejected in ((C, R), (R, C), (-0.3, -0.2), (0.0, 0.0), (30.0, 10.0)):
        assert loss_of(objective, chosen, rejected, Z) == pytest.approx(formula(chosen, rejected), rel=1e-12)


@pytest.mark.parametrize(("chosen", "rejected"), [(-0.5, -1.5), (-3.0, -0.01), (-1e-3, -40.0)])
def test_odds_ratio(chosen: float, rejected: float) -> None:
    expected = 0.1 * softplus(log_odds(rejected) - log_odds(chosen))
    assert loss_of(preset("orpo"), chosen, rejected) == pytest.approx(expected, rel=1e-9)


def test_every_link_is_checked() -> None:
    covered = {objective.link for objective, _ in CASES.values()} | {"odds_ratio"}
    assert covered == set(PreferenceObjective.model_fields["link"].annotation.__args__)  # type: ignore[union-attr]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("logp", [0.0, -1e-12, -1e-7, -200.0])
def test_odds_of_what_is_certain_or_impossible_stay_finite(logp: float, dtype: torch.dtype) -> None:
    chosen = torch.tensor([logp], dtype=dtype, requires_grad=True)
    rejected = torch.tensor([-1.0], dtype=dtype)
    losses = pair_losses(preset("orpo"), LogRatios(chosen, rejected, chosen - rejected), torch.zeros(()))
    (gradient,) = torch.autograd.grad(losses.sum(), chosen)
    assert losses.isfinite().all() and gradient.isfinite().all()


def test_far_log_ratios_stay_finite() -> None:
    objectives = [preset("orpo"), *(objective for objective, _ in CASES.values())]
    for objective, chosen in itertools.product(objectives, (1e3, 1e6, -1e3, -1e6)):
        rejected = -chosen
        c = torch.tensor([chosen], requires_grad=True)
        r = torch.tensor([rejected])
        losses = pair_losses(objective, LogRatios(c, r, c - r), torch.zeros(()))
        (gradient,) = torch.autograd.grad(losses.sum(), c)
        assert losses.isfinite().all() and gradient.isfinite().all()
