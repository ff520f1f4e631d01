"""Output that people and programs can read."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Any


def print_json(document: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on stdout: on a terminal in lines that fit it, aligned plain text elsewhere (never wrapped or cut)."""
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table

        console = Console()
        table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))
        columns_of_cells = [*zip(columns, *rows, strict=True)]
        for cells, width in zip(columns_of_cells, _widths(columns_of_cells, console.width), strict=True):
            table.add_column(cells[0], overflow="fold", width=width)  # a name is never cut: arms of a grid begin alike
        for row in rows:
            table.add_row(*row)
        console.print(table, "")
        return
    widths = [max(len(cell) for cell in column) for column in zip(columns, *rows, strict=True)]
    if title:
        print(title)
    for row in (columns, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _widths(columns: Sequence[Sequence[str]], available: int) -> list[int]:
    """The width of each column: the widest shrink first, so that all fit, down to their longest words. Names, in the
    first column, are broken where nothing else helps."""
    widths = [max(map(len, cells)) for cells in columns]
    least = [max((len(word) for cell in cells for word in cell.split()), default=1) for cells in columns]
    for shortest in (least, [1, *least[1:]]):
        while sum(widths) + len(widths) > available:
            wide = [place for place, width in enumerate(widths) if width > shortest[place]]
            if not wide:
                break
            widths[max(wide, key=lambda place: widths[place])] -= 1
    return widths


def print_text(text: str, indent: str = "") -> None:
    """A sentence or more on stdout: wrapped on a terminal, one line elsewhere."""
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        wrapper = textwrap.TextWrapper(width, indent, " " * len(indent), break_long_words=False, break_on_hyphens=False)
        print(wrapper.fill(text))
    else:
        print(indent + text)


def note(message: str) -> None:
    """A line for people, on stderr."""
    print(message, file=sys.stderr, flush=True)
