from __future__ import annotations

import time

import pytest

from evals.grading.extract import extract_answer
from harness.errors import UnknownNameError

CHAIN = [
    # The last closed box wins over everything after it
    ("so \\boxed{5} then \\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
    ("\\boxed{\\boxed{5}}", "5"),
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
    # An answer that was cut off in its box is none, and neither is what stands before it
    ("a \\boxed{3} and \\boxed{4", None),
    ("so 12 it is: \\boxed{1", None),
    ("#### 12\nSo \\boxed{\\frac{1}{2}", None),
    ("\\boxed{3}. So $\\boxed", None),
    ("\\boxed{\\boxed{4}, ", None),
    ("\\boxed{1\n\nQuestion: and then?\n\\boxed{2}", None),
    ("\\boxed{3 is it.\nSo \\boxed{3}.", "3"),
    ("\\boxed{1", None),
    # Boxes of one list are one answer; after other words the last box stands
    ("$x_1=\\boxed{4}, x_2=\\boxed{-1}$", "4, -1"),
    ("$x_{1} = \\boxed{4}$ and $x_{2} = \\boxed{-1}$.", "4, -1"),
    ("\\[x = \\boxed{4} \\quad\\text{or}\\quad x = \\boxed{-1}\\]", "4, -1"),
    ("(a) $\\boxed{4}$\n(b) $\\boxed{-1}$", "4, -1"),
    ("$f(1)=\\boxed{4}$, $f(2)=\\boxed{-1}$", "4, -1"),
    ("one is $\\boxed{4}$, the other is $\\boxed{-1}$", "4, -1"),
    ("\\boxed{4} apples and \\boxed{3} pears", "4, 3"),
    ("\\boxed{\\boxed{4}, \\boxed{-1}}", "4, -1"),
    ("$\\boxed{1\\frac12},$ or $\\boxed{\\frac{3}{2}}$", "\\frac{3}{2}"),
    ("$\\boxed{\\frac{4}{2}} = \\boxed{2}$", "2"),
    ("\\boxed{25} cents, so \\boxed{26}", "26"),
    ("$m=\\boxed{49}$, $n=\\boxed{64}$, $m+n=\\boxed{113}$", "113"),
    ("\\boxed{320}. Correction: \\boxed{321}", "321"),
    # What follows the answer is not the answer, unless problems were quoted before it
    ("\\boxed{1}\n\nQuestion: and then?\n\\boxed{2}", "1"),
    ("#### 1\nQ: and then?\n#### 2", "1"),
    ("Answer: 1\n**Problem 2:** x\nAnswer: 2", "1"),
    ("Question: x\n#### 1\nQuestion: y\n#### 2", "2"),
    ("I count 3.\nQuestion: y\n#### 2", "2"),
    ("8\n\nQuestion: and then?\nAnswer: 2\n#### 2", "8"),
    ("So there are 8.\n\nQuestion: and then?\nAnswer: So there are 12.", "8"),
    ("The answer is 8. Question: and then?\nThe answer is 12.", "8"),
    ("#### 8\n### Instruction: and then?\n#### 12", "8"),
    ("#### 8\n\nNext question: and then?\n#### 12", "8"),
    ("With 3 steps:\nQuestion: y\nSo it is 2", "2"),
    ("\\boxed{1}, \\boxed{1}, \\boxed{2}", "1, 1, 2"),
    # Numbers that are one answer together, or none
    ("The answer is 7 dollars and 25 cents.", "7 dollars and 25 cents"),
    ("So it costs $7 and 25 cents in all.", "$7 and 25 cents"),
    ("So it is 12 feet 4 inches long.", "12 feet 4 inches"),
    ("The answer is 3 hours 20 minutes because it is far.", "3 hours 20 minutes"),
    ("The answer is between $6$ and $9$.", "between $6$ and $9$"),
    ("It takes 6 to 9 days.", "6 to 9"),
    ("It takes 6–9 days.", "6-9"),
    ("It is 5, 6 or maybe 7.", "6 or maybe 7"),
    ("The answer is about 5 or 6 days, I think.", "about 5 or 6"),
    ("The answer is 18 apples and 3 pears.", "18 apples and 3"),
    ("It is 1/2 or 50%", "50"),
    ("He has $250 in 10 days", "10"),
    ("30 + $160 or $190", "$190"),
    ("She has 3 days and $20", "$20"),
    ("we get $5-12i$", "5-12i"),
    ("we get 5-12i", None),
    ("we get \\(6 - 9\\)", "6 - 9"),
    # Decimals that go on
    ("so it is 2.66...", "2.66..."),
    ("The answer is 2.66... because it repeats", "2.66..."),
    ("so it is 2.66\\ldots", "2.66\\ldots"),
    ("so it is 2.\\overline{6}", "2.\\overline{6}"),
    ("The answer is 18... I think", "18"),
    # A formula is read as a whole, however long it or its line is
    ("and so on, " * 100 + "so $2\\sqrt{3} + 5$.", "2\\sqrt{3} + 5"),
    ("so $" + "1 + " * 300 + "5$", "1 + " * 300 + "5"),
    ("so $$" + "1 + " * 300 + "5$$", "1 + " * 300 + "5"),
    ("The answer is\n$$" + "1 + " * 600 + "5$$", "1 + " * 600 + "5"),
    ("The answer is " + "very, " * 500 + "$x+5$", "x+5"),
    (
        "so \\begin{pmatrix}" + " 1 & 2 \\\\" * 200 + "\\end{pmatrix}",
        "\\begin{pmatrix}" + " 1 & 2 \\\\" * 200 + "\\end{pmatrix}",
    ),
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
        ("gsm8k", "#### 8\n\nQuestion: and then?\n#### 12", "8"),
        ("hash", "#### 8\n\n### Question: and then?\n#### 12", "8"),
        ("boxed", "\\boxed{8}\n\nHuman: and then?\n\\boxed{12}", "8"),
        ("boxed", "\\boxed{8} and \\boxed{1", None),
        ("choice", "The answer is B. So \\boxed{B", None),
        ("last_number", "It is 8.\nUser: and then?\nIt is 12.", "8"),
        ("last_number", "It takes 6 to 9.", "6 to 9"),
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
    with pytest.raises(UnknownNameError, match=r"extraction 'boxd'; did you mean boxed\? `bench ls extractions`"):
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
        ("<answer>1</answer> 2</answer>", "1"),
        ("<answer>1</answer> 2</answer> <answer>3", None),
        ("<answer>1</answer>\nQuestion: x\n<answer>3</answer>", "1"),
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
        "\\(" * 300_000 + "5",
        "\\[5 " * 200_000,
        "$5" * 300_000,
        "\\begin{array}" * 60_000 + "5",
        "5 or " * 200_000,
        "5 feet " * 150_000,
        "Question: 5\n" * 80_000,
        "\\boxed{5}, " * 80_000,
        "5." + "1" * 10**6 + "\\",
        "(A) or " * 120_000,
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
        "open formulas",
        "open displays",
        "dollars",
        "open arrays",
        "alternatives",
        "feet",
        "questions",
        "boxes",
        "decimals",
        "letters",
    ],
)
def test_degenerate_megabytes_take_linear_time(text):
    for name in ("chain", "boxed", "answer_tag", "gsm8k", "hash", "last_number", "choice"):
        start = time.process_time()
        extract_answer(text, name)
        assert time.process_time() - start < 5, name
