"""The page of a search, drawn from study.json alone: index.html, report.md, report.json, figures and data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from harness.records.study import StudyRecord
from reports.figures.rendering import RenderedFigure
from reports.search.document import search_document, trials_csv
from reports.search.figures import render_search_figures
from reports.search.sentences import (
    confirmed_statement,
    current_confirmation,
    headline,
    no_importance,
    search_sentence,
    warning,
)
from reports.search.tables import best_table, knobs_table, provenance_table, trials_table
from reports.templating import render_html, render_markdown, write_figures, write_text
from reports.verdict_signs import VERDICT_SIGNS

__all__ = ["search_sentence", "write_search_report"]

STATEMENT_SIGNS = VERDICT_SIGNS | {"best": "★", "careful": "⚠"}


def write_search_report(study: StudyRecord, out_dir: Path) -> dict[str, Any]:
    """Write the report of a search into `out_dir`, runs/<sweep>/report, and return the contents of report.json.

    Files: index.html (self-contained), report.md, report.json, figures/*.svg and *.png, data/*.csv. The same record
    gives the same bytes.
    """
    report = search_document(study)
    figures = render_search_figures(study)
    write_figures(out_dir, figures)
    for figure in figures:
        write_text(out_dir / "data" / f"{figure.name}.csv", figure.csv)
    write_text(out_dir / "data" / "trials.csv", trials_csv(study))
    write_text(out_dir / "report.json", json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    content = _content(study, figures)
    write_text(out_dir / "index.html", render_html("search.html.j2", content))
    write_text(out_dir / "report.md", render_markdown("search.md.j2", content))
    return report


def _content(study: StudyRecord, figures: Sequence[RenderedFigure]) -> dict[str, Any]:
    confirmed = current_confirmation(study)
    statements = [headline(study), None if confirmed is None else confirmed_statement(confirmed), warning(study)]
    return {
        "study": study,
        "page_title": study.sweep,
        "reload_s": None,
        "statements": [(STATEMENT_SIGNS[one.verdict], one) for one in statements if one is not None],
        "confirmation_link": None if confirmed is None else f"../../{quote(confirmed.sweep)}/report/index.html",
        "best_table": best_table(study),
        "figures": figures,
        "no_importance": no_importance(study),
        "trials_table": trials_table(study),
        "tables": [knobs_table(study), provenance_table(study)],
    }
