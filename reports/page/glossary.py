"""The words of a page that need an explanation, each with its explanation."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markupsafe import Markup

GLOSSARY = {
    "interval": "The differences that the data do not rule out, by Student's t over seeds unless it says otherwise. "
    "With several contrasts the level is higher than 95%, so that all of them hold together.",
    "Holm": "The p value corrected for the number of contrasts by Holm's method: the chance of so small a p in "
    "any of them if no arm differed is at most this.",
    "equal tokens": "Both sides of every pair generated about as many tokens in training, so that no arm is better for "
    "having had more.",
    "detectable effect": "The true difference that this number of seeds with this spread finds with 80% power. What is "
    "smaller easily stays undecided.",
    "pair": "Two cells with one seed: the same prompts in the same order and the same noise in sampling. A difference "
    "within a pair is free of what both share.",
    "margin": "The difference that counts as none, chosen before the run. An interval inside it shows equivalence.",
    "undecided": "The interval holds 0 and reaches beyond the margin: neither a difference nor equivalence is shown.",
    "inconclusive": "The interval holds 0 and reaches beyond the margin: neither a difference nor equivalence is "
    "shown.",
    "IQM": "Interquartile mean: the mean of the middle half, which a single odd value hardly moves.",
    "variance ratio": "The variance of the paired difference over that of unpaired ones. Below 1, pairing helped.",
    "sign flip": "The p value of a permutation test that flips the signs of the seeds' differences. Its floor is the "
    "lowest that so few seeds can give.",
    "ρ": "The correlation of the two arms' scores over seeds. Above 0, pairing narrows the interval.",
    "ECE": "Expected calibration error: how far the share of equal answers is from the share that is right.",
    "length slope": "How many tokens longer a completion gets in 100 steps, by a straight line through training.",
    "right answer, wrong step": "The share of right answers with a wrong or missing step, of those whose written steps "
    "the task checked: it was right by luck, or not by what it wrote.",
    "clipped steps": "The share of optimiser steps whose gradient was longer than train.max_grad_norm.",
    "gradient norm": "The length of the gradient before it is clipped, mean over training.",
    "entropy": "How undecided the policy is about the next token, in nats: 0 if it is certain.",
    "over budget": "How many more tokens were generated than the budget allows: the last step is finished.",
    "occupancy": "The share of the places of a rollout's batch that still drew tokens; the others waited.",
    "padding": "The share of a training batch that holds no tokens.",
    "tokens per pass": "How many tokens went through the model at once in an update.",
    "log-probs": "The time of scoring the drawn tokens before the update.",
    "sync": "The time of copying new weights to the engine that draws.",
    "prefill": "The time of reading the prompts, before the first token is drawn.",
    "decode": "The time of drawing tokens one after another.",
    "KL": "Kullback-Leibler divergence: how far the policy is from the one that training started from.",
    "forecast error": "How far the law of the first part of training misses the rest.",
    "P(improvement)": "The probability that a run of the arm beats a run of the baseline on a random task.",
    "pass@1": "The mean share of right samples.",
    "flagged": "Finished, but with something that may have spoiled it, such as a value that is not a number.",
    "look": "Each time that verdicts of this question were shown. Intervals widen with every further look, so that all "
    "of them hold together.",
}
"""Keyed by the word as sentences and headings use it."""

HOW_TO_READ = (
    "Each arm has one colour, one marker and one dash in all figures.",
    "Thin lines are seeds, thick lines their means; small dots are seeds, large markers their means.",
    "Bands and bars are t intervals over seeds, of each point by itself, at the level that the caption gives. Below "
    "three seeds there is none.",
    "A dotted grey line or a grey cross is the model before training, evaluated once, unless the caption says "
    "otherwise.",
    "Mean and band: seeds are interpolated linearly onto a common grid over the range that all cover; beyond it, "
    "straight on to the mean of their last values, where they end on average. Nothing is smoothed.",
    "n is the number of seeds of an arm.",
)
"""True for all figures, so that no caption repeats it."""

# The regular expression takes the first alternative that fits, so longer words come before shorter ones that they
# contain.
_WORDS = sorted(GLOSSARY, key=len, reverse=True)
# The last lookahead skips text inside an HTML tag, such as an attribute.
_FIND = re.compile(r"(?<![\w@])(" + "|".join(re.escape(word) for word in _WORDS) + r")(?P<many>s?)(?![\w@])(?![^<]*>)")


def with_terms(html: Markup) -> Markup:
    """Return the HTML with the first occurrence of each glossary word wrapped in its explanation."""
    from markupsafe import Markup, escape

    seen: set[str] = set()

    def explained(found: re.Match[str]) -> str:
        word = found[1]
        if word in seen:
            return found[0]
        seen.add(word)
        return f'<abbr title="{escape(GLOSSARY[word])}">{found[0]}</abbr>'

    return Markup(_FIND.sub(explained, str(html)))
