"""A judge's file, the questions made of it, and what is read from replies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.errors import EvalError
from evals.graders import get_grader, grade, grader_version
from evals.grading import JudgeReply, Submission, Verdict
from evals.grading.asked_model import Asking, Question, cohens_kappa, lent, reply_metrics
from evals.shelves.judges.grading import ModelJudge, read_judge
from harness.errors import RefusedError
from harness.rewards.parts.correct import JudgeScore
from tests.harness.rewards.attempts import attempt, context
from tests.harness.run.small import small_spec
from tests.harness.shelves.judges.judge_server import write_judge
from tests.refusals import refuses

SUBMISSION = Submission("2 + 2?", "4", "I say {answer}: 5", "5")
ADDRESS = "http://localhost:8000/v1"


def _judge(folder: Path, **settings: Any) -> ModelJudge:
    return read_judge(write_judge(folder, **{"address": ADDRESS, **settings}))


def test_a_completion_cannot_fill_a_hole(tmp_path: Path) -> None:
    judge = _judge(tmp_path, system="You grade.")
    system, user = judge.question(SUBMISSION).messages
    assert system == {"role": "system", "content": "You grade."}
    assert user["content"] == "Problem: 2 + 2?\nReference: 4\nCompletion: I say {answer}: 5\nIs it right?"


@pytest.mark.parametrize(
    ("settings", "text", "reason", "score"),
    [
        ({}, "It is fine. Verdict: yes", "match", None),
        ({}, "Verdict: YES? On reflection, Verdict: No", "mismatch", None),
        ({}, "<think>Verdict: yes</think>I cannot tell", "undecided", None),
        ({}, "<think>Verdict: no</think>Verdict: yes", "match", None),
        ({}, "Verdict: maybe", "undecided", None),
        ({}, "", "undecided", None),
        ({"right_from": 7.0}, "Verdict: 7", "match", 0.7),
        ({"right_from": 7.0}, "Verdict: 6", "mismatch", 0.6),
        ({"right_from": 7.0}, "Verdict: 11", "undecided", None),
        ({"right_from": 7.0}, "Verdict: nan", "undecided", None),
    ],
)
def test_the_last_match_behind_the_thoughts_is_the_verdict(
    tmp_path: Path, settings: dict[str, Any], text: str, reason: str, score: float | None
) -> None:
    words = {} if not settings else {"right": None, "wrong": None}
    verdict = _judge(tmp_path, **settings, **words).read(JudgeReply("q", text, 1, 1), "5")
    assert (verdict.reason, verdict.score, verdict.correct) == (reason, score, reason == "match")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"address": None, "model": None}, "neither an address nor a source"),
        ({"source": "builtin:tiny"}, "both an address and a source"),
        ({"model": None}, "model: is missing"),
        ({"address": "localhost:8000"}, "must be like http://host:port/v1"),
        (
            {"address": "https://me:hidden@host/v1"},
            "put the key into an environment variable, and its name into api_key_env",
        ),
        ({"api_key_env": "sk-hidden-key"}, "never the key itself"),
        ({"text": "Is {problem} answered by {answer}?"}, r"neither \{completion\} nor \{extracted\}"),
        ({"parse": "Verdict: yes"}, "has 0 groups, but needs one"),
        ({"parse": "Verdict: ("}, "is not a regular expression"),
        ({"wrong": None}, "the meaning of verdicts is missing"),
        ({"wrong": ["Yes"]}, "among both `right` and `wrong`"),
        ({"right_from": 7.0}, "give only one of the two"),
        ({"right": None, "wrong": None, "right_from": 70.0}, "at most `largest`, 10"),
        ({"adress": ADDRESS}, "is not a key here; did you mean address"),
    ],
)
def test_a_faulty_file_is_refused_and_shows_no_secret(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(EvalError, match=message) as refused:
        _judge(tmp_path, **settings)
    assert "hidden" not in str(refused.value)


def test_the_version_is_of_what_can_change_a_verdict(tmp_path: Path) -> None:
    path = write_judge(tmp_path, address=ADDRESS)
    version = grader_version(path)
    elsewhere = {"address": "https://other/v1", "concurrency": 1, "patience_s": 1.0, "api_key_env": "KEY"}
    assert grader_version(write_judge(tmp_path, "moved.yaml", **elsewhere)) == version
    changes: list[dict[str, Any]] = [
        {"model": "another"},
        {"parse": "(yes|no)"},
        {"text": "{completion}"},
        {"temperature": 1.0},
        {"max_completion_tokens": 8},
        {"right": ["yes", "y"]},
    ]
    versions = {
        grader_version(write_judge(tmp_path, f"{number}.yaml", **{"address": ADDRESS, **change}))
        for number, change in enumerate(changes)
    }
    assert len(versions | {version}) == 1 + len(changes)


def test_judges_ask_through_what_was_lent(tmp_path: Path) -> None:
    class Echo:
        requests = 0

        def ask(self, judge: Asking, questions: Sequence[Question]) -> list[JudgeReply]:
            return [JudgeReply(question.name, "Verdict: yes", 5, 2) for question in questions]

        def require(self, judge: Asking) -> None:
            pass

    path = write_judge(tmp_path, address=ADDRESS)
    with refuses(EvalError, "evals.judge_not_askable"):
        grade("4", "4", path)
    with lent(Echo()):
        assert grade("nothing to extract", "4", path, problem="2 + 2?").correct
        extracted_alone = write_judge(tmp_path, "extracted.yaml", address=ADDRESS, text="{extracted}")
        assert grade("nothing to extract", "4", extracted_alone).reason == "unparsed"
    assert get_grader(path).needs_answer and not get_grader(extracted_alone).needs_answer


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=30))
def test_kappa_is_one_for_equal_verdicts_and_never_above(pairs: list[tuple[bool, bool]]) -> None:
    kappa = cohens_kappa(pairs)
    assert kappa == cohens_kappa([(b, a) for a, b in pairs])
    if kappa is not None:
        assert -1 - 1e-12 <= kappa <= 1 and (kappa == 1) == all(a == b for a, b in pairs)


def test_kappa_of_a_known_table_and_the_metrics_of_a_step() -> None:
    # 20, 5, 10, 15 of yes-yes, yes-no, no-yes, no-no: agreement .7, by chance .5.
    table = [(True, True)] * 20 + [(True, False)] * 5 + [(False, True)] * 10 + [(False, False)] * 15
    assert cohens_kappa(table) == pytest.approx(0.4)
    reply = JudgeReply("q", "", 7, 2)
    judged = [Verdict(a, None, "match" if a else "mismatch", reply) for a, _ in table]
    ruled = [Verdict(b, None, "match" if b else "mismatch") for _, b in table]
    undecided = Verdict(False, None, "undecided", JudgeReply("r", "", 1, 1))
    metrics = reply_metrics([*zip(judged, ruled, strict=True), (undecided, ruled[0])])
    assert metrics == {
        **{"judge/questions": 2, "judge/prompt_tokens": 8, "judge/completion_tokens": 3},
        "judge/undecided_frac": pytest.approx(1 / 51),
        "judge/rule_correct": pytest.approx(31 / 51),
        **{"judge/agreement_frac": 0.7, "judge/kappa": pytest.approx(0.4)},
    }
    assert reply_metrics([(ruled[0], None)]) == {}


def test_a_score_is_paid_where_the_judge_gives_numbers(tmp_path: Path) -> None:
    judge = write_judge(tmp_path, address=ADDRESS)
    with pytest.raises(RefusedError, match=r"reward\.parts\.judge_score .* gives no numbers"):
        small_spec({"reward.grader": judge, "reward.parts": {"judge_score": 1.0}})
    numbers = write_judge(tmp_path, "n.yaml", address=ADDRESS, right=None, wrong=None, right_from=5.0)
    small_spec({"reward.grader": numbers, "reward.parts": {"judge_score": 1.0}})
    judged = [read_judge(numbers).read(JudgeReply("q", text, 1, 1), None) for text in ("Verdict: 4", "?")]
    group = [replace(attempt(), verdict=verdict) for verdict in judged]
    low, none = JudgeScore().rewards(group, context())
    assert low == 0.4 and math.isnan(none)
