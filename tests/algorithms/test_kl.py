from __future__ import annotations

import math
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from algorithms import kl_estimate, kl_penalties, next_kl_coefficient
from algorithms.kl import KlInLoss, KlInReward, LossEstimator, RewardEstimator
from algorithms.rules import kl_means
from tests.refusals import refuses

EVERY_ESTIMATOR: tuple[LossEstimator, ...] = get_args(LossEstimator)
REF_LOGP = torch.tensor([-1.0, -1.0, -1.0], dtype=torch.float64)
LOGP = torch.tensor([-1.5, -1.0, -0.2], dtype=torch.float64)
OLD_LOGP = torch.tensor([-1.1, -1.3, -0.9], dtype=torch.float64)


def value_and_slope(estimator: LossEstimator, logp: Tensor, ref: Tensor, old: Tensor) -> tuple[Tensor, Tensor]:
    logp = logp.detach().requires_grad_()
    value = kl_estimate(estimator, logp, ref, old)
    return value.detach(), torch.autograd.grad(value.sum(), logp)[0]


def test_by_hand() -> None:
    """d = -0.5, 0, 0.8; k3 = e^-d - 1 + d; r = e^(-0.4), e^0.3, e^0.7."""
    k3 = [math.exp(0.5) - 1.5, 0.0, math.exp(-0.8) - 0.2]
    r = [math.exp(-0.4), math.exp(0.3), math.exp(0.7)]
    slope = [1 - math.exp(0.5), 0.0, 1 - math.exp(-0.8)]
    expected: dict[LossEstimator, tuple[list[float], list[float]]] = {
        "k1": ([-0.5, 0.0, 0.8], [1.0, 1.0, 1.0]),
        "k1_clamped": ([0.0, 0.0, 0.8], [0.0, 1.0, 1.0]),
        "k2": ([0.125, 0.0, 0.32], [-0.5, 0.0, 0.8]),
        "k3": (k3, slope),
        "k3_ratio": ([k3[i] * r[i] for i in range(3)], [r[i] * (slope[i] + k3[i]) for i in range(3)]),
        "k3_straight": (k3, [-0.5, 0.0, 0.8]),
    }
    assert set(expected) == set(EVERY_ESTIMATOR)
    for estimator, (values, slopes) in expected.items():
        value, gradient = value_and_slope(estimator, LOGP, REF_LOGP, OLD_LOGP)
        assert value.tolist() == pytest.approx(values), estimator
        assert gradient.tolist() == pytest.approx(slopes), estimator


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_expectations_over_a_vocabulary(seed: int) -> None:
    """Summed over all tokens with their probabilities under pi = pi_old, what an estimator estimates is exact.

    k1 and k3 have the value of KL(pi || ref); k2, k3_ratio and k3_straight have its gradient, k1 has none, and k3 has
    the gradient of the other direction, KL(ref || pi).
    """
    logits = torch.randn(7, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()
    ref = torch.randn(7, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64).log_softmax(0)
    logp = logits.log_softmax(0)
    sampled = logp.detach()
    kl, reverse = (logp.exp() * (logp - ref)).sum(), (ref.exp() * (ref - logp)).sum()

    def gradient(of: Tensor) -> Tensor:
        return torch.autograd.grad(of, logits, retain_graph=True)[0]

    for estimator, expected in {
        "k1": torch.zeros(7, dtype=torch.float64),
        "k2": gradient(kl),
        "k3": gradient(reverse),
        "k3_ratio": gradient(kl),
        "k3_straight": gradient(kl),
    }.items():
        mean = (sampled.exp() * kl_estimate(estimator, logp, ref, sampled)).sum()
        torch.testing.assert_close(gradient(mean), expected, msg=estimator)
        if estimator != "k2":
            torch.testing.assert_close(mean, kl, msg=estimator)


@pytest.mark.parametrize("estimator", EVERY_ESTIMATOR)
def test_nothing_overflows_in_float32(estimator: LossEstimator) -> None:
    logp = torch.tensor([-1e4, -1e4, 0.0, 0.0, -100.0])
    ref, old = torch.tensor([-1e4, 0.0, -1e4, 0.0, 0.0]), torch.tensor([0.0, -1e4, 0.0, -1e4, -100.0])
    value, slope = value_and_slope(estimator, logp, ref, old)
    assert value.isfinite().all()
    assert slope.isfinite().all()


def test_k3_is_bounded_below_minus_20_only() -> None:
    """A reference that finds the token e^800 times likelier; one that finds it e^800 times less likely."""
    ref = torch.zeros(2, dtype=torch.float64)
    value, slope = value_and_slope("k3", torch.tensor([-800.0, 800.0], dtype=torch.float64), ref, ref)
    assert value.tolist() == pytest.approx([math.exp(20) - 21, 799])
    assert slope.tolist() == [0.0, 1.0]
    _, slope = value_and_slope("k3_straight", torch.tensor([-800.0, 800.0], dtype=torch.float64), ref, ref)
    assert slope.tolist() == [-800.0, 800.0], "that of k2"


def test_the_reference_gets_no_gradient() -> None:
    ref, old = REF_LOGP.clone().requires_grad_(), OLD_LOGP.clone().requires_grad_()
    for estimator in EVERY_ESTIMATOR:
        kl_estimate(estimator, LOGP.clone().requires_grad_(), ref, old).sum().backward()  # type: ignore[no-untyped-call]
    assert ref.grad is None
    assert old.grad is None


@pytest.mark.parametrize("estimator", get_args(RewardEstimator))
def test_penalties_are_minus_the_estimates_at_the_rollout(estimator: RewardEstimator) -> None:
    old = torch.stack([LOGP, LOGP]).requires_grad_()
    ref = torch.stack([REF_LOGP, torch.full((3,), math.nan, dtype=torch.float64)])
    mask = torch.tensor([[1, 1, 1], [0, 0, 0]])
    penalties = kl_penalties(KlInReward(estimator=estimator), old, ref, 0.3, mask)
    assert not penalties.requires_grad
    assert penalties[0].tolist() == pytest.approx((-0.3 * kl_estimate(estimator, LOGP, REF_LOGP, LOGP)).tolist())
    assert penalties[1].tolist() == [0, 0, 0]


def test_means_of_log_ratios() -> None:
    means = {name: float(value) for name, value in kl_means(LOGP - REF_LOGP).items()}
    assert means == pytest.approx(
        {"k1": 0.1, "k2": 0.445 / 3, "k3": (math.exp(0.5) + 1 + math.exp(-0.8) - 3 + 0.3) / 3}
    )


# The controller of beta


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        (0.11, 2 * (1 + 0.1 * 50 / 1000)),  # a tenth above the target
        (0.095, 2 * (1 - 0.05 * 50 / 1000)),
        (0.1, 2.0),
        (5.0, 2 * (1 + 0.2 * 50 / 1000)),  # the error is bounded
        (-5.0, 2 * (1 - 0.2 * 50 / 1000)),
    ],
)
@pytest.mark.parametrize("where", [KlInReward, KlInLoss])
def test_one_step_of_the_kl_controller(where: type[KlInReward | KlInLoss], measured: float, expected: float) -> None:
    kl = where(control="adaptive", target_nats=0.1, horizon_sequences=1000)
    assert next_kl_coefficient(kl, 2.0, measured, 50) == pytest.approx(expected)


def test_a_batch_too_large_for_the_horizon_is_refused() -> None:
    kl = KlInLoss(control="adaptive", horizon_sequences=100)
    with refuses(ValueError, "algorithms.horizon_too_short", horizon=100, sequences=500, least=100):
        next_kl_coefficient(kl, 1.0, 0.0, 500)
    assert next_kl_coefficient(kl, 1.0, 0.0, 499) > 0
