"""A table of a report, before it becomes text for a terminal, a page or Markdown."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """`rows` [n_rows][n_columns] are ready to print; the first column names the row. `note`: how to read it."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    note: str = ""
