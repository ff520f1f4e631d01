from __future__ import annotations

import itertools
import math
from typing import cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from algorithms import Objective, advantages, preset
from algorithms.objective import GROUP_BASELINES, Baseline, Scale

BASELINES: tuple[Baseline, ...] = ("none", "batch_mean", *GROUP_BASELINES)
SCALES: tuple[Scale, ...] = ("none", "group_std", "batch_std", "whiten_tokens")
NAN = math.nan


def sensible(baseline: Baseline, scale: Scale) -> bool:
    return not (
        (scale == "group_std" and baseline not in GROUP_BASELINES) or (scale == "batch_std" and baseline == "none")
    )


POINTS = [
    Objective(baseline=baseline, scale=scale, scale_ddof=ddof, aggregation="token_mean")
    for baseline, scale in itertools.product(BASELINES, SCALES)
    if sensible(baseline, scale)
    for ddof in ((1,) if scale == "none" else (0, 1))
]
WITH_GROUP_BASELINE = [point for point in POINTS if point.baseline in GROUP_BASELINES]


def name(point: Objective) -> str:
    return f"{point.baseline}-{point.scale}-{point.scale_ddof}"


rows = st.lists(
    st.tuples(
        st.sampled_from([0.0, 1.0, 0.1, -0.7, 0.3, NAN]),  # reward
        st.sampled_from([3, 7, 9, 1000]),  # group
        st.integers(0, 4),  # length
    ),
    min_size=1,
    max_size=12,
)
Rows = list[tuple[float, int, int]]


def tensors(rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
    rewards, groups, lengths = zip(*rows, strict=True)
    mask = torch.arange(4) < torch.tensor(lengths)[:, None]
    return torch.tensor(rewards, dtype=torch.float64), torch.tensor(groups), mask


def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def variance(values: list[float], ddof: int) -> float:
    return sum((value - mean(values)) ** 2 for value in values) / max(1, len(values) - ddof)


def slow_advantages(point: Objective, rows: Rows) -> list[float]:
    """Row by row, over plain lists, straight from the definitions."""
    reward = {i: row[0] for i, row in enumerate(rows) if not math.isnan(row[0])}
    peers = {i: [j for j in reward if rows[j][1] == rows[i][1]] for i in reward}

    def baseline(i: int) -> float:
        others = [reward[j] for j in peers[i] if j != i]
        return {
            "none": 0.0,
            "batch_mean": mean(list(reward.values())),
            "group_mean": mean([reward[j] for j in peers[i]]),
            "leave_one_out": mean(others) if others else reward[i],
            "length_weighted": mean([reward[j] for j in peers[i] for _ in range(rows[j][2])]),
        }[point.baseline]

    centred = {i: reward[i] - baseline(i) for i in reward}
    tokens = [centred[i] for i in reward for _ in range(rows[i][2])]

    def scaled(i: int) -> float:
        ddof, eps = point.scale_ddof, point.scale_eps
        if point.scale == "whiten_tokens":
            return (centred[i] - mean(tokens)) / math.sqrt(variance(tokens, ddof) + eps)
        pool = {"none": [], "group_std": peers[i], "batch_std": list(reward)}[point.scale]
        return centred[i] / (math.sqrt(variance([reward[j] for j in pool], ddof)) + eps) if pool else centred[i]

    return [scaled(i) if i in reward else 0.0 for i in range(len(rows))]


@pytest.mark.parametrize("point", POINTS, ids=name)
@settings(max_examples=25, deadline=None)
@given(rows=rows)
def test_agrees_with_the_definitions(point: Objective, rows: Rows) -> None:
    rewards, groups, mask = tensors(rows)
    expected = torch.tensor(slow_advantages(point, rows), dtype=torch.float64)[:, None] * mask
    torch.testing.assert_close(advantages(point, rewards, groups, mask), expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("point", POINTS, ids=name)
@settings(max_examples=10, deadline=None)
@given(rows=rows, data=st.data())
def test_rows_may_come_in_any_order(point: Objective, rows: Rows, data: st.DataObject) -> None:
    order = torch.tensor(data.draw(st.permutations(range(len(rows)))))
    rewards, groups, mask = tensors(rows)
    shuffled = advantages(point, rewards[order], groups[order], mask[order])
    torch.testing.assert_close(shuffled, advantages(point, rewards, groups, mask)[order], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("point", WITH_GROUP_BASELINE, ids=name)
@settings(max_examples=10, deadline=None)
@given(rows=rows, shift=st.floats(-5, 5))
def test_group_baselines_ignore_a_shift_of_rewards(point: Objective, rows: Rows, shift: float) -> None:
    rewards, groups, mask = tensors(rows)
    shifted = advantages(point, rewards + shift, groups, mask)
    torch.testing.assert_close(shifted, advantages(point, rewards, groups, mask), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("scale", SCALES)
def test_rewards_may_be_scaled_only_under_a_std(scale: Scale) -> None:
    """In units of the plain scale's effect: with a std only eps distinguishes R and 3 R."""
    rewards, groups, mask = tensors([(1, 0, 2), (0, 0, 4), (0, 0, 1), (1, 1, 3), (0, 1, 2)])
    point = preset("dr_grpo", scale=scale)
    once, thrice = advantages(point, rewards, groups, mask), advantages(point, 3 * rewards, groups, mask)
    torch.testing.assert_close(thrice, 3 * once if scale == "none" else once, rtol=1e-5, atol=1e-5)


@settings(max_examples=20, deadline=None)
@given(rows=rows)
def test_dr_grpo_and_rloo_differ_by_the_group_size(rows: Rows) -> None:
    """A_RLOO = A_DrGRPO n / (n - 1), with n the scored completions of the group."""
    rewards, groups, mask = tensors(rows)
    n = torch.tensor([sum(g == group and not math.isnan(r) for r, g, _ in rows) for _, group, _ in rows])
    factor = (n / (n - 1).clamp(min=1)).double()[:, None]
    dr_grpo = advantages(preset("dr_grpo"), rewards, groups, mask)
    torch.testing.assert_close(advantages(preset("rloo"), rewards, groups, mask), dr_grpo * factor)


@pytest.mark.parametrize("point", [p for p in WITH_GROUP_BASELINE if p.scale != "whiten_tokens"], ids=name)
def test_equal_groups_and_single_completions_get_exactly_zero(point: Objective) -> None:
    # Three times 0.1, divided by 3, is not 0.1 in floats.
    rewards = torch.tensor([0.1, NAN, 0.1, 0.1, 0.9, 1.0, 0.0], dtype=torch.float64)
    groups = torch.tensor([4, 4, 4, 4, 2, 0, 0])
    result = advantages(point, rewards, groups, torch.ones(7, 2))
    assert (result[:5] == 0).all()
    assert (result[5] > 0).all()
    assert (result[6] < 0).all()


@pytest.mark.parametrize("point", POINTS, ids=name)
def test_a_batch_of_equal_rewards_has_no_preference(point: Objective) -> None:
    rewards = torch.full((4,), 0.1, dtype=torch.float64)
    result = advantages(point, rewards, torch.tensor([0, 0, 0, 1]), torch.ones(4, 3))
    assert (result == (0.1 if (point.baseline, point.scale) == ("none", "none") else 0)).all()


@pytest.mark.parametrize("point", POINTS, ids=name)
def test_what_could_not_be_scored_leaves_the_others_as_if_absent(point: Objective) -> None:
    rewards, groups, mask = tensors([(1, 0, 2), (NAN, 0, 4), (0, 0, 1), (0, 1, 3), (NAN, 2, 1)])
    kept = torch.tensor([0, 2, 3])
    result = advantages(point, rewards, groups, mask)
    assert (result[[1, 4]] == 0).all()
    torch.testing.assert_close(result[kept], advantages(point, rewards[kept], groups[kept], mask[kept]))


def test_a_fully_masked_completion_counts_in_the_group() -> None:
    rewards, groups, mask = tensors([(1, 0, 2), (0, 0, 0), (0, 0, 1)])
    result = advantages(preset("dr_grpo"), rewards, groups, mask)
    torch.testing.assert_close(result[:, 0], torch.tensor([2 / 3, 0, -1 / 3], dtype=torch.float64))


def test_lite_ppo_divides_by_the_std_of_raw_rewards() -> None:
    """Groups with means 0 and 1: centred rewards have std 0, raw rewards do not."""
    rewards = torch.tensor([1.0, 1.0, 0.0, 0.0, 0.5, 0.3])
    groups = torch.tensor([0, 0, 1, 1, 2, 2])
    result = advantages(preset("lite_ppo"), rewards, groups, torch.ones(6, 1))
    assert result[4].item() == pytest.approx(0.1 / (rewards.std().item() + 1e-6), rel=1e-5)


def test_dtypes() -> None:
    groups, mask = torch.tensor([0, 0]), torch.ones(2, 1)
    for dtype in (torch.float32, torch.float64):
        assert advantages(preset("grpo"), torch.tensor([1, 0], dtype=dtype), groups, mask).dtype == dtype
    assert advantages(preset("dr_grpo"), torch.tensor([1, 0]), groups, mask).tolist() == [[0.5], [-0.5]]


@pytest.mark.parametrize(
    ("rewards", "groups", "mask", "complaint"),
    [
        ([[1.0]], [0], [[1]], r"rewards has shape \[1, 1\]; it must be \[B\]"),
        ([1.0, 0.0], [0], [[1], [1]], r"groups has shape \[1\]; it must be that of rewards, \[2\]"),
        ([1.0, 0.0], [0, 0], [[1]], r"mask has shape \[1, 1\]; it must be \[2, T\]"),
        ([1.0, 0.0], [0, 0], [1, 1], r"mask has shape \[2\]"),
        ([1.0, math.inf], [0, 0], [[1], [1]], r"infinite rewards in rows \[1\]"),
    ],
)
def test_what_does_not_fit_is_refused(rewards: object, groups: object, mask: object, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        advantages(preset("grpo"), *(torch.tensor(cast(list[float], values)) for values in (rewards, groups, mask)))
