"""The report of a sweep: what its records say, as index.html, report.md, report.json, figures and data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from reports.drawing.rendering import RenderedFigure
from reports.figures import FIGURES, Group, render_figures
from reports.formats import Table, count
from reports.measure import Analysis, analyse
from reports.measure.coverage import arms_without_gain
from reports.measure.difficulty import difficulties
from reports.measure.next_step import OPEN_VERDICTS
from reports.page.coverage import coverage_sentence
from reports.page.document import DATA_FILES, report_document, write_data
from reports.page.effects import effect_table, secondary_note
from reports.page.glossary import GLOSSARY, HOW_TO_READ
from reports.page.record_tables import troubled_cells
from reports.page.setup import setup_of
from reports.page.tables import chance_sentence, flips_note, problem_table, report_tables, result_table
from reports.page.templating import write_page
from reports.page.validity import validity_checks
from reports.page.verdict import interim_sentence, secondary_statements, seed_sentence, statements
from reports.report import Report

if TYPE_CHECKING:
    from harness.records import SweepRecord


def write_report(
    sweep: SweepRecord, out_dir: Path, reflection_words: Sequence[str] | None = None, processes: int = 1
) -> Report:
    """Write the report of a sweep into a folder and return the contents of report.json.

    reflection_words: the words whose tokens are counted over training; None for the default list.
    processes: the number of processes that work on the report, including this one.

    Files: index.html (self-contained), report.md, report.json, figures/*.svg and *.png, data/*.csv and *.parquet. The
    same records give byte-identical files. Raises the errors of `read_measurements`.
    """
    analysis = analyse(sweep, reflection_words, processes)
    report = report_document(analysis)
    # Compute these here, with all processes, and cache them: a process that draws figures cannot start others.
    difficulties(analysis)
    figures = render_figures(analysis)
    write_data(analysis, out_dir / "data")
    write_page(out_dir, "sweep", _content(analysis, report, figures), report.as_json(), figures)
    return report


TALL_FOREST = 6
"""If a forest plot has at least this many rows, the validity checks fit below the table next to it; otherwise they go
below both columns.
"""
CHECKS_BESIDE, MOST_CHECKS_ABREAST = 3, 5
MOST_STATEMENTS = 12
"""If there are more statements, undecided ones are folded away; the table and the forest plot show all of them."""

LEAD_FIGURES = ("interactions", "forest")
"""The figure next to the table on the first screen is the first of these that could be drawn."""


@dataclass(frozen=True)
class ShownSection:
    """A section of the page below the first screen. Its figures come before its tables."""

    name: Group
    figures: list[RenderedFigure]
    tables: list[Table]

    @property
    def summary(self) -> str:
        return f"{count(len(self.figures), 'figure')}, {count(len(self.tables), 'table')}"


def _content(analysis: Analysis, report: Report, figures: Sequence[RenderedFigure]) -> dict[str, object]:
    sweep = analysis.sweep
    by_name = {figure.name: figure for figure in figures}
    lead = next((by_name[name] for name in LEAD_FIGURES if name in by_name), None)
    effects, results = effect_table(report.interactions), result_table(report)
    tables = report_tables(analysis, report)
    if effects is not None:
        tables["Result"].insert(0, results)
    checks = validity_checks(analysis, report)
    # The forest plot has a row for each contrast on each task.
    rows = len(report.contrasts) * len(sweep.tasks)
    is_beside = lead is not None and lead.name == "forest" and rows >= TALL_FOREST
    return {
        "headline": report.headline[0].sentence,
        "lead_figure": lead,
        "lead_table": effects or results,
        "groups": [
            ShownSection(group, of_group, tables[group])
            for group in get_args(Group)
            if (of_group := [one for one in figures if FIGURES.find(one.name).group == group and one is not lead])
            or tables[group]
        ],
        "setup": setup_of(analysis),
        "checks_beside": is_beside,
        "check_columns": CHECKS_BESIDE
        if is_beside
        # Fewest rows first, then as even as possible: six checks make two rows of three, not five and one.
        else math.ceil(len(checks) / math.ceil(len(checks) / MOST_CHECKS_ABREAST)),
        "how_to_read": HOW_TO_READ,
        "glossary": GLOSSARY,
        "sweep": sweep,
        "page_title": sweep.name,
        "statements": statements(report),
        "most_statements": MOST_STATEMENTS,
        "open_verdicts": OPEN_VERDICTS,
        "careful": ", ".join(check.label for check in checks if not check.ok),
        "secondary_note": secondary_note(report.interactions, report.contrasts),
        "secondary": secondary_statements(report),
        "interim": interim_sentence(report),
        "registration": report.registration,
        "checks": checks,
        "seed_sentence": seed_sentence(report, sweep.is_imported),
        "coverage_sentence": coverage_sentence(report.coverage, arms_without_gain(analysis)),
        "effect_table": effects,
        "result_table": results,
        "troubled_cells": troubled_cells(report),
        "other_cells": [cell.path.name for cell in sweep.other_cells],
        "flips": report.flips,
        "flips_note": flips_note(report, is_imported=sweep.is_imported),
        "problem_table": problem_table(analysis, report),
        "chance_sentence": chance_sentence(report),
        "data_files": DATA_FILES,
    }
