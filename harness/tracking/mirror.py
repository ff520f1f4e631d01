"""Bring MLflow up to date with the records of a sweep. `bench run` does so every few seconds, `bench sync` once.

 experiment   the sweep's name
 parent run   the question (tag `bench.question_id`) and its answer; artifacts: the report
 child run    a cell (tag `bench.cell`); parameters: its resolved spec; curves: its steps, timing and scores. In a
              search also a trial without cells (tag `bench.trial`); parameters: its values of the searched knobs

The progress of the mirror is stored only in MLflow. The tag `bench.mirrored` of a child run contains, for each record,
the number of mirrored rows and their digest. It is written after their points, and `bench.sending` before them. Sending
a point again adds no second point (see `MirroredRun.log_points`). So no point is lost or duplicated:

 killed between points and tag        the points are sent again, which has no effect. If a resume has rewritten their
                                      rows with new times, the run is moved to MLflow's bin and the cell gets a new run
 mlflow.db deleted, server replaced   there is no tag, so everything is sent
 a resume removed the last rows       nothing is sent until as many rows are recorded again. If they are equal, as
                                      promised on a CPU, mirroring continues. If not, the run shows rows that are no
                                      longer recorded: it is moved to MLflow's bin and the cell gets a new run
 two processes mirror one sweep       they take turns, and each checks what the other has done

A state file next to the records would be wrong if MLflow's database were replaced or deleted.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from harness.errors import BenchError
from harness.records import CellRecord, SweepRecord, read_sweep
from harness.records.counted import stand as stand_of
from harness.records.files import DamagedRecordError
from harness.records.study import STUDY, StudyRecord, read_study
from harness.tracking.cell import (
    STATUS,
    TRIAL_TAG,
    CellView,
    News,
    begin_cell,
    end_cell,
    ended_ms,
    fingerprint,
    has_own_run,
    sync_trial,
    trial_tags,
)
from harness.tracking.client import (
    address,
    connect,
    experiment_id,
    experiment_of_run,
    file_fingerprint,
    modified_ms,
    talking_to_mlflow,
)
from harness.tracking.curves import count_points
from harness.tracking.question import (
    QUESTION_TAG,
    create_question,
    inputs_of,
    question_id,
    report_files,
    sweep_tags,
    sync_question,
    sync_report,
)
from harness.tracking.run import MirroredRun, log_points

if TYPE_CHECKING:
    from mlflow import MlflowClient

# The parent run has the first of these states that one of its cells has.
_PARENT_STATUS = ("RUNNING", "KILLED", "FAILED", "SCHEDULED", "FINISHED")
_POINTS_TOGETHER = 250_000
"""The points of cells that are written in one transaction. It takes seconds, in which nobody else can write to SQLite.
"""
_STAND_TAG = "bench.stand"
"""A tag of the parent run: the stand of the records when all of them were mirrored."""


@dataclass
class _Session:
    """The state of one question in MLflow, as far as this process knows it."""

    question_id: str
    client: MlflowClient
    experiment_id: str
    parent: MirroredRun
    children: dict[str, MirroredRun]
    """The runs of cells by folder name, and those of trials without cells by number."""
    seen: dict[str, object] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)
    """Descriptions of the damaged cells, which cannot be mirrored. All other cells are."""


class Mirror:
    """The mirror of the sweep in `sweep_dir` (`<home>/<sweep>`). Only one thread may use it at a time."""

    def __init__(self, sweep_dir: Path, tracking_uri: str) -> None:
        self.sweep_dir = sweep_dir
        self.tracking_uri = tracking_uri
        self._writer_id = uuid.uuid4().hex
        self._session: _Session | None = None
        self.address: str | None = None
        """The address for a browser; None before the first sync."""

    def sync(self) -> int:
        """Send everything that is new, and return the number of points sent.

        Raises MirrorError if MLflow cannot be reached or refuses, and FileNotFoundError if the sweep was never run. If
        the records of cells are damaged, everything else is sent before it raises DamagedRecordError.
        """
        sweep = read_sweep(self.sweep_dir)
        # A search that has just begun has no study.json yet.
        is_studied = sweep.is_search and (self.sweep_dir / STUDY).exists()
        study = read_study(self.sweep_dir) if is_studied else None
        asked, stand = question_id(sweep), _stand(sweep)
        tags = {QUESTION_TAG: asked, _STAND_TAG: stand}
        # If the records have not changed since the last complete sync, MLflow need not be imported.
        if (experiment := experiment_of_run(self.tracking_uri, self.sweep_dir.parent, tags)) is not None:
            self.address = address(self.tracking_uri, experiment)
            return 0
        session, self._session = self._session, None  # after an error nothing is taken for known
        with talking_to_mlflow(self.tracking_uri), self._turn() as was_last_writer:
            if session is None or session.question_id != asked or not was_last_writer:
                session = self._open(sweep, asked)
            n_points = sync_question(session.parent, sweep, study)
            n_points += _sync_cells(session, sweep, study)
            if study is not None:
                n_points += _sync_trials(session, study, modified_ms(self.sweep_dir / STUDY))
            n_points += _sync_report(session, sweep.path / "report")
            if not session.damaged:
                session.parent.set_tags({_STAND_TAG: stand})
        self._session = session
        self.address = address(self.tracking_uri, session.experiment_id)
        if session.damaged:
            raise DamagedRecordError("\n".join(session.damaged))
        return n_points

    @contextmanager
    def _turn(self) -> Iterator[bool]:
        """Be the only writer in this block. Yields whether no other process has written since this one's last turn."""
        with (self.sweep_dir / ".mlflow.lock").open("a+", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            lock.seek(0)
            was_last_writer = lock.read() == self._writer_id
            lock.truncate(0)
            lock.write(self._writer_id)
            lock.flush()
            yield was_last_writer

    def _open(self, sweep: SweepRecord, asked: str) -> _Session:
        """Find the runs of the question in MLflow. Create the experiment and the parent run if they are missing."""
        client = connect(self.tracking_uri, self.sweep_dir.parent)
        experiment = experiment_id(client, self.tracking_uri, sweep.name, self.sweep_dir.parent)
        parents = MirroredRun.find(client, experiment, QUESTION_TAG, asked)
        parent = parents[0] if parents else create_question(client, experiment, sweep)
        children = MirroredRun.find(client, experiment, "mlflow.parentRunId", parent.run_id)
        by_name = {run.tags[tag]: run for run in children for tag in ("bench.cell", TRIAL_TAG) if tag in run.tags}
        _end_other_questions(client, experiment, sweep, parent)
        return _Session(asked, client, experiment, parent, by_name)


def _stand(sweep: SweepRecord) -> str:
    """Return a digest that changes with everything that is mirrored."""
    content = [sweep.stand(), stand_of(sweep.path / "report"), file_fingerprint(sweep.path / STUDY)]
    return hashlib.blake2b(repr(content).encode(), digest_size=16).hexdigest()


def _end_other_questions(client: MlflowClient, experiment: str, sweep: SweepRecord, parent: MirroredRun) -> None:
    """End the runs of earlier questions of the sweep that MLflow still shows as running.

    The process that ran them was stopped before it could end them.
    """
    for run in MirroredRun.search(client, experiment, "attributes.status = 'RUNNING'"):
        if parent.run_id not in (run.run_id, run.tags.get("mlflow.parentRunId")):
            folder = sweep.path / "cells" / run.tags.get("bench.cell", "")
            state = CellRecord.at(folder).state if "bench.cell" in run.tags and folder.exists() else "interrupted"
            run.set_status(STATUS[state], modified_ms(folder / "status.json"))


def _sync_cells(session: _Session, sweep: SweepRecord, study: StudyRecord | None) -> int:
    n_points = 0
    statuses = {cell.path: cell.read_status() for cell in sweep.cells}
    trials = {name: trial for trial in study.trials for name in trial.cells} if study is not None else {}
    session.damaged = []
    create = partial(_create_child, session)
    waiting: list[tuple[str, MlflowClient, CellView, News]] = []

    def send() -> int:
        """Send the pending points, and then record in each run what it contains. Return the number of points."""
        sent = log_points(session.client, {session.children[name].run_id: news.points for name, *_, news in waiting})
        for name, now, view, news in waiting:
            try:
                end_cell(view, news, session.children[name])
            except DamagedRecordError as error:
                session.damaged.append(str(error))
            else:
                session.seen[name] = now
        waiting.clear()
        return sent

    for cell in sweep.cells:
        # The status was read before the records. The next sync will see a row that is written in between.
        name, status = cell.path.name, statuses[cell.path]
        tags = trial_tags(trials[name]) if name in trials else {}
        base_scores = [] if sweep.checkpoint is not None else sweep.base_scores_of(cell.arm)
        now = (status, fingerprint(cell), tags, len(base_scores))
        if session.seen.get(name) == now or not (cell.evaluation_folder / "spec.json").exists():
            continue
        if status["state"] == "damaged":
            session.damaged.append(status.get("reason") or "")
            continue
        view = CellView(cell, status, tags, base_scores, inputs_of(sweep, cell), sweep_tags(sweep))
        try:
            session.children[name], news = begin_cell(view, session.children.get(name), create)
        except DamagedRecordError as error:
            session.damaged.append(str(error))
            continue
        waiting.append((name, now, view, news))
        if sum(count_points(each.points) for *_, each in waiting) >= _POINTS_TOGETHER:
            n_points += send()
    n_points += send()
    ended = [] if study is None else [trial for trial in study.trials if trial.state != "running"]
    cells_of_ended = {name for trial in ended for name in trial.cells}
    present = {_counts_as(status["state"], path.name in cells_of_ended) for path, status in statuses.items()}
    present |= {"FINISHED" for trial in ended if not trial.cells}
    first = min(present, key=_PARENT_STATUS.index, default=session.parent.status)  # a search begins without trials
    if first != session.parent.status:
        ends_ms = [end_ms for cell in sweep.cells if (end_ms := ended_ms(cell))]
        session.parent.set_status(first, max(ends_ms, default=None))
    return n_points


def _counts_as(state: str, trial_has_ended: bool) -> str:
    """Return the state in which a cell counts for the parent run.

    Once its trial has ended in any way, the cell counts as a result.
    """
    return "FINISHED" if trial_has_ended and state != "running" else STATUS[state]


def _sync_trials(session: _Session, study: StudyRecord, changed_ms: int | None) -> int:
    n_points = 0
    objectives = [objective.metric for objective in study.objectives]
    for trial in filter(has_own_run, study.trials):
        name = str(trial.number)
        if session.seen.get(name) == trial:
            continue
        create = partial(_create_child, session)
        run = session.children.get(name)
        session.children[name], n_sent = sync_trial(trial, objectives, changed_ms, run, create)
        session.seen[name] = trial
        n_points += n_sent
    return n_points


def _create_child(session: _Session, name: str, start_ms: int | None, tags: dict[str, str]) -> MirroredRun:
    tags = tags | {"mlflow.parentRunId": session.parent.run_id}
    return MirroredRun.create(session.client, session.experiment_id, name, start_ms, tags)


def _sync_report(session: _Session, folder: Path) -> int:
    now = [(path, file_fingerprint(path)) for path in report_files(folder)]
    if session.seen.get("report") == now:
        return 0
    n_points = sync_report(session.parent, folder)
    session.seen["report"] = now
    return n_points


_log = logging.getLogger(__name__)


class MirrorThread:
    """`with MirrorThread(mirror): ...` syncs every `interval_s` seconds, and once more at the end.

    If the server is unreachable or slow, only the mirror is delayed: there is one warning, and each sync tries again.
    Leaving the block waits for the last sync, at most `patience_s`, or `HURRY_S` if an error such as Ctrl-C ends the
    sweep.
    """

    HURRY_S = 5.0

    def __init__(self, mirror: Mirror, interval_s: float = 5.0, patience_s: float = 30.0) -> None:
        self._mirror = mirror
        self._interval_s = interval_s
        self._patience_s = patience_s
        self._leaving = threading.Event()
        self._warned = False
        # This is a daemon thread, because a server that does not answer must not keep the process alive.
        self._thread = threading.Thread(target=self._tail, name="mlflow-mirror", daemon=True)

    def __enter__(self) -> MirrorThread:
        self._thread.start()
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        patience_s = self._patience_s if error is None else min(self._patience_s, self.HURRY_S)
        self._leaving.set()
        self._thread.join(patience_s)
        if self._thread.is_alive():
            self._warn(f"MLflow took more than {patience_s:g} s; `bench sync` does the rest. The records are complete.")

    def _tail(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._leaving.wait(self._interval_s)
            try:
                self._mirror.sync()
            except BenchError as error:
                self._warn(str(error))

    def _warn(self, message: str) -> None:
        if not self._warned:
            self._warned = True
            _log.warning(message)
