from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from algorithms import Objective, preset
from harness.shelves.replay.weights import StoredTokenWeights, replay_step
from tests.harness.run.small import small_spec
from tests.harness.shelves.replay.toy import LENGTHS, stored

# Rewards 1 and 0: centred +-1/2, of std sqrt(1/2).
HALF, STD = 0.5, 0.5 / (math.sqrt(0.5) + 1e-6)


def weighed(algorithm: str, settings: dict[str, Any] | None = None, /, **overrides: Any) -> StoredTokenWeights:
    objective = preset(algorithm, **overrides)
    assert isinstance(objective, Objective)
    return replay_step(stored(), objective, small_spec({"train.epochs": 2} | (settings or {})))


def rows(some: StoredTokenWeights, epoch: int) -> list[list[float]]:
    return [some.weight[epoch, row, :length].tolist() for row, length in enumerate(LENGTHS)]


def places(tensor: torch.Tensor) -> list[list[int]]:
    return tensor.nonzero().tolist()


ZEROS = [[0.0, 0.0], [0.0, 0.0]]


def test_grpo_by_hand() -> None:
    """A r / (rows x length), and nothing beyond the bound to which the advantage pulls."""
    got = weighed("grpo")
    expected = [[STD / 4], [-STD / 12] * 3, *ZEROS], [[0.0], [0.0, -STD / 12, -1.1 * STD / 12], *ZEROS]
    for epoch in (0, 1):
        for row, weights in zip(rows(got, epoch), expected[epoch], strict=True):
            assert row == pytest.approx(weights, rel=1e-5)
    assert places(got.clipped) == [[1, 0, 0], [1, 1, 0]]
    assert not got.masked.any()


def test_cispo_by_hand() -> None:
    """A min(r, 5) / (tokens of the group), over the one prompt that is left; every token of it keeps its weight."""
    got = weighed("cispo")
    assert rows(got, 0)[:2] == [pytest.approx([STD / 4], rel=1e-5), pytest.approx([-STD / 4] * 3, rel=1e-5)]
    assert rows(got, 1)[0] == pytest.approx([3 * STD / 4], rel=1e-5)
    assert rows(got, 1)[1] == pytest.approx([-0.5 * STD / 4, -STD / 4, -1.1 * STD / 4], rel=1e-5)
    assert not got.clipped.any()
    assert places(got.masked) == [[epoch, row, token] for epoch in (0, 1) for row in (2, 3) for token in (0, 1)]
    lower = weighed("cispo", **{"rule.weight_max": 2.0})
    assert rows(lower, 1)[0] == pytest.approx([2 * STD / 4], rel=1e-5)
    assert places(lower.clipped) == [[1, 0, 0]]


def test_what_a_filter_of_completions_takes_out_is_masked() -> None:
    """The second completion was cut at the limit."""
    after = weighed("grpo", **{"overlong.type": "mask_after"})
    assert places(after.masked[0]) == [[1, 0], [1, 1], [1, 2]]
    assert rows(after, 0)[0] == pytest.approx([STD / 4], rel=1e-5), "its reward still counts"
    dropped = weighed("grpo", **{"overlong.type": "drop"})
    assert places(dropped.masked[0]) == [[1, 0], [1, 1], [1, 2]]
    assert not dropped.weight.any(), "alone in its group a completion has no advantage"


def test_a_ratio_that_is_not_recorded_is_1_and_told() -> None:
    """Without a baseline the second prompt acts, which the cell itself did not score in the second epoch."""
    got = weighed("reinforce", **{"rule.type": "weighted", "ratio": "token"})
    assert got.weight[1, 2, :2].abs().min() > 0
    assert places(got.guessed) == [[1, row, token] for row in (2, 3) for token in (0, 1)]
    assert not weighed("grpo").guessed.any(), "without an advantage it does not matter"


def test_steps_are_split_as_the_cell_splits_them() -> None:
    """One prompt a step: its completions are all of the step's."""
    got = weighed("grpo", {"train.updates_per_rollout": 2})
    assert len(got.losses) == 4
    assert rows(got, 0)[:2] == [pytest.approx([STD / 2], rel=1e-5), pytest.approx([-STD / 6] * 3, rel=1e-5)]


@pytest.mark.parametrize(
    "algorithm", ["dr_grpo", "gspo", "rloo", "dapo", "kl_cov", "clip_cov", "gmpo", "sapo", "kimi_k1_5", "brpo"]
)
def test_weights_are_the_slope_of_the_loss(algorithm: str) -> None:
    """Against a difference quotient in the token's log-prob, in float64."""
    objective = preset(algorithm)
    assert isinstance(objective, Objective)
    spec = small_spec({"train.epochs": 2})
    step = replace(stored(), old_logps=stored().old_logps.double(), log_ratios=0.3 * stored().log_ratios.double())
    weights, h = replay_step(step, objective, spec).weight, 1e-6
    for row, token in ((0, 0), (1, 0), (1, 2)):
        values = []
        for sign in (1, -1):
            moved = step.log_ratios.clone()
            moved[1, row, token] += sign * h
            values.append(float(replay_step(replace(step, log_ratios=moved), objective, spec).losses[1].value.detach()))
        slope = (values[0] - values[1]) / (2 * h)
        assert float(weights[1, row, token]) == pytest.approx(-slope, rel=1e-3, abs=1e-6)
