"""Coverage on the page: a sentence for the top, and a table of the numbers behind it."""

from __future__ import annotations

from collections.abc import Sequence

from harness.words import said
from reports.formats import Table, number, percent, signed_pp, with_interval
from reports.report import CoverageRow


def coverage_sentence(rows: Sequence[CoverageRow]) -> str:
    """Summarise coverage at all k, grouping arms with the same word; "" if there are no rows."""
    parts = []
    for against in dict.fromkeys(row.against for row in rows):
        of_kind = [row for row in rows if row.against == against]
        by_word: dict[str, list[str]] = {}
        for row in of_kind:
            by_word.setdefault(row.word + _why_unclear(row), []).append(_with_crossover(row))
        # Only a list of undecided arms is shortened to a count; every finding names its arms.
        alike = len(by_word) == 1 and len(of_kind) > 2 and of_kind[0].word == "cannot tell"
        words = "; ".join(
            f"{word}: {f'all {len(arms)} arms' if alike else ', '.join(arms)}" for word, arms in by_word.items()
        )
        parts.append(f"against {against or 'the model before training'}, {words}")
    if not parts:
        return ""
    largest = max(row.k[-1] for row in rows)
    return said("reports.coverage_pass_k_for", largest=largest, parts=". ".join(map(_capital, parts)))


def coverage_table(rows: Sequence[CoverageRow]) -> Table | None:
    """Return the table of the numbers behind the words, or None if there are no rows."""
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
            row.word + (f" ({row.note})" if row.note else ""),
            _at(row, 0),
            str(row.k[-1]),
            _at(row, -1),
            number(row.crossover_k),
            _crossover_interval(row),
            str(row.n),
        ]
        for row in rows
    ]
    note = said("reports.coverage_note", k=max(row.k[-1] for row in rows), level=level)
    if any(row.at_ceiling for row in rows):
        note += said("reports.largest_k_which_every")
    return Table("Coverage", columns, lines, note)


def _with_crossover(row: CoverageRow) -> str:
    if row.word != "sharpened" or row.crossover_k is None:
        return str(row.arm)
    return f"{row.arm} (crossover at k = {number(row.crossover_k)} {_crossover_interval(row)})"


def _why_unclear(row: CoverageRow) -> str:
    """Return the reason for a row without a finding, in brackets; "" if it has a finding."""
    if row.word != "cannot tell":
        return ""
    if row.note:
        return f" ({row.note})"
    low, high = row.low_pp[0], row.high_pp[0]
    if low is not None and low > 0:
        return said("reports.up_k_1_k", at_largest="all is solved" if row.at_ceiling else "unclear", k=row.k[-1])
    return " (down at k = 1)" if high is not None and high < 0 else " (no clear difference at k = 1)"


def _capital(sentence: str) -> str:
    return sentence[0].upper() + sentence[1:]


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
