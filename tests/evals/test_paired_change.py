from __future__ import annotations

import math
import statistics
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.errors import EvalError
from evals.lm_eval_results import LmEvalResult, LmEvalRow, LmEvalTask
from evals.paired_change import change_of_samples, changes_of_lm_eval
from evals.sampler import SamplingParams
from tests.refusals import refuses

TASK = LmEvalTask("sums", "1.0", 4, 1, (SamplingParams(8, temperature=0.0),), max_gen_toks_assumed=True)


def row(doc: int, value: float, filter_name: str = "none", **changed: object) -> LmEvalRow:
    made = LmEvalRow(
        task="sums",
        doc_id=doc,
        doc_hash=f"hash of {doc}",
        filter=filter_name,
        prompt=f"question {doc}",
        reference="text",
        completions=["text"],
        n_tokens=[1],
        truncated=[False],
        filtered="text",
        metrics={"exact_match": value},
    )
    return made | changed  # type: ignore[return-value]


def result(*values: float) -> LmEvalResult:
    return LmEvalResult((TASK,), (), tuple(row(doc, value) for doc, value in enumerate(values)))


def test_change_of_a_metric():
    (change,) = changes_of_lm_eval(result(0, 1, 1, 0), result(1, 1, 0, 1))
    assert (change.task, change.metric, change.filter, change.n_problems) == ("sums", "exact_match", "none", 4)
    assert (change.before, change.after, change.difference) == (0.5, 0.75, 0.25)
    # The differences are 1, 0, -1, 1: variance (2.75) / 3.
    assert change.stderr == pytest.approx(math.sqrt(2.75 / 3 / 4))
    assert (change.gained, change.lost) == (2, 1)


def test_pairs_are_found_whatever_the_order():
    before, after = result(0, 1, 1, 0), result(1, 1, 0, 1)
    assert changes_of_lm_eval(before, replace(after, rows=after.rows[::-1])) == changes_of_lm_eval(before, after)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=20))
def test_swapping_the_models_turns_the_sign(pairs):
    before, after = (result(*values) for values in zip(*pairs, strict=True))
    (there,), (back,) = changes_of_lm_eval(before, after), changes_of_lm_eval(after, before)
    assert (there.difference, there.gained, there.lost) == (-back.difference, back.lost, back.gained)
    assert (
        there.stderr == back.stderr == pytest.approx(statistics.stdev(b - a for a, b in pairs) / math.sqrt(len(pairs)))
    )
    assert there.difference == pytest.approx(there.after - there.before)


def test_one_document_has_no_standard_error():
    (change,) = changes_of_lm_eval(result(0), result(1))
    assert change.stderr is None


def test_every_filter_and_metric_is_a_row():
    both = [
        LmEvalResult((TASK,), (), (row(0, 0), row(0, 1, "strict") | {"metrics": {"a": value, "b": 0.0}}))
        for value in (0.0, 1.0)
    ]
    changes = {(change.filter, change.metric): change.difference for change in changes_of_lm_eval(*both)}
    assert changes == {("none", "exact_match"): 0, ("strict", "a"): 1, ("strict", "b"): 0}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"doc_hash": "another"}, "document 1 of lm-eval task sums has a different document"),
        ({"doc_id": 7}, "document 1 of lm-eval task sums has a different document"),
        ({"prompt": "another"}, "document 1 of lm-eval task sums has a different prompt"),
    ],
)
def test_other_documents_are_refused(changed, message):
    after = result(0, 1)
    with pytest.raises(EvalError, match=message):
        changes_of_lm_eval(result(0, 1), replace(after, rows=(after.rows[0], row(1, 1.0, **changed))))


@pytest.mark.parametrize(
    "changed", [{"n_docs": 5}, {"version": "2.0"}, {"decodings": (SamplingParams(9, temperature=0.0),)}]
)
def test_other_tasks_are_refused(changed):
    with refuses(EvalError, "evals.lm_eval_tasks_differ", tasks="sums"):
        changes_of_lm_eval(result(0, 1), replace(result(0, 1), tasks=(replace(TASK, **changed),)))


def samples(**correct: list[bool]) -> list[Any]:
    return [
        {"task": "sums", "problem_id": problem, "sample": sample, "correct": right}
        for problem, of_one in correct.items()
        for sample, right in enumerate(of_one)
    ]


def test_samples_are_paired_by_problem_as_shares_of_right_ones() -> None:
    before = samples(a=[True, False], b=[False, False], c=[True, True])
    after = samples(c=[True, False], b=[True, True], a=[True, False])
    change = change_of_samples(before, after)
    assert (change.task, change.metric, change.filter, change.n_problems) == ("sums", "avg@n", "", 3)
    assert change.before == 0.5
    assert change.after == pytest.approx(2 / 3)
    # The differences are 0, 1, -.5 around 1/6.
    assert change.stderr == pytest.approx(statistics.stdev([0, 1, -0.5]) / math.sqrt(3))
    assert (change.gained, change.lost) == (1, 1)


def test_samples_of_other_problems_are_refused() -> None:
    with refuses(EvalError, "evals.problems_not_paired", problem="b", task="sums"):
        change_of_samples(samples(a=[True]), samples(a=[True], b=[True]))
