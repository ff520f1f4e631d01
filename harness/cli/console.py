"""Output for users and programs: on a terminal, tables and sentences that fit it; otherwise plain lines."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from harness import plugins
from harness.secrets import json_text

GAP = "  "
INDENT = "  "
WHOLE_CHARACTERS = 24
"""A table entry up to this length is a value and stays on one line. A longer entry is prose and breaks at spaces."""

COLOURS = {"green": 32, "red": 31, "yellow": 33, "blue": 34, "bold": 1}
"""The terminal's own colours, which its user has chosen to suit the background."""


def print_json(document: object) -> None:
    """Print a JSON document. If user code was left out while records were read, the field `left_out` says so."""
    if isinstance(document, dict) and (left_out := plugins.left_out()):
        document = document | {"left_out": [{"sentence": one} for one in left_out]}
    print(json_text(document, indent=2, ensure_ascii=False, allow_nan=False))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table: on a terminal in lines that fit it, otherwise as aligned plain text. Nothing is truncated.

    The first column contains the names of the rows. On a terminal, columns without entries are left out.
    """
    if title:
        print_text(title)
    if not sys.stdout.isatty():
        for line in _aligned(list(zip(columns, *rows, strict=True))):
            print(line)
        return
    table = [cells for cells in zip(columns, *rows, strict=True) if any(cells[1:]) or not rows]
    for line in _fitted(table, shutil.get_terminal_size().columns):
        print(line)
    print()


def _aligned(table: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table, headings first. table: the table's columns."""
    widths = [max(map(len, cells)) for cells in table]
    for row in zip(*table, strict=True):
        yield GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _fitted(table: Sequence[Sequence[str]], available: int) -> Iterator[str]:
    """Yield the lines of a table in the first of these forms that fits the terminal.

    1. Headings and prose on several lines. 2. Each name on a line above its row. 3. One entry per line. In the last
    two, a repeated name is written only once.
    """
    heading, *rows = zip(*table, strict=True)
    if (widths := _widths(table, available)) is not None:
        yield from map(bold, _wrapped_row(heading, widths, at_bottom=True))
        for row in rows:
            yield from _wrapped_row(row, widths)
        return
    widths = _widths(table[1:], available - len(INDENT), keeps_names=False)
    if widths is not None:
        yield bold(heading[0])
        yield from (bold(INDENT + line) for line in _wrapped_row(heading[1:], widths, at_bottom=True))
    before = None
    for name, *cells in rows:
        if name and name != before:
            indent_of_rest = INDENT if len(INDENT) + len(name) <= available else ""
            yield from _wrap(name if widths is not None else f"{heading[0]}: {name}", available, "", indent_of_rest)
        before = name
        if widths is not None:
            yield from (INDENT + line for line in _wrapped_row(cells, widths))
        else:
            yield from _entries(heading[1:], cells, available)


def _entries(headings: Sequence[str], cells: Sequence[str], available: int) -> Iterator[str]:
    """Yield the entries of a row, each on separate lines, after its heading."""
    for heading, cell in zip(headings, cells, strict=True):
        is_value = len(cell) <= min(WHOLE_CHARACTERS, available - 2 * len(INDENT))
        if cell:
            yield from _wrap(f"{heading}: {_unbroken(cell) if is_value else cell}", available, INDENT, 2 * INDENT)


def _widths(table: Sequence[Sequence[str]], available: int, *, keeps_names: bool = True) -> list[int] | None:
    """Return the width of each column so that the table fits, or None if this is impossible without truncation.

    The widest column is made narrower first.
    keeps_names: whether the first column contains the names of the rows, which must stay on one line.
    """
    widths = [max(map(len, cells)) for cells in table]
    least = [_least_width(*cells) for cells in table]
    if keeps_names:
        least[0] = max(least[0], *map(len, table[0][1:]))
    spare = available - len(GAP) * (len(table) - 1)
    if sum(map(min, least, widths)) > spare:
        return None
    while sum(widths) > spare:
        wide = [place for place, width in enumerate(widths) if width > least[place]]
        widths[max(wide, key=lambda place: widths[place])] -= 1
    return widths


def _least_width(heading: str, *entries: str) -> int:
    """Return the least width of a column: the length of its longest word or of its longest short value."""
    whole = [len(entry) if len(entry) <= WHOLE_CHARACTERS else _longest_word(entry) for entry in entries]
    return max(_longest_word(heading), *whole, 0)


def _wrapped_row(row: Sequence[str], widths: Sequence[int], *, at_bottom: bool = False) -> Iterator[str]:
    """Yield the lines of a row. at_bottom: align short entries with the last line, as for headings."""
    cells = [_wrap(cell, width) for cell, width in zip(row, widths, strict=True)]
    height = max(map(len, cells))
    padded = [[""] * (height - len(cell)) + cell if at_bottom else cell + [""] * (height - len(cell)) for cell in cells]
    for line in zip(*padded, strict=True):
        yield GAP.join(part.ljust(width) for part, width in zip(line, widths, strict=True)).rstrip()


_WHOLE = re.compile(r"`[^`]*`|\[[^][]*\]")
"""Matches a command, which users copy, or an interval. Neither is broken over lines."""


def _wrap(text: str, width: int, indent: str = "", indent_of_rest: str | None = None) -> list[str]:
    """Return lines of at most this width, broken at spaces. Only a long word, command or interval may exceed it."""
    rest = indent if indent_of_rest is None else indent_of_rest
    wrapper = textwrap.TextWrapper(max(width, 1), indent, rest, break_long_words=False, break_on_hyphens=False)
    # TextWrapper does not break lines at no-break spaces.
    joined = _WHOLE.sub(lambda found: _unbroken(found[0]), text)
    return [line.replace("\xa0", " ") for line in wrapper.wrap(joined)] or [""]


def _unbroken(text: str) -> str:
    return text.replace(" ", "\xa0")


def _longest_word(text: str) -> int:
    return max(map(len, _wrap(text, 1)))


def print_text(text: str, indent: str = "", sign: str = "", colour: str = "") -> None:
    """Print text: on a terminal wrapped, and after its sign if it has one; otherwise on one line."""
    if not sys.stdout.isatty():
        print(indent + text)
        return
    indent += f"{sign} " if sign else ""
    first, *others = _wrap(text, shutil.get_terminal_size().columns, indent, " " * len(indent))
    print(first.replace(sign, styled(sign, colour), 1) if sign else first)
    for line in others:
        print(line)


def print_pairs(heading: str, pairs: Mapping[str, str]) -> None:
    """Print a heading and a line for each pair, with the texts aligned. Print nothing if there are no pairs."""
    if not pairs:
        return
    print(heading)
    width = max(map(len, pairs))
    for name, text in pairs.items():
        print(f"{INDENT}{name.ljust(width)}{GAP}{text}")


def print_link(label: str, path: Path) -> None:
    """Print `label: path`. In terminals that support links (OSC 8), a click opens the path."""
    address = f"\x1b]8;;{path.resolve().as_uri()}\x1b\\{path}\x1b]8;;\x1b\\" if _has_styles() else str(path)
    print(f"{label}: {address}")


def bold(text: str) -> str:
    return styled(text, "bold")


def styled(text: str, style: str) -> str:
    """Return the text in one of COLOURS, if stdout is a terminal that supports it and NO_COLOR is not set."""
    return f"\x1b[{COLOURS[style]}m{text}\x1b[0m" if style and text and _has_styles() else text


def _has_styles() -> bool:
    """Return whether stdout supports styles; see https://no-color.org."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
