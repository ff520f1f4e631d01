from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.errors import EvalError
from evals.evaluate import disagreement, missing_draws, regrade, scores, standard_errors
from evals.grading.math import MathPool, MathProcess
from evals.prompts import get_template
from evals.samples import SampleRow
from evals.tasks.base import Generated, Problem, Task
from harness.errors import InvalidError
from tests.evals.scripted import draw_of, graded_row
from tests.refusals import refuses

SUMS = [Problem("a", "1+2+3=", "6"), Problem("b", "2+2=", "4")]
TASK = Task(
    name="sums",
    template="plain",
    grader="numeric",
    extract="hash",
    margin_pp=1.0,
    splits={"test": Generated(lambda: SUMS, version=1)},
    check_steps=lambda problem, text: None if text.startswith("#") else "9" in text,
)


def row(problem: str, sample: int, text: str, n_tokens: int = 4, truncated: bool = False) -> SampleRow:
    request = draw_of(next(p for p in SUMS if p.id == problem), sample)
    return graded_row(TASK, request, text, n_tokens, truncated)


def test_missing_draws_skip_what_is_finished():
    requests = list(missing_draws(SUMS, get_template("plain"), 2, finished={("a", 0), ("b", 1), ("b", 7)}))
    assert [(r.example, r.sample, r.prompt) for r in requests] == [("a", 1, "1+2+3="), ("b", 0, "2+2=")]
    everything = [(r.example, r.sample) for r in missing_draws(SUMS, get_template("plain"), 2)]
    assert everything == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    assert list(missing_draws(SUMS, get_template("plain"), 2, finished=set(everything))) == []


def test_row_of_a_sample():
    expected = {
        **{"task": "sums", "problem_id": "a", "sample": 1, "text": "3,6#6.0", "n_tokens": 7, "truncated": True},
        **{"extracted": "6.0", "correct": True, "reason": "match", "faulty_steps": False, "turns": None},
        "verdicts": '{"exact": false, "math": true, "numeric": true}',
        "reasons": '{"numeric": "match", "exact": "mismatch", "math": "match"}',
    }
    assert row("a", 1, "3,6#6.0", n_tokens=7, truncated=True) == expected


@pytest.mark.parametrize("text", ["#6", "#7", "#x", "no answer", "#6 apples"])
@pytest.mark.parametrize("grader", ["exact", "numeric", "math"])
def test_every_grader_has_a_reason_and_the_one_that_decides_comes_first(grader, text):
    graded = graded_row(TASK, draw_of(SUMS[0], 0), text, 1, False, grader=grader)
    reasons, verdicts = json.loads(graded["reasons"] or ""), json.loads(graded["verdicts"])
    assert next(iter(reasons)) == grader and reasons[grader] == graded["reason"]
    assert {name: reason == "match" for name, reason in reasons.items()} == verdicts


def test_the_configured_grader_decides():
    request = draw_of(SUMS[0], 0)
    graded = graded_row(TASK, request, "#6.0", 1, False, grader="exact")
    assert not graded["correct"]
    assert json.loads(graded["verdicts"]) == {"exact": False, "math": True, "numeric": True}
    assert json.loads(graded_row(TASK, request, "#6", 1, False, grader="math")["verdicts"]).keys() == {
        "exact",
        "numeric",
        "math",
    }


def test_a_task_without_a_grader_is_not_scored_by_itself():
    task = replace(TASK, grader=None)
    with refuses(EvalError, "evals.task_without_grader", task="sums"):
        graded_row(task, draw_of(SUMS[0], 0), "#6", 2, False)
    assert graded_row(task, draw_of(SUMS[0], 0), "#6", 2, False, grader="exact")["correct"]


@pytest.mark.parametrize("text", ["#6", "", "no answer"])
def test_without_an_answer_nothing_is_scored(text):
    request = draw_of(Problem("c", "1+2+3=", ""), 0)
    with refuses(EvalError, "evals.problem_without_answer", problem="c", task="sums"):
        graded_row(TASK, request, text, 2, False)


def test_numeric_is_left_out_where_it_does_not_apply(monkeypatch):
    request = draw_of(Problem("c", "colour?", "blue"), 0)
    graded = graded_row(TASK, request, "#blue", 1, False, grader="exact")
    assert json.loads(graded["verdicts"]) == {"exact": True, "math": True}
    with refuses(EvalError, "evals.reference_not_gradable"):
        graded_row(TASK, request, "#blue", 1, False)


def test_what_follows_from_text_and_numbers_costs_no_process(monkeypatch):
    monkeypatch.delattr(MathPool, "compare")
    for text, reason in (
        ("#6", "match"),
        ("#6.0", "match"),
        ("#7", "mismatch"),
        ("#x", "unparsed"),
        ("#6,7", "unparsed"),
        ("", "unparsed"),
    ):
        graded = row("a", 0, text)
        assert (graded["reason"], json.loads(graded["verdicts"])["math"]) == (reason, reason == "match")
    for answer, text in (("\\text{(B)}", "#B"), ("\\text{odd}", "#even"), ("\\frac{x}{2}", "#\\dfrac{x}{2}")):
        graded_row(TASK, draw_of(Problem("c", "?", answer), 0), text, 1, False, grader="exact")


def test_a_repeated_answer_is_compared_once(monkeypatch):
    compared = []

    def compare(worker, *pair):
        compared.append(pair)
        return "match"

    monkeypatch.setattr(MathProcess, "compare", compare)
    for sample in range(3):
        assert json.loads(row("a", sample, "#2\\cdot 3!")["verdicts"])["math"]
    assert len(compared) == 1


def test_scores():
    rows = [
        row("a", 0, "3,6#6", n_tokens=6),
        row("a", 1, "9,6#6", n_tokens=8),
        row("a", 2, "#6", n_tokens=2),
        row("a", 3, "#7", n_tokens=2),
        row("b", 0, "#5", n_tokens=2),
        row("b", 1, "4#4", n_tokens=4),
        row("b", 2, "9", n_tokens=10, truncated=True),
        row("b", 3, "#x", n_tokens=2),
    ]
    # Counts 3 and 1 of 4.
    assert scores(rows, ks=[1, 2, 4]) == pytest.approx(
        {
            "pass@1": 0.5,
            "pass@2": (1 + 0.5) / 2,
            "pass@4": 1.0,
            "pass^1": 0.5,
            "pass^2": (3 / 6 + 0) / 2,
            "pass^4": 0.0,
            # Pairs of 6, 6, 6, 7: three right, three even. Of 5, 4 and two that say nothing: one even, two right.
            "maj@1": 0.5,
            "maj@2": ((3 + 3 / 2) / 6 + (1 / 2 + 2) / 6) / 2,
            "maj@4": (1 + 1 / 2) / 2,
            "avg@n": 0.5,
            "cons@n": (1 + 1 / 2) / 2,
            "distinct_answers": 2.0,  # 6 and 7; 5 and 4
            "se_problems_pp": 100 * math.sqrt(0.125 / 2),
            "se_samples_pp": 100 * math.sqrt(2 * 0.75 * 0.25 / 3) / 2,
            "mean_tokens": 36 / 8,
            "mean_tokens_correct": 20 / 4,
            "mean_tokens_incorrect": 16 / 4,
            "truncated_frac": 1 / 8,
            "unparsed_frac": 2 / 8,
            "ungraded_frac": 0.0,
            "faulty_steps_frac": 1 / 3,
        }
    )


def test_standard_errors_are_of_means_over_problems():
    rows = [row(problem, sample, f"#{6 if sample < right else 7}", n_tokens=2 + right)
            for problem, right in (("a", 3), ("b", 0)) for sample in range(4)]  # fmt: skip
    ks = [1, 2, 4]
    errors = standard_errors(rows, ks)
    assert errors["pass@1"] == errors["pass^1"] == errors["avg@n"] == pytest.approx(0.75 / 2)
    assert 100 * errors["pass@1"] == pytest.approx(scores(rows, ks)["se_problems_pp"])
    assert errors["pass^2"] == pytest.approx(0.5 / 2)
    assert errors["mean_tokens"] == pytest.approx(3 / 2)
    assert "mean_tokens_correct" not in errors, "a mean over samples of unequal number"
    assert standard_errors(rows[:4], ks) == {}, "one problem has no spread"


def test_metrics_that_do_not_exist_are_none():
    metrics = scores([row("a", 0, "#7")], ks=[1])
    assert {name for name, value in metrics.items() if value is None} == {
        "se_problems_pp",
        "se_samples_pp",
        "mean_tokens_correct",
        "faulty_steps_frac",
    }
    assert scores([row("a", 0, "#6")], ks=[1])["mean_tokens_incorrect"] is None


def test_votes_are_over_answers_that_are_one_and_can_be_read():
    one = [row("a", sample, text) for sample, text in enumerate(["#6", "#06.0", "#6 apples", "#7", "#7"])]
    assert scores(one, ks=[5])["cons@n"] == 1, "three ways to write one answer"
    unreadable = [row("a", sample, text) for sample, text in enumerate(["#6", "#x", "#x", "", ""])]
    assert scores(unreadable, ks=[5])["cons@n"] == 1, "what the grader cannot read never wins"
    nothing = [row("a", sample, "#x") for sample in range(2)]
    assert scores(nothing, ks=[2])["cons@n"] == scores(nothing, ks=[2])["maj@2"] == 0


def test_timeouts_and_crashes_are_counted():
    rows = [row("a", 0, "#6"), row("a", 1, "#6")]
    rows[1] |= {"correct": False, "reason": "timeout"}
    metrics = scores(rows, ks=[1])
    assert (metrics["pass@1"], metrics["ungraded_frac"], metrics["unparsed_frac"]) == (0.5, 0.5, 0.0)


def test_unfinished_evaluations_are_refused():
    with refuses(InvalidError, "evals.no_rows_to_score"):
        scores([], ks=[1])
    with refuses(InvalidError, "evals.unequal_sample_counts", fewest="b", n_fewest=1, most="a", n_most=2):
        scores([row("a", 0, "#6"), row("a", 1, "#6"), row("b", 0, "#4")], ks=[1])
    with refuses(InvalidError, "evals.k_above_samples", k=2, n=1):
        scores([row("a", 0, "#6")], ks=[2])


MIXED_PROBLEMS = [Problem("a", "1+2=", "3"), Problem("b", "half?", "\\frac{1}{2}"), Problem("c", "which?", "(B)")]
MIXED = Task(
    name="mixed",
    template="plain",
    grader="math",
    extract="chain",
    margin_pp=1.0,
    splits={"test": Generated(lambda: MIXED_PROBLEMS, version=1)},
    check_steps=lambda problem, text: "9" in text,
)
MIXED_TEXTS = {"a": "\\boxed{3.0}", "b": "\\boxed{1/2}", "c": "\\boxed{B}"}


def mixed_rows(grader: str | None = None) -> list[SampleRow]:
    return [
        graded_row(MIXED, draw_of(problem, sample), MIXED_TEXTS[problem.id], 5 + sample, False, grader)
        for problem in MIXED_PROBLEMS
        for sample in range(2)
    ]


def changed(row: SampleRow, **changes: object) -> SampleRow:
    return cast(SampleRow, {**row, **changes})


def test_the_same_grading_gives_the_same_records():
    assert regrade(MIXED, MIXED_PROBLEMS, mixed_rows()) == mixed_rows()
    assert regrade(MIXED, iter(MIXED_PROBLEMS), []) == []


def test_everything_that_depends_on_grading_is_made_anew():
    stale = [
        changed(row, extracted="?", correct=False, reason="crash", verdicts="{}", reasons="{}", faulty_steps=True)
        for row in mixed_rows()
    ]
    assert regrade(MIXED, MIXED_PROBLEMS, stale) == mixed_rows()


def test_what_does_not_depend_on_it_stays():
    row = changed(mixed_rows()[0], step=7, final=True, n_tokens=99, truncated=True)
    (again,) = regrade(MIXED, MIXED_PROBLEMS, [row])
    assert again == row
    assert list(again) == list(row)


def test_another_grader_decides():
    assert [row["correct"] for row in regrade(MIXED, MIXED_PROBLEMS, mixed_rows())] == [True] * 6
    exact = regrade(MIXED, MIXED_PROBLEMS, mixed_rows(), grader="exact")
    assert [row["correct"] for row in exact] == [False] * 6
    assert [row["verdicts"] for row in exact] == [row["verdicts"] for row in mixed_rows()]


def test_another_extraction_of_the_task_counts():
    assert {row["extracted"] for row in regrade(replace(MIXED, extract="hash"), MIXED_PROBLEMS, mixed_rows())} == {None}


def test_records_without_a_problem_or_of_another_task_are_refused():
    with refuses(EvalError, "evals.problem_not_given", problem="a", n_problems=2, task="mixed"):
        regrade(MIXED, MIXED_PROBLEMS[1:], mixed_rows())
    with refuses(EvalError, "evals.record_of_other_task", record_task="other", task="mixed"):
        regrade(MIXED, MIXED_PROBLEMS, [changed(mixed_rows()[0], task="other")])


def test_disagreement():
    given = mixed_rows()
    report = {entry["graders"]: entry for entry in disagreement(given)}
    assert list(report) == [
        ("choice", "exact"),
        ("choice", "math"),
        ("exact", "math"),
        ("exact", "numeric"),
        ("math", "numeric"),
    ]
    assert {names: (entry["count"], entry["n"]) for names, entry in report.items()} == {
        ("choice", "exact"): (2, 2),
        ("choice", "math"): (0, 2),
        ("exact", "math"): (6, 6),
        ("exact", "numeric"): (4, 4),
        ("math", "numeric"): (0, 4),
    }
    assert report["exact", "math"]["examples"][0] == {
        "task": "mixed",
        "problem_id": "a",
        "sample": 0,
        "extracted": "3.0",
        "verdicts": {"exact": False, "math": True},
    }
    assert len(report["exact", "math"]["examples"]) == 5
    assert report["math", "numeric"]["examples"] == []


@pytest.mark.slow
@given(st.lists(st.fixed_dictionaries({}, optional={name: st.booleans() for name in ("a", "b", "c")})))
def test_disagreement_counts_every_sample_with_both_verdicts(verdicts):
    given = [changed(mixed_rows()[0], verdicts=json.dumps(v)) for v in verdicts]
    report = {entry["graders"]: (entry["count"], entry["n"]) for entry in disagreement(given)}
    for first, second in (("a", "b"), ("a", "c"), ("b", "c")):
        both = [v for v in verdicts if first in v and second in v]
        expected = (sum(v[first] != v[second] for v in both), len(both))
        assert report.get((first, second), (0, 0)) == expected
