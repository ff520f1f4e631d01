"""Every reference answer of the real data is right in the usual written forms."""

from __future__ import annotations

import json

import pytest

from evals.errors import EvalError
from evals.graders import grade, require_gradable
from harness.errors import RefusedError
from tests.refusals import refuses

FORMS = [
    "so it is $\\boxed{{{}}}$.",
    "so it is \\[\\boxed{{{}\\,}}\\]",
    "The answer is ${}$.",
    "Answer: the largest $n$ is ${}$.",
    "#### {}",
    "Thus we are done.\n\nFinal answer: **{}**",
]
FILES = [
    *(("gsm8k_test", "numeric", 1319), ("math500", "math", 500)),
    *(("aime24", "math", 30), ("aime25", "math", 30), ("amc23", "math", 40)),
]


@pytest.fixture(params=FILES, ids=[name for name, *_ in FILES])
def references(request, data_folder):
    file, grader, count = request.param
    with (data_folder / f"{file}.jsonl").open(encoding="utf-8") as lines:
        answers = [str(json.loads(line)["answer"]) for line in lines]
    assert len(answers) == count
    return answers, grader


@pytest.mark.parametrize("form", FORMS)
def test_references_are_right(references, form):
    answers, grader = references
    wrong = {answer: grade(form.format(answer), answer, grader) for answer in dict.fromkeys(answers)}
    assert {answer: verdict for answer, verdict in wrong.items() if not verdict.correct} == {}


@pytest.mark.parametrize("form", FORMS)
def test_the_reference_of_another_problem_is_right_only_where_it_is_the_same_answer(references, form):
    answers, grader = references
    distinct = list(dict.fromkeys(answers))
    accepted = {
        (given, wanted)
        for given, wanted in zip(distinct, distinct[1:] + distinct[:1], strict=True)
        if grade(form.format(given), wanted, grader).correct
    }
    assert accepted == set()


@pytest.mark.parametrize("form", ["#### {}", "that makes {} of them"])
def test_one_digit_more_is_another_answer(data_folder, form):
    with (data_folder / "gsm8k_test.jsonl").open(encoding="utf-8") as lines:
        answers = {json.loads(line)["answer"] for line in lines}
    assert all(grade(form.format(answer), answer, "numeric").correct for answer in answers)
    assert not any(grade(form.format(f"{answer}1"), answer, "numeric").correct for answer in answers)


@pytest.mark.parametrize(
    "answer",
    [
        *("18", "x+1", r"\frac12", r"\frac1{2x}", r"\frac\pi4", r"\frac{\sqrt{2}}{3}", r"\dfrac{1}{2}", "$5", "x = 5"),
        *(
            r"\text{Evelyn}",
            "Evelyn",
            "C",
            r"\text{(C)}",
            r"x \in [-2,7]",
            "[0,1)",
            r"(-\infty, 3]",
            r"\infty",
            "∅",
            "1,2,3",
            "52_8",
        ),
        *(r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\left( 3, \frac{\pi}{2} \right)", r"\{1, 2\}", r"10^{-2}", ".01"),
        *("11111111100", r"2007 + \frac\pi 2", r"2, 3, \text{ and } 4", r"5\%", r"90^\circ", r"\sqrt{2}"),
    ],
)
def test_what_mathematics_can_be(answer):
    require_gradable(answer, "math")


@pytest.mark.parametrize(
    "answer",
    [
        *(r"\frac{1}{", r"\frac{1}", r"\frac12\frac3", r"\frac", r"\sqrt{", r"\sqrt", "x^{", "}x{", "a_", "x+", "x ="),
        *("2 \\cdot", "@@@", "???", "...", "$$", "%", "-", "[1,2", "1,2)", r"\begin{pmatrix} 1", "x" * 6_000 + "!"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_as_mathematics(answer):
    with refuses(EvalError, "evals.reference_not_gradable"):
        require_gradable(answer, "math")
    require_gradable(answer, "exact")


@pytest.mark.parametrize(
    ("answer", "grader", "code"),
    [
        ("x+1", "numeric", "evals.reference_not_gradable"),
        ("x+1", "choice", "evals.reference_not_gradable"),
        ("18", "own", "evals.reference_not_gradable"),
        *(("", grader, "evals.no_answer_to_compare") for grader in ("exact", "math", "numeric", "choice", "own")),
        ("18", "maths", "bench.unknown_name"),
    ],
)
def test_what_another_grader_cannot_read(answer, grader, code):
    with refuses(RefusedError, code):
        require_gradable(answer, grader)


def test_a_comparison_of_its_own_is_not_asked():
    require_gradable("18", "own", lambda given: pytest.fail("asked"))
    require_gradable("18", "numeric")
    require_gradable("C", "choice")


@pytest.mark.parametrize("file", ["math500", "math_train", "aime24", "aime25", "amc23", "gsm8k_test", "gsm8k_train"])
def test_all_references_can_be_graded_and_that_needs_no_process(data_folder, monkeypatch, file):
    monkeypatch.setattr("evals.grading.math.POOL.compare", lambda *_: pytest.fail("asked"))
    with (data_folder / f"{file}.jsonl").open(encoding="utf-8") as lines:
        for line in lines:
            require_gradable(str(json.loads(line)["answer"]), "numeric" if "gsm8k" in file else "math")
