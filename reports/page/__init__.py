"""The page of a sweep: everything its records say, as index.html, report.md, report.json, figures and data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reports.figures import render_figures
from reports.measure import Analysis, analyse
from reports.page.coverage import coverage_sentence
from reports.page.document import DATA_FILES, Report, report_document, write_data
from reports.page.effects import effect_table, secondary_note
from reports.page.record_tables import troubled_cells
from reports.page.tables import chance_sentence, problem_table, report_tables, result_table
from reports.page.templating import write_page
from reports.page.validity import validity_checks
from reports.page.verdict import interim_sentence, secondary_statements, seed_sentence, statements
from reports.processes import end_processes

if TYPE_CHECKING:
    from harness.records import SweepRecord


def write_report(sweep: SweepRecord, out_dir: Path, reflection_words: Sequence[str] | None = None) -> Report:
    """Write the report of a sweep into a folder and return the contents of report.json.

    reflection_words: the words whose tokens are followed through training; by default our own choice.

    Files: index.html (self-contained), report.md, report.json, figures/*.svg and *.png, data/*.csv and *.parquet. The
    same records give the same bytes. Raises as `read_measurements`.
    """
    analysis = analyse(sweep, reflection_words)
    report = report_document(analysis)
    figures = render_figures(analysis)
    if analysis.processes > 1:
        end_processes()
    write_data(analysis, out_dir / "data")
    write_page(out_dir, "sweep", _content(analysis, report), report, figures)
    return report


def _content(analysis: Analysis, report: Report) -> dict[str, Any]:
    sweep = analysis.sweep
    return {
        "sweep": sweep,
        "page_title": sweep.name,
        "statements": statements(report),
        "secondary_note": secondary_note(report["interactions"], report["contrasts"]),
        "secondary": secondary_statements(report),
        "interim": interim_sentence(report),
        "registration": report["registration"],
        "checks": validity_checks(analysis, report),
        "seed_sentence": seed_sentence(report),
        "coverage_sentence": coverage_sentence(report["coverage"]),
        "effect_table": effect_table(report["interactions"]),
        "result_table": result_table(report),
        "tables": report_tables(analysis, report),
        "troubled_cells": troubled_cells(report),
        "other_cells": [cell.path.name for cell in sweep.other_cells],
        "flips": report["flips"],
        "problem_table": problem_table(analysis, report),
        "chance_sentence": chance_sentence(report),
        "data_files": DATA_FILES,
    }
