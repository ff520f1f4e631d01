"""The contents of report.json and of data/trials.csv."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from harness.records.study import StudyRecord, TrialRecord
from reports.csv_text import csv_text
from reports.search.objectives import objectives_of
from reports.search.sentences import search_sentence


def search_document(study: StudyRecord) -> dict[str, Any]:
    """study.json with its conclusions: `sentence`, and `best` and `default` as whole trials (or None)."""
    document = asdict(study)
    return {
        "sweep": study.sweep,
        "sentence": search_sentence(study),
        "best": None if study.best_trial is None else asdict(study.best_trial),
        "default": None if study.default_trial is None else asdict(study.default_trial),
        **{name: value for name, value in document.items() if name not in ("sweep", "best")},
    }


def trials_csv(study: StudyRecord) -> str:
    """A row for each trial, by number: values under their metrics, knobs under their names, as recorded."""
    return csv_text([_row(study, trial) for trial in sorted(study.trials, key=lambda trial: trial.number)])


def _row(study: StudyRecord, trial: TrialRecord) -> dict[str, Any]:
    return {
        "trial": trial.number,
        "state": trial.state,
        **{one.metric: _cell(one.of(trial)) for one in objectives_of(study)},
        **{name: _cell(trial.params.get(name)) for name in study.knobs},
        "duration_s": _cell(trial.duration_s),
        # Not under the metric's name, which may be that of an objective.
        "trained_tokens": _cell(trial.generated_tokens),
        "is_default": int(trial.is_default),
        "same_as": _cell(trial.same_as),
        "flags": " ".join(trial.flags),
        "hash": trial.hash,
        "cells": " ".join(trial.cells),
        "reason": _cell(trial.reason),
    }


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    return json.dumps(value, sort_keys=True) if isinstance(value, bool | list | dict) else value
