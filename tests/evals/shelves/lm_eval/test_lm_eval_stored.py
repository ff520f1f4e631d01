"""lm-eval's verdicts and ours on stored completions: 187 forms of answers, the nasty ones among them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evals.lm_eval_results import LmEvalResult
from evals.shelves.lm_eval.adapter import run_lm_eval
from tests.evals.scripted import Scripted, write_rows
from tests.evals.shelves.lm_eval.differences import BY_DESIGN, ONLY_LM_EVAL_ACCEPTS, ONLY_WE_ACCEPT
from tests.evals.shelves.lm_eval.parity import IDENTICAL, Comparison, minerva_runs, skip_unless_it_runs, verdicts

pytest.importorskip("lm_eval", reason="needs lm-eval: pip install -e '.[lm-eval]'")

FOLDER = Path(__file__).with_name("lm_eval_completions")
STORED = {
    path.stem: [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for path in sorted(FOLDER.glob("*.jsonl"))
}
FILES = {"gsm8k": "gsm8k_test.jsonl", "aime24": "aime24.jsonl", "minerva_math500": "math500.jsonl"}


@pytest.fixture(scope="module")
def result(tmp_path_factory) -> LmEvalResult:
    folder = tmp_path_factory.mktemp("data")
    examples = {row["problem"]: row for row in STORED["gsm8k"]}
    write_rows(folder, {**{FILES[name]: rows for name, rows in STORED.items()}, "gsm8k_train.jsonl": examples.values()})
    names = [name for name in STORED if name != "minerva_math500" or minerva_runs()]
    completions = {
        f"{name}_local/{number}": row["completion"] for name, rows in STORED.items() for number, row in enumerate(rows)
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BENCH_DATA", str(folder))
        patch.setenv("HF_HUB_OFFLINE", "1")
        return run_lm_eval([f"{name}_local" for name in names], Scripted(lambda draw: completions[draw.example]))


def compared(comparison: Comparison, result: LmEvalResult) -> dict[str, tuple[bool, bool]]:
    """form -> (lm-eval's verdict, ours)."""
    skip_unless_it_runs(comparison.task)
    rows = STORED[comparison.task]
    pairs = verdicts(comparison, f"{comparison.task}_local", result, rows)
    return {row["form"]: pair for row, pair in zip(rows, pairs, strict=True)}


def test_there_are_enough_completions():
    assert sum(map(len, STORED.values())) >= 120


@pytest.mark.parametrize("comparison", IDENTICAL, ids=str)
def test_verdicts_are_the_same(comparison, result):
    pairs = compared(comparison, result)
    assert {form: pair for form, pair in pairs.items() if pair[0] != pair[1]} == {}
    assert set(pairs.values()) == {(True, True), (False, False)}


@pytest.mark.parametrize("comparison", BY_DESIGN, ids=str)
def test_verdicts_differ_by_design_and_nowhere_else(comparison, result):
    pairs = compared(comparison, result)
    differing = {
        ONLY_WE_ACCEPT: {form for form, pair in pairs.items() if pair == (False, True)},
        ONLY_LM_EVAL_ACCEPTS: {form for form, pair in pairs.items() if pair == (True, False)},
    }
    assert differing == {side: set(forms) for side, forms in BY_DESIGN[comparison].items()}


@pytest.mark.parametrize(
    ("comparison", "theirs"),
    [
        (Comparison("gsm8k", "strict-match", "exact_match", "chain", "numeric"), True),
        (Comparison("gsm8k", "flexible-extract", "exact_match", "chain", "numeric"), True),
        (Comparison("aime24", "none", "exact_match", "chain", "numeric"), True),
        (Comparison("minerva_math500", "none", "math_verify", "chain", "math"), True),
        (Comparison("minerva_math500", "none", "exact_match", "chain", "math"), False),
    ],
    ids=str,
)
def test_five_right_answers(comparison, theirs, result):
    """`The final answer is $\\boxed{n}$. #### n`, n right: lm-eval's metrics disagree on it, we do not."""
    five = [pair for form, pair in compared(comparison, result).items() if form.startswith("box and hash")]
    assert five == [(theirs, True)] * 5
