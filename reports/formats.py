"""Formatters of numbers, tables and rows of data. A missing number is written as an en dash."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TypeGuard

MISSING = "–"


@dataclass(frozen=True)
class Table:
    """A table before it becomes text for a terminal, a page or Markdown.

    rows [n_rows][n_columns]: text that is ready to print; the first column names the row.
    note: how to read the table.
    """

    title: str
    columns: list[str]
    rows: list[list[str]]
    note: str = ""


def csv_text(rows: Sequence[Mapping[str, object]]) -> str:
    """Return CSV with a header and one line per row.

    The columns are in order of first appearance. A value that a row lacks is left empty.
    """
    columns = list(dict.fromkeys(name for row in rows for name in row))
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    # One call of itemgetter per row replaces a lookup per value. It returns no tuple for a single name, and raises
    # KeyError for a row that lacks a column.
    if len(columns) > 1 and all(len(row) == len(columns) for row in rows):
        writer.writerows(map(itemgetter(*columns), rows))
    else:
        writer.writerows([row.get(name, "") for name in columns] for row in rows)
    return buffer.getvalue()


def csv_table(table: Table) -> str:
    """Return a table as CSV, with each value as it would be printed."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows([table.columns, *table.rows])
    return buffer.getvalue()


_LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"±": r"$\pm$", "ρ": r"$\rho$", "×": r"$\times$", "<": "$<$", ">": "$>$", MISSING: "--"},
}


def latex_table(table: Table) -> str:
    """Return a table for LaTeX with the booktabs package. Special characters are escaped."""

    def line(cells: Sequence[str]) -> str:
        escaped = ("".join(_LATEX.get(character, character) for character in cell) for cell in cells)
        return f"{' & '.join(escaped)} \\\\\n"

    rows = "".join(map(line, table.rows))
    return (
        f"\\begin{{tabular}}{{{'l' * len(table.columns)}}}\n\\toprule\n{line(table.columns)}\\midrule\n{rows}"
        "\\bottomrule\n\\end{tabular}\n"
    )


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table for Markdown, without a final line break. Bars and line breaks in cells are handled."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(
        "| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in line) + " |" for line in lines
    )


def signed_pp(value: float | None) -> str:
    """Format a difference with its sign, e.g. +3.1; a rounded zero is +0.0."""
    # The z option turns a negative zero from rounding into +0.0.
    return f"{value:+z.1f}" if _exists(value) else MISSING


def points(value: float | None) -> str:
    """Format a score in percent or percentage points: 47.3."""
    return f"{value:z.1f}" if _exists(value) else MISSING


def interval(low: float | None, high: float | None, *, signed: bool = True, decimals: int = 1) -> str:
    """Format an interval, e.g. [+0.4, +5.8].

    An end that would round to 0.0 gets more digits, e.g. [-0.04, +2.0], because its sign shows whether the interval
    contains 0.
    """
    if not (_exists(low) and _exists(high)):
        return MISSING
    return f"[{_end(low, signed, decimals)}, {_end(high, signed, decimals)}]"


def number_interval(low: float | None, high: float | None) -> str:
    """Format an interval of a quantity without a unit, to two significant digits: [0.31, 0.95]."""
    return f"[{number(low, 2)}, {number(high, 2)}]" if _exists(low) and _exists(high) else MISSING


def with_interval(value: str, low: float | None, high: float | None, *, signed: bool = True) -> str:
    """Append the interval, if known, to a formatted value."""
    return f"{value} {interval(low, high, signed=signed)}" if _exists(low) and _exists(high) else value


def _end(value: float, signed: bool, decimals: int) -> str:
    """Format one end with `decimals` decimals, or with as many as show its first nonzero digit. Zero has `decimals`."""
    sign = "+" if signed else ""
    if value == 0:
        return f"{0:{sign}.{decimals}f}"
    # Values that four decimals would still round to 0 are written in scientific notation.
    return next(
        (text for digits in range(decimals, 5) if float(text := f"{value:{sign}.{digits}f}")), f"{value:{sign}.0e}"
    )


def p_value(value: float | None) -> str:
    """Format a p value with its relation sign: '= 0.012' or '< 0.001'."""
    if not _exists(value):
        return MISSING
    return "< 0.001" if value < 0.001 else f"= {value:.3f}"


def percent(fraction: float | None) -> str:
    """Format a fraction in percent: 0.975 -> 97.5%."""
    return f"{100 * fraction:.3g}%" if _exists(fraction) else MISSING


def whole_percent(fraction: float) -> str:
    """Format a fraction in whole percent; only 0 itself is 0%, and only 1 itself is 100%."""
    if 0 < fraction < 0.005:
        return "<1%"
    return ">99%" if 0.995 <= fraction < 1 else f"{fraction:.0%}"


def number(value: float | None, digits: int = 3) -> str:
    return f"{value:.{digits}g}" if _exists(value) else MISSING


def ratio(value: float | None) -> str:
    return f"{value:.3f}" if _exists(value) else MISSING


def tokens(value: float | None) -> str:
    """Format a number of tokens: 1234567 -> 1.23M."""
    if not _exists(value):
        return MISSING
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.0f}"


def megabytes(value: float | None) -> str:
    """Format a size in MB: 1234.5 -> 1.23 GB."""
    if not _exists(value):
        return MISSING
    return f"{value / 1000:.3g} GB" if value >= 1000 else f"{value:.0f} MB"


def duration(value: float | None) -> str:
    """Format a duration in seconds: 0.0123 -> 12.3 ms; from one second upwards, like `seconds`."""
    # From 0.9995 s upwards, three digits of milliseconds would read 1e+03 ms.
    return f"{1000 * value:.3g} ms" if _exists(value) and value < 0.9995 else seconds(value)


def seconds(value: float | None) -> str:
    """Format seconds: 95.4 -> 1 min 35 s."""
    if not _exists(value):
        return MISSING
    # Round before choosing the unit, so that 59.7 s becomes 1 min 0 s instead of 60 s.
    whole = round(value)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    if whole >= 60:
        return f"{whole // 60} min {whole % 60} s"
    return f"{value:.1f} s"


def in_words(items: Iterable[str], link: str = "and") -> str:
    """Join items as a sentence does: a, b and c."""
    *first, last = items
    return f"{', '.join(first)} {link} {last}" if first else last


def count(n: int, noun: str) -> str:
    """Return a number with its noun: 1 trial, 2 trials."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _exists(value: float | None) -> TypeGuard[float]:
    return value is not None and not math.isnan(value)
