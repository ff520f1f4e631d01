from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.grading.extract import extract_answer
from tests.evals.grading.judged import judge

# Pieces of which answers are made, and of which the filters' rules speak.
PIECES = [
    *(
        "204",
        "25",
        "0",
        "7",
        "1,050",
        "29.00",
        "-5",
        "$",
        "#### ",
        "####",
        "# ",
        ".",
        ",",
        " ",
        "\n",
        "-",
        "=",
        "x",
        "m+n",
    ),
    *(
        "\\boxed{",
        "\\boxed ",
        "\\boxed",
        "\\fbox{",
        "{",
        "}",
        "\\text{ ",
        "\\text{",
        "\\%",
        "\\$",
        "\\!",
        "\\\\",
        "\\left",
    ),
    *(
        "\\right",
        "^\\circ",
        "^{\\circ}",
        "\\frac",
        "\\frac{1}{2}",
        "\\sqrt",
        "/",
        "is",
        "</think>",
        "<think>",
        "０",
        "\u00a0",
    ),
]
ANSWERS = st.sampled_from(["204", "25", "0", "1050", "-5", "29"])


def texts(answer: str) -> st.SearchStrategy[tuple[str, str]]:
    """(text, answer): the answer with little around it, in a box or not, after more."""
    around = st.lists(st.sampled_from(PIECES), max_size=2).map("".join)
    core = st.tuples(around, st.just(answer), around).map("".join)
    put = st.one_of(core, core.map("\\boxed{{{}}}".format), core.map("${}$".format), core.map("#### {}".format))
    before = st.one_of(st.just(""), st.lists(st.sampled_from(PIECES), max_size=8).map("".join))
    return st.tuples(st.tuples(before, put, around).map("".join), st.just(answer))


def require_lm_eval() -> None:
    pytest.importorskip("lm_eval", reason="needs lm-eval: pip install -e '.[lm-eval]'")


def correct(text: str, answer: str, extract: str) -> bool:
    return judge(extract_answer(text, extract), answer, "exact").correct


@pytest.mark.parametrize(
    ("extract", "text", "found"),
    [
        ("lm_eval_gsm8k_strict", "#### 9\n#### $18\n#### 18", "9"),
        ("lm_eval_gsm8k_strict", "#### 1,050.", "1050"),
        ("lm_eval_gsm8k_strict", "####18", None),
        ("lm_eval_gsm8k_flexible", "18 of $29.00", "29.00"),
        ("lm_eval_gsm8k_flexible", "It is 18...", "18.."),
        ("lm_eval_gsm8k_flexible", "none", None),
        ("lm_eval_aime", "With $n=24$ it is $204$", "24$itis$204"),
        ("lm_eval_aime", "\\boxed{025}", "025"),
        ("lm_eval_aime", "\\boxed{n=204\\text{ m}}", "204"),
        ("lm_eval_aime", "", None),
        ("lm_eval_minerva", "Final Answer: The final answer is $[2,5)$. I hope it is correct. Bye.", "[2,5)"),
        ("lm_eval_minerva", "Final Answer: The final answer is $24$. ", "24"),
        ("lm_eval_minerva", "Final Answer: The final answer is $24$.", None),
        ("lm_eval_minerva", "\\boxed{24}", None),
    ],
)
def test_what_is_found(extract, text, found):
    assert extract_answer(text, extract) == found


AROUND = [
    (f"{before}{opened}204{closed}{after}", "204")
    for before, after in itertools.product(("", *PIECES), repeat=2)
    for opened, closed in (("", ""), ("#### ", ""))
]
INSIDE = [
    (f"{opened}{before}204{after}{closed}", "204")
    for before, after in itertools.product(("", *PIECES), repeat=2)
    for opened, closed in (("", ""), ("\\boxed{", "}"), ("$", "$"))
]


def require_gsm8k_parity(text: str, answer: str) -> None:
    from lm_eval.api.metrics import exact_match_hf_evaluate
    from lm_eval.filters.extraction import RegexFilter

    filters = {
        "lm_eval_gsm8k_strict": RegexFilter("#### (\\-?[0-9\\.\\,]+)"),
        "lm_eval_gsm8k_flexible": RegexFilter("(-?[$0-9.,]{2,})|(-?[0-9]+)", group_select=-1),
    }
    for extract, regex in filters.items():
        ((filtered,),) = regex.apply([[text]], [{}])
        score = exact_match_hf_evaluate(
            predictions=[filtered],
            references=[f"working\n#### {answer}"],
            regexes_to_ignore=[",", "\\$", "(?s).*#### ", "\\.$"],
            ignore_case=True,
        )
        assert correct(text, answer, extract) == bool(score["exact_match"]), (extract, text)


def require_aime_parity(text: str, answer: str) -> None:
    from lm_eval.tasks.aime.utils import process_results

    theirs = bool(process_results({"answer": answer}, [text])["exact_match"])
    assert correct(text, answer, "lm_eval_aime") == theirs, text


@given(ANSWERS.flatmap(texts))
def test_gsm8k_is_that_of_lm_eval(written):
    require_lm_eval()
    require_gsm8k_parity(*written)


def test_gsm8k_is_that_of_lm_eval_whatever_is_around():
    require_lm_eval()
    for written in AROUND:
        require_gsm8k_parity(*written)


@given(ANSWERS.filter(str.isdigit).flatmap(texts))
def test_aime_is_that_of_lm_eval(written):
    require_lm_eval()
    require_aime_parity(*written)


def test_aime_is_that_of_lm_eval_whatever_is_around():
    require_lm_eval()
    for written in INSIDE:
        require_aime_parity(*written)
