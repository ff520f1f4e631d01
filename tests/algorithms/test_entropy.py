from __future__ import annotations

import pytest

from algorithms import applied_entropy_coefficient, next_entropy_coefficient
from algorithms.entropy import StepBothWays, StepUpOnly

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
