from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from evals import grade
from evals.errors import EvalError
from evals.graders import GRADERS
from evals.grading import OWN, Verdict
from harness.errors import UnknownNameError
from tests.evals.grading.judged import judge
from tests.refusals import refuses

# Those that compare with a reference answer.
COMPARING = sorted(set(GRADERS.names()) - {OWN, "choice", "unit_tests"})

TABLE = [
    # (text, answer, grader, correct)
    ("\\boxed{18 dollars}", "18", "math", True),
    ("\\boxed{18 dollars}", "18", "numeric", True),
    ("\\boxed{18 dollars}", "18", "exact", False),
    ("It costs $29.00", "29", "numeric", True),
    ("It costs $29.00", "29", "exact", False),
    ("#### 1,000", "1000", "numeric", True),
    ("#### 1,000", "1000", "exact", False),
    ("\\boxed{1e3}", "1000", "numeric", True),
    ("\\boxed{1e3}", "1000", "math", True),
    ("\\boxed{90^\\circ}", "90", "numeric", True),
    ("\\boxed{90^\\circ}", "90", "math", True),
    ("\\boxed{\\frac{1}{2}}", "0.5", "numeric", True),
    ("\\boxed{0.3333333}", "1/3", "numeric", False),
    ("\\boxed{5x}", "5", "numeric", False),
    ("\\boxed{5x}", "5", "math", False),
    ("\\boxed{2\\pi}", "2", "math", False),
    ("\\boxed{3 or 4}", "4", "math", False),
    ("\\boxed{x+1}", "1+x", "math", True),
    ("\\boxed{x,x,y}", "x,y,y", "math", False),
    ("\\boxed{\\pi,\\pi,1}", "\\pi,1,1", "math", False),
    ("\\boxed{y,x,x}", "x,x,y", "math", True),
    ("\\boxed{x+1}", "1+x", "exact", False),
    ("\\boxed{\\frac{\\sqrt{2}}{2}}", "\\frac{1}{\\sqrt2}", "math", True),
    ("\\boxed{(-\\infty, 3]}", "x \\le 3", "math", True),
    ("\\boxed{\\{1,2\\}}", "\\{2,1\\}", "math", True),
    ("\\boxed{\\text{Evelyn}}", "Evelyn", "exact", True),
    ("\\boxed{\\text{Evelyn}}", "\\text{Evelyn}", "math", True),
    ("it is \u221218\u200f", "-18", "numeric", True),
    ("it is \u221218\u200f", "-18", "exact", True),
    ("\\boxed{1\u00a0000}", "1000", "math", True),
    # Units are dropped, variables that look like them are not
    ("\\boxed{2h}", "2", "math", False),
    ("\\boxed{2h}", "2m", "math", False),
    ("\\boxed{3\\text{ or }4\\text{ cm}}", "3", "math", False),
    ("\\boxed{9\\pi\\text{ cm}^2}", "9\\pi", "math", True),
    ("\\boxed{9\\pi square units}", "9\\pi", "math", True),
    ("\\boxed{\\pi r squared}", "\\pi r", "math", False),
    ("\\boxed{A_{\\text{all}} = 9\\pi}", "9\\pi", "math", True),
    # Percentages
    ("\\boxed{50\\%}", "50", "math", True),
    ("\\boxed{50\\%}", "\\frac12", "math", True),
    ("\\boxed{50\\%}", "\\frac12", "numeric", False),
    ("\\boxed{50}", "\\frac12", "math", False),
    ("\\boxed{0.5}", "50\\%", "math", True),
    ("\\boxed{0.5}", "50", "math", False),
    # Numbers are exact, also where math-verify rounds
    ("\\boxed{0.333333}", "\\frac13", "math", False),
    ("\\boxed{0.0000001}", "0", "math", False),
    # Equations
    ("\\boxed{5}", "x=5", "math", True),
    ("\\boxed{y=5}", "x=5", "math", False),
    ("\\boxed{y=5}", "x=5", "numeric", False),
    ("\\boxed{2x=5}", "x=5", "math", False),
    ("\\boxed{0}", "2x-y=0", "math", False),
    ("\\boxed{y-2x=0}", "2x-y=0", "math", True),
    # Words are compared as words
    ("\\boxed{\\text{seat}}", "\\text{east}", "math", False),
    ("The answer is an Ellipse.", "\\text{ellipse}", "math", True),
    ("\\boxed{p-q}", "p-q", "math", True),
    ("\\boxed{-q+p}", "p-q", "math", True),
    # Numerals, sets, pairs
    ("\\boxed{52}", "52_8", "math", True),
    ("\\boxed{42}", "52_8", "math", False),
    ("\\boxed{\\{1,2\\}}", "(1,2)", "math", False),
    ("\\boxed{(2,1)}", "(1,2)", "math", False),
    ("\\boxed{(3,4) \\cup \\{1\\}}", "\\{1\\} \\cup (3,4)", "math", True),
    # Several numbers or boxes are not one of them, and decimals that go on are not those that are written
    ("$x_1=\\boxed{4}, x_2=\\boxed{-1}$", "4, -1", "math", True),
    ("The answer is 7 dollars and 25 cents.", "7.25", "numeric", True),
    ("The answer is 7 dollars and 25 cents.", "7.25", "math", True),
    ("So it is 12 feet 4 inches.", "148\\text{ inches}", "math", True),
    ("\\boxed{2.66\\ldots}", "2.66", "math", False),
    ("\\boxed{(2.66\\ldots, 1)}", "(2.66, 1)", "math", False),
    ("\\boxed{2.66...}", "2.66", "exact", False),
    ("\\boxed{2.\\overline{6}}", "\\frac83", "math", True),
    ("\\boxed{\\sqrt{2} = 1.41\\ldots}", "\\sqrt2", "math", True),
    ("\\boxed{(B), (C)}", "\\text{(B)}", "math", False),
    ("\\boxed{A or B}", "B", "math", False),
    # Letters
    ("\\boxed{B}", "\\text{(B)}", "math", True),
    ("\\boxed{D}", "\\text{(B)}", "math", False),
    ("\\boxed{B}", "(B)", "choice", True),
    ("I do not know", "18", "numeric", False),
    ("", "", "exact", False),
    ("", "", "math", False),
    ("\\boxed{}", "", "exact", False),
    # A decimal may lack its zero
    ("\\boxed{10^{-2}}", ".01", "math", True),
    ("\\boxed{-10^{-2}}", "-.01", "math", True),
    ("\\boxed{(1, 10^{-1})}", "(1, .1)", "math", True),
    ("\\boxed{.5x}", "0.5x", "math", True),
]


@pytest.mark.parametrize(("text", "answer", "grader", "correct"), TABLE)
def test_verdicts(text, answer, grader, correct):
    assert grade(text, answer, grader).correct is correct


def test_one_convention_is_right_under_every_grader():
    text = "The final answer is $\\boxed{18}$. #### 18"
    assert all(grade(text, "18", grader) == Verdict(True, "18", "match") for grader in COMPARING)


def test_the_problem_is_asked_where_it_has_a_comparison_of_its_own():
    asked = []

    def own(extracted):
        asked.append(extracted)
        return "match" if extracted == "b\n a" else "mismatch"

    text = "<answer>no</answer> rather\n<answer> b\n a </answer>"
    assert grade(text, "x", "own", "answer_tag", own) == Verdict(True, "b\n a", "match")
    assert grade("\\boxed{x}", "x", "own", "answer_tag", own) == Verdict(False, "x", "mismatch")
    assert grade("x", "x", "own", "answer_tag", own) == Verdict(False, None, "unparsed")
    assert asked == ["b\n a", "x"]
    assert grade("\\boxed{x}", "x", "exact", "answer_tag", own).correct, "another grader compares with the reference"
    with refuses(EvalError, "evals.reference_not_gradable"):
        grade("\\boxed{x}", "x", "own")


def test_reasons():
    assert grade("\\boxed{4}", "5", "numeric") == Verdict(False, "4", "mismatch")
    assert grade("\\boxed{four}", "4", "numeric") == Verdict(False, "four", "unparsed")
    assert grade("no idea", "4", "numeric") == Verdict(False, None, "unparsed")


@pytest.mark.parametrize("grader", COMPARING)
@pytest.mark.parametrize("answer", ["", "0", "None", "x"])
def test_an_unparsed_answer_is_never_correct(grader, answer):
    assert judge(None, answer, grader) == Verdict(False, None, "unparsed")


@given(st.integers(-(10**9), 10**9), st.integers(-(10**9), 10**9))
def test_integers_match_only_themselves(written, reference):
    assert grade(f"so \\boxed{{{written:,}}}", str(reference), "numeric").correct is (written == reference)


@given(
    st.integers(0, 10**6),
    st.integers(0, 10**6),
    st.sampled_from(["between {} and {}", "{} or {}", "{} to {} days", "{} dollars and {} cents", "{} feet {} inches"]),
    st.sampled_from(
        ["\\boxed{{{}}}", "#### {}", "The answer is {}.", "Answer: ${}$", "So it is {}.", "It takes **{}**"]
    ),
    st.sampled_from(["chain", "last_number"]),
)
def test_two_numbers_are_never_one_of_them(a, b, several, form, extraction):
    assume(a != b and b != 0)
    text = form.format(several.format(a, b))
    assert not any(grade(text, str(number), "numeric", extraction).correct for number in (a, b))


@given(
    st.lists(st.integers(-(10**6), 10**6), min_size=2, max_size=4, unique=True),
    st.sampled_from([", ", " and ", "$ or $", "$\n$", "\\quad y_{2} = ", "; $x=$ ", ") ("]),
    st.sampled_from(["chain", "boxed"]),
)
def test_several_boxes_are_never_one_of_them_but_their_list(numbers, between, extraction):
    text = "So $" + between.join(f"\\boxed{{{number}}}" for number in numbers) + "$."
    assert not any(grade(text, str(number), "math", extraction).correct for number in numbers)
    assert grade(text, ", ".join(map(str, numbers)), "math", extraction).correct


@given(st.sampled_from(["12", "\\frac{1}{2}", "\\text{a } \\boxed{3}, 1"]), st.data())
def test_an_answer_cut_off_in_its_box_is_none(content, data):
    box = f"\\boxed{{{content}}}"
    text = "The answer is 3.\n#### 3\nNo, \\boxed{3}. So it is " + box[: data.draw(st.integers(6, len(box) - 1))]
    for extraction in ("chain", "boxed", "choice", "answer_tag"):
        assert grade(text, "3", "numeric", extraction) == Verdict(False, None, "unparsed")


@pytest.mark.parametrize(
    ("text", "extraction", "correct"),
    [("5,20,22#22", "hash", True), ("22,20#23", "hash", False), ("\\boxed{22} then 6", "last_number", False)],
)
def test_named_extraction(text, extraction, correct):
    assert grade(text, "22", "numeric", extraction).correct is correct


def test_bad_names_and_references_are_errors():
    with refuses(UnknownNameError, "bench.unknown_name", name="'numerc'", nearest="; did you mean numeric?"):
        grade("1", "1", "numerc")
    with refuses(UnknownNameError, "bench.unknown_name", name="'chian'", nearest="; did you mean chain?"):
        grade("1", "1", "numeric", "chian")
    with refuses(EvalError, "evals.reference_not_gradable"):
        grade("\\boxed{1}", "blue", "numeric")
