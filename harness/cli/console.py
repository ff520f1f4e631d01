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
    """A table on stdout: ruled on a terminal, aligned plain text elsewhere (never wrapped or cut)."""
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table

        table = Table(title=title, title_justify="left")
        for column in columns:
            table.add_column(column, overflow="fold")  # arms of a grid begin alike: a cut name would be that of others
        for row in rows:
            table.add_row(*row)
        Console().print(table)
        return
    widths = [max(len(cell) for cell in column) for column in zip(columns, *rows, strict=True)]
    if title:
        print(title)
    for row in (columns, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


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
