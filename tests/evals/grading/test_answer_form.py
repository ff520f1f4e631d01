"""A gold answer that is written in a form is what the form's extraction finds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evals.grading.answer_form import ANSWER_FORMS
from evals.grading.extract import extract_answer

REASONING = st.text("ab +=,\n0123456789", max_size=30)


@pytest.mark.parametrize("extraction", ANSWER_FORMS)
@settings(max_examples=25)
@given(reasoning=REASONING, thought=st.none() | REASONING, own=st.integers(0, 99), gold=st.integers(0, 10_000))
def test_the_gold_answer_takes_the_place_of_the_completions_own(
    extraction: str, reasoning: str, thought: str | None, own: int, gold: int
) -> None:
    form = ANSWER_FORMS[extraction]
    before = reasoning if thought is None else f"<think>{thought}{form.opening}{own}</think>{reasoning}"
    found = form.opening_in(before + form.opening + form.behind_opening(str(own)))
    assert found == (len(before), len(before) + len(form.opening))
    assert extract_answer(before + form.opening + form.behind_opening(str(gold)), extraction) == str(gold)


@pytest.mark.parametrize(
    ("extraction", "text", "place"),
    [
        ("hash", "8#8,17#17", (6, 7)),
        ("boxed", "\\boxed{1}, so \\boxed{2", (14, 21)),
        *(("hash", text, None) for text in ("", "8,17", "<think>8,17#17", "<think>#17</think> so it is 17")),
    ],
)
def test_the_last_mark_opens_the_answer(extraction: str, text: str, place: tuple[int, int] | None) -> None:
    assert ANSWER_FORMS[extraction].opening_in(text) == place
