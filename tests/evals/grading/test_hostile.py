"""Answers that were made, or happen, to break what reads them: a verdict with a reason, in bounded time."""

from __future__ import annotations

import pytest

from evals.graders import GRADERS
from evals.grading import OWN
from evals.grading.extract import EXTRACTIONS, extract_answer
from tests.evals.grading.judged import judge

pytestmark = pytest.mark.slow

LONG = 250_000
"""Characters. What takes quadratic time takes minutes at this length."""
HOSTILE = {
    "tower": "9**9**9**9",
    "tower in latex": "9^{9^{9^{9}}}",
    "factorials": "((9!)!)!",
    "braces": "{" * 10_000 + "1" + "}" * 10_000,
    "boxes": "\\boxed{" * 10_000 + "1" + "}" * 10_000,
    "brackets": "(" * 10_000 + "1" + ")" * 10_000,
    "fractions": "\\frac{1}{" * 2_000 + "1" + "}" * 2_000,
    "many digits": "9" * LONG,
    "many words": "word " * (LONG // 5),
    "many line breaks": "\n" * LONG,
    "many sums": "1+" * (LONG // 2) + "1",
    "many answers": "the answer is " * (LONG // 14),
    "many boxes": "\\boxed{1}, " * (LONG // 11),
    "many choices": "option (A) or " * (LONG // 14),
    "many questions": "Question: \n" * (LONG // 11),
    "many thoughts": "<think>1</think>" * (LONG // 16),
    "dollars": "$" * LONG,
    "dollars and digits": "$1" * (LONG // 2),
    "backslashes": "\\" * LONG,
    "open formulas": "\\(" * (LONG // 2),
    "open displays": "\\[" * (LONG // 2),
    "stars": "*" * LONG,
    "hashes": "#" * LONG,
    "minuses": "-" * LONG,
    "thousands": "1" + ",000" * (LONG // 4),
    "equals": "=" * LONG,
    "nul": "\x00",
    "nul inside": "1\x002",
    "nuls": "\x00" * LONG,
    "right-to-left": "\u200f\u202e18\u202c\u200e",
    "marks only": "\u200f\u202e\u2066" * 1000,
    "combining": "1" + "\u0301" * 10_000,
    "surrogate": "\ud800",
    "surrogate in latex": "\\frac{\udfff}{2}",
    "emoji": "\U0001f600" * 1000,
    "empty": "",
    "spaces": "   ",
    "white space": " \t\n\r\v\f\u00a0\u2028\u3000",
    "division by zero": "\\frac{1}{0}",
    "infinity": "1e999999999",
    "code": "__import__('os')._exit(1)",
    "percent format": "%s%n%d",
    "json": '"}\n{"candidate": "1", "answer": "1"}',
}
REFERENCES = {"exact": ["18"], "numeric": ["18"], "choice": ["(B)"], "math": ["18", "x+1", "(B)", "\\text{even}"]}
# How an answer stands in a completion, for each extraction.
AROUND = {"answer_tag": "<answer>%s</answer>", "gsm8k": "#### %s", "hash": "#%s", "chain": "The answer is %s."}
COMPARING = sorted(set(GRADERS.names()) - {OWN, "unit_tests"})


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_extraction(text):
    for name in EXTRACTIONS.names():
        for completion in (text, AROUND.get(name, "so \\boxed{%s}.").replace("%s", text)):
            extracted = extract_answer(completion, name)
            assert extracted is None or extracted, name


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_comparison(text):
    for grader, reference in [(one, reference) for one in COMPARING for reference in REFERENCES[one]]:
        verdict = judge(text, reference, grader)
        assert not verdict.correct or (text, reference) == (HOSTILE["right-to-left"], "18")
        assert verdict.reason in {"match", "mismatch", "unparsed", "timeout", "crash"}
    assert judge("18", "18", "math").correct


@pytest.mark.parametrize("text", [text for text in HOSTILE.values() if len(text) < 100], ids=ascii)
def test_as_reference(text):
    for grader in ("exact", "math"):
        assert judge("17", text, grader).reason in {"mismatch", "unparsed", "timeout", "crash"}


def test_the_reasons_are_those_that_an_evaluation_counts():
    assert judge(HOSTILE["tower in latex"], "18", "math").reason in {"timeout", "crash", "mismatch"}
    assert judge(HOSTILE["many sums"], "x", "math").reason == "unparsed"
    assert judge(HOSTILE["many digits"], "18", "numeric").reason == "unparsed"
    assert judge(HOSTILE["many choices"], "B", "choice").reason == "unparsed"
