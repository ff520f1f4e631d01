from __future__ import annotations

import pytest

from harness.rewards.parts.language import SCRIPTS, Language, script_words
from tests.harness.rewards.attempts import attempt, context


def share(text: str, target: str) -> float:
    (reward,) = Language.model_validate({"target": target}).rewards([attempt(text)], context())
    return reward


@pytest.mark.parametrize(
    ("text", "target", "expected"),
    [
        ("two plain words", "latin", 1),
        ("naïve cafés", "latin", 1),
        ("ｆｕｌｌ ｗｉｄｔｈ", "latin", 1),
        ("два слова and two", "latin", 0.5),
        ("два слова and two", "cyrillic", 0.5),
        ("所以答案是 forty two", "han", 5 / 7),
        ("so 我们 see", "latin", 0.5),
        ("हिन्दी में", "devanagari", 1),
        ("답은 사십이", "hangul", 1),
        ("שלום world", "hebrew", 0.5),
        ("العربية", "arabic", 1),
        ("λόγος and word", "greek", 1 / 3),
        ("ひらがな word", "latin", 0.5),  # a script that cannot be the target counts against it
        ("所以 $x + y = \\frac{a}{b} \\cdot π$", "han", 1),  # mathematics is in no language
        ("joinedслово", "latin", 0.5),
    ],
)
def test_share_of_the_words(text: str, target: str, expected: float) -> None:
    assert share(text, target) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["", "8,17#17", "x = 3", "\\frac{1}{2}", "…!"])
def test_silence_earns_nothing(text: str) -> None:
    assert list(script_words(text)) == []
    assert share(text, "latin") == 0


def test_every_script_can_be_the_target() -> None:
    assert set(Language.model_json_schema()["properties"]["target"]["enum"]) == set(SCRIPTS)
