"""The folder of one cell: the path of each record, and functions that read it. Layout: docs/reference/records.md.

Each launch of a cell, called a start, has a number (its epoch) and a row in starts.jsonl: who launched it, where, and
from which step it continued.

Rows of steps, scores, timing and samples carry the epoch of the start that wrote them. If a later start repeated a
step, readers drop the earlier rows of that step. An owner that was taken for dead may also append one more row when it
wakes up (see `harness.records.fence`). If two starts wrote the same row, readers keep the row of the later start.

A cell is evaluated once as part of its run. Each further evaluation of the trained cell has its own folder,
evaluations/<hash>/, with the same files: spec.json, status.json, starts.jsonl, scores.jsonl, evals.parquet and
problems.jsonl.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, get_args

from harness.records.counted import Counted, count, is_counted, shortfall, size_shortfall
from harness.records.embeddings import EmbeddedToken, read_embeddings
from harness.records.files import (
    PROBLEMS_FILE,
    DamagedRecordError,
    ProblemRow,
    read_jsonl,
    read_last_row,
    read_object,
    read_problems,
    typed_rows,
    types_of_fields,
    write_json,
)
from harness.records.lease import is_leased
from harness.records.rollouts import read_rollouts, rollout_files
from harness.records.rows import CellState, ScoreRow, Start, Status, TimingRow
from harness.records.schema import SCHEMA, OtherVersionError, require_schema
from harness.records.scores import read_scores
from harness.records.tables import read_columns, read_parquet
from harness.secrets import redact

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.compute

_DIRECTORY = re.compile(r"(?P<arm>.+)-s(?P<seed>\d+)-(?P<hash>[0-9a-f]{10})")
RowOfStep = TypeVar("RowOfStep")
_TELLS_ROWS = ("task", "final")
"""The fields that, together with the step, identify a row."""
_START = ("epoch", "from_step", "owner", "time", "registered")
"""The fields of a start that are not provenance."""
_CHECKED_APART = ("state", "schema")
"""The fields of a status that need more than a check of their type."""
EVALUATIONS = "evaluations"
EVALUATION_FILE = "evaluation.json"
STARTS_FILE = "starts.jsonl"
EMBEDDINGS_FILE = "embeddings.jsonl"
_COUNTED = (STARTS_FILE, "steps.jsonl", "timing.jsonl", "scores.jsonl", PROBLEMS_FILE, "rollouts")
"""The files and folders whose size and checksum a checkpoint records."""


def cell_directory_name(arm: str, seed: int, training_hash: str) -> str:
    """Return the name of a cell's folder, `<arm>-s<seed>-<hash10>`."""
    return f"{arm}-s{seed}-{training_hash[:10]}"


def status_in(folder: Path) -> Status:
    """Return the status in a folder. Its state is `damaged` if status.json or a record that it counts is damaged."""
    status, fault = checked_status(folder)
    return status if fault is None else {**status, "state": "damaged", "reason": fault}


def checked_status(folder: Path) -> tuple[Status, str | None]:
    """Return the status of a cell or evaluation and a description of its damage, or None if it is intact.

    It is damaged if status.json is invalid, or if a file is smaller than it was when the cell was done. Only sizes are
    compared, because the state is read often; `require_whole` also compares checksums.
    """
    path = folder / "status.json"
    try:
        written: dict[str, object] = read_object(path) if path.exists() else {"schema": SCHEMA, "state": "pending"}
        require_schema(path, written)
    except (DamagedRecordError, OtherVersionError, OSError) as error:
        return {"state": "damaged"}, str(error)
    kinds = {name: kinds for name, kinds in types_of_fields(Status).items() if name not in _CHECKED_APART}
    wrong = [name for name, kind in kinds.items() if name in written and not isinstance(written[name], kind)]
    if written.get("state") not in get_args(CellState):
        wrong.insert(0, "state")
    status = cast(Status, written)
    if "records" not in wrong and not is_counted(status.get("records", {})):
        wrong.append("records")
    if wrong:
        fault = f"{path}: is damaged (lacks {', '.join(wrong)}, or holds something else there)"
        return {"state": "damaged"}, with_remedy(fault, folder)
    counted: Counted = status.get("records", {}) if status["state"] == "done" else {}
    faults = (size_shortfall(folder / name, there) for name, there in counted.items())
    short = next(filter(None, faults), None)
    return status, None if short is None else with_remedy(short, folder)


def with_remedy(fault: str, folder: Path) -> str:
    return f"{fault}. Restore it, or move {folder} away and run the sweep again."


def write_status(folder: Path, state: CellState, **fields: object) -> None:
    """Replace status.json in the folder of a cell or an evaluation. Earlier fields that are not passed are kept."""
    path = folder / "status.json"
    earlier = read_object(path) if path.exists() else {}
    write_json(path, {"schema": SCHEMA} | earlier | {"state": state, "reason": None} | fields)


def read_starts(folder: Path) -> list[Start]:
    """Return the rows of starts.jsonl, except those written after a later start by an owner that was taken for dead.

    Raises DamagedRecordError if the file is damaged.
    """
    rows: list[Start] = []
    path = folder / STARTS_FILE
    for row in typed_rows(path, read_jsonl(path), Start):
        # Epochs must grow. A row whose epoch does not comes from an owner that was taken for dead and woke up late.
        if not rows or row["epoch"] > rows[-1]["epoch"]:
            rows.append(row)
    return rows


def begins_s(starts: Sequence[Start], path: Path) -> list[float]:
    """Return the time at which each start began, in Unix seconds. Imported starts may lack a time and are left out.

    Raises DamagedRecordError, naming the file, if a time cannot be parsed.
    """
    try:
        return [datetime.fromisoformat(start["time"]).timestamp() for start in starts if "time" in start]
    except (TypeError, ValueError) as error:
        raise DamagedRecordError("records.start_damaged", path=path, error=error) from None


def is_cell_directory_name(name: str) -> bool:
    """Return whether a folder's name has the form `<arm>-s<seed>-<hash10>`."""
    return _DIRECTORY.fullmatch(name) is not None


@dataclass(frozen=True)
class CellRecord:
    """One cell on disk, identified by `arm`, `seed` and `hash`. Its state and results are read from disk each time."""

    path: Path
    arm: str
    seed: int
    hash: str
    evaluation: str | None = None
    """The folder under `evaluations` from which samples, scores and state are read. None stands for the evaluation that
    was part of the cell's run.
    """
    fault: str | None = None
    """A description of the damage that a reader of this cell's records met, or None."""
    seen: Status | None = field(default=None, repr=False, compare=False)
    """A status to use instead of reading it from disk."""

    @classmethod
    def at(cls, path: Path) -> CellRecord:
        """Return the cell in a folder named `<arm>-s<seed>-<hash10>`; raise ValueError for any other name."""
        match = _DIRECTORY.fullmatch(path.name)
        if match is None:
            raise ValueError(f"{path} is not a cell: cells are named <arm>-s<seed>-<hash10>.")
        return cls(path, match["arm"], int(match["seed"]), match["hash"])

    @property
    def own(self) -> CellRecord:
        """The same cell, read under the evaluation that was part of its run."""
        return self if self.evaluation is None else replace(self, evaluation=None, seen=None)

    @property
    def as_it_stands(self) -> CellRecord:
        """The same cell with its present status cached, for a reader that needs the status repeatedly."""
        return replace(self, seen=self.read_status())

    @property
    def evaluation_folder(self) -> Path:
        return self.path if self.evaluation is None else self.path / EVALUATIONS / self.evaluation

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def rollouts(self) -> Path:
        return self.path / "rollouts"

    @property
    def evals(self) -> Path:
        return self.evaluation_folder / "evals.parquet"

    @property
    def scores(self) -> Path:
        return self.evaluation_folder / "scores.jsonl"

    @property
    def log(self) -> Path:
        return self.path / "log.txt"

    def add_to_log(self, text: str) -> None:
        """Append a text to log.txt, with secrets redacted."""
        with self.log.open("a", encoding="utf-8") as handle:
            handle.write(redact(text))

    def read_status(self) -> Status:
        """Return status.json, or the status of a pending cell if the file does not exist.

        `state` is `running` exactly while the lease is alive. It is `damaged` if status.json is invalid, or if a
        finished cell lacks some of its records. If a trained cell is read under another evaluation, `state` and
        `reason` are those of that evaluation.
        """
        if self.seen is not None:
            return self._with_fault(self.seen)
        status = self._written_status()
        # The lease decides: a killed process may have left any state in status.json.
        is_running = self.fault is None and is_leased(self.path)
        return {**status, "state": "running", "reason": None} if is_running else status

    def _written_status(self) -> Status:
        """Return the status that the files state, without checking the lease."""
        status = status_in(self.path)
        if self.fault is not None or self.evaluation is None or status["state"] != "done":
            return self._with_fault(status)
        # Training is done, so the state of the evaluation is the state of the cell.
        evaluated = status_in(self.evaluation_folder)
        if "digest" in evaluated:  # the digest of its answers
            status = {**status, "digest": evaluated["digest"]}
        return {**status, "state": evaluated["state"], "reason": evaluated.get("reason")}

    def _with_fault(self, status: Status) -> Status:
        return status if self.fault is None else {**status, "state": "damaged", "reason": self.fault}

    def is_named_in(self, error: DamagedRecordError) -> bool:
        """Return whether the error is about this cell, unless the cell was already known to be damaged."""
        # The slash keeps a cell from matching another whose name begins the same.
        return self.fault is None and f"{self.path}/" in str(error)

    def require_readable(self) -> None:
        """Raise DamagedRecordError if the status is damaged, or if a file of a finished cell is too small."""
        if fault := self.fault or checked_status(self.path)[1] or checked_status(self.evaluation_folder)[1]:
            raise DamagedRecordError(fault)

    def require_whole(self) -> None:
        """Raise DamagedRecordError unless every record that a finished cell counted is intact, byte for byte."""
        for folder in dict.fromkeys((self.path, self.evaluation_folder)):
            for name, there in status_in(folder).get("records", {}).items():
                if (fault := shortfall(folder / name, there)) is not None:
                    raise DamagedRecordError(with_remedy(fault, folder))

    def count(self, *also: str) -> Counted:
        """Return the extents of the evaluation's row files, the rollouts and the files named in `also`."""
        return count(self.evaluation_folder, [*_COUNTED, *also])

    def count_finished(self) -> Counted:
        """Return the extents of a finished cell's or evaluation's files, including its samples and embeddings."""
        return self.count(self.evals.name, EVALUATION_FILE, EMBEDDINGS_FILE)

    def shortfall(self, counted: Counted) -> str | None:
        """Describe the first of the counted files that is incomplete, or return None if all are complete.

        A file that was moved to the folder of another evaluation counts as present.
        """
        for name, there in counted.items():
            places = [self.path / name, *self.path.glob(f"{EVALUATIONS}/*/{name}")]
            faults = [shortfall(path, there) for path in places]
            if all(faults):
                return faults[0]
        return None

    def write_status(self, state: CellState, **fields: object) -> None:
        """Replace status.json of the cell or of its other evaluation. Earlier fields that are not passed are kept."""
        write_status(self.evaluation_folder, state, **fields)

    @property
    def is_done(self) -> bool:
        """True if the records say `done`, whoever holds the lease."""
        return bool(self._written_status()["state"] == "done")

    @property
    def lacks(self) -> Literal["training", "evaluation"] | None:
        """The work that is left, or None if the cell is done. If only the evaluation is left, the cell is trained."""
        if self.is_done:
            return None
        return "evaluation" if self.own.is_done else "training"

    @property
    def state(self) -> CellState:
        return self.read_status()["state"]

    @property
    def reason(self) -> str | None:
        return self.read_status().get("reason")

    @property
    def flags(self) -> list[str]:
        return list(self.read_status().get("flags", []))

    @property
    def digest(self) -> str | None:
        """The blake2b digest of a finished cell's final weights, or of its answers if it evaluates a checkpoint."""
        return self.read_status().get("digest")

    @property
    def step(self) -> int:
        return int(self.read_status().get("step", 0))

    @property
    def steps(self) -> int | None:
        return self.read_status().get("steps")

    @property
    def generated_tokens(self) -> int | None:
        """The number of completion tokens sampled in training, from the status or else from the last recorded step.

        None if the source of an imported cell does not give it. Raises DamagedRecordError if the last step lacks it.
        """
        status = self.read_status()
        if "generated_tokens" in status or status["state"] == "damaged":
            known: int | None = status.get("generated_tokens", 0)
            return known
        path = self.path / "steps.jsonl"
        row = read_last_row(path)
        if not isinstance(n_tokens := 0 if row is None else row.get("generated_tokens"), int):
            raise DamagedRecordError("records.no_generated_tokens", path=path)
        return n_tokens

    @property
    def spec(self) -> dict[str, Any]:
        """The resolved settings, which are written before the first step. Raises as `read_object`."""
        return read_object(self.evaluation_folder / "spec.json")

    def read_starts(self) -> list[Start]:
        """Return a row for each start of the cell, followed by the starts of its other evaluation, if it has one.

        A row has `epoch` (from 1), `from_step`, `owner`, `time`, `registered` (the digest of the registration that
        existed at the start, or None) and the provenance of everything made since that start. Raises DamagedRecordError
        if a row is damaged.
        """
        rows = read_starts(self.path)
        return rows if self.evaluation is None else [*rows, *read_starts(self.evaluation_folder)]

    @property
    def last_epoch(self) -> int:
        """The epoch of the last start, or 0 if the cell was never started. Raises as `read_starts`."""
        return max((start["epoch"] for start in self.own.read_starts()), default=0)

    @property
    def provenance(self) -> dict[str, Any]:
        """The provenance of the last start of training. Raises DamagedRecordError if the cell was never started."""
        return self.own.provenances[-1]

    @property
    def provenances(self) -> list[dict[str, object]]:
        """The provenance of every start. Raises as `provenance`."""
        starts = self.read_starts()
        if not starts:
            raise DamagedRecordError("records.file_missing", path=self.path / STARTS_FILE)
        return [{name: value for name, value in start.items() if name not in _START} for start in starts]

    def read_steps(self) -> list[dict[str, Any]]:
        """Return the rows of steps.jsonl. Raises DamagedRecordError."""
        # The steps are counted before the rows are read, because the cell may finish in between.
        n_steps = self._finished_steps()
        rows = self._current(read_jsonl(self.path / "steps.jsonl"))
        self._require_steps(len(rows), n_steps)
        return rows

    def read_step_columns(self) -> pyarrow.Table:
        """Return steps.jsonl as a table, see `harness.records.tables`. Raises as `read_steps`."""
        n_steps = self._finished_steps()
        table = read_columns(self.path / "steps.jsonl")
        if "epoch" in table.column_names:
            # Only these two columns become Python objects.
            steps = zip(table["epoch"].to_pylist(), table["step"].to_pylist(), strict=True)
            kept = self._counts([(epoch or 0, step) for epoch, step in steps])
            table = table.drop_columns("epoch")
            table = table if all(kept) else table.filter(kept)
        self._require_steps(len(table), n_steps)
        return table

    def _current(self, rows: list[RowOfStep]) -> list[RowOfStep]:
        """Return the rows that no later start has superseded, without their epochs."""
        plain = cast(list[dict[str, Any]], rows)
        keys = [(row.pop("epoch", 0), row.get("step", 0), *(row.get(name) for name in _TELLS_ROWS)) for row in plain]
        return [row for row, counts in zip(rows, self._counts(keys), strict=True) if counts]

    def _counts(self, rows: Sequence[tuple[int, int, *tuple[object, ...]]]) -> list[bool]:
        """Return, for each row, whether it is current: no later start repeated its step or wrote the same row.

        rows: tuples of epoch, step and the fields that identify a row within its step.
        """
        superseded = self.superseded()
        latest: dict[tuple[object, ...], int] = {}
        for epoch, *what in rows:
            latest[tuple(what)] = max(epoch, latest.get(tuple(what), 0))
        return [not superseded(epoch, step) and epoch == latest[step, *rest] for epoch, step, *rest in rows]

    def superseded(self) -> Callable[[int, int], bool]:
        """Return a function that maps (epoch, step) to whether a later start has repeated that step."""
        begun = [(start["epoch"], start["from_step"]) for start in read_starts(self.path)]
        return lambda epoch, step: any(later > epoch and step > from_step for later, from_step in begun)

    def _finished_steps(self) -> int:
        """Return the number of steps that a finished cell must have rows for, or 0 if the cell is not done.

        A diverged cell has rows up to the step after which it was scored. An imported cell has rows for the steps that
        its tool logged. Before the cell is done, the last row may be torn.
        """
        status = self.own.read_status()
        return int(status.get("logged_steps", status.get("step", 0))) if status["state"] == "done" else 0

    def _require_steps(self, n_rows: int, n_steps: int) -> None:
        if n_rows < n_steps:
            raise DamagedRecordError(
                "records.steps_missing", path=self.path / "steps.jsonl", n_rows=n_rows, n_steps=n_steps
            )

    def read_timing(self) -> list[TimingRow]:
        """Return the current rows of timing.jsonl. Raises DamagedRecordError if a row is damaged."""
        path = self.path / "timing.jsonl"
        return self._current(typed_rows(path, read_jsonl(path), TimingRow))

    def read_ends(self) -> dict[tuple[int, bool], float]:
        """Map (step, whether it is the evaluation after that step) to the Unix time, in seconds, at which it ended.

        The times are the beginning of each start plus the durations in its rows of timing.jsonl. Raises
        DamagedRecordError if a record is damaged.
        """
        starts = self.own.read_starts()
        epochs = [start["epoch"] for start in starts if "time" in start]
        rows, superseded = read_jsonl(self.path / "timing.jsonl"), self.superseded()
        ends: dict[tuple[int, bool], float] = {}
        for epoch, now_s in zip(epochs, begins_s(starts, self.path / STARTS_FILE), strict=True):
            for row in (row for row in rows if row["epoch"] == epoch):
                is_evaluation = "eval_s" in row
                # Superseded rows took time too. They must advance the clock before they are dropped.
                now_s += row.get("eval_s" if is_evaluation else "total_s") or 0.0
                if not superseded(epoch, row["step"]):
                    ends[row["step"], is_evaluation] = now_s
        return ends

    def read_begins(self) -> list[float]:
        """Return the times at which the cell's starts began, in Unix seconds. Starts of its other evaluation come last.

        The list is empty before the first start and for imported cells. Raises DamagedRecordError if a record is
        damaged.
        """
        return begins_s(self.read_starts(), self.path / STARTS_FILE)

    def read_scores(self) -> list[ScoreRow]:
        """Return a row for each task and each evaluation, during training and at the end.

        Raises as `harness.records.scores.read_scores`.
        """
        rows = read_scores(self.scores)
        return self._current(rows) if self.evaluation is None else rows

    def rollout_files(self) -> list[Path]:
        """Return the rollout files in the order of training, except those whose steps a later start has repeated.

        Raises as `harness.records.rollouts.rollout_files`.
        """
        return rollout_files(self.rollouts, self.superseded())

    def read_rollouts(
        self, columns: Sequence[str], most_files: int | None = None, needed: Sequence[str] = ()
    ) -> pyarrow.Table | None:
        """Return columns of the training completions, or None if none are recorded. See `harness.records.rollouts`."""
        return read_rollouts(self.rollouts, columns, most_files, needed, self.superseded())

    def read_embeddings(self) -> list[EmbeddedToken]:
        """Return the positions of the reflection words' tokens, or [] if the cell is not done or recorded none.

        Raises DamagedRecordError if a row is damaged.
        """
        return read_embeddings(self.path / EMBEDDINGS_FILE)

    def read_problems(self) -> list[ProblemRow]:
        """Return the problems of the cell's samples, with split "train" for training and "test" for evaluations.

        Raises DamagedRecordError if a row is damaged.
        """
        rows = read_problems(self.path / PROBLEMS_FILE)
        if self.evaluation is None:
            return rows
        in_training = [row for row in rows if row["split"] == "train"]
        return [*in_training, *read_problems(self.evaluation_folder / PROBLEMS_FILE)]

    def read_evals(
        self, columns: Sequence[str] | None = None, where: pyarrow.compute.Expression | None = None
    ) -> pyarrow.Table | None:
        """Return the graded samples of a cell's evaluations, one per row, or None if there is no evals.parquet yet.

        columns: the columns to read; columns that were not recorded are left out. None reads all.
        where: a filter on the rows.
        Raises DamagedRecordError if the file is damaged.
        """
        return read_parquet(self.evals, columns, where) if self.evals.exists() else None
