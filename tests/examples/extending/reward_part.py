"""A reward part: a penalty for text that goes round in circles, as in Yeo et al. (2502.03373).

With this file beside the sweep file, named repetition.py:

    plugins: [repetition]
    base: {algorithm: grpo, reward.parts.repetition: 0.2, reward.repetition.ngram_words: 4}
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pydantic import Field

from harness.rewards import Attempt, RewardContext, RewardPart


class Repetition(RewardPart):
    """Minus the share of a completion's n-grams that it has used before."""  # `bench ls rewards` shows this line

    # The knob reward.parts.repetition is the part's weight. Each step records the part before its weight.
    name = "repetition"

    # A field is an option: the knob reward.repetition.ngram_words. Whatever breaks its bounds is refused.
    ngram_words: int = Field(3, ge=1, description="words in a row that count as repeated when they come again")

    def rewards(self, group: Sequence[Attempt], context: RewardContext) -> list[float]:
        """group: all attempts at one prompt. A number for each, in their order; NaN for one that cannot be scored."""
        return [-self._repeated_frac(attempt.text) for attempt in group]

    def _repeated_frac(self, text: str) -> float:
        words = re.findall(r"\w+", text.lower())
        ngrams = [tuple(words[start : start + self.ngram_words]) for start in range(len(words) - self.ngram_words + 1)]
        return 1 - len(set(ngrams)) / len(ngrams) if ngrams else 0.0
