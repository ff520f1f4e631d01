from __future__ import annotations

import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import RefusedError
from harness.rewards import Attempt
from harness.rewards.base import nameable_parts
from tests.harness.rewards.attempts import attempt, context, groups, judged_as, rewarded, same, ungraded, worked

ALL = dict.fromkeys(nameable_parts(), 1.0)


def test_total_is_the_weighted_sum() -> None:
    tried = [attempt("\\boxed{42}"), attempt("\\boxed{41}"), attempt("nothing"), attempt("42")]
    total, parts = rewarded([tried[:1], tried[1:]], context({"correct": 2.0, "reaches_answer": -0.5}))
    assert parts == {"correct": [1, 0, 0, 1], "reaches_answer": [1, 1, 0, 0.5]}
    assert total == [1.5, -0.5, 0, 1.75]


@pytest.mark.parametrize("weight", [1e16, -1e16, 1e300])
def test_a_reward_whose_square_overflows_is_refused(weight: float) -> None:
    """The variance of a group would be infinite, and the advantages NaN."""
    for largest in (1e15, -1e15):
        assert rewarded([[attempt("42")]], context({"correct": largest}))[0] == [largest]
    said = f"reward is {weight:g} = {weight:g} x 1 (correct), but the largest is 1e+15"
    with pytest.raises(RefusedError, match=re.escape(said)):
        rewarded([[attempt("nothing"), attempt("42")]], context({"correct": weight}))


def test_only_weighted_parts_are_computed() -> None:
    assert rewarded([[attempt("42")]], context())[1].keys() == {"correct"}


def test_no_attempts() -> None:
    assert rewarded([], context())[0] == []


def test_a_group_is_compared_with_itself_only() -> None:
    short, long = judged_as(True, 10), judged_as(True, 20)
    longer, longest = judged_as(True, 40), judged_as(True, 80)
    total, _ = rewarded([[short, long], [longer, longest]], context({"kimi_length": 1.0}))
    assert total == [0.5, -0.5, 0.5, -0.5]


def test_what_one_part_cannot_score_has_no_total() -> None:
    group = [judged_as(True), ungraded()]
    total, parts = rewarded([group], context({"correct": 1.0, "own_logp": 1.0}))
    assert same(total, [0, math.nan])
    assert same(parts["own_logp"], [-1, -1])


def test_a_part_of_weight_0_is_measured_only() -> None:
    total, parts = rewarded([[judged_as(True), ungraded()]], context({"correct": 0.0, "own_logp": 1.0}))
    assert total == [-1, -1]
    assert same(parts["correct"], [1, math.nan])


@pytest.mark.parametrize(
    ("noise", "seen"), [({"false_positive_rate": 1.0}, [1, 1]), ({"false_negative_rate": 1.0}, [0, 0])]
)
def test_training_sees_the_proxy_and_the_record_both(noise: dict[str, float], seen: list[float]) -> None:
    group = [judged_as(True), judged_as(False)]
    total, parts = rewarded([group], context({"correct": 0.5}, noise=noise))
    assert total == [0.5 * verdict for verdict in seen]
    assert parts == {"correct": [1, 0], "proxy_correct": seen}
    assert "proxy_correct" not in rewarded([group], context())[1]


@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        ({}, [1, 1]),
        ({"overlong.type": "penalise", "overlong.penalty": -0.3}, [1, 0.7]),
        ({"overlong.type": "soft", "overlong.factor": 0.5}, [0.75, 0.5]),
        ({"overlong.type": "mask_after"}, [1, 1]),
        ({"overlong.type": "mask_before"}, [1, 1]),
        ({"overlong.type": "drop"}, [1, 1]),
    ],
)
def test_overlong_completions(objective: dict[str, Any], expected: list[float]) -> None:
    group = [attempt("42", n_tokens=90), attempt("42", n_tokens=100, truncated=True)]
    total, parts = rewarded([group], context(objective=objective))
    assert total == pytest.approx(expected)
    assert ("overlong" in parts) == (expected != [1, 1])


def test_steps_that_are_paid_at_their_tokens_are_not_paid_twice() -> None:
    group = [worked("8,17#17"), worked("#16")]
    parts = {"correct": 1.0, "process": 0.5}
    assert rewarded([group], context(parts))[0] == [1.5, 0]
    total, found = rewarded([group], context(parts, objective={"credit": "steps"}))
    assert total == [1, 0]
    assert found["process"] == [1, 0]


def test_implied_parts_come_last_and_in_a_fixed_order() -> None:
    """Sums of floats depend on it."""
    given_ = context(
        {"kimi_length": 1.0, "correct": 1.0},
        noise={"false_positive_rate": 0.5},
        objective={"overlong.type": "soft"},
    )
    parts = rewarded([[judged_as(True)]], given_)[1]
    assert list(parts) == ["kimi_length", "correct", "proxy_correct", "overlong"]


def test_without_a_reward_model_its_part_has_no_reward() -> None:
    total, _ = rewarded([[attempt("42")]], context({"correct": 0.0, "reward_model": 1.0}))
    assert same(total, [math.nan])


@pytest.mark.slow
@given(groups(), st.randoms())
def test_the_order_of_a_group_does_not_count(group: list[Attempt], random: Any) -> None:
    """Each attempt keeps its rewards, by every part."""
    given_ = context(ALL, noise={"false_positive_rate": 0.5}, objective={"overlong.type": "soft"})
    order = random.sample(range(len(group)), len(group))
    before, after = rewarded([group], given_), rewarded([[group[i] for i in order]], given_)
    for name, values in before[1].items():
        assert same(after[1][name], [values[i] for i in order]), name
    assert same(after[0], [before[0][i] for i in order])


weights = st.floats(-3, 3).filter(bool)


@pytest.mark.slow
@given(groups(), weights, weights, st.floats(0.1, 4))
def test_the_total_is_linear_in_the_weights(group: list[Attempt], one: float, other: float, scale: float) -> None:
    def total(**parts: float) -> list[float]:
        return rewarded([group], context(parts))[0]

    both, scaled = total(majority=one, own_logp=other), total(majority=scale * one, own_logp=scale * other)
    apart = [a + b for a, b in zip(total(majority=one), total(own_logp=other), strict=True)]
    assert both == pytest.approx(apart)
    assert scaled == pytest.approx([scale * value for value in both])
