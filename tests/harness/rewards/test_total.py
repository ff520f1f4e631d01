from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.rewards import PARTS, Attempt, reward_groups
from tests.harness.rewards.attempts import attempt, context, groups, judged_as, same, ungraded, worked

ALL = dict.fromkeys(PARTS, 1.0)


def test_total_is_the_weighted_sum() -> None:
    tried = [attempt("\\boxed{42}"), attempt("\\boxed{41}"), attempt("nothing"), attempt("42")]
    rewards = reward_groups([tried[:1], tried[1:]], context({"correct": 2.0, "reaches_answer": -0.5}))
    assert rewards.parts == {"correct": [1, 0, 0, 1], "reaches_answer": [1, 1, 0, 0.5]}
    assert rewards.total == [1.5, -0.5, 0, 1.75]
    assert rewards.token_rewards is None


def test_only_weighted_parts_are_computed() -> None:
    assert reward_groups([[attempt("42")]], context()).parts.keys() == {"correct"}


def test_no_attempts() -> None:
    assert reward_groups([], context()).total == []


def test_a_group_is_compared_with_itself_only() -> None:
    short, long = judged_as(True, 10), judged_as(True, 20)
    longer, longest = judged_as(True, 40), judged_as(True, 80)
    rewards = reward_groups([[short, long], [longer, longest]], context({"kimi_length": 1.0}))
    assert rewards.total == [0.5, -0.5, 0.5, -0.5]


def test_what_one_part_cannot_score_has_no_total() -> None:
    group = [judged_as(True), ungraded()]
    rewards = reward_groups([group], context({"correct": 1.0, "own_logp": 1.0}))
    assert same(rewards.total, [0, math.nan])
    assert same(rewards.parts["own_logp"], [-1, -1])


def test_a_part_of_weight_0_is_measured_only() -> None:
    rewards = reward_groups([[judged_as(True), ungraded()]], context({"correct": 0.0, "own_logp": 1.0}))
    assert rewards.total == [-1, -1]
    assert same(rewards.parts["correct"], [1, math.nan])


@pytest.mark.parametrize(
    ("noise", "seen"), [({"false_positive_rate": 1.0}, [1, 1]), ({"false_negative_rate": 1.0}, [0, 0])]
)
def test_training_sees_the_proxy_and_the_record_both(noise: dict[str, float], seen: list[float]) -> None:
    group = [judged_as(True), judged_as(False)]
    rewards = reward_groups([group], context({"correct": 0.5}, noise=noise))
    assert rewards.total == [0.5 * verdict for verdict in seen]
    assert rewards.parts == {"correct": [1, 0], "proxy_correct": seen}
    assert "proxy_correct" not in reward_groups([group], context()).parts


@pytest.mark.parametrize(
    ("objective", "total"),
    [
        ({}, [1, 1]),
        ({"overlong.type": "penalise", "overlong.penalty": -0.3}, [1, 0.7]),
        ({"overlong.type": "soft", "overlong.factor": 0.5}, [0.75, 0.5]),
        ({"overlong.type": "mask_after"}, [1, 1]),
        ({"overlong.type": "mask_before"}, [1, 1]),
        ({"overlong.type": "drop"}, [1, 1]),
    ],
)
def test_overlong_completions(objective: dict[str, Any], total: list[float]) -> None:
    group = [attempt("42", n_tokens=90), attempt("42", n_tokens=100, truncated=True)]
    rewards = reward_groups([group], context(objective=objective))
    assert rewards.total == pytest.approx(total)
    assert ("overlong" in rewards.parts) == (total != [1, 1])


def test_steps_that_are_paid_at_their_tokens_are_not_paid_twice() -> None:
    group = [worked("8,17#17"), worked("#16")]
    parts = {"correct": 1.0, "process": 0.5}
    assert reward_groups([group], context(parts)).total == [1.5, 0]
    at_steps = reward_groups([group], context(parts, objective={"credit": "steps"}))
    assert at_steps.total == [1, 0]
    assert at_steps.parts["process"] == [1, 0]


@given(groups(), st.randoms())
def test_the_order_of_a_group_does_not_count(group: list[Attempt], random: Any) -> None:
    """Each attempt keeps its rewards, by every part."""
    given_ = context(ALL, noise={"false_positive_rate": 0.5}, objective={"overlong.type": "soft"})
    order = random.sample(range(len(group)), len(group))
    before, after = reward_groups([group], given_), reward_groups([[group[i] for i in order]], given_)
    for name, values in before.parts.items():
        assert same(after.parts[name], [values[i] for i in order]), name
    assert same(after.total, [before.total[i] for i in order])


weights = st.floats(-3, 3).filter(bool)


@given(groups(), weights, weights, st.floats(0.1, 4))
def test_the_total_is_linear_in_the_weights(group: list[Attempt], one: float, other: float, scale: float) -> None:
    def total(**parts: float) -> list[float]:
        return reward_groups([group], context(parts)).total

    both, scaled = total(majority=one, own_logp=other), total(majority=scale * one, own_logp=scale * other)
    apart = [a + b for a, b in zip(total(majority=one), total(own_logp=other), strict=True)]
    assert both == pytest.approx(apart)
    assert scaled == pytest.approx([scale * value for value in both])
