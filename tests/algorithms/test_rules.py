from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from algorithms.rules import RULES, Ratio, Rule, Sign, bounded_exp, importance_ratio
from algorithms.rules.cispo import Cispo
from algorithms.rules.gmpo import Gmpo
from algorithms.rules.policy_gradient import PolicyGradient, Supervised
from algorithms.rules.ppo_clip import PpoClip
from algorithms.rules.sapo import Sapo
from algorithms.rules.weighted import Weighted

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
        (Supervised(), [0.7] * 5, [0.7] * 5),
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
        losses = rule.loss(logp, ratio, torch.full((1, 5), advantage, dtype=torch.float64))
        assert losses[0].tolist() == pytest.approx(expected)
    without = rule.loss(logp, ratio, torch.zeros(1, 5, dtype=torch.float64)).abs().max()
    assert (without == 0) == rule.reads_advantage


def test_gmpo_clips_a_log_ratio_only_where_moving_on_is_rewarded() -> None:
    rule = Gmpo(log_ratio_low=0.3, log_ratio_high=0.5)
    log_ratio = row([-1.0, -0.1, 0.4, 1.0])
    for advantage, expected in (
        (2.0, [-1.0, -0.1, 0.4, 0.5]),
        (-2.0, [-0.3, -0.1, 0.4, 1.0]),
        (0.0, [-1.0, -0.1, 0.4, 1.0]),
    ):
        clipped = rule.clip_log_ratios(log_ratio, torch.full((1, 4), advantage, dtype=torch.float64))
        assert clipped[0].tolist() == expected
    assert PpoClip().clip_log_ratios(log_ratio, row([2.0] * 4)) is log_ratio


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
    assert rule.bounds() == (None if bounds is None else pytest.approx(bounds))


def test_a_bound_acts_where_the_advantage_pulls_beyond_it() -> None:
    rule = PpoClip(clip_low=0.2, clip_high=0.2)
    ratio, advantages = row([0.7, 0.7, 1.3, 1.3, 1.0, 0.7]), row([1.0, -1.0, 1.0, -1.0, 1.0, 0.0])
    assert rule.beyond_bounds(ratio, advantages)[0].tolist() == [False, True, True, False, False, False]
    assert not Sapo().beyond_bounds(ratio, advantages).any()


def test_gmpo_bounds_the_ratios_of_tokens() -> None:
    ratio, log_ratio = row([1.1, 1.1]), row([0.0, 0.5])
    assert Gmpo().bounded_ratio(ratio, log_ratio)[0].tolist() == pytest.approx([1.0, math.exp(0.5)])
    assert PpoClip().bounded_ratio(ratio, log_ratio) is ratio


SOME: tuple[Rule, ...] = (
    PolicyGradient(),
    Supervised(),
    Weighted(),
    PpoClip(clip_low=0.01, clip_high=0.01, dual_clip=1.01),
    Cispo(weight_max=0.5),
    Cispo(weight_min=1.5, weight_max=2.0),
    Cispo(weight_max=0.9, mask="unified"),
    Cispo(weight_min=1.1, weight_max=1.2, mask="unified"),
    Sapo(temperature_positive=3.0),
    Gmpo(log_ratio_low=0.01, log_ratio_high=0.02),
)


def gradient(rule: Rule, advantage: float, log_ratio: float) -> float:
    """d loss / d log pi of one token."""
    logp = torch.tensor([[LOGP]], dtype=torch.float64, requires_grad=True)
    advantages = torch.tensor([[advantage]], dtype=torch.float64)
    ratio = importance_ratio("token", rule.clip_log_ratios(logp - LOGP + log_ratio, advantages), torch.ones(1, 1) > 0)
    (found,) = torch.autograd.grad(rule.loss(logp, ratio, advantages).sum(), logp)
    return float(found)


def test_every_rule_is_checked() -> None:
    assert {type(rule) for rule in SOME} == set(RULES.all().values())


@pytest.mark.parametrize("rule", SOME, ids=str)
def test_what_a_rule_says_of_itself_is_so(rule: Rule) -> None:
    """Its slope at ratio 1, the knobs that do nothing there, and those that act on one sign of advantages."""
    signs: dict[Sign, float] = {"positive": 2.0, "negative": -3.0}
    for sign, advantage in signs.items():
        if not rule.reads_advantage:
            assert rule.slope_at_ratio_one(sign) is None
            assert gradient(rule, advantage, 0.0) == gradient(rule, 0.0, 0.0) == -1
            continue
        assert rule.slope_at_ratio_one(sign) == pytest.approx(-gradient(rule, advantage, 0.0) / advantage)
    for knob, value in rule:
        if not isinstance(value, float):
            continue
        other = rule.model_copy(update={knob: value + 0.3})
        for sign, advantage in signs.items():
            if knob in rule.inert_at_ratio_one:
                assert gradient(other, advantage, 0.0) == pytest.approx(gradient(rule, advantage, 0.0))
            if rule.acts_on_sign().get(knob, sign) != sign:
                for log_ratio in (-0.7, -0.3, 0.3, 0.7):
                    assert gradient(other, advantage, log_ratio) == gradient(rule, advantage, log_ratio)
    assert rule.acts_without_advantage or gradient(rule, 0.0, 0.5) == 0
    logp, ratio = torch.tensor([[LOGP]], requires_grad=True), torch.ones(1, 1, requires_grad=True)
    loss = rule.loss(logp, ratio, torch.ones(1, 1)).sum()
    (by_ratio,) = torch.autograd.grad(loss, ratio, allow_unused=True)
    assert rule.differentiates_ratio == (by_ratio is not None)


# Ratios

LOG_RATIO = torch.tensor([[0.1, 0.5, 0.0], [-0.2, 0.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
MASK = torch.tensor([[True, True, False], [True, False, False], [False, False, False]])


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("none", [[0.0] * 3] * 3),
        ("token", LOG_RATIO.tolist()),
        ("sequence_mean", [[0.3] * 3, [-0.2] * 3, [0.0] * 3]),
        ("sequence_product", [[0.6] * 3, [-0.2] * 3, [0.0] * 3]),
    ],
)
def test_importance_ratios_by_hand(kind: Ratio, expected: list[list[float]]) -> None:
    ratio = importance_ratio(kind, LOG_RATIO, MASK)
    torch.testing.assert_close(ratio.log(), torch.tensor(expected, dtype=torch.float64))


def test_a_whole_completion_is_bounded_after_its_tokens_are_combined() -> None:
    """Token log-ratios of 30 and -25 have the product e^5, and the mean e^2.5."""
    log_ratio, mask = torch.tensor([[30.0, -25.0]], dtype=torch.float64), torch.ones(1, 2, dtype=torch.bool)
    assert importance_ratio("sequence_product", log_ratio, mask)[0, 0].item() == pytest.approx(math.exp(5))
    assert importance_ratio("sequence_mean", log_ratio, mask)[0, 0].item() == pytest.approx(math.exp(2.5))
    assert importance_ratio("token", log_ratio, mask)[0, 0].item() == pytest.approx(math.exp(20))


def test_bounded_exp() -> None:
    values = bounded_exp(torch.tensor([-1e9, -1.0, 0.0, 1.0, 1e9], dtype=torch.float64)).tolist()
    assert values == pytest.approx([math.exp(x) for x in (-20, -1, 0, 1, 20)])
