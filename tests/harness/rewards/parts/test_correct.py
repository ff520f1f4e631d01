from __future__ import annotations

import math
from typing import Any

import pytest

from harness.rewards import Attempt, RewardContext
from harness.rewards.parts.correct import Correct, ProxyCorrect
from tests.harness.rewards.attempts import SUM, attempt, context, judged_as, part_rewards, same, ungraded

MANY = 2000


def correct(group: list[Attempt], given: RewardContext) -> list[float]:
    return part_rewards(Correct, group, given)


def proxy_correct(group: list[Attempt], given: RewardContext) -> list[float]:
    return part_rewards(ProxyCorrect, group, given)


def noisy(false_positive_rate: float = 0.0, false_negative_rate: float = 0.0, **settings: Any) -> Any:
    return context(
        noise={"false_positive_rate": false_positive_rate, "false_negative_rate": false_negative_rate}, **settings
    )


def test_correct() -> None:
    group = [attempt("It is \\boxed{42}."), attempt("It is \\boxed{41}."), attempt("")]
    assert correct(group, context()) == [1, 0, 0]


def test_an_answer_that_the_grader_could_not_judge_has_no_reward() -> None:
    assert same(correct([judged_as(True), ungraded(), ungraded(reason="crash")], context()), [1, math.nan, math.nan])
    assert same(proxy_correct([ungraded(), ungraded()], noisy(1.0, 1.0)), [math.nan, math.nan])


def test_noise_flips_wrong_and_right_verdicts_at_their_rates() -> None:
    wrong = [judged_as(False, sample=sample) for sample in range(MANY)]
    right = [judged_as(True, sample=sample) for sample in range(MANY)]
    passed = sum(proxy_correct(wrong, noisy(0.1, 0.3))) / MANY
    failed = 1 - sum(proxy_correct(right, noisy(0.1, 0.3))) / MANY
    assert passed == pytest.approx(0.1, abs=0.03)
    assert failed == pytest.approx(0.3, abs=0.045)


def test_rates_of_zero_and_one_are_exact() -> None:
    group = [judged_as(sample % 2 == 0, sample=sample) for sample in range(MANY)]
    truth = correct(group, context())
    assert proxy_correct(group, noisy()) == truth
    assert proxy_correct(group, noisy(1.0, 1.0)) == [1 - verdict for verdict in truth]
    assert proxy_correct(group, noisy(false_positive_rate=1.0)) == [1.0] * MANY
    assert proxy_correct(group, noisy(false_negative_rate=1.0)) == [0.0] * MANY


def flips(**settings: Any) -> list[float]:
    group = [judged_as(False, sample=sample) for sample in range(200)]
    return proxy_correct(group, noisy(0.5, **settings))


def test_arms_share_the_draws_but_steps_seeds_problems_and_samples_do_not() -> None:
    assert flips() == flips(parts={"correct": 0.3, "majority": 1.0})
    assert flips() != flips(step=2)
    assert flips() != flips(seed=1)
    assert flips() != proxy_correct([attempt("0", problem=SUM, sample=sample) for sample in range(200)], noisy(0.5))
    assert 0 < sum(flips()) < 200


def test_a_higher_rate_flips_what_a_lower_one_does_and_more() -> None:
    group = [judged_as(False, sample=sample) for sample in range(200)]
    few, more = proxy_correct(group, noisy(0.2)), proxy_correct(group, noisy(0.6))
    assert all(a <= b for a, b in zip(few, more, strict=True))
    assert sum(few) < sum(more)
