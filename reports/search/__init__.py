"""The report of a search, from study.json alone: index.html, report.md, report.json, figures and data."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from urllib.parse import quote

from harness.records.study import StudyRecord, TrialRecord
from reports.formats import csv_text
from reports.page.templating import write_page, write_text
from reports.search.figures import render_search_figures
from reports.search.sentences import current_confirmation, no_importance, search_sentence, search_statements
from reports.search.tables import best_table, knobs_table, provenance_table, trials_table
from reports.search.values import objectives_of

__all__ = ["search_sentence", "write_search_report"]


def write_search_report(study: StudyRecord, out_dir: Path) -> dict[str, object]:
    """Write the report of a search into a folder, runs/<sweep>/report, and return the contents of report.json.

    Files: index.html (self-contained), report.md, report.json, figures/*.svg and *.png, data/*.csv. The same record
    gives byte-identical files.
    """
    report = search_document(study)
    write_page(out_dir, "search", _content(study), report, render_search_figures(study))
    write_text(out_dir / "data" / "trials.csv", trials_csv(study))
    return report


def _content(study: StudyRecord) -> dict[str, object]:
    confirmed = current_confirmation(study)
    return {
        "study": study,
        "page_title": study.sweep,
        "statements": search_statements(study),
        "confirmation_link": None if confirmed is None else f"../../{quote(confirmed.sweep)}/report/index.html",
        "best_table": best_table(study),
        "no_importance": no_importance(study),
        "trials_table": trials_table(study),
        "tables": [knobs_table(study), provenance_table(study)],
    }


def search_document(study: StudyRecord) -> dict[str, object]:
    """Return study.json with a `sentence` that sums it up; `best` and `default` are complete trials or None."""
    document = asdict(study)
    return {
        "sweep": study.sweep,
        "sentence": search_sentence(study),
        "best": None if study.best_trial is None else asdict(study.best_trial),
        "default": None if study.default_trial is None else asdict(study.default_trial),
        **{name: value for name, value in document.items() if name not in ("sweep", "best")},
    }


def trials_csv(study: StudyRecord) -> str:
    """Return a row for each trial, by number, as recorded: a column for each metric and for each knob."""
    return csv_text([_row(study, trial) for trial in sorted(study.trials, key=lambda trial: trial.number)])


def _row(study: StudyRecord, trial: TrialRecord) -> dict[str, object]:
    return {
        "trial": trial.number,
        "state": trial.state,
        **{one.metric: _cell(one.of(trial)) for one in objectives_of(study)},
        **{name: _cell(trial.params.get(name)) for name in study.knobs},
        "duration_s": _cell(trial.duration_s),
        # Not named after its metric, because an objective may have that name.
        "trained_tokens": _cell(trial.generated_tokens),
        "is_default": int(trial.is_default),
        "same_as": _cell(trial.same_as),
        "flags": " ".join(trial.flags),
        "hash": trial.hash,
        "cells": " ".join(trial.cells),
        "reason": _cell(trial.reason),
    }


def _cell(value: object) -> object:
    if value is None:
        return ""
    return json.dumps(value, sort_keys=True) if isinstance(value, bool | list | dict) else value
