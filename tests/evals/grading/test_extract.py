from __future__ import annotations

import time

import pytest

from evals.errors import EvalError
from evals.grading.extract import extract_answer

CHAIN = [
    # The last closed box wins over everything after it
    ("so \\boxed{5} then \\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
    ("\\boxed{\\boxed{5}}", "5"),
    ("a \\boxed{3} and \\boxed{4", "3"),
    ("\\boxed{\\{1, 2\\}}", "\\{1, 2\\}"),
    ("\\boxed {12} or 13", "12"),
    ("\\fbox{3} 4", "3"),
    ("a stray } and { then \\boxed{7}", "7"),
    ("The final answer is $\\boxed{18}$. #### 19", "18"),
    ("\\boxed{1} and $\\boxed{2}$", "1, 2"),
    ("$x = \\boxed{1}$, $y = \\boxed{2}$", "1, 2"),
    ("\\boxed{1}, \\boxed{1}", "1"),
    ("\\boxed{1}. Then \\boxed{2}", "2"),
    ("\\boxed{a \\boxed{1} b}, \\boxed{2}", "1, 2"),
    ("\\boxed{\\text{The answer is } 9}", "9"),
    ("\\boxed{\\text{Answer: 9}}", "9"),
    # A box that was cut off holds no answer
    ("so 12 it is: \\boxed{1", "12"),
    ("\\boxed{1", None),
    # What follows the answer is not the answer, unless problems were quoted before it
    ("\\boxed{1}\n\nQuestion: and then?\n\\boxed{2}", "1"),
    ("#### 1\nQ: and then?\n#### 2", "1"),
    ("Answer: 1\n**Problem 2:** x\nAnswer: 2", "1"),
    ("Question: x\n#### 1\nQuestion: y\n#### 2", "2"),
    ("I count 3.\nQuestion: y\n#### 2", "2"),
    ("\\boxed{1}, \\boxed{1}, \\boxed{2}", "1, 1, 2"),
    # Spaces of TeX around an answer, and of a line's end the second backslash
    *(
        (f"\\boxed{{18{space}}}", "18")
        for space in ("\\,", "\\;", "\\ ", "\\!", "~", "\\quad", "\\hspace{1em}", "\\\\", "\\,.")
    ),
    ("\\boxed{5\\%}", "5\\%"),
    ("so $18\\,$ it is", "18"),
    # Signs in words
    ("The answer is minus 18.", "-18"),
    ("it is **negative 1/2**", "-1/2"),
    ("we get minus $18$", "-18"),
    ("minus \\$18", "-\\$18"),
    ("\\boxed{\\text{negative }\\frac12}", "-\\frac12"),
    ("it is non-negative 18", "18"),
    ("20 minus 18", "18"),
    ("the total minus 18", "18"),
    # Matrices are one answer
    ("so $A = \\begin{pmatrix}\n1 \\\\\n2\n\\end{pmatrix}$.", "A = \\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}"),
    ("so \\begin{bmatrix} 1 & 2 \\end{bmatrix}", "\\begin{bmatrix} 1 & 2 \\end{bmatrix}"),
    ("The answer is $\\begin{pmatrix}\n1 \\\\ 2 \\end{pmatrix}$.", "\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}"),
    # What a formula only names
    ("Answer: the largest $n$ is 34", "34"),
    ("Answer: the largest $n$ that works is $2\\sqrt{3}$.", "2\\sqrt{3}"),
    ("The answer is the largest $n$, which is 34.", "34"),
    ("The answer: the smallest $k$ for which it holds is 7.", "7"),
    ("The answer is $\\frac13$, which is 0.33.", "\\frac13"),
    ("The answer is the smallest $n$ for which the remainder is 7.", "n"),
    ("The answer is $n$, which is 3 more than 5.", "n"),
    ("The answer is $x$ because 2 is even", "x"),
    ("The answer is $x+1$, as 2 is 1 + 1", "x+1"),
    # ####
    ("x #### 5\nI hope this helps 6", "5"),
    ("#### 1\nnew question\n#### 2", "2"),
    ("#### $1,200", "$1,200"),
    ("#### Paris", "Paris"),
    ("#### Step 3\nthe answer is 4.", "4"),
    ("#### Solution\nit is 4", "4"),
    # answer is
    ("The answer is 18.", "18"),
    ("The answer is $18.50. Thus 7", "$18.50"),
    ("The answer is: **18**.", "18"),
    ("the Answer is\n 7", "7"),
    ("The answer is 18 because 5 is odd", "18"),
    ("The answer is 18 dollars per day. I have 2 dogs.", "18 dollars per day"),
    ("The answer is Paris.", "Paris"),
    ("The answer is 5? No, the answer is 6.", "6"),
    ("The answer is x+1", "x+1"),
    ("The answer is the sum, 18.", "18"),
    ("Answer: 18", "18"),
    ("**Answer:** 18 eggs", "18 eggs"),
    ("**Final answer: 18**", "18"),
    ("Final Answer\n\n**18**", "18"),
    ("The answers are 3 and 4.", "3 and 4"),
    ("The answer is\n$$\nx +\n1\n$$", "x + 1"),
    ("The answer is\n\\[x+1\\]\nas 2 is even.", "x+1"),
    ("The answer is $x+1$ because 2 is even", "x+1"),
    ("The answer is the open interval $(1, 2)$ here.", "(1, 2)"),
    ("The answer is $\\$18.50$.", "\\$18.50"),
    ("The answer is either 3 or 4.", "either 3 or 4"),
    ("The answer is 18. I checked that the answer is correct.", "18"),
    ("#### The answer is 18", "18"),
    ("It makes 18. Answer: Let us see step by step what it is.", "18"),
    # last number
    ("it costs $1,200.", "$1,200"),
    ("It is 3/4.", "3/4"),
    ("so \\frac{3}{4} remains", "\\frac{3}{4}"),
    ("It is -3 of them", "-3"),
    ("8 = 5-3", "3"),
    ("so $5 - 3$", "5 - 3"),
    ("so \\(2\\sqrt{3}\\) it is", "2\\sqrt{3}"),
    ("so \\[\n2\\pi\n\\]", "2\\pi"),
    ("so $$x = 2$$", "x = 2"),
    ("it costs $5 and then $3 more", "$3"),
    ("so $5 each, $7 in all and $3 back", "$3"),
    ("so 2π", None),
    ("so 2\\pi", None),
    ("so 5x", None),
    ("so 5 m", "5"),
    ("18 = 20 -", None),
    ("so 52_8", None),
    ("so 2^{10}", None),
    ("3 1/2", "3 1/2"),
    ("3\\frac{1}{2}", "3\\frac{1}{2}"),
    ("it is **18**", "18"),
    ("it is 18!", "18"),
    ("first 1, then 2, so 3 it is", "3"),
    ("that is 1e3 eggs", "1e3"),
    ("it is \u22123", "-3"),
    # after the thought
    ("<think>\\boxed{3}</think> so 4", "4"),
    ("\\boxed{3}</think> so 4", "4"),
    ("1</think> \\boxed{2} </think> so 4", "4"),
    ("<think> \\boxed{3}", None),
    ("<think> 3 </think>", None),
    # nothing there
    ("\\boxed{} 5", "5"),
    ("\\boxed{}", None),
    ("I have no idea", None),
    ("", None),
    ("H2O", None),
]


@pytest.mark.parametrize(("text", "answer"), CHAIN)
def test_chain(text, answer):
    assert extract_answer(text) == answer


@pytest.mark.parametrize(
    ("name", "text", "answer"),
    [
        ("boxed", "\\boxed{5} 6", "5"),
        ("boxed", "#### 5", None),
        ("gsm8k", "\\boxed{4} #### 5\n", "5"),
        ("gsm8k", "\\boxed{4}", None),
        ("hash", "11,20,22#22", "22"),
        ("hash", "11,20#22,24", "22,24"),
        ("hash", "#5#7", "7"),
        ("hash", "11,20,22", None),
        ("hash", "11,20#", None),
        ("last_number", "\\boxed{4}, not 5", "5"),
        ("last_number", "none", None),
    ],
)
def test_named_extractions(name, text, answer):
    assert extract_answer(text, name) == answer


def test_unknown_extraction_names_the_nearest():
    with pytest.raises(EvalError, match=r"extraction 'boxd'; did you mean boxed\? There are chain, boxed, "):
        extract_answer("", "boxd")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>1</answer> no, <answer> 2 \n 3 </answer> or \\boxed{4}", "2 \n 3"),
        ("<answer>1 2\n3 4</answer>", "1 2\n3 4"),  # a board keeps its lines, and its marks are not taken for mark-up
        ("<answer>**7**.</answer>", "**7**."),
        ("so \\boxed{1\n2}", "1\n2"),
        ("<answer>1</answer><think>\\boxed{2}</think> <answer>3</answer>", "3"),
        ("<think><answer>1</answer>", None),
        ("<answer>1", None),
        ("1</answer>", None),
        ("<answer>1</answer> 2</answer> <answer>3", "1"),
        ("<answer> </answer>", None),
        ("the answer is 5", None),
    ],
)
def test_answer_tag(text, answer):
    assert extract_answer(text, "answer_tag") == answer


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "answer is x" + " " * 10**6 + "y",
        "answer is" + " " * 10**6,
        "answer is " * 10**5,
        "\\boxed{" * 150_000,
        "\\boxed{" + "\\(" * 200_000 + "x" + "\\)" * 200_000 + "}",
        "#### Step\n" * 10**5,
        "\\frac{" * 150_000,
        "1" + ",000" * 250_000 + "0",
        "<answer>" * 150_000,
        "</answer>" * 150_000,
    ],
    ids=[
        "spaces inside",
        "spaces after",
        "answers",
        "open boxes",
        "nested",
        "headings",
        "fractions",
        "thousands",
        "tags",
        "ends",
    ],
)
def test_degenerate_megabytes_take_linear_time(text):
    for name in ("chain", "boxed", "answer_tag", "gsm8k", "hash", "last_number"):
        start = time.process_time()
        extract_answer(text, name)
        assert time.process_time() - start < 5, name
