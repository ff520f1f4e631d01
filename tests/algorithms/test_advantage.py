from __future__ import annotations

import itertools
import math
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from algorithms import Objective, advantages, preset
from algorithms.objective import GROUP_BASELINES, Baseline, Scale

BASELINES: tuple[Baseline, ...] = ("none", "batch_mean", *GROUP_BASELINES)
SCALES: tuple[Scale, ...] = ("none", "group_std", "batch_std", "mini_batch_std", "whiten_tokens", "nonzero_frac")
NAN = math.nan


def sensible(baseline: Baseline, scale: Scale) -> bool:
    return not (
        (scale == "group_std" and baseline not in GROUP_BASELINES)
        or (scale in ("batch_std", "mini_batch_std") and baseline == "none")
    )


POINTS = [
    Objective(baseline=baseline, scale=scale, scale_ddof=ddof, aggregation="token_mean")
    for baseline, scale in itertools.product(BASELINES, SCALES)
    if sensible(baseline, scale)
    for ddof in ((1,) if scale in ("none", "nonzero_frac") else (0, 1))
]
WITH_GROUP_BASELINE = [point for point in POINTS if point.baseline in GROUP_BASELINES]


def name(point: Objective) -> str:
    return f"{point.baseline}-{point.scale}-{point.scale_ddof}"


any_point = st.sampled_from(POINTS)
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


def objective(**knobs: Any) -> Objective:
    return Objective.model_validate({"aggregation": "token_mean", **knobs})


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
        by_token = [reward[j] for j in peers[i] for _ in range(rows[j][2])]
        return {
            "none": 0.0,
            "batch_mean": mean(list(reward.values())),
            "group_mean": mean([reward[j] for j in peers[i]]),
            "leave_one_out": mean(others) if others else reward[i],
            "length_weighted": mean(by_token) if by_token else reward[i],
        }[point.baseline]

    centred = {i: reward[i] - baseline(i) for i in reward}
    tokens = [centred[i] for i in reward for _ in range(rows[i][2])]

    def scaled(i: int) -> float:
        ddof, eps = point.scale_ddof, point.scale_eps
        if point.scale == "whiten_tokens":
            return (centred[i] - mean(tokens)) / math.sqrt(variance(tokens, ddof) + eps)
        if point.scale == "none":
            return centred[i]
        if point.scale == "nonzero_frac":
            return centred[i] * len(reward) / max(1, sum(r != 0 for r in reward.values()))
        spread = {
            "group_std": [reward[j] for j in peers[i]],
            "batch_std": list(reward.values()),
            "mini_batch_std": [centred[j] for j in reward if rows[j][1] % 2 == rows[i][1] % 2],
        }[point.scale]
        return centred[i] / (math.sqrt(variance(spread, ddof)) + eps)

    return [scaled(i) if i in reward else 0.0 for i in range(len(rows))]


@settings(max_examples=400, deadline=None)
@given(point=any_point, rows=rows)
def test_agrees_with_the_definitions(point: Objective, rows: Rows) -> None:
    rewards, groups, mask = tensors(rows)
    expected = torch.tensor(slow_advantages(point, rows), dtype=torch.float64)[:, None] * mask
    result = advantages(point, rewards, groups, mask, mini_batches=groups % 2)
    torch.testing.assert_close(result, expected, rtol=1e-8, atol=1e-8)


@settings(max_examples=100, deadline=None)
@given(point=any_point, rows=rows, data=st.data())
def test_rows_may_come_in_any_order(point: Objective, rows: Rows, data: st.DataObject) -> None:
    order = torch.tensor(data.draw(st.permutations(range(len(rows)))))
    rewards, groups, mask = tensors(rows)
    shuffled = advantages(point, rewards[order], groups[order], mask[order])
    torch.testing.assert_close(shuffled, advantages(point, rewards, groups, mask)[order], rtol=1e-8, atol=1e-8)


@settings(max_examples=100, deadline=None)
@given(
    point=st.sampled_from([p for p in WITH_GROUP_BASELINE if p.scale != "nonzero_frac"]),
    rows=rows,
    shift=st.floats(-5, 5),
)
def test_group_baselines_ignore_a_shift_of_rewards(point: Objective, rows: Rows, shift: float) -> None:
    rewards, groups, mask = tensors(rows)
    shifted = advantages(point, rewards + shift, groups, mask)
    torch.testing.assert_close(shifted, advantages(point, rewards, groups, mask), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("scale", SCALES)
def test_rewards_may_be_scaled_only_under_a_std(scale: Scale) -> None:
    """With a std only eps distinguishes R and 3 R."""
    rewards, groups, mask = tensors([(1, 0, 2), (0, 0, 4), (0, 0, 1), (1, 1, 3), (0, 1, 2)])
    point = preset("dr_grpo", Objective, scale=scale)
    once, thrice = advantages(point, rewards, groups, mask), advantages(point, 3 * rewards, groups, mask)
    has_std = scale not in ("none", "nonzero_frac")
    torch.testing.assert_close(thrice, once if has_std else 3 * once, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scale", ["group_std", "batch_std", "mini_batch_std", "whiten_tokens"])
@settings(max_examples=25, deadline=None)
@given(rows=rows, factor=st.floats(0.1, 10))
def test_a_std_takes_any_factor_out_of_the_rewards(scale: str, rows: Rows, factor: float) -> None:
    rewards, groups, mask = tensors(rows)
    point = objective(baseline="leave_one_out", scale=scale, scale_eps=1e-14)
    scaled = advantages(point, factor * rewards, groups, mask)
    torch.testing.assert_close(scaled, advantages(point, rewards, groups, mask), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("scale", ["none", "group_std"])
@pytest.mark.parametrize("baseline", GROUP_BASELINES)
@settings(max_examples=15, deadline=None)
@given(rows=rows)
def test_groups_do_not_depend_on_each_other(baseline: str, scale: str, rows: Rows) -> None:
    rewards, groups, mask = tensors(rows)
    point = objective(baseline=baseline, scale=scale)
    together = advantages(point, rewards, groups, mask)
    for group in set(groups.tolist()):
        alone = groups == group
        torch.testing.assert_close(advantages(point, rewards[alone], groups[alone], mask[alone]), together[alone])


@settings(max_examples=25, deadline=None)
@given(rows=rows, with_token_rewards=st.booleans())
def test_whitened_tokens_have_mean_0_and_variance_1(rows: Rows, with_token_rewards: bool) -> None:
    rewards, groups, mask = tensors(rows)
    token_rewards = torch.randn(mask.shape, generator=torch.Generator().manual_seed(len(rows)), dtype=torch.float64)
    point = objective(baseline="none", scale="whiten_tokens", scale_eps=1e-14)
    result = advantages(point, rewards, groups, mask, token_rewards=token_rewards if with_token_rewards else None)
    tokens = result[mask & ~rewards.isnan()[:, None]]
    if len(set(tokens.tolist())) > 1:
        assert tokens.mean().item() == pytest.approx(0, abs=1e-9)
        assert tokens.var().item() == pytest.approx(1, abs=1e-6)
    else:
        assert (tokens == 0).all()


@pytest.mark.parametrize("baseline", ["batch_mean", *GROUP_BASELINES])
@pytest.mark.parametrize("scale", ["none", "batch_std", "nonzero_frac"])
def test_token_rewards_are_part_of_the_completions_reward(baseline: str, scale: str) -> None:
    rewards, groups, mask = tensors([(1, 0, 2), (0, 0, 4), (NAN, 0, 1), (1, 1, 3), (0, 1, 0)])
    token_rewards = torch.randn(mask.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    point = objective(baseline=baseline, scale=scale)
    result = advantages(point, rewards, groups, mask, token_rewards=token_rewards)
    totals = rewards + (token_rewards * mask).sum(1)
    torch.testing.assert_close(result, advantages(point, totals, groups, mask))
    assert not torch.allclose(result, advantages(point, rewards, groups, mask))


BRPO = objective(baseline="random_peer")


def test_a_random_peer_is_only_beaten_or_not() -> None:
    rewards, groups, mask = tensors(
        [(0.3, 0, 2), (0.1, 0, 1), (0.3, 0, 1), (0.9, 0, 2), (NAN, 1, 1), (0.5, 1, 2), (0.2, 2, 1), (NAN, 2, 1)]
    )
    peers = torch.tensor([0, 0, 0, 0, 4, 4, 6, 6])
    result = advantages(BRPO, rewards, groups, mask, peers=peers)
    assert result[:, 0].tolist() == [0, -1, 0, 1, 0, 0, 0, 0]
    assert result[0].tolist() == [0, 0, 0, 0]
    assert result[3].tolist() == [1, 1, 0, 0]


def test_a_random_peer_is_compared_by_all_that_it_got() -> None:
    rewards, groups = torch.tensor([0.0, 0.0]), torch.tensor([0, 0])
    peers, mask = torch.tensor([1, 1]), torch.ones(2, 2)
    token_rewards = torch.tensor([[0.1, 0.1], [0.3, 0.0]])
    result = advantages(BRPO, rewards, groups, mask, token_rewards=token_rewards, peers=peers)
    assert result.tolist() == [[-1, -1], [0, 0]]


@settings(max_examples=25, deadline=None)
@given(rows=rows, data=st.data(), shift=st.integers(-4, 4))
def test_random_peers_ignore_a_shift_and_the_order(rows: Rows, data: st.DataObject, shift: int) -> None:
    rewards, groups, mask = tensors(rows)
    rewards = (8 * rewards).round()  # sums of small integers are exact
    members = [[j for j, other in enumerate(rows) if other[1] == row[1]] for row in rows]
    peers = torch.tensor([data.draw(st.sampled_from(group)) for group in members])
    order = torch.tensor(data.draw(st.permutations(range(len(rows)))))
    result = advantages(BRPO, rewards, groups, mask, peers=peers)
    moved = advantages(BRPO, (rewards + shift)[order], groups[order], mask[order], peers=order.argsort()[peers[order]])
    assert torch.equal(moved, result[order])
    expected = torch.sign(rewards - rewards[peers]).nan_to_num(0)
    assert torch.equal(result, expected[:, None] * mask)


@pytest.mark.parametrize(
    ("peers", "complaint"),
    [
        (None, "baseline=random_peer without peers: give"),
        ([0], r"peers has shape \[1\]; it must be that of rewards, \[3\]"),
        ([0, 0, 1], r"peers of rows \[2\] are not rows of their groups; number rows from 0 to 2"),
        ([0, -1, 3], r"peers of rows \[1, 2\] are not"),
    ],
)
def test_peers_must_be_of_the_group(peers: list[int] | None, complaint: str) -> None:
    rewards, groups, mask = torch.zeros(3), torch.tensor([5, 5, 6]), torch.ones(3, 1)
    with pytest.raises(ValueError, match=complaint):
        advantages(BRPO, rewards, groups, mask, peers=None if peers is None else torch.tensor(peers))


def test_mini_batches_are_one_unless_told() -> None:
    rewards = torch.tensor([1.0, 0.0, 3.0, 0.0], dtype=torch.float64)
    groups, mask = torch.tensor([0, 0, 1, 1]), torch.ones(4, 1)
    point = objective(baseline="group_mean", scale="mini_batch_std", scale_ddof=0)
    centred = torch.tensor([[0.5], [-0.5], [1.5], [-1.5]], dtype=torch.float64)
    together = advantages(point, rewards, groups, mask)
    torch.testing.assert_close(together, centred / (math.sqrt(1.25) + 1e-6))
    split = advantages(point, rewards, groups, mask, mini_batches=torch.tensor([7, 7, 2, 2]))
    torch.testing.assert_close(split, centred / torch.tensor([[0.5], [0.5], [1.5], [1.5]]).add(1e-6))


def test_the_share_of_nonzero_rewards_raises_advantages() -> None:
    """GPG: one of four scored rewards is not 0."""
    rewards, groups, mask = torch.tensor([1.0, 0.0, 0.0, 0.0, NAN]), torch.tensor([0, 0, 1, 1, 1]), torch.ones(5, 1)
    point = objective(baseline="group_mean", scale="nonzero_frac")
    assert advantages(point, rewards, groups, mask).flatten().tolist() == [2, -2, 0, 0, 0]
    assert (advantages(point, 0 * rewards, groups, mask) == 0).all()


@settings(max_examples=100, deadline=None)
@given(point=any_point, rows=rows)
def test_one_sign_of_advantages_leaves_zeros_for_the_other(point: Objective, rows: Rows) -> None:
    rewards, groups, mask = tensors(rows)
    both = advantages(point, rewards, groups, mask)
    for sign, kept in (("positive", both > 0), ("negative", both < 0)):
        signed = point.model_copy(update={"advantage_sign": sign})
        assert torch.equal(advantages(signed, rewards, groups, mask), torch.where(kept, both, 0))


wild = st.floats(-1e6, 1e6)


@settings(max_examples=200, deadline=None)
@given(
    point=any_point,
    rows=st.lists(st.tuples(wild | st.just(NAN) | st.just(0.1), st.integers(0, 2), st.integers(0, 4)), max_size=8),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    with_token_rewards=st.booleans(),
)
def test_no_nan_comes_out(point: Objective, rows: Rows, dtype: torch.dtype, with_token_rewards: bool) -> None:
    rewards, groups, mask = tensors(rows) if rows else (torch.zeros(0), torch.zeros(0).long(), torch.zeros(0, 4) > 0)
    token_rewards = torch.where(mask, 1e6 * torch.ones(mask.shape), NAN) if with_token_rewards else None
    result = advantages(point, rewards.to(dtype), groups, mask, token_rewards=token_rewards)
    assert result.shape == mask.shape
    assert result.dtype == dtype
    assert result.isfinite().all()
    assert (result[~mask] == 0).all()


@settings(max_examples=20, deadline=None)
@given(rows=rows)
def test_dr_grpo_and_rloo_differ_by_the_group_size(rows: Rows) -> None:
    """A_RLOO = A_DrGRPO n / (n - 1), with n the scored completions of the group."""
    rewards, groups, mask = tensors(rows)
    n = torch.tensor([sum(g == group and not math.isnan(r) for r, g, _ in rows) for _, group, _ in rows])
    factor = (n / (n - 1).clamp(min=1)).double()[:, None]
    dr_grpo = advantages(preset("dr_grpo", Objective), rewards, groups, mask)
    torch.testing.assert_close(advantages(preset("rloo", Objective), rewards, groups, mask), dr_grpo * factor)


def test_equal_groups_and_single_completions_get_exactly_zero() -> None:
    # Three times 0.1, divided by 3, is not 0.1 in floats.
    rewards = torch.tensor([0.1, NAN, 0.1, 0.1, 0.9, 1.0, 0.0], dtype=torch.float64)
    groups = torch.tensor([4, 4, 4, 4, 2, 0, 0])
    for point in WITH_GROUP_BASELINE:
        result = advantages(point, rewards, groups, torch.ones(7, 2))
        assert (result[:5] == 0).all() or point.scale == "whiten_tokens", name(point)
        assert (result[5] > 0).all() and (result[6] < 0).all(), name(point)


def test_a_batch_of_equal_rewards_has_no_preference() -> None:
    rewards = torch.full((4,), 0.1, dtype=torch.float64)
    for point in POINTS:
        result = advantages(point, rewards, torch.tensor([0, 0, 0, 1]), torch.ones(4, 3))
        uncentred = point.baseline == "none" and point.scale != "whiten_tokens"
        assert (result == (0.1 if uncentred else 0)).all(), name(point)


def test_what_could_not_be_scored_leaves_the_others_as_if_absent() -> None:
    rewards, groups, mask = tensors([(1, 0, 2), (NAN, 0, 4), (0, 0, 1), (0, 1, 3), (NAN, 2, 1)])
    kept = torch.tensor([0, 2, 3])
    for point in POINTS:
        result = advantages(point, rewards, groups, mask)
        assert (result[[1, 4]] == 0).all(), name(point)
        expected = advantages(point, rewards[kept], groups[kept], mask[kept])
        torch.testing.assert_close(result[kept], expected, msg=name(point))


def test_a_fully_masked_completion_counts_in_the_group() -> None:
    rewards, groups, mask = tensors([(1, 0, 2), (0, 0, 0), (0, 0, 1)])
    result = advantages(preset("dr_grpo", Objective), rewards, groups, mask)
    torch.testing.assert_close(result[:, 0], torch.tensor([2 / 3, 0, -1 / 3], dtype=torch.float64))


def test_lite_ppo_divides_by_the_std_of_raw_rewards() -> None:
    """Groups with means 0 and 1: centred rewards have std 0, raw rewards do not."""
    rewards = torch.tensor([1.0, 1.0, 0.0, 0.0, 0.5, 0.3])
    groups = torch.tensor([0, 0, 1, 1, 2, 2])
    result = advantages(preset("lite_ppo", Objective), rewards, groups, torch.ones(6, 1))
    assert result[4].item() == pytest.approx(0.1 / (rewards.std().item() + 1e-6), rel=1e-5)


def test_dtypes() -> None:
    groups, mask = torch.tensor([0, 0]), torch.ones(2, 1)
    for dtype in (torch.float32, torch.float64):
        assert advantages(preset("grpo", Objective), torch.tensor([1, 0], dtype=dtype), groups, mask).dtype == dtype
    assert advantages(preset("dr_grpo", Objective), torch.tensor([1, 0]), groups, mask).tolist() == [[0.5], [-0.5]]


def test_mini_batches_must_fit() -> None:
    point = objective(baseline="group_mean", scale="mini_batch_std")
    with pytest.raises(ValueError, match=r"mini_batches has shape \[1\]; it must be that of rewards, \[2\]"):
        advantages(point, torch.zeros(2), torch.tensor([0, 0]), torch.ones(2, 1), mini_batches=torch.tensor([0]))


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
        advantages(
            preset("grpo", Objective), *(torch.tensor(cast(list[float], values)) for values in (rewards, groups, mask))
        )


# Credit: steps, and rewards of tokens


def tensor(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def by_steps(scale: str = "group_std", ddof: int = 1) -> Objective:
    knobs = {"baseline": "group_mean", "scale": scale, "aggregation": "token_mean", "credit": "steps"}
    return Objective.model_validate(knobs | ({"scale_ddof": ddof, "scale_eps": 1e-6} if scale != "none" else {}))


step_reward = st.sampled_from([NAN, NAN, 0.0, 0.0, 1.0, 0.1])
StepRow = tuple[float, int, list[float], list[bool]]
rows_of_steps = st.lists(
    st.tuples(
        st.sampled_from([0.0, 1.0, 0.1, NAN]),  # reward
        st.sampled_from([3, 7]),  # group
        st.lists(step_reward, min_size=5, max_size=5),
        st.lists(st.booleans(), min_size=5, max_size=5),  # mask
    ),
    min_size=1,
    max_size=8,
)


def step_tensors(rows: list[StepRow]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rewards, groups, steps, mask = zip(*rows, strict=True)
    return tensor(rewards), torch.tensor(groups), torch.tensor(mask), tensor(steps)


def slow_step_advantages(rows: list[StepRow], scale: str, ddof: int) -> Tensor:
    """Row by row and step by step, straight from the definition."""
    steps: list[dict[int, float]] = []  # for each row: token -> reward of the step that ends there
    for reward, _, token_rewards, mask in rows:
        places = [t for t in range(5) if mask[t]] if not math.isnan(reward) else []
        ends = {t: token_rewards[t] for t in places if not math.isnan(token_rewards[t])}
        if places:
            ends[places[-1]] = ends.get(places[-1], 0.0) + reward
        steps.append(ends)
    result = []
    for (_, group, _, mask), ends in zip(rows, steps, strict=True):
        pool = [x for row, other in zip(rows, steps, strict=True) if row[1] == group for x in other.values()]
        mean = sum(pool) / max(1, len(pool))
        variance = sum((x - mean) ** 2 for x in pool) / max(1, len(pool) - ddof)
        divisor = math.sqrt(variance) + 1e-6 if scale == "group_std" else 1.0
        result.append(
            [sum((x - mean) / divisor for end, x in ends.items() if end >= t) if mask[t] else 0 for t in range(5)]
        )
    return tensor(result)


@pytest.mark.parametrize(("scale", "ddof"), [("group_std", 0), ("group_std", 1), ("none", 1)])
@settings(max_examples=60, deadline=None)
@given(rows=rows_of_steps)
def test_steps_agree_with_their_definition(scale: str, ddof: int, rows: list[StepRow]) -> None:
    rewards, groups, mask, token_rewards = step_tensors(rows)
    result = advantages(by_steps(scale, ddof), rewards, groups, mask, token_rewards=token_rewards)
    torch.testing.assert_close(result, slow_step_advantages(rows, scale, ddof), rtol=1e-8, atol=1e-8)


def test_the_steps_of_two_completions_by_hand() -> None:
    """Steps 1, 0, 1 + 1 and 0, 0: mean 0.6, sum of squares 3.2."""
    token_rewards = tensor([[1.0, NAN, 0.0, 1.0], [NAN, 0.0, NAN, NAN]])
    mask = tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
    std = math.sqrt(3.2 / 4) + 1e-6
    result = advantages(by_steps(), tensor([1, 0]), torch.tensor([0, 0]), mask, token_rewards=token_rewards)
    expected = tensor([[0.4 - 0.6 + 1.4, -0.6 + 1.4, -0.6 + 1.4, 1.4], [-1.2, -1.2, -0.6, 0]])
    torch.testing.assert_close(result, expected / std)


@pytest.mark.parametrize("scale", ["none", "group_std"])
def test_a_completion_that_is_one_step_has_its_outcome_advantage(scale: str) -> None:
    rewards, groups = tensor([1, 0, 0, 1, 0.5]), torch.tensor([0, 0, 0, 1, 1])
    mask = torch.arange(4) < torch.tensor([3, 4, 1, 2, 2])[:, None]
    outcome = Objective.model_validate(by_steps(scale).model_dump() | {"credit": "completion"})
    expected = advantages(outcome, rewards, groups, mask)
    torch.testing.assert_close(advantages(by_steps(scale), rewards, groups, mask), expected)
    nowhere = torch.full((5, 4), NAN)
    torch.testing.assert_close(advantages(by_steps(scale), rewards, groups, mask, token_rewards=nowhere), expected)


def test_steps_of_equal_reward_get_exactly_zero() -> None:
    token_rewards = tensor([[0.1, NAN, 0.0], [0.1, 0.1, 0.0]])
    result = advantages(
        by_steps(), tensor([0.1, 0.1]), torch.tensor([0, 0]), torch.ones(2, 3), token_rewards=token_rewards
    )
    assert (result == 0).all()


@settings(max_examples=30, deadline=None)
@given(rows=rows_of_steps, shift=st.floats(-5, 5))
def test_a_shift_of_all_steps_changes_nothing(rows: list[StepRow], shift: float) -> None:
    """Where every last token is a step of its own, so that the completion's reward is not shifted beside it."""
    rewards, groups, mask, token_rewards = step_tensors(rows)
    ends = mask & (mask.flip(1).cumsum(1).flip(1) == 1)
    token_rewards = torch.where(ends, token_rewards.nan_to_num(0), token_rewards)
    before = advantages(by_steps(), rewards, groups, mask, token_rewards=token_rewards)
    after = advantages(by_steps(), rewards, groups, mask, token_rewards=token_rewards + shift)
    torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-5)


def test_returns_to_go_without_a_baseline() -> None:
    """REINFORCE++: the reward of the completion and of the tokens still to come; a hole is passed over."""
    rewards, mask = tensor([1, 2]), tensor([[1, 1, 0, 1], [1, 1, 0, 0]])
    token_rewards = tensor([[-0.1, -0.2, 9, -0.3], [0.5, -0.5, 9, 9]])
    objective = preset("dr_grpo", Objective, baseline="none")
    result = advantages(objective, rewards, torch.tensor([0, 1]), mask, token_rewards=token_rewards)
    torch.testing.assert_close(result, tensor([[0.4, 0.5, 0, 0.7], [2, 1.5, 0, 0]]))


def test_a_token_without_a_number_is_refused_unless_steps_are_asked_for() -> None:
    rewards, groups, mask = tensor([1, NAN, 0]), torch.tensor([0, 0, 0]), tensor([[1, 1], [1, 1], [1, 0]])
    token_rewards = tensor([[0, 0], [0, NAN], [0, NAN]])  # not scored, and not in the mask
    assert advantages(preset("dr_grpo", Objective), rewards, groups, mask, token_rewards=token_rewards).isfinite().all()
    token_rewards[0, 1] = NAN
    with pytest.raises(ValueError, match=r"NaN token_rewards in rows \[0\]; NaN says .* only credit=steps"):
        advantages(preset("dr_grpo", Objective), rewards, groups, mask, token_rewards=token_rewards)
    assert advantages(by_steps(), rewards, groups, mask, token_rewards=token_rewards).isfinite().all()


@pytest.mark.parametrize(
    ("token_rewards", "complaint"),
    [
        ([0.0, 0.0], r"token_rewards has shape \[2\]; it must be that of mask, \[1, 2\]"),
        ([[0.0, -math.inf]], r"infinite token_rewards in rows \[0\]"),
    ],
)
def test_token_rewards_must_fit(token_rewards: object, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        advantages(by_steps(), tensor([1.0]), torch.tensor([0]), torch.ones(1, 2), token_rewards=tensor(token_rewards))
