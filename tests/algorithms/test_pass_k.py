"""Pass@k advantages against the enumeration of all sets, and against the closed form of their paper."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from algorithms import Objective, advantages
from algorithms.objective import Baseline, Scale

NAN = math.nan
Rewards = list[float]


def point(k: int, baseline: Baseline = "group_mean", scale: Scale = "none", ddof: int = 0) -> Objective:
    return Objective(
        baseline=baseline,
        scale=scale,
        scale_ddof=ddof if scale == "group_std" else 1,
        scale_eps=1e-12 if scale == "group_std" else 1e-6,
        pass_k=k,
        aggregation="token_mean",
    )


def of_group(objective: Objective, rewards: Rewards, groups: list[int] | None = None) -> Tensor:
    """[N] of completions of one token."""
    given_rewards = torch.tensor(rewards, dtype=torch.float64)
    numbers = torch.zeros(len(rewards)) if groups is None else torch.tensor(groups)
    return advantages(objective, given_rewards, numbers, torch.ones(len(rewards), 1))[:, 0]


def enumerated(rewards: Rewards, k: int, baseline: Baseline, scale: Scale, ddof: int) -> Rewards:
    """By a walk over every set of k."""
    known = [row for row, reward in enumerate(rewards) if not math.isnan(reward)]
    if len(known) <= k:
        return [0.0] * len(rewards)
    best = {chosen: max(rewards[row] for row in chosen) for chosen in itertools.combinations(known, k)}
    found = [0.0] * len(rewards)
    for row in known:
        own = statistics.fmean(best[chosen] for chosen in best if row in chosen)
        against = [best[chosen] for chosen in best if baseline == "group_mean" or row not in chosen]
        found[row] = own - statistics.fmean(against)
        if scale == "group_std":
            squares = sum((reward - statistics.fmean(best.values())) ** 2 for reward in best.values())
            found[row] /= math.sqrt(squares / (len(best) - ddof)) + 1e-12
    return found


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(
    rewards=st.lists(st.sampled_from([0.0, 1.0, 1.0, 0.3, -0.7, NAN]), min_size=1, max_size=8),
    k=st.integers(2, 5),
    baseline=st.sampled_from(["group_mean", "leave_one_out"]),
    scale=st.sampled_from(["none", "group_std"]),
    ddof=st.integers(0, 1),
)
def test_agrees_with_all_sets(rewards: Rewards, k: int, baseline: Baseline, scale: Scale, ddof: int) -> None:
    known = {reward for reward in rewards if not math.isnan(reward)}
    found = of_group(point(k, baseline, scale, ddof), rewards).tolist()
    if len(known) < 2 or sum(not math.isnan(reward) for reward in rewards) <= k:
        assert found == [0.0] * len(rewards), "a group of equal rewards, or of one set or none, gets exactly 0"
    elif scale == "none" or len({*enumerated(rewards, k, "group_mean", "none", 0)}) > 1:
        assert found == pytest.approx(enumerated(rewards, k, baseline, scale, ddof), abs=1e-7)


@pytest.mark.parametrize(("right", "wrong", "k"), [(1, 7, 4), (3, 5, 2), (6, 4, 3), (2, 30, 8)])
def test_of_right_and_wrong_answers_it_is_the_closed_form_of_the_paper(right: int, wrong: int, k: int) -> None:
    """2508.10751, analytical derivation: R = 1 - C(wrong, k) / C(n, k), sigma = sqrt(R (1 - R))."""
    n = right + wrong
    mean = 1 - math.comb(wrong, k) / math.comb(n, k)
    sigma = math.sqrt(mean * (1 - mean))
    of_right = (1 - mean) / sigma
    of_wrong = (1 - mean - math.comb(wrong - 1, k - 1) / math.comb(n - 1, k - 1)) / sigma
    found = of_group(point(k, scale="group_std"), [1.0] * right + [0.0] * wrong).tolist()
    assert found == pytest.approx([of_right] * right + [of_wrong] * wrong)


def test_sets_of_one_are_the_completions() -> None:
    rewards = [0.1, 1.0, 0.0, 0.3]
    assert torch.equal(
        of_group(point(1), rewards), of_group(Objective(baseline="group_mean", aggregation="token_mean"), rewards)
    )


@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(st.tuples(st.sampled_from([0.0, 1.0, 0.4]), st.integers(0, 2)), min_size=1, max_size=14),
    k=st.integers(2, 4),
    data=st.data(),
)
def test_groups_stand_alone_and_rows_in_any_order(rows: list[tuple[float, int]], k: int, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(rows))))
    rewards, groups = map(list, zip(*rows, strict=True))
    together = of_group(point(k), rewards, groups)
    shuffled = of_group(point(k), [rewards[row] for row in order], [groups[row] for row in order])
    torch.testing.assert_close(shuffled, together[order])
    for group in set(groups):
        alone = [reward for reward, of in rows if of == group]
        torch.testing.assert_close(together[torch.tensor(groups) == group], of_group(point(k), alone))


def test_large_groups_neither_overflow_nor_lose_the_sum() -> None:
    rewards = [float(row % 7 == 0) for row in range(4000)]
    found = of_group(point(2000, scale="group_std", ddof=1), rewards)
    assert found.isfinite().all()
    few = of_group(point(3, "leave_one_out"), rewards)
    assert few.max() > 0 > few.min() and abs(float(few.sum())) < 1e-9


def test_nothing_that_could_be_scored() -> None:
    assert of_group(point(2), [NAN, NAN, NAN]).tolist() == [0, 0, 0]
