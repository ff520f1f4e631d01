from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.errors import EvalError
from evals.pairs.layouts import layout_of, take_apart

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "q"}
YES, NO = ({"role": "assistant", "content": content} for content in ("yes", "no"))
DIALOGUE = "\n\nHuman: hi\n\nAssistant: Hello.\n\nHuman: q\n\nAssistant:"

LAYOUTS: dict[str, tuple[dict[str, Any], Any]] = {
    "text": ({"prompt": "q", "chosen": "yes", "rejected": "no"}, "q"),
    "question": ({"question": "q", "chosen": "yes", "rejected": "no"}, "q"),
    "prompt wins over question": ({"prompt": "q", "question": "?", "chosen": "yes", "rejected": "no"}, "q"),
    "system": ({"system": "Be brief.", "question": "q", "chosen": "yes", "rejected": "no"}, [SYSTEM, USER]),
    "empty system": ({"system": "", "prompt": "q", "chosen": "yes", "rejected": "no"}, [USER]),
    "messages and text": ({"prompt": [SYSTEM, USER], "chosen": "yes", "rejected": "no"}, [SYSTEM, USER]),
    "messages and turns": ({"prompt": [USER], "chosen": [YES], "rejected": [NO]}, [USER]),
    "conversations": ({"chosen": [USER, YES], "rejected": [USER, NO]}, [USER]),
    "conversations of several turns": (
        {"chosen": [SYSTEM, USER, NO, USER, YES], "rejected": [SYSTEM, USER, NO, USER, NO]},
        [SYSTEM, USER, NO, USER],
    ),
    "conversations beside a text": ({"prompt": "q", "chosen": [USER, YES], "rejected": [USER, NO]}, [USER]),
    "conversations beside a null": ({"prompt": None, "chosen": [USER, YES], "rejected": [USER, NO]}, [USER]),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout(name: str) -> None:
    row, prompt = LAYOUTS[name]
    assert take_apart(row, layout_of(row)) == (prompt, "yes", "no")


def test_dialogues() -> None:
    row = {"chosen": f"{DIALOGUE} yes", "rejected": f"{DIALOGUE} no"}
    assert take_apart(row, layout_of(row)) == (DIALOGUE, " yes", " no")


@given(prompt=st.text(), chosen=st.text(min_size=1), rejected=st.text(min_size=1))
def test_the_sides_of_a_dialogue_may_begin_alike(prompt: str, chosen: str, rejected: str) -> None:
    """The prompt ends with the last mark of the assistant that both have, wherever the texts part."""
    start = f"\n\nHuman: {prompt}\n\nAssistant:"
    row = {"chosen": f"{start} a{chosen}", "rejected": f"{start} a{rejected}"}
    if "Assistant:" in chosen + rejected or "Human:" in chosen + rejected or chosen == rejected:
        return
    assert take_apart(row, layout_of(row)) == (start, f" a{chosen}", f" a{rejected}")


@given(st.integers(1, 4), st.integers(0, 3))
def test_the_prompt_of_conversations_is_all_that_they_share(turns: int, shared_answers: int) -> None:
    """Even where an answer equals an earlier one."""
    start = [USER, YES] * (turns - 1) + [USER]
    row = {
        "chosen": [*start, YES],
        "rejected": [*start, {"role": "assistant", "content": "yes" * (shared_answers + 2)}],
    }
    assert take_apart(row, layout_of(row)).prompt == start


def test_keys_that_are_not_of_a_message_are_left_out() -> None:
    row = {"prompt": [USER | {"name": "x"}], "chosen": "yes", "rejected": "no"}
    assert take_apart(row, layout_of(row)).prompt == [USER]


@pytest.mark.parametrize(
    ("first", "row", "message"),
    [
        (
            "messages and text",
            {"prompt": "q", "chosen": "a", "rejected": "b"},
            "'prompt' is text; it must be a list of",
        ),
        (
            "text",
            {"prompt": [USER], "chosen": "a", "rejected": "b"},
            "'prompt' is a list; it must be text, as the layo",
        ),
        ("text", {"prompt": "q", "chosen": [YES], "rejected": [NO]}, "'chosen' is a list; it must be text"),
        ("messages and turns", {"prompt": [USER], "chosen": [YES], "rejected": "no"}, "'rejected' is text; it must be"),
        (
            "messages and turns",
            {"prompt": [USER], "chosen": [USER, YES], "rejected": [NO]},
            "'chosen' must be one turn",
        ),
        ("messages and text", {"chosen": "a", "rejected": "b"}, "no field 'prompt'"),
        ("text", {"system": "s", "prompt": "q", "chosen": "a", "rejected": "b"}, "which the first row lacks"),
        ("conversations", {"chosen": [USER, YES]}, "no field 'rejected'"),
    ],
)
def test_all_rows_have_the_layout_of_the_first(first: str, row: dict[str, Any], message: str) -> None:
    with pytest.raises(EvalError, match=message):
        take_apart(row, layout_of(LAYOUTS[first][0]))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": [USER], "chosen": [YES], "rejected": [YES | {"name": "x"}]}, "are the same"),
        ({"chosen": [USER, YES], "rejected": [USER, YES]}, "are the same"),
        ({"chosen": f"{DIALOGUE} yes", "rejected": f"{DIALOGUE} yes"}, "are the same"),
        ({"chosen": f"{DIALOGUE} yes", "rejected": DIALOGUE}, "'rejected' is empty"),
        (
            {"chosen": f"{DIALOGUE} yes", "rejected": "\n\nHuman: other"},
            "no field 'prompt', and chosen and rejected do",
        ),
        ({"chosen": f"{DIALOGUE} a\n\nHuman: go on", "rejected": f"{DIALOGUE} no"}, "'chosen' goes on with a turn"),
        ({"chosen": [YES], "rejected": [NO]}, "differ from their first turn on"),
        ({"chosen": [USER, YES], "rejected": [USER | {"content": "other"}, YES]}, "differ from their first turn on"),
        ({"chosen": [USER, YES, USER, YES], "rejected": [USER, NO]}, "'chosen' must be one turn of the assistant"),
        ({"chosen": [USER, YES, NO], "rejected": [USER, YES, YES]}, "begin with ends with a turn of the assistant"),
        ({"chosen": [USER, USER | {"content": "more"}], "rejected": [USER, NO]}, "it is user"),
        ({"prompt": [USER, YES], "chosen": "a", "rejected": "b"}, "'prompt' ends with a turn of the assistant"),
        (
            {"prompt": [{"role": "human", "content": "q"}], "chosen": "a", "rejected": "b"},
            "has the role 'human'; roles",
        ),
        (
            {"prompt": [{"from": "human", "value": "q"}], "chosen": "a", "rejected": "b"},
            "has 'from', 'value'; a message",
        ),
        ({"prompt": ["q"], "chosen": "a", "rejected": "b"}, "message 1 of 'prompt' has text; a message has"),
        ({"prompt": [USER | {"content": None}], "chosen": "a", "rejected": "b"}, "the content of message 1 .* is null"),
        ({"system": 3, "prompt": "q", "chosen": "a", "rejected": "b"}, "'system' is 3"),
    ],
)
def test_rows_that_are_no_pairs(row: dict[str, Any], message: str) -> None:
    with pytest.raises(EvalError, match=message):
        take_apart(row, layout_of(row))
