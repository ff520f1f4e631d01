"""Detection of training prompts that contain evaluation problems."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from evals.grading import normalise

# Raise this whenever the same texts give a different result. The key of a stored result must include it.
VERSION = 2

N_GRAM_WORDS = 8
NEAR_COPY_FRAC = 0.8
"""A problem is a near copy if one run of words in a training prompt has this share of the problem's words."""
MAX_LEAKED_FRAC = 0.01
"""Problems in the training data can raise a score by at most their share of all problems. One percentage point is less
than the differences that matter in practice (`Task.margin_pp`).
"""
MAX_EXAMPLES = 20
MAX_SHOWN_WORDS = 24

Words = tuple[str, ...]
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Example:
    """An evaluation problem, and the training prompt that shares most of it. `problem` and `prompt` are ids."""

    problem: str
    prompt: str
    kind: Literal["exact", "near_copy", "n_gram"]
    shared: str
    """The longest run of words that both share, truncated to 24 words."""
    shared_words: int
    """The number of words in the run."""
    problem_words: int
    """The number of words in the problem."""


@dataclass(frozen=True)
class Overlap:
    """Evaluation problems that occur in the training prompts."""

    exact: int
    """The number of problems that equal a training prompt, word for word."""
    near_copies: int
    """The number of other problems that have at least 80% of their words in one run of a training prompt. Such a
    problem is part of a longer prompt, or has another number or another last sentence.
    """
    n_gram: int
    """The number of problems that share a run of at least 8 words with a training prompt, including exact copies. Many
    problems in one style share such runs, because of stock phrases.
    """
    problems: int
    """The number of evaluation problems."""
    examples: tuple[Example, ...] = ()
    """At most 20 overlapping problems: exact copies first, then by the share of the problem in the run."""


def overlap(training: Iterable[tuple[str, str]], evaluation: Iterable[tuple[str, str]]) -> Overlap:
    """Find the evaluation problems that training prompts contain, completely or in runs of 8 words.

    training, evaluation: (id, text) of each prompt and problem.
    Case, punctuation and spacing are ignored. Training prompts are read once and not kept, so memory grows only with
    the evaluation.
    """
    # The index covers the evaluation: every complete text, and every run of 8 words with its positions.
    names: list[str] = []
    texts: list[Words] = []
    whole: dict[Words, list[int]] = defaultdict(list)
    places: dict[Words, list[tuple[int, int]]] = defaultdict(list)
    for number, (name, text) in enumerate(evaluation):
        words = _words(text)
        names.append(name)
        texts.append(words)
        whole[words].append(number)
        for start, run in enumerate(_runs(words)):
            places[run].append((number, start))

    found: dict[int, _Match] = {}
    for prompt, text in training:
        words = _words(text)
        # Problems with fewer than 8 words have no runs, so only this look-up can match them.
        finds = [(number, _Match(True, len(words), prompt, words)) for number in whole.get(words, ())]
        for number, start, length in _shared_runs(words, places):
            finds.append((number, _Match(False, length, prompt, words[start : start + length])))
        for number, find in finds:
            if number not in found or find.rank > found[number].rank:
                found[number] = find

    examples = [find.example(names[number], len(texts[number])) for number, find in found.items()]
    examples.sort(key=lambda example: (example.kind != "exact", -example.shared_words / max(1, example.problem_words)))
    kinds = [example.kind for example in examples]
    return Overlap(
        exact=kinds.count("exact"),
        near_copies=kinds.count("near_copy"),
        n_gram=sum(example.shared_words >= N_GRAM_WORDS for example in examples),
        problems=len(names),
        examples=tuple(examples[:MAX_EXAMPLES]),
    )


def is_contaminated(found: Overlap) -> bool:
    """Return whether training contains more than 1% of the problems as exact or near copies.

    Shared runs of 8 words are not counted: half the problems of MATH-500 share one with MATH's other problems.
    """
    return found.exact + found.near_copies > MAX_LEAKED_FRAC * found.problems


@dataclass(frozen=True)
class _Match:
    """A run of words that a training prompt shares with a problem. `exact`: the run is all of both texts."""

    exact: bool
    length: int
    prompt: str
    words: Words

    @property
    def rank(self) -> tuple[bool, int]:
        """The sort key by which a problem keeps its best match."""
        return self.exact, self.length

    def example(self, problem: str, problem_words: int) -> Example:
        near = self.length >= NEAR_COPY_FRAC * problem_words
        return Example(
            problem=problem,
            prompt=self.prompt,
            kind="exact" if self.exact else "near_copy" if near else "n_gram",
            shared=" ".join(self.words[:MAX_SHOWN_WORDS]) + (" ..." if self.length > MAX_SHOWN_WORDS else ""),
            shared_words=self.length,
            problem_words=problem_words,
        )


def _shared_runs(words: Words, places: Mapping[Words, Sequence[tuple[int, int]]]) -> Iterator[tuple[int, int, int]]:
    """Yield (problem, start in `words`, length) for each run of at least 8 words that a prompt shares with a problem.

    A run that grows is yielded again with every additional word.
    """
    # Maps (problem, position of the last 8 words) to the length of the run that ends here. If a run ended one word
    # earlier at the previous position, it continues; otherwise a run starts with these 8 words.
    lengths: dict[tuple[int, int], int] = {}
    for start, run in enumerate(_runs(words)):
        lengths = {
            (problem, place): lengths.get((problem, place - 1), N_GRAM_WORDS - 1) + 1
            for problem, place in places.get(run, ())
        }
        for (problem, _), length in lengths.items():
            yield problem, start + N_GRAM_WORDS - length, length


def _words(text: str) -> Words:
    return tuple(_WORD.findall(normalise(text).casefold()))


def _runs(words: Words) -> Iterator[Words]:
    return (words[start : start + N_GRAM_WORDS] for start in range(len(words) - N_GRAM_WORDS + 1))
