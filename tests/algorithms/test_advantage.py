from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from algorithms import Objective, advantages, preset
from algorithms.objective import GROUP_BASELINES, Baseline, Scale
from tests.refusals import refuses

BASELINES: tuple[Baseline, ...] = ("none", "batch_mean", "random_peer", *GROUP_BASELINES)
SCALES: tuple[Scale, ...] = ("none", "group_std", "batch_std", "mini_batch_std", "whiten_tokens", "nonzero_frac")
NAN = math.nan


def sensible(baseline: Baseline, scale: Scale) -> bool:
    return not (
        (scale == "group_std" and baseline not in GROUP_BASELINES)
        or (scale in ("batch_std", "mini_batch_std") and baseline == "none")
        or (scale != "none" and baseline == "random_peer")
    )


POINTS = [
    Objective(baseline=baseline, scale=scale, scale_ddof=ddof, aggregation="token_mean")
    for baseline, scale in itertools.product(BASELINES, SCALES)
    if sensible(baseline, scale)
    for ddof in ((1,) if scale in ("none", "nonzero_frac") else (0, 1))
]
WITHOUT_PEERS = [point for point in POINTS if point.baseline != "random_peer"]
WITH_GROUP_BASELINE = [point for point in POINTS if point.baseline in GROUP_BASELINES]


def name(point: Objective) -> str:
    return f"{point.baseline}-{point.scale}-{point.scale_ddof}"


def objective(**knobs: Any) -> Objective:
    return Objective.model_validate({"aggregation": "token_mean", **knobs})


def tensor(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


Row = tuple[float, int, int, list[bool], list[float]]
rows = st.lists(
    st.tuples(
        st.sampled_from([0.0, 1.0, 0.1, -0.7, 0.3, NAN]),  # reward
        st.sampled_from([3, 8, 1000]),  # group
        st.integers(0, 7),  # peer, counted within the group
        st.lists(st.booleans(), min_size=3, max_size=3),  # mask
        st.lists(st.sampled_from([0.0, 0.5, -0.25, 1.0]), min_size=3, max_size=3),  # rewards of tokens
    ),
    min_size=1,
    max_size=8,
)


def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def variance(values: list[float], ddof: int) -> float:
    return sum((value - mean(values)) ** 2 for value in values) / max(1, len(values) - ddof)


def slow_advantages(point: Objective, rows: list[Row], peers: list[int], mini_batches: list[int]) -> Tensor:
    """Row by row and token by token, over plain lists, straight from the definitions."""
    scored = [i for i, row in enumerate(rows) if not math.isnan(row[0])]
    places = [[t for t in range(3) if mask[t]] for *_, mask, _ in rows]
    reward = {i: rows[i][0] + sum(rows[i][4][t] for t in places[i]) for i in scored}
    members = {i: [j for j in scored if rows[j][1] == rows[i][1]] for i in scored}

    def deviation(i: int) -> float:
        others = [reward[j] for j in members[i] if j != i]
        by_token = [reward[j] for j in members[i] for _ in places[j]]
        if point.baseline == "random_peer":
            other = reward.get(peers[i], reward[i])
            return float(reward[i] > other) - float(reward[i] < other)
        return (
            reward[i]
            - {
                "none": 0.0,
                "batch_mean": mean(list(reward.values())),
                "group_mean": mean([reward[j] for j in members[i]]),
                "leave_one_out": mean(others) if others else reward[i],
                "length_weighted": mean(by_token) if by_token else reward[i],
            }[point.baseline]
        )

    centred = {i: deviation(i) for i in scored}
    values = {(i, t): centred[i] for i in scored for t in places[i]}
    if point.baseline == "none":  # the rewards still to come
        values = {(i, t): rows[i][0] + sum(rows[i][4][k] for k in places[i] if k >= t) for i, t in values}
    tokens, ddof, eps = list(values.values()), point.scale_ddof, point.scale_eps

    def scaled(i: int, value: float) -> float:
        match point.scale:
            case "whiten_tokens":
                return (value - mean(tokens)) / math.sqrt(variance(tokens, ddof) + eps)
            case "none":
                return value
            case "nonzero_frac":
                return value * len(reward) / max(1, sum(r != 0 for r in reward.values()))
            case "group_std":
                spread = [reward[j] for j in members[i]]
            case "batch_std":
                spread = list(reward.values())
            case "mini_batch_std":
                spread = [centred[j] for j in scored if mini_batches[j] == mini_batches[i]]
        return value / (math.sqrt(variance(spread, ddof)) + eps)

    found = torch.zeros(len(rows), 3, dtype=torch.float64)
    for (i, t), value in values.items():
        found[i, t] = scaled(i, value)
    kept = {"both": (-math.inf, math.inf), "positive": (0, math.inf), "negative": (-math.inf, 0)}[point.advantage_sign]
    return found.clamp(*kept)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    point=st.sampled_from(BASELINES).flatmap(lambda name: st.sampled_from([p for p in POINTS if p.baseline == name])),
    sign=st.sampled_from(["both", "both", "positive", "negative"]),
    rows=rows,
    has_token_rewards=st.booleans(),
    in_mini_batches=st.booleans(),
)
def test_agrees_with_the_definitions(
    point: Objective, sign: str, rows: list[Row], has_token_rewards: bool, in_mini_batches: bool
) -> None:
    """Hence also: rows in any order, groups that do not see each other, and unscored rows as if they were absent."""
    point = point.model_copy(update={"advantage_sign": sign})
    if not has_token_rewards:
        rows = [(*row[:4], [0.0] * 3) for row in rows]
    members = [[j for j, other in enumerate(rows) if other[1] == row[1]] for row in rows]
    peers = [group[row[2] % len(group)] for row, group in zip(rows, members, strict=True)]
    mini_batches = [row[1] % 2 if in_mini_batches else 0 for row in rows]
    rewards, groups, _, mask, token_rewards = zip(*rows, strict=True)
    found = advantages(
        point,
        tensor(rewards),
        torch.tensor(groups),
        torch.tensor(mask),
        token_rewards=tensor(token_rewards) if has_token_rewards else None,
        peers=torch.tensor(peers),
        mini_batches=torch.tensor(mini_batches) if in_mini_batches else None,
    )
    expected = slow_advantages(point, rows, peers, mini_batches)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)


@settings(max_examples=60, deadline=None)
@given(
    point=st.sampled_from(WITHOUT_PEERS),
    rows=st.lists(
        st.tuples(st.floats(-1e6, 1e6) | st.just(NAN) | st.just(0.1), st.integers(0, 2), st.integers(0, 4)), max_size=8
    ),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    with_token_rewards=st.booleans(),
)
def test_no_nan_comes_out(
    point: Objective, rows: list[tuple[float, int, int]], dtype: torch.dtype, with_token_rewards: bool
) -> None:
    rewards, groups, lengths = (torch.tensor([row[column] for row in rows]) for column in range(3))
    mask = torch.arange(4) < lengths[:, None]
    token_rewards = torch.where(mask, 1e6 * torch.ones(mask.shape), NAN) if with_token_rewards else None
    result = advantages(point, rewards.to(dtype), groups, mask, token_rewards=token_rewards)
    assert result.shape == mask.shape
    assert result.dtype == dtype
    assert result.isfinite().all()
    assert (result[~mask] == 0).all()


def test_equal_rewards_get_exactly_zero() -> None:
    # Three times 0.1, divided by 3, is not 0.1 in floats.
    rewards, groups = tensor([0.1, NAN, 0.1, 0.1, 0.9, 1.0, 0.0]), torch.tensor([4, 4, 4, 4, 2, 0, 0])
    for point in WITH_GROUP_BASELINE:
        result = advantages(point, rewards, groups, torch.ones(7, 2))
        assert (result[:5] == 0).all() or point.scale == "whiten_tokens", name(point)
        assert (result[5] > 0).all() and (result[6] < 0).all(), name(point)
    for point in WITHOUT_PEERS:
        result = advantages(point, tensor([0.1] * 4), torch.tensor([0, 0, 0, 1]), torch.ones(4, 3))
        uncentred = point.baseline == "none" and point.scale != "whiten_tokens"
        assert (result == (0.1 if uncentred else 0)).all(), name(point)


def test_a_random_peer_is_only_beaten_or_not() -> None:
    """Also by a row whose peer could not be scored: it gets 0."""
    rewards, groups = tensor([0.3, 0.1, 0.3, 0.9, NAN, 0.5, 0.2, NAN]), torch.tensor([0, 0, 0, 0, 1, 1, 2, 2])
    peers = torch.tensor([0, 0, 0, 0, 4, 4, 6, 6])
    found = advantages(objective(baseline="random_peer"), rewards, groups, torch.ones(8, 1), peers=peers)
    assert found[:, 0].tolist() == [0, -1, 0, 1, 0, 0, 0, 0]


def test_rewards_may_be_integers() -> None:
    found = advantages(preset("dr_grpo", Objective), torch.tensor([1, 0]), torch.tensor([0, 0]), torch.ones(2, 1))
    assert found.tolist() == [[0.5], [-0.5]]


BRPO = objective(baseline="random_peer")
IN_MINI_BATCHES = objective(baseline="group_mean", scale="mini_batch_std")
STEPS = objective(baseline="group_mean", credit="steps")
THREE = {"rewards": [0.0] * 3, "groups": [5, 5, 6], "mask": [[1]] * 3}
TWO_TOKENS = {"rewards": [1.0], "groups": [0], "mask": [[1, 1]]}


@pytest.mark.parametrize(
    ("point", "change", "code", "fields"),
    [
        (BRPO, {"rewards": [[0.0]]}, "shape", {"name": "rewards", "shape": [1, 1]}),
        (BRPO, {"groups": [0]}, "shape", {"name": "groups", "shape": [1]}),
        (BRPO, {"mask": [[1]]}, "shape", {"name": "mask", "shape": [1, 1]}),
        (BRPO, {"mask": [1, 1, 1]}, "shape", {"name": "mask", "shape": [3]}),
        (BRPO, {"rewards": [0.0, 0.0, math.inf]}, "rewards_infinite", {"rows": [2]}),
        (BRPO, {}, "peers_missing", {}),
        (BRPO, {"peers": [0]}, "shape", {"name": "peers", "shape": [1]}),
        (BRPO, {"peers": [0, 0, 1]}, "peers_of_other_groups", {"rows": [2], "last": 2}),
        (BRPO, {"peers": [0, -1, 3]}, "peers_of_other_groups", {"rows": [1, 2]}),
        (IN_MINI_BATCHES, {"mini_batches": [0]}, "shape", {"name": "mini_batches", "shape": [1]}),
        (STEPS, TWO_TOKENS | {"token_rewards": [0.0, 0.0]}, "shape", {"name": "token_rewards", "shape": [2]}),
        (STEPS, TWO_TOKENS | {"token_rewards": [[0.0, -math.inf]]}, "token_rewards_infinite", {"rows": [0]}),
        (BRPO, TWO_TOKENS | {"token_rewards": [[NAN, 0.0]]}, "token_rewards_nan", {"rows": [0]}),
    ],
)
def test_what_does_not_fit_is_refused(
    point: Objective, change: dict[str, Any], code: str, fields: dict[str, object]
) -> None:
    with refuses(ValueError, f"algorithms.{code}", **fields):
        advantages(point, **{name: torch.tensor(values) for name, values in (THREE | change).items()})


def test_a_token_without_a_number_does_not_matter_where_nothing_counts() -> None:
    rewards, groups, mask = tensor([1, NAN, 0]), torch.tensor([0, 0, 0]), tensor([[1, 1], [1, 1], [1, 0]])
    token_rewards = tensor([[0, 0], [0, NAN], [0, NAN]])  # not scored, and not in the mask
    assert advantages(preset("dr_grpo", Objective), rewards, groups, mask, token_rewards=token_rewards).isfinite().all()


# Credit: steps

StepRow = tuple[float, int, list[float], list[bool]]
rows_of_steps = st.lists(
    st.tuples(
        st.sampled_from([0.0, 1.0, 0.1, NAN]),  # reward
        st.sampled_from([3, 7]),  # group
        st.lists(st.sampled_from([NAN, NAN, 0.0, 0.0, 1.0, 0.1]), min_size=5, max_size=5),
        st.lists(st.booleans(), min_size=5, max_size=5),  # mask
    ),
    min_size=1,
    max_size=8,
)


def by_steps(scale: str = "group_std", ddof: int = 1) -> Objective:
    return objective(
        baseline="group_mean", credit="steps", scale=scale, **({"scale_ddof": ddof} if scale != "none" else {})
    )


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
        divisor = math.sqrt(variance(pool, ddof)) + 1e-6 if scale == "group_std" else 1.0
        result.append(
            [sum((x - mean(pool)) / divisor for end, x in ends.items() if end >= t) if mask[t] else 0 for t in range(5)]
        )
    return tensor(result)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(scale=st.sampled_from(["none", "group_std"]), ddof=st.sampled_from([0, 1]), rows=rows_of_steps)
def test_steps_agree_with_their_definition(scale: str, ddof: int, rows: list[StepRow]) -> None:
    rewards, groups, steps, mask = zip(*rows, strict=True)
    token_rewards = None if tensor(steps).isnan().all() else tensor(steps)
    found = advantages(
        by_steps(scale, ddof), tensor(rewards), torch.tensor(groups), torch.tensor(mask), token_rewards=token_rewards
    )
    torch.testing.assert_close(found, slow_step_advantages(rows, scale, ddof), rtol=1e-8, atol=1e-8)


def test_steps_of_equal_reward_get_exactly_zero() -> None:
    steps, groups = tensor([[0.1, NAN, 0.0], [0.1, 0.1, 0.0]]), torch.tensor([0, 0])
    assert (advantages(by_steps(), tensor([0.1, 0.1]), groups, torch.ones(2, 3), token_rewards=steps) == 0).all()
