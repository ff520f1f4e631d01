from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.rewards import Attempt, RewardContext
from harness.rewards.parts.length import KimiLength, MagistralLength, Overlong, soft_punishment
from tests.harness.rewards.attempts import (
    LIMIT_TOKENS,
    attempt,
    context,
    groups,
    judged_as,
    part_rewards,
    same,
    ungraded,
)

KIMI = {"kimi_length": 1.0}
SOFT = {"overlong.type": "soft", "overlong.cache_frac": 0.2, "overlong.factor": 0.5}
PENALISE = {"overlong.type": "penalise", "overlong.penalty": -0.7}


def kimi_length(group: list[Attempt], given: RewardContext) -> list[float]:
    return part_rewards(KimiLength, group, given)


def magistral_length(group: list[Attempt], given: RewardContext) -> list[float]:
    return part_rewards(MagistralLength, group, given)


def overlong(group: list[Attempt], given: RewardContext) -> list[float]:
    return part_rewards(Overlong, group, given)


def test_kimi_prefers_short_answers_and_never_rewards_a_wrong_one() -> None:
    group = [judged_as(True, 10), judged_as(True, 20), judged_as(True, 40), judged_as(False, 10), judged_as(False, 35)]
    assert kimi_length(group, context(KIMI)) == pytest.approx([0.5, 0.5 - 1 / 3, -0.5, 0, 0.5 - 25 / 30])


def test_kimi_is_silent_where_all_are_equally_long() -> None:
    assert kimi_length([judged_as(True, 7), judged_as(False, 7)], context(KIMI)) == [0, 0]
    assert kimi_length([judged_as(True, 7)], context(KIMI)) == [0]


def test_kimi_starts_at_its_step() -> None:
    group = [judged_as(True, 10), judged_as(True, 20)]
    late = {"from_step": 3}
    assert kimi_length(group, context(KIMI, step=2, kimi_length=late)) == [0, 0]
    assert kimi_length(group, context(KIMI, step=3, kimi_length=late)) == [0.5, -0.5]


def test_kimi_judges_as_training_does() -> None:
    group = [judged_as(False, 10), judged_as(False, 20), ungraded(10)]
    fooled = context({"correct": 1.0, **KIMI}, noise={"false_positive_rate": 1.0})
    assert same(kimi_length(group, fooled), [0.5, -0.5, math.nan])


@given(groups())
def test_kimi_stays_within_a_half(group: list[Attempt]) -> None:
    for tried, reward in zip(group, kimi_length(group, context(KIMI)), strict=True):
        assert math.isnan(reward) or -0.5 <= reward <= (0.5 if tried.verdict.correct else 0)


@pytest.mark.parametrize(
    ("n_tokens", "reward"), [(1, 0), (80, 0), (85, -0.025), (90, -0.05), (100, -0.1), (101, -0.1), (300, -0.1)]
)
def test_magistral(n_tokens: int, reward: float) -> None:
    given_ = context({"magistral_length": 1.0})
    assert magistral_length([attempt(n_tokens=n_tokens)], given_) == pytest.approx([reward])


def test_magistral_takes_its_options() -> None:
    given_ = context({"magistral_length": 1.0}, magistral_length={"cache_frac": 0.5, "penalty": -0.4})
    group = [attempt(n_tokens=n_tokens) for n_tokens in (50, 75, 100)]
    assert magistral_length(group, given_) == pytest.approx([0, -0.2, -0.4])


def paper(length: int, l_max: int, l_cache: int) -> float:
    """DAPO's equation 13 in whole tokens, case by case."""
    if length <= l_max - l_cache:
        return 0.0
    if length <= l_max:
        return ((l_max - l_cache) - length) / l_cache
    return -1.0


@given(st.integers(1, 30_000), st.integers(2, 20_480), st.data())
def test_soft_punishment_is_the_equation_of_the_paper(length: int, l_max: int, data: st.DataObject) -> None:
    l_cache = data.draw(st.integers(1, l_max))
    assert soft_punishment(length, l_max, l_cache / l_max) == pytest.approx(paper(length, l_max, l_cache), abs=1e-6)


def test_soft_punishment_of_the_papers_setting() -> None:
    lengths = [16_384, 16_385, 18_432, 20_480, 20_481]
    assert [soft_punishment(n, 20_480, 0.2) for n in lengths] == pytest.approx([0, -1 / 4096, -0.5, -1, -1])


@given(st.integers(1, 500), st.floats(0.01, 1))
def test_soft_punishment_has_no_jump(n_tokens: int, cache_frac: float) -> None:
    here, there = soft_punishment(n_tokens, 200, cache_frac), soft_punishment(n_tokens + 1, 200, cache_frac)
    assert -1 <= there <= here <= 0
    assert here - there <= 1 / (cache_frac * 200) + 1e-9


def test_no_reward_is_a_negative_zero() -> None:
    group = [attempt(n_tokens=1)]
    for objective in (SOFT, PENALISE):
        (reward,) = overlong(group, context(objective=objective))
        assert math.copysign(1, reward) == 1
    assert math.copysign(1, magistral_length(group, context({"magistral_length": 1.0}))[0]) == 1


def test_overlong_soft_punishes_by_length_and_penalise_by_the_cut() -> None:
    group = [attempt(n_tokens=90), attempt(n_tokens=LIMIT_TOKENS), attempt(n_tokens=LIMIT_TOKENS, truncated=True)]
    assert overlong(group, context(objective=SOFT)) == pytest.approx([-0.25, -0.5, -0.5])
    assert overlong(group, context(objective=PENALISE)) == [0, 0, -0.7]
