from __future__ import annotations

import pytest

from evals.grading import Verdict
from harness.rewards.parts.verifier_free import Majority, OwnLogp
from tests.harness.rewards.attempts import attempt, context


def vote(*answers: str | None) -> list[float]:
    return Majority().rewards([attempt(verdict=Verdict(False, answer, "mismatch")) for answer in answers], context())


def test_own_logp() -> None:
    assert OwnLogp().rewards([attempt(mean_logp=-0.5), attempt(mean_logp=-2.0)], context()) == [-0.5, -2.0]


@pytest.mark.parametrize(
    ("answers", "rewards"),
    [
        (("42", "41", "42"), [1, 0, 1]),
        (("42",), [1]),
        (("1000", "1e3", "1,000", "7"), [1, 1, 1, 0]),  # one number
        (("many", "many", "few"), [1, 1, 0]),
        (("1", "2", "1", "2", "3"), [0.5, 0.5, 0.5, 0.5, 0]),
        (("1", "2", "3", "4"), [0.25, 0.25, 0.25, 0.25]),
        ((None, None, "7"), [0, 0, 1]),  # a missing answer is not a vote
        ((None, None), [0, 0]),
    ],
)
def test_majority(answers: tuple[str | None, ...], rewards: list[float]) -> None:
    assert vote(*answers) == rewards


def test_majority_asks_no_verifier() -> None:
    group = [attempt(verdict=Verdict(True, "42", "match")), *[attempt(verdict=Verdict(False, "0", "mismatch"))] * 2]
    assert Majority().rewards(group, context()) == [0, 1, 1]
