"""The section on reflection words in the report."""

from __future__ import annotations

from dataclasses import asdict

from harness.words import said
from reports.formats import Table
from reports.measure import Analysis
from reports.page.section import Section
from reports.shelves.reflection import read_reflection, reflection_table


def _rows(analysis: Analysis) -> list[dict[str, object]]:
    return [asdict(row) for row in read_reflection(analysis).arms]


def _tables(analysis: Analysis) -> list[Table]:
    """Return the table if such words occur, or if the user asked for words."""
    found = read_reflection(analysis)
    return [reflection_table(found)] if found.arms or analysis.reflection_words is not None else []


REFLECTION = Section("reflection", said("reports.shelves.reflection.words_reflection_completions_what"), _rows, _tables)
