from __future__ import annotations

import math
from typing import Any

import pytest

from harness.config.run_spec import TrainSpec
from harness.training.optimizer import schedule, warm_up_and_decay
from tests.harness.run.small import small_spec


def train_spec(**settings: Any) -> TrainSpec:
    return small_spec({f"train.{name}": value for name, value in settings.items()}).train


class TestSchedule:
    def test_constant(self) -> None:
        assert [schedule(step, train_spec(steps=3)) for step in (1, 2, 3)] == [1, 1, 1]

    def test_warm_up_is_linear_and_ends_at_the_peak(self) -> None:
        train = train_spec(steps=10, warmup_steps=4)
        assert [schedule(step, train) for step in range(1, 7)] == [0.25, 0.5, 0.75, 1, 1, 1]

    def test_linear(self) -> None:
        train = train_spec(steps=6, warmup_steps=2, lr_schedule="linear")
        assert [schedule(step, train) for step in range(1, 7)] == [0.5, 1, 1, 0.75, 0.5, 0.25]

    def test_cosine(self) -> None:
        train = train_spec(steps=4, lr_schedule="cosine")
        expected = [1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2]
        assert [schedule(step, train) for step in range(1, 5)] == pytest.approx(expected)

    def test_warm_up_longer_than_the_run(self) -> None:
        assert schedule(2, train_spec(steps=2, warmup_steps=4, lr_schedule="linear")) == 0.5


def test_warm_up_and_decay() -> None:
    """5 % of 100 steps up, then down along the line that ends at step 101, but never below 2 %."""
    factors = [warm_up_and_decay(step, 100) for step in (1, 3, 5, 6, 51, 98, 99, 100)]
    assert factors == pytest.approx([0.2, 0.6 * 0.98, 0.96, 0.95, 0.5, 0.03, 0.02, 0.02])
