"""The child run of one cell: its resolved spec as parameters, its records as curves, its state as status and tags.

What MLflow shows of a trial of a search: tags on the runs of its cells, or a run of its own if it has no cell, as
its values did not go together or are those of another trial.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from operator import methodcaller
from pathlib import Path
from typing import Any, NamedTuple

from harness.records import CellRecord
from harness.records.study import STUDY, StudyRecord, TrialRecord, read_study
from harness.tracking.client import file_fingerprint, modified_ms
from harness.tracking.run import (
    MAX_PARAM_LENGTH,
    MirroredRun,
    Point,
    flat_params,
    score_points,
    step_points,
    timing_points,
    value_points,
)

STATUS = {
    "pending": "SCHEDULED",
    "running": "RUNNING",
    "done": "FINISHED",
    "failed": "FAILED",
    "invalid": "FAILED",
    "interrupted": "KILLED",
}
_MIRRORED_TAG = "bench.mirrored"


class _Record(NamedTuple):
    """A file of rows. Wall-clock never comes out the same again, so new values there do not mean another training."""

    read: Callable[[CellRecord], list[dict[str, Any]]]
    points: Callable[[dict[str, Any]], Iterator[Point]]
    is_reproducible: bool


_RECORDS = {
    "steps": _Record(methodcaller("read_steps"), step_points, is_reproducible=True),
    "scores": _Record(methodcaller("read_scores"), score_points, is_reproducible=True),
    "timing": _Record(methodcaller("read_timing"), timing_points, is_reproducible=False),
}


class _Extent(NamedTuple):
    """How much of a record is mirrored: its first `n_rows` rows, which have this digest."""

    n_rows: int
    digest: str


def fingerprint(cell: CellRecord) -> list[tuple[int, int] | None]:
    """Changes whenever a record that becomes curves does."""
    paths = {name: cell.path / f"{name}.jsonl" for name in _RECORDS} | {"scores": cell.scores}
    return [file_fingerprint(path) for path in paths.values()]


def sync_cell(
    cell: CellRecord,
    status: dict[str, Any],
    trial_tags: Mapping[str, str],
    run: MirroredRun | None,
    create: Callable[..., MirroredRun],
) -> tuple[MirroredRun, int]:
    """Bring `run` up to date, or the one that is made with `create(name, start_ms, tags)` if there is none or if the
    records are no longer those it shows. trial_tags: what became of its trial; {} outside of a search. Returns the run
    and the number of points sent."""
    rows = {name: record.read(cell) for name, record in _RECORDS.items()}
    is_over = status["state"] in ("done", "failed", "invalid")
    if run is not None and _shows_other_rows(run, rows, is_over):
        run.delete()
        run = None
    if run is None:
        tags = {"bench.cell": cell.path.name, "arm": cell.arm, "seed": str(cell.seed), "hash": cell.hash}
        run = create(f"{cell.arm}-s{cell.seed}", modified_ms(cell.path / "spec.json"), tags)
    if _MIRRORED_TAG not in run.tags:
        run.log_params(flat_params(cell.spec))
        run.log_file(cell.evaluation_folder / "spec.json")

    mirrored = _mirrored(run)
    points: list[Point] = []
    for name, record in _RECORDS.items():
        if len(rows[name]) > mirrored[name].n_rows:
            points += [point for row in rows[name][mirrored[name].n_rows :] for point in record.points(row)]
            mirrored[name] = _Extent(len(rows[name]), _digest(rows[name]))
    run.log_points(points)
    # Last, so that it never speaks of points that were not sent.
    run.set_tags(
        {
            _MIRRORED_TAG: json.dumps(mirrored),
            "state": status["state"],
            "flags": ", ".join(status.get("flags", [])),
            **trial_tags,
        }
    )
    run.set_status(STATUS[status["state"]], modified_ms(cell.evaluation_folder / "status.json"))
    return run, len(points)


def _mirrored(run: MirroredRun) -> dict[str, _Extent]:
    extents = json.loads(run.tags.get(_MIRRORED_TAG, "{}"))
    return {name: _Extent(*extents.get(name, (0, ""))) for name in _RECORDS}


def _shows_other_rows(run: MirroredRun, rows: dict[str, list[dict[str, Any]]], is_over: bool) -> bool:
    """Whether what is mirrored is no longer recorded. Rows that a resume cut off may yet grow back as they were."""
    return any(
        record.is_reproducible
        and (is_over or len(rows[name]) >= extent.n_rows)
        and _digest(rows[name][: extent.n_rows]) != extent.digest
        for name, record in _RECORDS.items()
        if (extent := _mirrored(run)[name]).n_rows
    )


def _digest(rows: list[dict[str, Any]]) -> str:
    return hashlib.blake2b(json.dumps(rows).encode(), digest_size=8).hexdigest()


TRIAL_TAG = "bench.trial"
"""Holds the trial's number on a run that stands for a trial without cells."""
_STATUS = {"running": "RUNNING", "complete": "FINISHED", "pruned": "KILLED", "failed": "FAILED"}


def study_of_search(folder: Path) -> StudyRecord | None:
    """None as long as nothing was written. Raises DamagedRecordError as `read_study`."""
    return read_study(folder) if (folder / STUDY).exists() else None


def has_own_run(trial: TrialRecord) -> bool:
    """One that was only just drawn is about to have cells."""
    return not trial.cells and (trial.state != "running" or trial.same_as is not None)


def trial_tags(trial: TrialRecord) -> dict[str, str]:
    """`trial.state`, which tells a cell that the pruner stopped from one that somebody interrupted, and `trial.reason`;
    `trial.same_as`: the number of the trial whose cells it shares."""
    tags = {
        "trial": str(trial.number),
        "trial.state": trial.state,
        "trial.reason": (trial.reason or "")[:MAX_PARAM_LENGTH],
    }
    return tags if trial.same_as is None else tags | {"trial.same_as": str(trial.same_as)}


def sync_trial(
    trial: TrialRecord,
    objectives: Sequence[str],
    changed_ms: int | None,
    run: MirroredRun | None,
    create: Callable[..., MirroredRun],
) -> tuple[MirroredRun, int]:
    """Bring the run of a trial without cells up to date, or make it with `create(name, start_ms, tags)`. changed_ms:
    when study.json, which keeps no clock, was written. Returns the run and the number of points sent."""
    if run is None:
        run = create(f"trial_{trial.number}", changed_ms, {TRIAL_TAG: str(trial.number)})
    mirrored = hashlib.blake2b(json.dumps(asdict(trial)).encode(), digest_size=8).hexdigest()
    if run.tags.get(_MIRRORED_TAG) == mirrored:
        return run, 0
    points = list(value_points("objective", dict(zip(objectives, trial.values or [], strict=False))))
    run.log_params(flat_params(trial.params))
    run.log_points(points)
    run.set_tags(trial_tags(trial) | {"hash": trial.hash or "", "flags": ", ".join(trial.flags)})
    run.set_status(_STATUS[trial.state], changed_ms)
    # Last, so that it never speaks of what was not sent.
    run.set_tags({_MIRRORED_TAG: mirrored})
    return run, len(points)
