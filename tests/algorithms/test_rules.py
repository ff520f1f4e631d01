from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from algorithms.knobs.rule import Cispo, Gmpo, PolicyGradient, PpoClip, Rule, Sapo, Weighted
from algorithms.rules import bound_acts, bounded_ratio, clipped_log_ratio, ratio_bounds, token_losses

RATIO = [0.5, 0.9, 1.0, 1.2, 3.0]
LOGP = -0.7


def row(values: list[float]) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


def sapo(advantage: float, ratio: float, temperature: float) -> float:
    return -advantage * 4 / temperature / (1 + math.exp(-temperature * (ratio - 1)))


@pytest.mark.parametrize(
    ("rule", "positive", "negative"),
    [
        (PolicyGradient(), [1.4] * 5, [-2.1] * 5),
        (Weighted(), [-1.0, -1.8, -2.0, -2.4, -6.0], [1.5, 2.7, 3.0, 3.6, 9.0]),
        (PpoClip(clip_low=0.2, clip_high=0.1), [-1.0, -1.8, -2.0, -2.2, -2.2], [2.4, 2.7, 3.0, 3.6, 9.0]),
        (PpoClip(dual_clip=1.1), [-1.0, -1.8, -2.0, -2.4, -2.4], [2.4, 2.7, 3.0, 3.3, 3.3]),
        (Cispo(weight_min=0.8, weight_max=1.1), [1.12, 1.26, 1.4, 1.54, 1.54], [-1.68, -1.89, -2.1, -2.31, -2.31]),
        (Cispo(weight_max=None), [0.7, 1.26, 1.4, 1.68, 4.2], [-1.05, -1.89, -2.1, -2.52, -6.3]),
        (Cispo(weight_min=0.8, weight_max=1.1, mask="unified"), [0.7, 1.26, 1.4, 0, 0], [0, -1.89, -2.1, -2.52, -6.3]),
        (
            Sapo(temperature_positive=2.0, temperature_negative=3.0),
            [sapo(2, r, 2) for r in RATIO],
            [sapo(-3, r, 3) for r in RATIO],
        ),
        (Gmpo(), [-1.0, -1.8, -2.0, -2.4, -6.0], [1.5, 2.7, 3.0, 3.6, 9.0]),
    ],
)
def test_by_hand(rule: Rule, positive: list[float], negative: list[float]) -> None:
    """A = 2 and A = -3, log pi = -0.7, at ratios on both sides of every bound."""
    ratio, logp = row(RATIO), torch.full((1, 5), LOGP, dtype=torch.float64)
    for advantage, expected in ((2.0, positive), (-3.0, negative)):
        losses = token_losses(rule, logp, ratio, torch.full((1, 5), advantage, dtype=torch.float64))
        assert losses[0].tolist() == pytest.approx(expected)
    assert token_losses(rule, logp, ratio, torch.zeros(1, 5, dtype=torch.float64)).abs().max() == 0


def test_gmpo_clips_a_log_ratio_only_where_moving_on_is_rewarded() -> None:
    rule = Gmpo(log_ratio_low=0.3, log_ratio_high=0.5)
    log_ratio = row([-1.0, -0.1, 0.4, 1.0])
    for advantage, expected in (
        (2.0, [-1.0, -0.1, 0.4, 0.5]),
        (-2.0, [-0.3, -0.1, 0.4, 1.0]),
        (0.0, [-1.0, -0.1, 0.4, 1.0]),
    ):
        clipped = clipped_log_ratio(rule, log_ratio, torch.full((1, 4), advantage, dtype=torch.float64))
        assert clipped[0].tolist() == expected
    assert clipped_log_ratio(PpoClip(), log_ratio, row([2.0] * 4)) is log_ratio


@pytest.mark.parametrize(
    ("rule", "bounds"),
    [
        (PolicyGradient(), None),
        (Weighted(), None),
        (Sapo(), None),
        (PpoClip(clip_low=0.1, clip_high=0.3), (0.9, 1.3)),
        (Cispo(weight_min=0.5, weight_max=4.0), (0.5, 4.0)),
        (Cispo(weight_max=None), (0.0, math.inf)),
        (Gmpo(log_ratio_low=0.4, log_ratio_high=0.2), (math.exp(-0.4), math.exp(0.2))),
    ],
)
def test_bounds(rule: Rule, bounds: tuple[float, float] | None) -> None:
    assert ratio_bounds(rule) == (None if bounds is None else pytest.approx(bounds))


def test_a_bound_acts_where_the_advantage_pulls_beyond_it() -> None:
    rule = PpoClip(clip_low=0.2, clip_high=0.2)
    ratio, advantages = row([0.7, 0.7, 1.3, 1.3, 1.0, 0.7]), row([1.0, -1.0, 1.0, -1.0, 1.0, 0.0])
    assert bound_acts(rule, ratio, advantages)[0].tolist() == [False, True, True, False, False, False]
    assert not bound_acts(Sapo(), ratio, advantages).any()


def test_gmpo_bounds_the_ratios_of_tokens() -> None:
    ratio, log_ratio = row([1.1, 1.1]), row([0.0, 0.5])
    assert bounded_ratio(Gmpo(), ratio, log_ratio)[0].tolist() == pytest.approx([1.0, math.exp(0.5)])
    assert bounded_ratio(PpoClip(), ratio, log_ratio) is ratio
