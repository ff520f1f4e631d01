"""Coverage on the page: a sentence for the top, and a table of the numbers behind it."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from harness.words import said
from reports.formats import Table, in_words, number, percent, signed_pp, with_interval
from reports.measure.coverage import no_gain_sentence
from reports.report import CoverageRow
from reports.statistics import LARGE, CoverageWord

UNDECIDED: CoverageWord = "cannot tell"


def coverage_sentence(rows: Sequence[CoverageRow], no_gain: Collection[str] = ()) -> str:
    """Summarise coverage at all k, listing arms with the same finding together; "" if there are no rows.

    no_gain: the arms whose model before training already solves every problem at the largest k.
    """
    parts = []
    for against in dict.fromkeys(row.against for row in rows):
        of_kind = [row for row in rows if row.against == against]
        by_word: dict[tuple[str, str], list[str]] = {}
        for row in of_kind:
            by_word.setdefault((row.word, _why_undecided(row, no_gain)), []).append(_with_crossover(row))
        # Only a list of undecided arms is shortened to a count; every finding keeps the names of its arms.
        alike = len(by_word) == 1 and len(of_kind) > 2
        findings = [
            said("reports.no_conclusion", arms=f"any of the {len(arms)} arms" if alike else in_words(arms), why=why)
            if word == UNDECIDED
            else f"{word}: {', '.join(arms)}"
            for (word, why), arms in by_word.items()
        ]
        reference = against or "the model before training"
        parts.append(said("reports.compared_with", against=reference, findings="; ".join(findings)))
    if not parts:
        return ""
    largest = max(row.k[-1] for row in rows)
    return said("reports.coverage_pass_k_for", largest=largest, parts=" ".join(parts))


def coverage_table(rows: Sequence[CoverageRow], no_gain: Collection[str] = ()) -> Table | None:
    """Return the table behind the words, or None without rows. no_gain: see `coverage_sentence`."""
    if not rows:
        return None
    least = min(row.level for row in rows)
    # The rows of a kind share one error rate (Bonferroni): multiply a row's error rate by their number.
    level = percent(1 - (1 - least) * sum(row.level == least for row in rows))
    columns = [
        "arm",
        "against",
        "coverage",
        f"k = 1 (pp), {level} band",
        "largest k",
        f"there (pp), {level} band",
        "crossover k",
        f"{level} interval",
        "seeds",
    ]
    lines = [
        [
            row.arm,
            row.against or "before training",
            ("no conclusion" if row.word == UNDECIDED else row.word) + (f" ({row.note})" if row.note else ""),
            _at(row, 0),
            str(row.k[-1]),
            _at(row, -1),
            number(row.crossover_k),
            _crossover_interval(row),
            str(row.n),
        ]
        for row in rows
    ]
    largest = max(row.k[-1] for row in rows)
    note = said("reports.coverage_note", k=largest, level=level, large=math.ceil(LARGE * largest))
    if any(row.at_ceiling for row in rows):
        note += f" {said('reports.largest_k_which_every')}"
    if ceiling := no_gain_sentence([row.arm for row in rows if row.against is None], no_gain, largest):
        note += f" {ceiling}"
    return Table("Coverage", columns, lines, note)


def _with_crossover(row: CoverageRow) -> str:
    if row.word != "sharpened" or row.crossover_k is None:
        return str(row.arm)
    return f"{row.arm} (crossover at k = {number(row.crossover_k)} {_crossover_interval(row)})"


def _why_undecided(row: CoverageRow, no_gain: Collection[str]) -> str:
    """Return why a row has no word, or ""."""
    if row.word != UNDECIDED or row.note:
        return row.note
    low, high = row.low_pp[0], row.high_pp[0]
    if high is not None and high < 0:
        return "pass@1 is lower"
    if low is None or low <= 0:
        return said("reports.no_clear_difference")
    if row.at_ceiling:
        return said("reports.higher_at_1_solved_at_k", k=row.k[-1])
    if row.against is None and row.arm in no_gain:
        return said("reports.higher_at_1_full_at_k", k=row.k[-1])
    return said("reports.higher_at_1_unclear_at_k", k=row.k[-1])


def _at(row: CoverageRow, place: int) -> str:
    return with_interval(signed_pp(row.difference_pp[place]), row.low_pp[place], row.high_pp[place])


def _crossover_interval(row: CoverageRow) -> str:
    """Format the interval of the crossover. It is open on a side where the band contains 0 to the last k."""
    low, high = row.crossover_low, row.crossover_high
    if row.crossover_k is None or row.low_pp[0] is None:
        return number(None)
    below = f"< {row.k[0]}" if low is None else number(low)
    above = f"> {row.k[-1]}" if high is None else number(high)
    return f"[{below}, {above}]"
