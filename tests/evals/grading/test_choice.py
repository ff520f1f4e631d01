from __future__ import annotations

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evals.errors import EvalError
from evals.graders import grade
from evals.grading.choice import choice_letter, last_stated_choice, parse_choice
from tests.evals.grading.judged import judge
from tests.refusals import refuses

FORMS = [
    "{}", "({})", "[{}]", "{}.", "{})", "{}:", "**{}**", "${}$", "\\text{{{}}}", "\\text{{({})}}", "\\textbf{{({})}}",
    "\\mathrm{{{}}}", "option {}", "Option ({})", "choice {}", "the answer is {}", "The correct answer is ({}).",
    "Answer: {}", "({}) 12", "({}) Paris", "{}. Paris", "{}) 12 and 13", "\\textbf{{({}) }}12", "`{}`",
]  # fmt: skip
NOT_READ = [
    "", " ", "12", "K", "AB", "2B", "B2", "A dog", "A and B", "(A) or (B)", "B, C", "B and C", "(B) and (C)", "B + 1",
    "I think so", "not B", "the", "option", "Boston", "(A", "x", "B\u0301", "A" * 2000,
    "(A) " + "very " * 300, "(A), (B)", "(A) / B", "(A)/(B)", "(a) or (b)", "(A) & B", "A/B", "both B and C", "(A)(B)",
]  # fmt: skip


def test_what_is_read_as_a_letter() -> None:
    for form in FORMS:
        assert [parse_choice(form.format(letter)) for letter in "ABJbj"] == list("ABJBJ"), form
    assert {text: parse_choice(text) for text in NOT_READ} == dict.fromkeys(NOT_READ)


@pytest.mark.parametrize(
    "form", ["{}", "({})", "\\text{{({})}}", "\\text{{{}}}", "$({})$", "({}).", "\\textbf{{({})}}"]
)
def test_references(form: str) -> None:
    assert [choice_letter(form.format(letter)) for letter in "ABCDEFGHIJ"] == list("ABCDEFGHIJ")
    assert choice_letter("(b)") == "B"


@pytest.mark.parametrize("answer", ["b", "K", "(K)", "12", "", "AB", "x", "(B) 12", "B or C", "2B", "\\text{even}"])
def test_no_references(answer: str) -> None:
    assert choice_letter(answer) is None
    with refuses(EvalError, "evals.reference_not_gradable"):
        judge("B", answer, "choice")


@pytest.mark.parametrize("form", ["\\boxed{{\\text{{({})}}}}", "({})", "The answer is {}."])
def test_graded(form: str) -> None:
    for reference in ("B", "(B)", "\\text{(B)}"):
        reasons = [grade(form.format(letter), reference, "choice", "choice").reason for letter in "BD"]
        assert reasons == ["match", "mismatch"]
    assert grade("no idea", "B", "choice", "choice").reason == "unparsed"


@settings(max_examples=60)
@given(st.sampled_from("ABCDEFGHIJ"), st.sampled_from("ABCDEFGHIJ"), st.sampled_from(FORMS))
def test_a_letter_matches_only_itself(written: str, reference: str, form: str) -> None:
    assert judge(form.format(written), reference, "choice").correct is (written == reference)


@given(st.text(alphabet=string.ascii_letters + "()[]{}.:\\ *$", max_size=60))
def test_no_text_is_an_error(text: str) -> None:
    parse_choice(text)
    last_stated_choice(text)
