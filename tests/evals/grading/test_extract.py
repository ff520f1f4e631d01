from __future__ import annotations

import time
from pathlib import Path

import pytest
import yaml

from evals.grading.extract import EXTRACTIONS, extract_answer
from harness.errors import UnknownNameError
from tests.refusals import refuses

TABLES = yaml.safe_load(Path(__file__).with_name("extractions.yaml").read_text(encoding="utf-8"))
LONG_SUM = "1 + " * 600 + "5"
MATRIX = "\\begin{pmatrix}" + " 1 & 2 \\\\" * 200 + "\\end{pmatrix}"
TABLES["chain"] += [
    # A formula is read as a whole, however long it or its line is
    ("and so on, " * 100 + "so $2\\sqrt{3} + 5$.", "2\\sqrt{3} + 5"),
    (f"so ${LONG_SUM}$", LONG_SUM),
    (f"so $${LONG_SUM}$$", LONG_SUM),
    (f"The answer is\n$${LONG_SUM}$$", LONG_SUM),
    ("The answer is " + "very, " * 500 + "$x+5$", "x+5"),
    (f"so {MATRIX}", MATRIX),
]


@pytest.mark.parametrize("name", ["chain", "answer_tag", "choice"])
def test_what_is_found(name: str) -> None:
    found = {text: extract_answer(text, name) for text, _ in TABLES[name]}
    assert found == dict(TABLES[name])


def test_other_extractions() -> None:
    assert [[name, text, extract_answer(text, name)] for name, text, _ in TABLES["named"]] == TABLES["named"]


@pytest.mark.parametrize("space", ["\\,", "\\;", "\\ ", "\\!", "~", "\\quad", "\\hspace{1em}", "\\\\", "\\,."])
def test_spaces_of_tex_do_not_count(space: str) -> None:
    assert extract_answer(f"\\boxed{{18{space}}}") == "18"


def test_unknown_extraction_names_the_nearest() -> None:
    with refuses(UnknownNameError, "bench.unknown_name", name="'boxd'", nearest="; did you mean boxed?"):
        extract_answer("", "boxd")


DEGENERATE = {
    "spaces inside": "answer is x" + " " * 500_000 + "y",
    "spaces after": "answer is" + " " * 500_000,
    "answers": "answer is " * 50_000,
    "open boxes": "\\boxed{" * 75_000,
    "nested": "\\boxed{" + "\\(" * 100_000 + "x" + "\\)" * 100_000 + "}",
    "headings": "#### Step\n" * 50_000,
    "fractions": "\\frac{" * 75_000,
    "thousands": "1" + ",000" * 125_000 + "0",
    "tags": "<answer>" * 75_000,
    "ends": "</answer>" * 75_000,
    "open formulas": "\\(" * 150_000 + "5",
    "open displays": "\\[5 " * 100_000,
    "dollars": "$5" * 150_000,
    "open arrays": "\\begin{array}" * 30_000 + "5",
    "alternatives": "5 or " * 100_000,
    "feet": "5 feet " * 75_000,
    "questions": "Question: 5\n" * 40_000,
    "boxes": "\\boxed{5}, " * 40_000,
    "decimals": "5." + "1" * 500_000 + "\\",
    "letters": "(A) or " * 60_000,
}


@pytest.mark.slow
@pytest.mark.parametrize("text", DEGENERATE.values(), ids=DEGENERATE)
def test_degenerate_texts_take_linear_time(text: str) -> None:
    for name in EXTRACTIONS.names():
        start = time.process_time()
        extract_answer(text, name)
        assert time.process_time() - start < 2, name
