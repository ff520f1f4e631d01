from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorithms import applied_entropy_coefficient, next_entropy_coefficient, next_kl_coefficient
from algorithms.knobs.entropy import StepBothWays, StepUpOnly
from algorithms.knobs.kl import KlInLoss, KlInReward

ENTROPIES = [0.1, 0.15, 0.5, 0.2, 0.6, 0.1]  # target 0.2


def run(adaptive: StepBothWays | StepUpOnly, first: float, entropies: list[float]) -> tuple[list[float], list[float]]:
    """The coefficient after each measurement, and what was applied at it."""
    coefficient, after, applied = first, [], []
    for entropy in entropies:
        applied.append(applied_entropy_coefficient(adaptive, coefficient, entropy))
        coefficient = next_entropy_coefficient(adaptive, coefficient, entropy)
        after.append(coefficient)
    return after, applied


def test_step_both_ways_by_hand() -> None:
    after, applied = run(StepBothWays(target_nats=0.2, delta=0.01), 0.0, ENTROPIES)
    assert after == pytest.approx([0.01, 0.02, 0.01, 0.01, 0.0, 0.01])
    assert applied == pytest.approx([0.0, 0.01, 0.0, 0.01, 0.0, 0.0])


def test_step_up_only_by_hand() -> None:
    after, applied = run(StepUpOnly(target_nats=0.2, delta=0.01), 0.0, ENTROPIES)
    assert after == pytest.approx([0.01, 0.02, 0.02, 0.02, 0.02, 0.03])
    assert applied == pytest.approx([0.0, 0.01, 0.0, 0.02, 0.0, 0.02])


@pytest.mark.parametrize("form", [StepBothWays, StepUpOnly])
def test_the_entropy_coefficient_stops_at_its_upper_bound(form: type[StepBothWays | StepUpOnly]) -> None:
    after, _ = run(form(delta=0.4, coef_max=0.7), 0.0, [0.0, 0.0, 0.0])
    assert after == pytest.approx([0.4, 0.7, 0.7])


def test_the_entropy_coefficient_stops_at_its_lower_bound() -> None:
    after, _ = run(StepBothWays(delta=0.4, coef_min=0.1), 0.6, [9.0, 9.0, 9.0])
    assert after == pytest.approx([0.2, 0.1, 0.1])


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


def test_the_kl_controller_compounds() -> None:
    kl = KlInReward(control="adaptive", target_nats=1.0, horizon_sequences=10)
    beta = 1.0
    for measured in (3.0, 3.0, 0.0):  # + 20 %, + 20 %, - 20 % over half a horizon
        beta = next_kl_coefficient(kl, beta, measured, 5)
    assert beta == pytest.approx(1.1 * 1.1 * 0.9)


@given(measured=st.floats(-1e3, 1e3), sequences=st.integers(1, 499))
def test_beta_stays_positive_and_moves_towards_the_target(measured: float, sequences: int) -> None:
    kl = KlInLoss(control="adaptive", target_nats=0.5, horizon_sequences=100)
    beta = next_kl_coefficient(kl, 1.0, measured, sequences)
    assert beta > 0
    assert (beta - 1) * (measured - 0.5) >= 0


def test_a_batch_too_large_for_the_horizon_is_refused() -> None:
    kl = KlInLoss(control="adaptive", horizon_sequences=100)
    with pytest.raises(ValueError, match=r"horizon_sequences=100 with 500 completions .* set it above 100"):
        next_kl_coefficient(kl, 1.0, 0.0, 500)
