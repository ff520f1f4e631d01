"""What is made of a judge's verdicts, by judges that are rules."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from zlib import crc32

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithms import advantages
from harness.errors import RefusedError
from harness.rewards import Attempt
from harness.shelves.learned.judging import (
    NO_SCORES,
    AnswerPair,
    Preference,
    Scores,
    compared,
    comparison_of,
    judge_metrics,
    preferences,
)
from harness.shelves.learned.parts import PairwiseJudge
from tests.harness.config.cases import spec
from tests.harness.rewards.attempts import SUM, context, part_rewards, worked

JUDGED = {"reward.parts": {"correct": 0.0, "pairwise": 1.0}}


@dataclass
class Rule:
    """A judge that is a function of the two texts, and keeps what it was asked."""

    rule: Callable[[str, str], Scores]
    asked: list[AnswerPair] = field(default_factory=list)

    def scores(self, pairs: Sequence[AnswerPair]) -> list[Scores]:
        self.asked += pairs
        return [self.rule(pair.first, pair.second) for pair in pairs]


def longer(first: str, second: str) -> Scores:
    return float(len(first)), float(len(second))


def always_first(first: str, second: str) -> Scores:
    return 8.0, 2.0


def no_scores(first: str, second: str) -> Scores:
    return NO_SCORES


def pairs_of(*texts: tuple[str, str]) -> list[AnswerPair]:
    return [AnswerPair("p", first, second) for first, second in texts]


@pytest.mark.parametrize(
    ("rule", "verdicts", "agreed", "flips"),
    [
        (longer, (1, 1), 1, False),
        (lambda a, b: longer(b, a), (-1, -1), -1, False),
        (always_first, (1, -1), 0, True),
        (lambda a, b: (5.0, 5.0), (0, 0), 0, False),
        # Only one order has a winner: the two do not contradict each other, but neither do they agree.
        (lambda a, b: (1.0, 0.0) if len(a) > len(b) else (5.0, 5.0), (1, 0), 0, False),
        (no_scores, (math.nan, math.nan), math.nan, False),
        (lambda a, b: (1.0, 0.0) if len(a) > len(b) else NO_SCORES, (1, math.nan), math.nan, False),
    ],
)
def test_a_completion_wins_if_both_orders_prefer_it(
    rule: Callable[[str, str], Scores], verdicts: tuple[float, float], agreed: float, flips: bool
) -> None:
    (found,) = preferences(Rule(rule), pairs_of(("long", "b")))
    assert (found.in_order, found.swapped) == pytest.approx(verdicts, nan_ok=True)
    assert found.agreed == pytest.approx(agreed, nan_ok=True)
    assert found.flips == flips


def test_equal_questions_are_asked_once_and_equal_texts_never() -> None:
    judge = Rule(longer)
    found = preferences(judge, pairs_of(("aa", "b"), ("aa", "b"), ("b", "aa"), ("same", "same")))
    assert [one.agreed for one in found] == [1, 1, -1, 0]
    assert judge.asked == pairs_of(("aa", "b"), ("b", "aa"))
    assert preferences(judge, pairs_of(("x", "x"))) == [Preference(0.0, 0.0)]
    assert len(judge.asked) == 2


texts = st.text("abc", max_size=4)


@settings(max_examples=40)
@given(st.lists(st.tuples(texts, texts), max_size=6), st.integers(0, 5))
def test_swapping_all_pairs_turns_all_preferences_round(given_texts: list[tuple[str, str]], salt: int) -> None:
    """Whatever the judge: here one with a bias and gaps, fixed by the question."""

    def rule(first: str, second: str) -> Scores:
        key = crc32(f"{salt}/{first}/{second}".encode())
        return NO_SCORES if key % 5 == 0 else (float(key % 3), float(key % 7 % 3))

    pairs = pairs_of(*given_texts)
    there = preferences(Rule(rule), pairs)
    back = preferences(Rule(rule), [pair.swapped for pair in pairs])
    for one, other in zip(there, back, strict=True):
        assert one.agreed == pytest.approx(-other.agreed, nan_ok=True)
        assert one.flips == other.flips


GROUP = [worked("8,17#17", 0), worked("8,18#18", 1), worked("#17", 2), worked("8,17#17", 3)]
"""Against the last: the same text, a wrong one, a shorter right one."""


def with_scores(attempts: Sequence[Attempt], scores: Sequence[object]) -> list[Attempt]:
    return [replace(one, scores={"pairwise": score}) for one, score in zip(attempts, scores, strict=True)]


def judged(rule: Callable[[str, str], Scores], tie: float = 0.0) -> tuple[list[Attempt], list[float]]:
    attempts = with_scores(GROUP, compared(Rule(rule), GROUP, [3, 3, 3, 3]))
    return attempts, part_rewards(PairwiseJudge, attempts, context(JUDGED["reward.parts"], pairwise={"tie": tie}))


def knows(first: str, second: str) -> Scores:
    """Prefers right answers, and of two right ones the longer."""
    return tuple(text.endswith("#17") + len(text) / 100 for text in (first, second))  # type: ignore[return-value]


def test_rewards_against_a_reference() -> None:
    attempts, rewards = judged(knows)
    found = [comparison_of(one) for one in attempts]
    assert [one is None for one in found] == [False, False, False, True]
    assert all(one is None or one.reference is GROUP[3] for one in found)
    assert rewards == [0, -1, -1, 0]
    assert judged(always_first)[1] == [0, 0, 0, 0]
    assert judged(always_first, tie=-1.0)[1] == [-1, -1, -1, 0], "the reference is not compared with itself"
    assert judged(no_scores)[1] == pytest.approx([0, math.nan, math.nan, 0], nan_ok=True)
    assert judged(lambda a, b: knows(b, a))[1] == [0, 1, 1, 0]


def test_questions_are_about_the_problem_itself() -> None:
    judge = Rule(knows)
    compared(judge, GROUP, [3, 3, 3, 3])
    assert {pair.problem for pair in judge.asked} == {SUM.problem}
    assert len(judge.asked) == 4


def test_metrics_of_position_and_of_the_truth() -> None:
    """Three pairs are asked about, one of them of a right and a wrong completion; the equal texts do not count."""
    wrong_first = {"judge/tie_frac": 1.0, "judge/flip_frac": 1.0, "judge/first_frac": 1.0, "judge/no_scores_frac": 0.0}
    assert judge_metrics(judged(always_first)[0]) == wrong_first | {"judge/right_frac": 0.0}
    sure = {"judge/tie_frac": 0.0, "judge/flip_frac": 0.0, "judge/first_frac": 0.5, "judge/no_scores_frac": 0.0}
    assert judge_metrics(judged(knows)[0]) == sure | {"judge/right_frac": 1.0}
    nothing = judge_metrics(judged(no_scores)[0])
    assert (nothing["judge/first_frac"], nothing["judge/no_scores_frac"]) == (None, 1.0)
    same = [GROUP[0], GROUP[3]]
    alike = with_scores(same, compared(Rule(knows), same, [1, 1]))
    assert set(judge_metrics(alike).values()) == {None}


def test_brpo_and_no_baseline_make_the_verdict_the_advantage() -> None:
    """The reference is the one that brpo draws, and has reward 0: the sign of a difference from it is the verdict."""
    rewards, mask = torch.tensor(judged(knows)[1]), torch.ones(4, 1)
    groups, peers = torch.zeros(4, dtype=torch.int64), torch.full((4,), 3)
    brpo = spec({"algorithm": "brpo"}).policy_gradient
    plain = brpo.model_copy(update={"baseline": "none"})
    assert advantages(brpo, rewards, groups, mask, peers=peers).flatten().tolist() == rewards.tolist()
    assert advantages(plain, rewards, groups, mask).flatten().tolist() == rewards.tolist()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"rollout.samples_per_prompt": 1}, "rollout.samples_per_prompt"),
        ({"algorithm": "brpo", "objective.overlong.type": "drop"}, "objective.overlong.type=drop"),
        ({"reward.pairwise.template": "plain"}, "template=plain"),
        ({"reward.pairwise.template": "jugde"}, "'jugde'; did you mean judge?"),
        ({"reward.pairwise.tie": 2.0}, "reward.pairwise.tie is 2"),
        ({"train.processes": 2, "train.sharding": "fully"}, "train.sharding=fully"),
    ],
)
def test_what_cannot_be_judged_is_refused_before_training(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(RefusedError) as caught:
        spec(JUDGED, changes)
    assert named in str(caught.value)


def test_pairs_may_be_made_of_judged_completions() -> None:
    """A preference algorithm ranks a group by the same rewards."""
    assert [part.name for part in spec(JUDGED, {"algorithm": "dpo"}).reward.scored] == ["pairwise"]
