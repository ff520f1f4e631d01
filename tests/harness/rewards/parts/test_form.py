from __future__ import annotations

import time

import pytest

from harness.rewards.parts.form import PATTERNS, Format, ReachesAnswer
from tests.harness.rewards.attempts import attempt, context


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("<think>6 by 7</think><answer>42</answer>", 1),
        ("\n<think>\n6\nby 7\n</think>\n\n<answer> 42 </answer>\n", 1),
        ("<think>is a < b, is 1/2 <b>bold</b>?</think><answer><b>42</b></answer>", 1),
        ("<think></think><answer>42</answer>", 0),
        ("<think>6 by 7</think><answer> \n </answer>", 0),
        ("<think>6 by 7</think>", 0),
        ("<answer>42</answer>", 0),
        ("<answer>42</answer><think>6 by 7</think>", 0),
        ("<think>6 by 7<answer>42</answer></think>", 0),
        ("<think>6</think><think>by 7</think><answer>42</answer>", 0),
        ("<think>6 by 7</think><answer>41</answer><answer>42</answer>", 0),
        ("<think>6 by 7</think>so<answer>42</answer>", 0),
        ("Well, <think>6 by 7</think><answer>42</answer>", 0),
        ("<think>6 by 7</think><answer>42</answer> I hope", 0),
        ("", 0),
    ],
)
def test_think_answer(text: str, value: float) -> None:
    assert Format().rewards([attempt(text)], context()) == [value]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8,17#17", 1),
        ("9,wait,8,17#17", 1),
        ("8#-3", 1),
        ("#17", 0),
        (" #17", 0),
        ("8,17#", 0),
        ("8,17", 0),
        ("8#17#17", 0),
        ("8#17,18", 0),
        ("8#seventeen", 0),
        ("", 0),
    ],
)
def test_work_hash(text: str, value: float) -> None:
    assert Format(pattern="work_hash").rewards([attempt(text)], context()) == [value]


def test_every_pattern_can_be_chosen() -> None:
    allowed = Format.model_json_schema()["properties"]["pattern"]["enum"]
    assert set(allowed) == set(PATTERNS)


@pytest.mark.parametrize("text", ["<think>" * 20_000, "<think>a" + " " * 100_000, "8 " * 100_000, " " * 100_000])
@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
def test_long_texts_take_no_time(pattern, text: str) -> None:
    started_s = time.perf_counter()
    assert not pattern.fullmatch(text)
    assert time.perf_counter() - started_s < 1


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("I do not know", 0),
        ("", 0),
        ("It is 41", 0.5),  # a number that can be graded, outside a box
        ("It is \\boxed{41}", 1),
        ("It is \\boxed{42}", 1),
        ("It is \\boxed{\\frac{1}{2}}", 1),
        ("It is \\boxed{many}", 0.5),
        ("It is \\boxed{}", 0.5),
    ],
)
def test_reaches_answer(text: str, value: float) -> None:
    assert ReachesAnswer().rewards([attempt(text)], context()) == [value]
