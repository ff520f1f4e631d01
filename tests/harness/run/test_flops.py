"""Budgets of trained tokens and of floating-point operations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.models.language_model import load_model
from harness.models.start import StartingPoint
from harness.run.flops import FlopsRule
from tests.harness.run.small import small_spec, trained

TINY_WEIGHTS = sum(weight.numel() for weight in load_model("builtin:tiny").model.parameters())
LORA: dict[str, Any] = {"model.lora": {"type": "lora", "rank": 4}}


def rule(settings: dict[str, Any]) -> FlopsRule:
    spec = small_spec(settings)
    return FlopsRule.of(StartingPoint().for_training(spec, spec.model.source).model, spec)


def test_six_flops_a_weight_for_training_and_two_for_sampling() -> None:
    assert rule({}) == FlopsRule(2 * TINY_WEIGHTS, 6 * TINY_WEIGHTS)
    assert rule({"algorithm": "ppo"}) == FlopsRule(2 * TINY_WEIGHTS, 12 * TINY_WEIGHTS), "the critic's trunk"
    assert rule({"algorithm": "ppo", "objective.critic.trunk": "shared"}) == rule({})


def test_frozen_weights_take_no_gradient() -> None:
    """Rank x (inputs + outputs) for q, k, v, o (96, 96), gate, up and down (96, 272), in two layers."""
    learning = 2 * 4 * (4 * (96 + 96) + 3 * (96 + 272))
    weights = TINY_WEIGHTS + learning
    assert rule(LORA) == FlopsRule(2 * weights, 4 * weights + 2 * learning)


@pytest.mark.slow
@pytest.mark.parametrize("budget", [{"budget.trained_tokens": 500}, {"budget.flops": 2e9}])
def test_a_cell_ends_with_its_budget(budget: dict[str, Any], tmp_path: Path) -> None:
    """Which of two is used first: the other is far off."""
    small = {"train.steps": 30, "eval.every": 0, "eval.problems": 2, "eval.samples": 1, "budget.tokens": 10**6}
    cell = trained(tmp_path, small | {"budget.trained_tokens": 10**6} | budget)
    rows = cell.read_steps()
    knob, most = next(iter(budget.items()))
    column = knob.removeprefix("budget.")
    assert rows[-2][column] < most <= rows[-1][column]
    assert 1 < len(rows) < 30
    total = 0
    for row in rows:
        total += row["tokens_in_loss"]  # one optimiser step for each batch, of what can change a weight
        assert row["trained_tokens"] == total <= row["generated_tokens"]
        if column == "flops":
            assert row["flops"] == (2 * row["generated_tokens"] + 6 * total) * TINY_WEIGHTS


@pytest.mark.slow
def test_tokens_of_each_epoch_and_of_both_sides_count(tmp_path: Path) -> None:
    small = {"train.steps": 1, "eval.every": 0, "eval.problems": 2, "eval.samples": 1, "budget.trained_tokens": 10**6}
    for algorithm, epochs in (("grpo", 1), ("grpo", 3), ("dpo", 3)):
        settings = small | {"algorithm": algorithm, "train.epochs": epochs}
        (row,) = trained(tmp_path / f"{algorithm}-{epochs}", settings).read_steps()
        assert row["trained_tokens"] == epochs * row["tokens_in_loss"] > 0
