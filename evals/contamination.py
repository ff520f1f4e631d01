"""Training prompts that give evaluation problems away."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from evals.grading.text import normalise

N_GRAM_WORDS = 8

_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Overlap:
    """Evaluation problems that occur in the training prompts.

    exact: with all their words in the same order and nothing else.
    n_gram: that share at least one run of 8 words with some training prompt (the exact ones among them).
    problems: all evaluation problems.
    """

    exact: int
    n_gram: int
    problems: int


def overlap(training: Iterable[str], evaluation: Iterable[str]) -> Overlap:
    """Counts evaluation problems that are also training prompts, whole or in runs of 8 words. Case, punctuation and
    spacing do not count."""
    whole: set[tuple[str, ...]] = set()
    runs: set[tuple[str, ...]] = set()
    for prompt in training:
        words = _words(prompt)
        whole.add(words)
        runs.update(_runs(words))
    exact = n_gram = problems = 0
    for problem in evaluation:
        words = _words(problem)
        problems += 1
        exact += words in whole
        n_gram += any(run in runs for run in _runs(words))
    return Overlap(exact, n_gram, problems)


def _words(text: str) -> tuple[str, ...]:
    return tuple(_WORD.findall(normalise(text).casefold()))


def _runs(words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    return (words[start : start + N_GRAM_WORDS] for start in range(len(words) - N_GRAM_WORDS + 1))
