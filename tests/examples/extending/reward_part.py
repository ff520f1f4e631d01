"""A custom reward part: a penalty for repetitive text, as in Yeo et al. (2502.03373).

With this file next to the sweep file, named repetition.py:

    plugins: [repetition]
    base: {algorithm: grpo, reward.parts.repetition: 0.2, reward.repetition.ngram_words: 4}
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pydantic import Field

from harness.rewards import Attempt, RewardContext, RewardPart


class Repetition(RewardPart):
    """Minus the share of a completion's n-grams that occurred before in it."""  # `bench ls rewards` shows this line

    # The knob reward.parts.repetition is the part's weight. Each step records the part's unweighted value.
    name = "repetition"

    # A field is an option: the knob reward.repetition.ngram_words. Values outside its bounds are refused.
    ngram_words: int = Field(3, ge=1, description="words per n-gram")

    def rewards(self, group: Sequence[Attempt], context: RewardContext) -> list[float]:
        """Return a number for each attempt at one prompt, in order; NaN if it cannot be scored."""
        return [-self._repeated_frac(attempt.text) for attempt in group]

    def _repeated_frac(self, text: str) -> float:
        words = re.findall(r"\w+", text.lower())
        ngrams = [tuple(words[start : start + self.ngram_words]) for start in range(len(words) - self.ngram_words + 1)]
        return 1 - len(set(ngrams)) / len(ngrams) if ngrams else 0.0
