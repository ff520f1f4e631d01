"""What MLflow is told of a trial of a search: tags on the runs of its cells, or a run of its own if it has no cell, as
its values did not go together or are those of another trial."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from harness.records.study import STUDY, StudyRecord, TrialRecord, read_study
from harness.tracking.points import MAX_PARAM_LENGTH, flat_params, value_points
from harness.tracking.run import MirroredRun

TRIAL_TAG = "bench.trial"
"""Of a run that stands for a trial without cells: its number."""
_MIRRORED_TAG = "bench.mirrored"
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
