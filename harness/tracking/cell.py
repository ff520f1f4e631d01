"""The child run of a cell: its resolved spec as parameters, its records as curves, its state as status and tags.

A trial of a search is shown as tags on the runs of its cells. A trial without cells has a separate run: its values
contradict each other, or are those of another trial.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from harness.records import CellRecord
from harness.records.rows import EvaluationRow, ScoreRow, Start, Status
from harness.records.study import TrialRecord
from harness.records.sweep import ENDED
from harness.records.tables import read_parquet
from harness.tracking.client import file_fingerprint, modified_ms
from harness.tracking.curves import Curves, TimedRow, joined, row_curves, score_curves, value_curves
from harness.tracking.run import (
    MAX_PARAM_LENGTH,
    TABLES_TAG,
    MirroredRun,
    completions_table,
    flat_params,
)

if TYPE_CHECKING:
    import pyarrow
    from mlflow.entities import DatasetInput

STATUS = {
    "pending": "SCHEDULED",
    "running": "RUNNING",
    "done": "FINISHED",
    "failed": "FAILED",
    "invalid": "FAILED",
    "interrupted": "KILLED",
    "damaged": "FAILED",
}
_MIRRORED_TAG = "bench.mirrored"
_SENDING_TAG = "bench.sending"


class _Record(NamedTuple):
    curves: Callable[[Sequence[TimedRow]], Curves]
    is_reproducible: bool
    """True if a resumed cell records the same values again. Times never repeat, so new times do not mean new training.
    """


_RECORDS = {
    "base": _Record(score_curves, is_reproducible=True),
    "steps": _Record(partial(row_curves, "train/"), is_reproducible=True),
    "scores": _Record(score_curves, is_reproducible=True),
    "timing": _Record(partial(row_curves, "time/"), is_reproducible=False),
}
_FILES = ("steps.jsonl", "timing.jsonl", "starts.jsonl")


class _Extent(NamedTuple):
    """The part of a record that is mirrored or being sent: the number of its first rows, and their digest."""

    n_rows: int
    digest: str


def fingerprint(cell: CellRecord) -> list[tuple[int, int] | None]:
    """Return a value that changes whenever a record with curves changes."""
    return [file_fingerprint(path) for path in (*(cell.path / name for name in _FILES), cell.scores)]


@dataclass(frozen=True)
class CellView:
    """The parts of a cell that MLflow shows in addition to its records."""

    cell: CellRecord
    status: Status
    trial_tags: Mapping[str, str]
    """The tags of the cell's trial; empty if the sweep is not a search."""
    base_scores: Sequence[EvaluationRow]
    """The scores of the model from which the cell starts, as in scores.jsonl."""
    inputs: Sequence[DatasetInput]
    sweep_tags: Mapping[str, str]

    @property
    def is_over(self) -> bool:
        return self.status["state"] in ENDED

    def rows(self, start_ms: int) -> dict[str, list[TimedRow]]:
        """Return the rows of each record with their times.

        start_ms: when the cell began, if the records do not say so.
        A score is left out until the next row of timing.jsonl, which contains its time, is written.
        """
        cell = self.cell
        steps, scores, timing = cell.read_steps(), cell.read_scores(), cell.read_timing()
        ends = {key: round(1000 * end_s) for key, end_s in cell.read_ends().items()}
        begins_ms = [round(1000 * begin_s) for begin_s in cell.read_begins()] or [start_ms]
        first_ms, last_ms = begins_ms[0], begins_ms[-1]
        timed = [(row["step"], "eval_s" in row) for row in timing]
        last_timed = max(timed, default=(-1, False))

        def scored_ms(row: ScoreRow) -> int:
            # A later evaluation of the cell begins after everything that the cell's clock covers.
            return last_ms if row["final"] and cell.evaluation is not None else ends.get((row["step"], True), first_ms)

        def is_timed(row: ScoreRow) -> bool:
            return self.is_over or cell.evaluation is not None or (row["step"], True) <= last_timed

        # MLflow draws a curve over tokens by matching steps. With this point, the curve begins with the model before
        # training.
        start = [{"step": 0, "generated_tokens": 0}] if steps and "generated_tokens" in steps[0] else []
        return {
            "base": [TimedRow(row, first_ms) for row in self.base_scores],
            "steps": [TimedRow(row, ends.get((row["step"], False), first_ms)) for row in [*start, *steps]],
            "scores": [TimedRow(row, scored_ms(row)) for row in takewhile(is_timed, scores)],
            "timing": [TimedRow(row, ends.get(key, first_ms)) for key, row in zip(timed, timing, strict=True)],
        }


@dataclass(frozen=True)
class News:
    """The points of a cell's rows that are not mirrored yet."""

    extents: dict[str, _Extent]
    """For each record, the part that will be mirrored once the points are sent."""
    sending: dict[str, _Extent]
    """For each record, the rows to which the points belong."""
    points: Curves

    @classmethod
    def of(cls, rows: dict[str, list[TimedRow]], tags: Mapping[str, str]) -> News:
        """Return the news in a cell's rows. tags: the tags of the cell's run, which say what is mirrored."""
        mirrored = _extents(tags, _MIRRORED_TAG)
        new = {name: rows[name][mirrored[name].n_rows :] for name in _RECORDS}
        extents, sending = dict(mirrored), {}
        for name in (name for name in _RECORDS if new[name]):
            texts, n_rows = _texts(rows[name]), len(rows[name])
            extents[name] = _Extent(n_rows, _digest(texts))
            sending[name] = _Extent(n_rows, _digest(_timed_texts(texts[mirrored[name].n_rows :], new[name])))
        return cls(extents, sending, joined(record.curves(new[name]) for name, record in _RECORDS.items()))


def begin_cell(view: CellView, run: MirroredRun | None, create: Callable[..., MirroredRun]) -> tuple[MirroredRun, News]:
    """Prepare the run of a cell for its new points. Return the run and the new points.

    The run is created with `create(name, start_ms, tags)` if there is none, or if it shows rows that are no longer
    recorded. Raises DamagedRecordError.
    """
    cell = view.cell
    rows = view.rows(began_ms(cell) if run is None else run.start_ms)
    if run is not None and _shows_other_rows(run, rows, view.is_over):
        run.delete()
        run = None
    news = News.of(rows, {} if run is None else run.tags)
    if run is None:
        identity = {"bench.cell": cell.path.name, "arm": cell.arm, "seed": str(cell.seed), "hash": cell.hash}
        run = create(f"{cell.arm}-s{cell.seed}", began_ms(cell), {**identity, **view.sweep_tags})
    if _MIRRORED_TAG not in run.tags:
        # The file is sent first, because to find the folder of a run's files, MLflow reads all its parameters.
        run.log_file(cell.evaluation_folder / "spec.json")
        run.log_params(flat_params(cell.spec))
        run.log_inputs(view.inputs)
    if view.status["state"] == "done" and TABLES_TAG not in run.tags and cell.evals.exists():
        run.log_table("completions.json", completions_table(first_samples(cell.evals), cell.read_problems()))
    if news.sending:
        # If this process is killed before the end, the next process can tell from this that it sends the same points
        # again.
        run.set_tags({_SENDING_TAG: json.dumps(news.sending)})
    return run, news


def end_cell(view: CellView, news: News, run: MirroredRun) -> None:
    """Record in the run what it contains, once the new points are sent."""
    cell = view.cell
    run.set_tags(
        {
            _MIRRORED_TAG: json.dumps(news.extents),
            _SENDING_TAG: "",
            "state": view.status["state"],
            "flags": ", ".join(view.status.get("flags", [])),
            **commit_tag(cell.read_starts()),
            **view.trial_tags,
        }
    )
    run.set_status(STATUS[view.status["state"]], ended_ms(cell))


def began_ms(cell: CellRecord) -> int:
    """Return when the cell's first start began, in Unix milliseconds. Before that, return when its spec was written."""
    begins_s = cell.read_begins()
    return round(1000 * begins_s[0]) if begins_s else modified_ms(cell.evaluation_folder / "spec.json") or 0


def ended_ms(cell: CellRecord) -> int | None:
    """Return when the last recorded step or evaluation of a cell ended, in Unix milliseconds.

    If there is none, return when the cell's state was written, or None if it has no state yet.
    """
    last_s = cell.read_begins()[-1:] if cell.evaluation is not None else []
    ends_s = [*cell.read_ends().values(), *last_s]
    return round(1000 * max(ends_s)) if ends_s else modified_ms(cell.evaluation_folder / "status.json")


def commit_tag(starts: Sequence[Start]) -> dict[str, str]:
    """Return a tag with the last commit in rows of starts.jsonl, or {} if they name none."""
    commits = [commit for start in starts if (commit := start.get("commit"))]
    return {"mlflow.source.git.commit": commits[-1]} if commits else {}


def first_samples(path: Path) -> pyarrow.Table:
    """Return the first sample of each problem in each evaluation of an evals.parquet."""
    from pyarrow.compute import field

    columns = ["final", "task", "problem_id", "sample", "text", "n_tokens", "truncated", "extracted", "correct"]
    return read_parquet(path, columns, field("sample") == 0)


def _extents(tags: Mapping[str, str], tag: str) -> dict[str, _Extent]:
    extents = json.loads(tags.get(tag) or "{}")
    return {name: _Extent(*extents.get(name, (0, ""))) for name in _RECORDS}


def _shows_other_rows(run: MirroredRun, rows: dict[str, list[TimedRow]], is_over: bool) -> bool:
    """Return whether the run shows rows that are no longer recorded.

    Rows that a resume removed may be recorded again with equal values. The same is true of rows that were being sent
    when the process was killed, but then their times differ, and MLflow would treat them as further points.
    """
    mirrored = _extents(run.tags, _MIRRORED_TAG)
    # As long as the cell runs, rows that a resume removed may return, so missing rows prove nothing yet.
    is_other = any(
        record.is_reproducible
        and (is_over or len(rows[name]) >= extent.n_rows)
        and _digest(_texts(rows[name][: extent.n_rows])) != extent.digest
        for name, record in _RECORDS.items()
        if (extent := mirrored[name]).n_rows
    )
    is_sent_otherwise = any(
        _digest(_timed_texts(_texts(sent), sent)) != extent.digest
        for name, extent in _extents(run.tags, _SENDING_TAG).items()
        if extent.n_rows
        for sent in [rows[name][mirrored[name].n_rows : extent.n_rows]]
    )
    return is_other or is_sent_otherwise


def _texts(rows: Sequence[TimedRow]) -> list[str]:
    return [json.dumps(row.values) for row in rows]


def _timed_texts(texts: Sequence[str], rows: Sequence[TimedRow]) -> list[str]:
    return [f"[{text}, {row.at_ms}]" for text, row in zip(texts, rows, strict=True)]


def _digest(texts: Sequence[str]) -> str:
    return hashlib.blake2b(f"[{', '.join(texts)}]".encode(), digest_size=8).hexdigest()


TRIAL_TAG = "bench.trial"
"""On the run of a trial without cells: the number of the trial."""
_STATUS = {"running": "RUNNING", "complete": "FINISHED", "pruned": "KILLED", "failed": "FAILED"}


def has_own_run(trial: TrialRecord) -> bool:
    """Return whether a trial has its own run: it has no cells, and will not get any."""
    return not trial.cells and (trial.state != "running" or trial.same_as is not None)


def trial_tags(trial: TrialRecord) -> dict[str, str]:
    """Return the tags of a trial for the runs of its cells.

    `trial.state` and `trial.reason` distinguish a cell that the pruner stopped from one that a user interrupted.
    `trial.same_as` is the number of the trial whose cells this trial shares.
    """
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
    """Update the run of a trial without cells. Return the run and the number of points sent.

    If the run does not exist, it is created with `create(name, start_ms, tags)`.
    changed_ms: when study.json was written, which contains no times.
    """
    if run is None:
        run = create(f"trial_{trial.number}", changed_ms, {TRIAL_TAG: str(trial.number)})
    mirrored = hashlib.blake2b(json.dumps(asdict(trial)).encode(), digest_size=8).hexdigest()
    if run.tags.get(_MIRRORED_TAG) == mirrored:
        return run, 0
    points = value_curves("objective/", dict(zip(objectives, trial.values or [], strict=False)), run.start_ms)
    run.log_params(flat_params(trial.params))
    run.log_points(points)
    run.set_tags(trial_tags(trial) | {"hash": trial.hash or "", "flags": ", ".join(trial.flags)})
    run.set_status(_STATUS[trial.state], changed_ms)
    # The tag is set last, so that it never claims points that were not sent.
    run.set_tags({_MIRRORED_TAG: mirrored})
    return run, len(points)
