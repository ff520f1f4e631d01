"""Reflection words ("However", "Wait", ...): how often the policy writes them, and how updates treat their tokens.

This is the question of CISPO (MiniMax-M1, 2506.13585, section 3.1): are the rare tokens of reflection clipped out of
the update? The rollouts of the first step also show whether the model wrote such words before training.

This module reports the words by arm, for report.json and as a table. `tally` computes the totals behind every number,
and `curves` the words over training.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from harness.records.embeddings import REFLECTION_WORDS
from harness.records.rollouts import rollout_files, spread
from harness.words import said
from reports.formats import MISSING, Table, number, percent, ratio
from reports.measure import Analysis, derived
from reports.processes import each_in_processes
from reports.shelves.reflection.tally import (
    COLUMNS,
    OTHER,
    TOKEN_COLUMNS,
    WORD,
    CellCompletions,
    Count,
    FloatArray,
    Sum,
    Tally,
    tally,
    word_pattern,
)

if TYPE_CHECKING:
    from harness.records import CellRecord

ANY_WORD = "any of them"
MOST_FILES = 240
"""The most rollout files that are read, over all cells.

Each file has the completions between two checkpoints, often thousands.
"""
LAST_STEPS_FRAC = 0.2
"""The share of steps at the end of training that counts as its end."""


@dataclass(frozen=True)
class Reflection:
    """Statistics of reflection words over training."""

    words: tuple[str, ...]
    """The words that were searched for."""
    n_completions: int
    """The number of completions that were read, over all finished cells."""
    arms: list[ArmWords]
    """A row for each arm and word, and one for each arm and all words together; empty if no word occurs."""
    tallies: dict[str, dict[int, Tally]]
    """The totals of all words together, by arm and seed."""
    n_files: int
    """The recorded files of completions, of all finished cells."""
    n_read: int
    """The files that were read."""

    @property
    def coverage(self) -> str:
        """Say how many of the recorded completions were read."""
        if self.n_read == self.n_files:
            return said("reports.shelves.reflection.all_completions_read")
        return said("reports.shelves.reflection.some_completions_read", n_read=self.n_read, n_files=self.n_files)


@dataclass(frozen=True)
class ArmWords:
    """One word in an arm's training completions, over all seeds. A number is None if there is nothing to count.

    Undocumented fields are means over the recorded tokens that wrote the word or, with the prefix `other_`, over all
    other recorded tokens. Log-prob and entropy are those before the update. The ratio is the importance ratio at each
    optimiser step that scored the token. bounded_frac is the share of these steps in which the rule clipped or masked
    the token.
    """

    arm: str
    word: str
    n_occurrences: int
    n_completions_with: int
    first_per_1000_tokens: float | None
    """Occurrences per 1,000 tokens in the first step's completions, which the untrained model sampled."""
    last_per_1000_tokens: float | None
    """The same for the last fifth of the steps."""
    right_frac_with: float | None
    """The share of correct completions among those with the word."""
    right_frac_without: float | None
    """The share of correct completions among those without the word."""
    n_tokens_recorded: int
    logp_nats: float | None
    entropy_nats: float | None
    advantage: float | None
    ratio: float | None
    bounded_frac: float | None
    ratio_by_update: list[float | None]
    """The mean ratio at the first, second, ... optimiser step on a rollout batch."""
    other_logp_nats: float | None
    other_entropy_nats: float | None
    other_advantage: float | None
    other_ratio: float | None
    other_bounded_frac: float | None
    other_ratio_by_update: list[float | None]


@derived
def read_reflection(analysis: Analysis) -> Reflection:
    """Count the analysis's words in the training completions of finished cells, reading at most MOST_FILES files.

    If there are more than MOST_FILES / 2 cells, a sample of them is read, spread over all arms and seeds. A word that
    is listed twice, in whatever case, counts once.
    """
    words, processes = _without_repeats(analysis.reflection_words or REFLECTION_WORDS), analysis.processes
    every = [((arm, m.cell.seed), m.cell) for arm, some in analysis.measurements.items() for m in some]
    cells = dict(spread(every, MOST_FILES // 2))
    most_files = max(2, MOST_FILES // max(1, len(cells)))
    look = partial(_look, words=words, most_files=most_files)
    looked = dict(zip(cells, each_in_processes(look, [*cells.values()], processes), strict=True))
    n_completions = sum(n for n, _ in looked.values())
    n_files = {key: len(rollout_files(cell.rollouts, cell.superseded())) for key, cell in every}
    files = sum(n_files.values()), sum(min(n_files[key], most_files) for key in cells)
    occurring = [word for word in words if any(word in found for _, found in looked.values())]
    if not occurring:
        return Reflection(words, n_completions, [], {}, *files)
    # Cells without any of the words have no numbers yet, but the other cells' rows need theirs too.
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
    return Reflection(words, n_completions, arms, tallies, *files)


def _without_repeats(words: Sequence[str]) -> tuple[str, ...]:
    """Drop words that differ from an earlier word only in case, because both match the same text."""
    by_match: dict[str, str] = {}
    for word in words:
        by_match.setdefault(word.casefold(), word)
    return tuple(by_match.values())


def _look(cell: CellRecord, words: Sequence[str], most_files: int) -> tuple[int, dict[str, Tally]]:
    """Return the number of completions read from a cell, and the tallies of the words that occur in them."""
    texts = _texts(cell, most_files)
    every = word_pattern(words)
    rows = [row for row, text in enumerate(texts) if every.search(text)]
    if not rows:
        return len(texts), {}
    holding = "\0".join(texts[row] for row in rows)  # No match can extend across a NUL.
    occurring = [word for word in words if word_pattern([word]).search(holding)]
    rollouts = _rollouts(cell, texts, most_files)
    together = tally(rollouts, every, rows)
    if len(occurring) == 1:  # The tally of a single word equals that of all words.
        return len(texts), {ANY_WORD: together, occurring[0]: together}
    by_word = {word: tally(rollouts, word_pattern([word]), rows) for word in occurring}
    return len(texts), {ANY_WORD: together} | by_word


def _without_words(cell: CellRecord, words: Sequence[str], most_files: int) -> dict[str, Tally]:
    """Return the tally of a cell whose completions contain none of the words."""
    rollouts = _rollouts(cell, _texts(cell, most_files), most_files)
    return {ANY_WORD: tally(rollouts, word_pattern(words), [])}


def _texts(cell: CellRecord, most_files: int) -> list[str]:
    table = cell.read_rollouts(["text"], most_files, needed=["text"])
    return [] if table is None else list(table["text"].to_pylist())


def _rollouts(cell: CellRecord, texts: list[str], most_files: int) -> CellCompletions:
    table = cell.read_rollouts([*COLUMNS, *TOKEN_COLUMNS], most_files, needed=["step", "correct"])
    assert table is not None
    return CellCompletions.of(texts, table)


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
        right_frac_with=ratio_or_none(counts[Count.RIGHT_WITH], with_word),
        right_frac_without=ratio_or_none(counts[Count.RIGHT] - counts[Count.RIGHT_WITH], without),
        n_tokens_recorded=int(sums[WORD, Sum.RECORDED]),
        logp_nats=ratio_or_none(sums[WORD, Sum.LOGP], sums[WORD, Sum.RECORDED]),
        entropy_nats=ratio_or_none(sums[WORD, Sum.ENTROPY], sums[WORD, Sum.RECORDED]),
        advantage=ratio_or_none(sums[WORD, Sum.ADVANTAGE], sums[WORD, Sum.RECORDED]),
        ratio=ratio_or_none(sums[WORD, Sum.RATIO], sums[WORD, Sum.SEEN]),
        bounded_frac=ratio_or_none(sums[WORD, Sum.BOUNDED], sums[WORD, Sum.SEEN]),
        ratio_by_update=[ratio_or_none(total, n) for n, total in ratios[:, WORD]],
        other_logp_nats=ratio_or_none(sums[OTHER, Sum.LOGP], sums[OTHER, Sum.RECORDED]),
        other_entropy_nats=ratio_or_none(sums[OTHER, Sum.ENTROPY], sums[OTHER, Sum.RECORDED]),
        other_advantage=ratio_or_none(sums[OTHER, Sum.ADVANTAGE], sums[OTHER, Sum.RECORDED]),
        other_ratio=ratio_or_none(sums[OTHER, Sum.RATIO], sums[OTHER, Sum.SEEN]),
        other_bounded_frac=ratio_or_none(sums[OTHER, Sum.BOUNDED], sums[OTHER, Sum.SEEN]),
        other_ratio_by_update=[ratio_or_none(total, n) for n, total in ratios[:, OTHER]],
    )


def per_1000_tokens(counts: FloatArray) -> float | None:
    """Return occurrences per 1,000 tokens, from counts [len(Count)]; None if there are no tokens."""
    frac = ratio_or_none(counts[Count.OCCURRENCES], counts[Count.TOKENS])
    return None if frac is None else 1000 * frac


def ratio_or_none(part: float, whole: float) -> float | None:
    """Return part / whole, or None if `whole` is 0."""
    return float(part / whole) if whole else None


TABLE_TITLE = "Reflection words"
TABLE_COLUMNS = [
    *("arm", "word", "before training (per 1,000 tokens)", "at the end", "occurrences"),
    *("right with it", "right without", "log-prob", "entropy", "advantage"),
    *("ratio, first to last", "clipped or masked"),
]


def reflection_table(reflection: Reflection) -> Table:
    """Return a row for each arm and word that occurs. If an arm has several words, a row for all of them comes first.

    If there are no completions or no words, the table has only a note.
    """
    names = ", ".join(reflection.words)
    if not reflection.n_completions:
        return Table(TABLE_TITLE, [], [], said("reports.shelves.reflection.no_completions_drawn_training", names=names))
    if not reflection.arms:
        return Table(
            TABLE_TITLE,
            [],
            [],
            said(
                "reports.shelves.reflection.none_occurs_completions",
                names=names,
                n_completions=reflection.n_completions,
            ),
        )
    unrecorded = dict.fromkeys(row.arm for row in reflection.arms if row.n_occurrences and not row.n_tokens_recorded)
    missing = (
        said("reports.shelves.reflection.no_tokens_recorded_for", unrecorded=", ".join(unrecorded))
        if unrecorded
        else ""
    )
    found = [row for row in reflection.arms if row.n_occurrences]
    # Two rows are one word and the total over all words, which are then equal.
    single = {arm for arm, n in Counter(row.arm for row in found).items() if n == 2}
    rows = [_row(row) for row in found if not (row.word == ANY_WORD and row.arm in single)]
    how = said("reports.shelves.reflection.they_counted_completions_drawn", coverage=reflection.coverage)
    return Table(TABLE_TITLE, TABLE_COLUMNS, rows, f"Looked for: {names}. {how}{_absence(reflection)}{missing}")


def _absence(reflection: Reflection) -> str:
    """Return a sentence on the words that arms never wrote, which have no row in the table."""
    written = {(row.arm, row.word) for row in reflection.arms if row.n_occurrences}
    arms = tuple(dict.fromkeys(row.arm for row in reflection.arms))
    never: dict[tuple[str, ...], list[str]] = {}
    for word in reflection.words:
        if without := tuple(arm for arm in arms if (arm, word) not in written):
            never.setdefault(without, []).append(word)
    parts = [f"by {'any arm' if by == arms else ', '.join(by)}: {', '.join(words)}" for by, words in never.items()]
    return said("reports.shelves.reflection.never_written_these_completions", parts="; ".join(parts)) if parts else ""


def _row(row: ArmWords) -> list[str]:
    return [
        row.arm,
        row.word,
        number(row.first_per_1000_tokens),
        number(row.last_per_1000_tokens),
        f"{row.n_occurrences:,} in {row.n_completions_with:,}",
        percent(row.right_frac_with),
        percent(row.right_frac_without),
        _both(number(row.logp_nats), number(row.other_logp_nats)),
        _both(number(row.entropy_nats), number(row.other_entropy_nats)),
        _both(number(row.advantage), number(row.other_advantage)),
        _both(_first_to_last(row.ratio_by_update), _first_to_last(row.other_ratio_by_update)),
        _both(percent(row.bounded_frac), percent(row.other_bounded_frac)),
    ]


def _both(word: str, other: str) -> str:
    return f"{word} / {other}"


def _first_to_last(ratios: list[float | None]) -> str:
    ends = ratios if len(ratios) < 2 else [ratios[0], ratios[-1]]
    return " to ".join(map(ratio, ends)) or MISSING
