"""Reward for writing in one language, recognised by its script."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Literal

from pydantic import Field

from harness.rewards import Attempt, RewardContext, RewardPart

SCRIPTS: Mapping[str, str] = MappingProxyType(
    {
        "latin": "LATIN",
        "cyrillic": "CYRILLIC",
        "greek": "GREEK",
        "arabic": "ARABIC",
        "hebrew": "HEBREW",
        "devanagari": "DEVANAGARI",
        "hangul": "HANGUL",
        "han": "CJK",
    }
)
"""Script -> the first word of its letters' Unicode names."""

_SYMBOLS_COME_FROM = ("LATIN", "GREEK")
"""Scripts whose single letters are mathematical symbols."""
_LATEX_COMMAND = re.compile(r"\\[A-Za-z]+")


class Language(RewardPart):
    """Fraction of a completion's words that are in the script `reward.language.target`.

    After the language consistency reward of DeepSeek-R1 (2501.12948, section 2.3.2), which defines neither word nor
    language. Here a word is a run of letters of one script. Each Chinese character is a word, because no spaces
    separate them. LaTeX commands and single Latin or Greek letters are mathematics, not words. A completion without
    words earns 0.
    """

    name = "language"

    target: Literal["latin", "cyrillic", "greek", "arabic", "hebrew", "devanagari", "hangul", "han"] = Field(
        "latin", description="script that is rewarded"
    )

    def rewards(self, group: Sequence[Attempt], context: RewardContext) -> list[float]:
        target = SCRIPTS[self.target]
        return [_word_frac(target, list(script_words(attempt.text))) for attempt in group]


def _word_frac(target: str, scripts: Sequence[str]) -> float:
    """Return the fraction of words in the target script, or 0 if there are no words."""
    return scripts.count(target) / len(scripts) if scripts else 0.0


def script_words(text: str) -> Iterator[str]:
    """Yield the script of each word of a text, in order."""
    # NFKC turns full-width letters and mathematical alphabets into plain letters.
    text = _LATEX_COMMAND.sub(" ", unicodedata.normalize("NFKC", text))
    script, letters = "", 0
    # The space at the end closes the last word.
    for character in f"{text} ":
        following = _script(character)
        if following == "MARK":
            continue
        # A Chinese character is a word of its own.
        if following == script and script != "CJK":
            letters += 1
            continue
        if script and (letters > 1 or script not in _SYMBOLS_COME_FROM):
            yield script
        script, letters = following, 1


@lru_cache(maxsize=65536)
def _script(character: str) -> str:
    """Return the first word of a letter's Unicode name, "MARK" for a combining mark, and "" for anything else."""
    category = unicodedata.category(character)
    if category.startswith("M"):
        return "MARK"
    return unicodedata.name(character, "").partition(" ")[0] if category.startswith("L") else ""
