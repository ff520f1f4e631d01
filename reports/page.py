"""The page: everything a sweep's records say, as index.html, report.md, report.json, figures and data."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reports.analysis import Analysis, analyse
from reports.data_files import DATA_FILES, write_data
from reports.document import Report, report_document
from reports.figures import FIGURES, RenderedFigure, render_figures
from reports.formats import percent
from reports.problem_table import problem_table
from reports.reflection import DEFAULT_WORDS
from reports.reflection.table import reflection_table
from reports.samples import sample_completions
from reports.summary import interim_sentence, result_table, verdict_details, verdict_sentences
from reports.tables import report_tables, troubled_cells
from reports.validity import SEED_SENTENCE, validity_checks

if TYPE_CHECKING:
    from harness.records import SweepRecord

TEMPLATES = Path(__file__).parent / "templates"

# Beside its colour each verdict has a sign, for readers and printers without colour.
VERDICT_SIGNS = {
    "better": "▲",
    "worse": "▼",
    "equivalent": "≈",
    "identical": "=",
    "inconclusive": "?",
    "no_test": "∅",
}


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
    for folder in (out_dir / "figures", out_dir / "data"):
        folder.mkdir(parents=True, exist_ok=True)
    for kind in FIGURES:  # an earlier report may have had records for more of them
        for stale in (f"figures/{kind.name}.svg", f"figures/{kind.name}.png", f"data/{kind.name}.csv"):
            (out_dir / stale).unlink(missing_ok=True)
    for figure in figures:
        _write(out_dir / "figures" / f"{figure.name}.svg", figure.svg)
        (out_dir / "figures" / f"{figure.name}.png").write_bytes(figure.png)
    write_data(analysis, figures, out_dir / "data")
    _write(out_dir / "report.json", json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    content = _content(analysis, report, figures) | {"reload_s": reload_s}
    _write(out_dir / "index.html", _render("index.html.j2", content))
    # Quotes open nothing in Markdown, where no tag survives the escaping; as entities they are only hard to read.
    markdown = _render("report.md.j2", content).replace("&#39;", "'").replace("&#34;", '"')
    _write(out_dir / "report.md", markdown)
    return report


def _content(analysis: Analysis, report: Report, figures: Sequence[RenderedFigure]) -> dict[str, Any]:
    sweep = analysis.sweep
    details = [verdict_details(contrast) for contrast in report["contrasts"]] or [[]]
    verdicts = [contrast["verdict"] for contrast in report["contrasts"]] or ["no_test"]
    return {
        "sweep": sweep,
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


def _render(template: str, content: dict[str, Any]) -> str:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"markdown": _markdown, "percent": percent}
    return environment.get_template(template).render(content)


def _markdown(text: str) -> str:
    """Text as one Markdown line or table cell: marks and links escaped, line breaks gone; autoescape does the HTML."""
    return re.sub(r"([\\`*|]|(?<=\])\()", r"\\\1", " ".join(text.split()))


def _write(path: Path, text: str) -> None:
    """Whole or not at all: somebody may be reading the page that a live report replaces."""
    aside = path.with_name(f".{path.name}.tmp")
    aside.write_text(text, encoding="utf-8", newline="\n")
    aside.replace(path)
