from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.errors import EvalError
from evals.graders import grade
from evals.grading.choice import choice_letter, last_stated_choice, parse_choice
from evals.grading.extract import extract_answer
from tests.evals.grading.judged import judge

FORMS = [
    "{}", "({})", "[{}]", "{}.", "{})", "{}:", "**{}**", "${}$", "\\text{{{}}}", "\\text{{({})}}", "\\textbf{{({})}}",
    "\\mathrm{{{}}}", "option {}", "Option ({})", "choice {}", "the answer is {}", "The correct answer is ({}).",
    "Answer: {}", "({}) 12", "({}) Paris", "{}. Paris", "{}) 12 and 13", "\\textbf{{({}) }}12", "`{}`",
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_reads(form):
    assert [parse_choice(form.format(letter)) for letter in "ABJbj"] == list("ABJBJ")


@pytest.mark.parametrize(
    "text",
    ["", " ", "12", "K", "AB", "2B", "B2", "A dog", "A and B", "(A) or (B)", "B, C", "B and C", "(B) and (C)", "B + 1",
     "I think so", "not B", "the", "option", "Boston", "(A", "x", "B\u0301", "A" * 2000,
     "(A), (B)", "(A) / B", "(A)/(B)", "(a) or (b)", "(A) & B", "A/B", "both B and C", "(A)(B)"],
)  # fmt: skip
def test_does_not_read(text):
    assert parse_choice(text) is None


@pytest.mark.parametrize(
    "form", ["{}", "({})", "\\text{{({})}}", "\\text{{{}}}", "$({})$", "({}).", "\\textbf{{({})}}"]
)
def test_references(form):
    assert [choice_letter(form.format(letter)) for letter in "ABCDEFGHIJ"] == list("ABCDEFGHIJ")


def test_a_small_letter_is_a_reference_in_brackets():
    assert choice_letter("(b)") == "B"


@pytest.mark.parametrize("answer", ["b", "K", "(K)", "12", "", "AB", "x", "(B) 12", "B or C", "2B", "\\text{even}"])
def test_no_references(answer):
    assert choice_letter(answer) is None
    with pytest.raises(EvalError, match=r"not a letter from A to J.*'math' or 'exact'"):
        judge("B", answer, "choice")


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("So the answer is B.", "B"),
        ("So the answer is **(B)**.", "B"),
        ("Option A is too small, so the answer is (C) 12.", "C"),
        ("I would pick option D because it is the largest.", "D"),
        ("It cannot be (A). It must be (E).", "E"),
        ("The answer is $\\text{(B)}$.", "B"),
        ("Answer: c", "C"),
        ("So the answer is c.", None),
        ("Answer: (c)", "C"),
        ("The answer is a matter of taste.", None),
        ("The answer is A matter of taste.", None),
        ("The answer is A because it is red.", "A"),
        ("The answer is I think unclear.", None),
        ("The answer is Boston.", None),
        ("B", "B"),
        ("b.", "B"),
        # Several together are no answer
        ("The answer is A or B.", None),
        ("The answer is (B), (C).", None),
        ("It is (B), (C).", None),
        ("It is (A)/(B).", None),
        ("The answer is A/B.", None),
        ("The answers are A and C.", None),
        ("(A) is 5 and (B) is 6. The answer is both A and B.", None),
        ("The answer is either (A) or (B).", None),
        ("I would take option A or option B.", None),
        ("Answer: A. No, answer: A, B and C.", None),
        ("The answer is B, C is wrong.", "B"),
        ("The answer is B and A is too small.", "B"),
        ("The answer is B, I think.", "B"),
        ("Answer: B. I repeat, answer: B", "B"),
        ("nothing here", None),
        ("", None),
    ],
)
def test_the_letter_that_a_text_names(text, letter):
    assert last_stated_choice(text) == letter


def test_a_box_wins_over_what_is_said():
    assert extract_answer("The answer is B. \\boxed{C}", "choice") == "C"
    assert extract_answer("The answer is B. \\boxed{}", "choice") == "B"
    assert extract_answer("<think>B</think> (D)", "choice") == "D"


@pytest.mark.parametrize(
    "form", ["\\boxed{{\\text{{({})}}}}", "\\boxed{{{}}}", "({})", "The answer is {}.", "option {}"]
)
def test_graded(form):
    for reference in ("B", "(B)", "\\text{(B)}"):
        assert grade(form.format("B"), reference, "choice", "choice").reason == "match"
        assert grade(form.format("D"), reference, "choice", "choice").reason == "mismatch"
    assert grade("no idea", "B", "choice", "choice").reason == "unparsed"


@given(st.sampled_from("ABCDEFGHIJ"), st.sampled_from("ABCDEFGHIJ"), st.sampled_from(FORMS))
def test_a_letter_matches_only_itself(written, reference, form):
    assert judge(form.format(written), reference, "choice").correct is (written == reference)


@given(st.text(alphabet=string.ascii_letters + "()[]{}.:\\ *$", max_size=60))
def test_no_text_is_an_error(text):
    parse_choice(text)
    last_stated_choice(text)
