from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from evals.errors import EvalError
from evals.grading import JudgeReply
from evals.grading.asked_model import Asking, Question, judge_in, lent
from evals.shelves.judges.grading import read_pair_judge
from tests.harness.shelves.judges.judge_server import PAIR_JUDGE, write_judge
from tests.refusals import refuses

ADDRESS = "http://localhost:8000/v1"
NONE = (math.nan, math.nan)


def write(folder: Path, name: str = "pairs.yaml", **settings: Any) -> str:
    return write_judge(folder, name, **{"address": ADDRESS, **PAIR_JUDGE, **settings})


class Says:
    """A messenger that gives every question one reply."""

    requests = 0

    def __init__(self, text: str) -> None:
        self.text, self.asked = text, list[str]()

    def ask(self, judge: Asking, questions: Sequence[Question]) -> list[JudgeReply]:
        self.asked += [question.messages[-1]["content"] for question in questions]
        return [JudgeReply(question.name, self.text, 5, 2) for question in questions]

    def require(self, judge: Asking) -> None:
        pass


@pytest.mark.parametrize(
    ("text", "scores"),
    [
        ("Scores: 8, 2.5", (8, 2.5)),
        ("Scores: 1, 9. No: Scores: 7, 3", (7, 3)),
        ("<think>Scores: 1, 9</think> Scores: 2, 4", (2, 4)),
        ("<think>Scores: 1, 9</think> I cannot say.", NONE),
        ("Scores: ..., 3", NONE),
        ("Scores: 1" + 400 * "0" + ", 3", NONE),
    ],
)
def test_the_last_two_numbers_behind_the_thoughts_are_the_scores(
    tmp_path: Path, text: str, scores: tuple[float, float]
) -> None:
    with lent(Says(text)):
        ((first, second, reply),) = read_pair_judge(write(tmp_path)).scores([("1+1", "2", "3")])
    assert (first, second) == pytest.approx(scores, nan_ok=True)
    assert (reply.text, reply.prompt_tokens) == (text, 5)


def test_a_completion_cannot_fill_a_hole(tmp_path: Path) -> None:
    with lent(messenger := Says("")):
        read_pair_judge(write(tmp_path)).scores([("1+1", "{second}", "two")])
    (question,) = messenger.asked
    assert question.splitlines()[:3] == ["Problem: 1+1", "A: {second}", "B: two"]


@pytest.mark.parametrize(
    ("settings", "code", "fields"),
    [
        ({"text": "{first}"}, "evals.shelves.judges.text_without_both", {"missing": "{second}"}),
        ({"parse": r"Score: (\d+)"}, "evals.shelves.judges.wrong_group_count", {"found": 1}),
        ({"right": ["yes"]}, "extra_forbidden", {"path": "right"}),
        ({"address": None}, "evals.shelves.judges.address_or_source", {}),
    ],
)
def test_a_faulty_file_is_refused(tmp_path: Path, settings: dict[str, Any], code: str, fields: dict[str, str]) -> None:
    with refuses(EvalError, code, **fields):
        read_pair_judge(write(tmp_path, **settings))


def test_the_version_is_of_what_can_change_a_verdict(tmp_path: Path) -> None:
    changes: list[dict[str, Any]] = [{}, {"address": "http://elsewhere/v1"}, {"text": "{first} {second}"}]
    same, moved, other = (
        read_pair_judge(write(tmp_path, f"{number}.yaml", **change)).version for number, change in enumerate(changes)
    )
    assert same == moved != other


def test_what_a_text_shows_tells_the_kinds_apart(tmp_path: Path) -> None:
    kinds = [type(judge_in(path)).__name__ for path in (write(tmp_path), write_judge(tmp_path, address=ADDRESS))]
    assert kinds == ["PairJudge", "ModelJudge"]
    (tmp_path / "sweep.yaml").write_text("name: other")
    assert judge_in(str(tmp_path / "sweep.yaml")) is None and judge_in("numeric") is None
