"""Reflection words by arm: what a table and report.json say of them, and the sums that curves are drawn from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from reports.processes import each_in_processes
from reports.reflection.tally import (
    COLUMNS,
    OTHER,
    TOKEN_COLUMNS,
    WORD,
    Count,
    FloatArray,
    Rollouts,
    Sum,
    Tally,
    tally,
)
from reports.reflection.words import word_pattern

if TYPE_CHECKING:
    from harness.records import CellRecord
    from reports.measurements import Measurement

ANY_WORD = "any of them"
MOST_FILES = 240
"""Of rollouts, of all cells together: each holds the completions between two checkpoints, often thousands."""
LAST_STEPS_FRAC = 0.2
"""The share of steps at the end of training that counts as its end."""


@dataclass(frozen=True)
class Reflection:
    """words: those looked for. n_completions: drawn in training in all finished cells. arms: one for each word and for
    all of them, by arm; empty where no word occurs. tallies: of all words together, by arm and seed."""

    words: tuple[str, ...]
    n_completions: int
    arms: list[ArmWords]
    tallies: dict[str, dict[int, Tally]]


@dataclass(frozen=True)
class ArmWords:
    """A word in the completions that an arm drew in training, all seeds together; None where there is nothing to count.

    first, last: occurrences in 1,000 generated tokens, in the first step's completions, which are those of the model
    before training, and in the last fifth of the steps. right_frac_with: of completions with the word, the share that
    is right; right_frac_without: of the others. Of the tokens that wrote the word, and of all others (`other_`), means
    over all steps with records: log-prob and entropy before the update, advantage, importance ratio at each optimiser
    step that scored the token, and the share of these in which the rule clipped or masked it.
    ratio_by_update: the mean ratio at the first, second, ... optimiser step on a rollout batch.
    """

    arm: str
    word: str
    n_occurrences: int
    n_completions_with: int
    first_per_1000_tokens: float | None
    last_per_1000_tokens: float | None
    right_frac_with: float | None
    right_frac_without: float | None
    n_tokens_recorded: int
    logp_nats: float | None
    entropy_nats: float | None
    advantage: float | None
    ratio: float | None
    bounded_frac: float | None
    ratio_by_update: list[float | None]
    other_logp_nats: float | None
    other_entropy_nats: float | None
    other_advantage: float | None
    other_ratio: float | None
    other_bounded_frac: float | None
    other_ratio_by_update: list[float | None]


def read_reflection(
    measurements: Mapping[str, Sequence[Measurement]], words: Sequence[str], processes: int = 1
) -> Reflection:
    """Look for the words in what the finished cells drew in training, in up to MOST_FILES files of it. One that
    is given twice, in whatever case, counts once."""
    words = _unlike(words)
    cells = {(arm, m.cell.seed): m.cell for arm, some in measurements.items() for m in some}
    most_files = max(2, MOST_FILES // max(1, len(cells)))
    look = partial(_look, words=words, most_files=most_files)
    looked = dict(zip(cells, each_in_processes(look, [*cells.values()], processes), strict=True))
    n_completions = sum(n for n, _ in looked.values())
    occurring = [word for word in words if any(word in found for _, found in looked.values())]
    if not occurring:
        return Reflection(words, n_completions, [], {})
    # Where no word occurs there are no numbers yet; beside those of other cells they say what words are missing from.
    without = [key for key, (n, found) in looked.items() if n and not found]
    count = partial(_without_words, words=words, most_files=most_files)
    found_none = each_in_processes(count, [cells[key] for key in without], processes)
    by_cell = {key: found for key, (_, found) in looked.items() if found} | dict(zip(without, found_none, strict=True))
    tallies: dict[str, dict[int, Tally]] = {}
    by_word: dict[tuple[str, str], list[Tally]] = {}
    for arm, seed in cells:
        if (found := by_cell.get((arm, seed))) is None:
            continue
        tallies.setdefault(arm, {})[seed] = found[ANY_WORD]
        for word in (ANY_WORD, *occurring):
            by_word.setdefault((arm, word), []).append(found.get(word) or found[ANY_WORD].without_words())
    arms = [_summary(arm, word, some) for (arm, word), some in by_word.items()]
    return Reflection(words, n_completions, arms, tallies)


def _unlike(words: Sequence[str]) -> tuple[str, ...]:
    """Without those that differ from an earlier one in case alone: they match the same."""
    unlike: dict[str, str] = {}
    for word in words:
        unlike.setdefault(word.casefold(), word)
    return tuple(unlike.values())


def _look(cell: CellRecord, words: Sequence[str], most_files: int) -> tuple[int, dict[str, Tally]]:
    """How many completions of a cell were looked at, and the tallies of the words that they hold; none if none does."""
    texts = _texts(cell, most_files)
    every = word_pattern(words)
    rows = [row for row, text in enumerate(texts) if every.search(text)]
    if not rows:
        return len(texts), {}
    holding = "\0".join(texts[row] for row in rows)  # no word reaches over a NUL
    occurring = [word for word in words if word_pattern([word]).search(holding)]
    rollouts = _rollouts(cell, texts, most_files)
    together = tally(rollouts, every, rows)
    if len(occurring) == 1:  # of a single one all of them say the same
        return len(texts), {ANY_WORD: together, occurring[0]: together}
    by_word = {word: tally(rollouts, word_pattern([word]), rows) for word in occurring}
    return len(texts), {ANY_WORD: together} | by_word


def _without_words(cell: CellRecord, words: Sequence[str], most_files: int) -> dict[str, Tally]:
    """Of the completions of a cell, of which there are some and none holds a word."""
    rollouts = _rollouts(cell, _texts(cell, most_files), most_files)
    return {ANY_WORD: tally(rollouts, word_pattern(words), [])}


def _texts(cell: CellRecord, most_files: int) -> list[str]:
    table = cell.read_rollouts(["text"], most_files, needed=["text"])
    return [] if table is None else list(table["text"].to_pylist())


def _rollouts(cell: CellRecord, texts: list[str], most_files: int) -> Rollouts:
    table = cell.read_rollouts([*COLUMNS, *TOKEN_COLUMNS], most_files, needed=["step", "correct"])
    assert table is not None
    return Rollouts.of(texts, table)


def _summary(arm: str, word: str, tallies: Sequence[Tally]) -> ArmWords:
    counts = np.sum([t.counts.sum(0) for t in tallies], axis=0)
    first = np.sum([t.counts[:1].sum(0) for t in tallies], axis=0)
    last = np.sum([t.counts[-max(1, round(LAST_STEPS_FRAC * len(t.steps))) :].sum(0) for t in tallies], axis=0)
    sums = np.sum([t.sums.sum(0) for t in tallies], axis=0)
    ratios = np.zeros((max(len(t.ratios) for t in tallies), 2, 2))
    for t in tallies:
        ratios[: len(t.ratios)] += t.ratios
    with_word, without = counts[Count.COMPLETIONS_WITH], counts[Count.COMPLETIONS] - counts[Count.COMPLETIONS_WITH]
    return ArmWords(
        arm=arm,
        word=word,
        n_occurrences=int(counts[Count.OCCURRENCES]),
        n_completions_with=int(with_word),
        first_per_1000_tokens=per_1000_tokens(first),
        last_per_1000_tokens=per_1000_tokens(last),
        right_frac_with=share(counts[Count.RIGHT_WITH], with_word),
        right_frac_without=share(counts[Count.RIGHT] - counts[Count.RIGHT_WITH], without),
        n_tokens_recorded=int(sums[WORD, Sum.RECORDED]),
        logp_nats=share(sums[WORD, Sum.LOGP], sums[WORD, Sum.RECORDED]),
        entropy_nats=share(sums[WORD, Sum.ENTROPY], sums[WORD, Sum.RECORDED]),
        advantage=share(sums[WORD, Sum.ADVANTAGE], sums[WORD, Sum.RECORDED]),
        ratio=share(sums[WORD, Sum.RATIO], sums[WORD, Sum.SEEN]),
        bounded_frac=share(sums[WORD, Sum.BOUNDED], sums[WORD, Sum.SEEN]),
        ratio_by_update=[share(total, n) for n, total in ratios[:, WORD]],
        other_logp_nats=share(sums[OTHER, Sum.LOGP], sums[OTHER, Sum.RECORDED]),
        other_entropy_nats=share(sums[OTHER, Sum.ENTROPY], sums[OTHER, Sum.RECORDED]),
        other_advantage=share(sums[OTHER, Sum.ADVANTAGE], sums[OTHER, Sum.RECORDED]),
        other_ratio=share(sums[OTHER, Sum.RATIO], sums[OTHER, Sum.SEEN]),
        other_bounded_frac=share(sums[OTHER, Sum.BOUNDED], sums[OTHER, Sum.SEEN]),
        other_ratio_by_update=[share(total, n) for n, total in ratios[:, OTHER]],
    )


def per_1000_tokens(counts: FloatArray) -> float | None:
    """Occurrences in 1,000 tokens; counts [len(Count)]."""
    frac = share(counts[Count.OCCURRENCES], counts[Count.TOKENS])
    return None if frac is None else 1000 * frac


def share(part: float, whole: float) -> float | None:
    """part / whole; None of nothing."""
    return float(part / whole) if whole else None
