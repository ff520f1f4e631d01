"""The page: everything a sweep's records say, as index.html, report.md, report.json, figures and data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reports.analysis import Analysis, analyse
from reports.data_files import DATA_FILES, write_data
from reports.document import Report, report_document
from reports.figures import render_figures
from reports.figures.rendering import RenderedFigure
from reports.problem_table import problem_table
from reports.processes import end_processes
from reports.reflection import DEFAULT_WORDS
from reports.reflection.table import reflection_table
from reports.samples import sample_completions
from reports.summary import interim_sentence, result_table, verdict_details, verdict_sentences
from reports.tables import report_tables, troubled_cells
from reports.templating import render_html, render_markdown, write_figures, write_text
from reports.validity import SEED_SENTENCE, validity_checks
from reports.verdict_signs import VERDICT_SIGNS

if TYPE_CHECKING:
    from harness.records import SweepRecord


def write_report(
    sweep: SweepRecord, out_dir: Path, reflection_words: Sequence[str] = DEFAULT_WORDS, reload_s: float | None = None
) -> Report:
    """Write the report of a sweep into `out_dir` and return the contents of report.json. reload_s: while the sweep
    runs, an open page loads itself again after so many seconds.

    Files: index.html (self-contained), report.md, report.json, figures/*.svg and *.png, data/*.csv and *.parquet. The
    same records give the same bytes. Raises as `read_measurements`.
    """
    analysis = analyse(sweep, reflection_words)
    report = report_document(analysis)
    figures = render_figures(analysis)
    if analysis.processes > 1:
        end_processes()
    write_figures(out_dir, figures)
    write_data(analysis, figures, out_dir / "data")
    write_text(out_dir / "report.json", json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    content = _content(analysis, report, figures) | {"reload_s": reload_s}
    write_text(out_dir / "index.html", render_html("index.html.j2", content))
    write_text(out_dir / "report.md", render_markdown("report.md.j2", content))
    return report


def _content(analysis: Analysis, report: Report, figures: Sequence[RenderedFigure]) -> dict[str, Any]:
    sweep = analysis.sweep
    details = [verdict_details(contrast) for contrast in report["contrasts"]] or [[]]
    verdicts = [contrast["verdict"] for contrast in report["contrasts"]] or ["no_test"]
    return {
        "sweep": sweep,
        "page_title": sweep.name,
        "verdicts": [
            {"sentence": sentence, "details": detail, "verdict": verdict, "sign": VERDICT_SIGNS[verdict]}
            for sentence, detail, verdict in zip(verdict_sentences(report), details, verdicts, strict=True)
        ],
        "interim": interim_sentence(report),
        "checks": validity_checks(analysis, report),
        "seed_sentence": SEED_SENTENCE,
        "co_changes": sweep.raw.get("co_changes") or {},
        "figures": figures,
        "result_table": result_table(report),
        "tables": [*report_tables(analysis, report), reflection_table(analysis.reflection)],
        "troubled_cells": troubled_cells(report),
        "other_cells": [cell.path.name for cell in sweep.other_cells],
        "flips": report["flips"],
        "problem_table": problem_table(analysis),
        "samples": sample_completions(analysis),
        "data_files": DATA_FILES,
    }
