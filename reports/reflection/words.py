"""Words in decoded text, and the tokens that wrote them."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

DEFAULT_WORDS = ("However", "Recheck", "Wait", "Aha", "Hmm", "Alternatively")
"""The first four are those that CISPO's authors name."""


def word_pattern(words: Sequence[str]) -> re.Pattern[str]:
    """Matches any of the words or phrases as whole words, in upper or lower case; the longest where several begin."""
    spaced = [r"\s+".join(map(re.escape, word.split())) for word in sorted(words, key=len, reverse=True)]
    return re.compile(rf"(?<!\w)(?:{'|'.join(spaced)})(?!\w)", re.IGNORECASE)


def tokens_of_words(pattern: re.Pattern[str], text: str, chars: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Bool [T]: tokens that wrote a part of a word; chars [T]: the characters of the text that each token completes."""
    ends = chars.cumsum()
    starts = ends - chars
    inside = np.zeros(len(chars), dtype=bool)
    for match in pattern.finditer(text):
        inside |= (starts < match.end()) & (ends > match.start())
    return inside
