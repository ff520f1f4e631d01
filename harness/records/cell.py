"""The folder of one cell: the path of each record, and functions that read it. Layout: docs/reference/records.md.

Each start of a cell has a number, its epoch, and a row in starts.jsonl: who started it, where, and from which step.
Rows of steps, scores, timing and samples carry the epoch of their writer. An owner that was taken for dead may append
one more row when it wakes up (see `harness.records.fence`). Readers drop rows of steps that a later start has repeated.
If two starts wrote the same row, they take the row of the later start.

A cell is evaluated once as part of its run. Another evaluation of the trained cell has a folder of its own,
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
"""The fields that tell the rows of one step apart."""
_START = ("epoch", "from_step", "owner", "time", "registered")
"""The fields of a start that are not provenance."""
_CHECKED_APART = ("state", "schema")
"""The fields of a status that are not checked by type alone."""
EVALUATIONS = "evaluations"
EVALUATION_FILE = "evaluation.json"
STARTS_FILE = "starts.jsonl"
EMBEDDINGS_FILE = "embeddings.jsonl"
_COUNTED = (STARTS_FILE, "steps.jsonl", "timing.jsonl", "scores.jsonl", PROBLEMS_FILE, "rollouts")
"""The files and folders whose size a checkpoint records."""


def cell_directory_name(arm: str, seed: int, training_hash: str) -> str:
    """Return the name of a cell's folder, `<arm>-s<seed>-<hash10>`."""
    return f"{arm}-s{seed}-{training_hash[:10]}"


def status_in(folder: Path) -> Status:
    """Return the status in a folder; its state is `damaged` if something is wrong with it."""
    status, fault = checked_status(folder)
    return status if fault is None else {**status, "state": "damaged", "reason": fault}


def checked_status(folder: Path) -> tuple[Status, str | None]:
    """Return the status of a cell or evaluation, and its fault, if any.

    A fault is an invalid status.json, or a file that is smaller than it was when the cell was done. Only sizes are
    compared, because a state is asked for often; `require_whole` reads the files.
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
    """Return the fault with advice on what to do about it."""
    return f"{fault}. Restore it, or move {folder} away and run the sweep again."


def write_status(folder: Path, state: CellState, **fields: object) -> None:
    """Replace status.json in the folder of a cell or an evaluation; earlier fields that are not given stay."""
    path = folder / "status.json"
    earlier = read_object(path) if path.exists() else {}
    write_json(path, {"schema": SCHEMA} | earlier | {"state": state, "reason": None} | fields)


def read_starts(folder: Path) -> list[Start]:
    """Return the rows of starts.jsonl, without those that an owner wrote after a later start.

    Raises DamagedRecordError.
    """
    rows: list[Start] = []
    path = folder / STARTS_FILE
    for row in typed_rows(path, read_jsonl(path), Start):
        # Epochs grow. One that does not comes from an owner that was taken for dead and woke up late.
        if not rows or row["epoch"] > rows[-1]["epoch"]:
            rows.append(row)
    return rows


def begins_s(starts: Sequence[Start], path: Path) -> list[float]:
    """Return when each start began, in Unix seconds; imported starts without a time are left out.

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
    """One cell on disk, identified by `arm`, `seed` and `hash`. Attributes that change are read from disk each time."""

    path: Path
    arm: str
    seed: int
    hash: str
    evaluation: str | None = None
    """The folder under `evaluations` from which samples, scores and state are read; None for the evaluation of the
    cell's own run.
    """
    fault: str | None = None
    """The damage that a reader found in this cell."""
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
        """The same cell under the evaluation of its own run."""
        return self if self.evaluation is None else replace(self, evaluation=None, seen=None)

    @property
    def as_it_stands(self) -> CellRecord:
        """The same cell with its present status fixed, for a reader that asks for it repeatedly."""
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
        """Return status.json, or the status of a pending cell if there is none.

        `state` is `running` exactly while the lease is alive. It is `damaged` if status.json is not valid, or if a
        finished cell lacks part of what it counted. For a trained cell under another evaluation, `state` and `reason`
        are those of the evaluation.
        """
        if self.seen is not None:
            return self._with_fault(self.seen)
        status = self._written_status()
        # The lease decides: a killed process may have left any state in status.json.
        is_running = self.fault is None and is_leased(self.path)
        return {**status, "state": "running", "reason": None} if is_running else status

    def _written_status(self) -> Status:
        """Return the status that the files state, without a look at the lease."""
        status = status_in(self.path)
        if self.fault is not None or self.evaluation is None or status["state"] != "done":
            return self._with_fault(status)
        # Training is done, so the evaluation decides.
        evaluated = status_in(self.evaluation_folder)
        if "digest" in evaluated:  # the digest of its answers
            status = {**status, "digest": evaluated["digest"]}
        return {**status, "state": evaluated["state"], "reason": evaluated.get("reason")}

    def _with_fault(self, status: Status) -> Status:
        return status if self.fault is None else {**status, "state": "damaged", "reason": self.fault}

    def is_named_in(self, error: DamagedRecordError) -> bool:
        """Return whether the error is about this cell and the cell was not known to be damaged."""
        # The slash keeps a cell from matching another whose name begins the same.
        return self.fault is None and f"{self.path}/" in str(error)

    def require_readable(self) -> None:
        """Raise DamagedRecordError if the state is unknown, or if a finished cell lacks part of what it counted."""
        if fault := self.fault or checked_status(self.path)[1] or checked_status(self.evaluation_folder)[1]:
            raise DamagedRecordError(fault)

    def require_whole(self) -> None:
        """Raise DamagedRecordError unless a finished cell has all that it counted, byte for byte."""
        for folder in dict.fromkeys((self.path, self.evaluation_folder)):
            for name, there in status_in(folder).get("records", {}).items():
                if (fault := shortfall(folder / name, there)) is not None:
                    raise DamagedRecordError(with_remedy(fault, folder))

    def count(self, *also: str) -> Counted:
        """Return the size on disk of the evaluation's row files, the rollouts and the files named in `also`."""
        return count(self.evaluation_folder, [*_COUNTED, *also])

    def count_finished(self) -> Counted:
        """Return the counts of a finished cell or evaluation, including its samples and embeddings."""
        return self.count(self.evals.name, EVALUATION_FILE, EMBEDDINGS_FILE)

    def shortfall(self, counted: Counted) -> str | None:
        """Describe what the files lack of what was counted, or return None if all of it is present.

        A file that was moved to the folder of another evaluation counts as present.
        """
        for name, there in counted.items():
            places = [self.path / name, *self.path.glob(f"{EVALUATIONS}/*/{name}")]
            faults = [shortfall(path, there) for path in places]
            if all(faults):
                return faults[0]
        return None

    def write_status(self, state: CellState, **fields: object) -> None:
        """Replace status.json of the cell, or of the evaluation that it is read under; other earlier fields stay."""
        write_status(self.evaluation_folder, state, **fields)

    @property
    def is_done(self) -> bool:
        """Whether the records say `done`, even if this process holds the lease."""
        return bool(self._written_status()["state"] == "done")

    @property
    def lacks(self) -> Literal["training", "evaluation"] | None:
        """The work that is left. A cell that lacks only its evaluation is already trained."""
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
        """blake2b of the final weights of a finished cell, or of its answers if it only evaluates a checkpoint."""
        return self.read_status().get("digest")

    @property
    def step(self) -> int:
        return int(self.read_status().get("step", 0))

    @property
    def steps(self) -> int | None:
        return self.read_status().get("steps")

    @property
    def generated_tokens(self) -> int | None:
        """The completion tokens sampled in training: those in the status, else up to the last recorded step.

        None if the source of an imported cell does not say. Raises DamagedRecordError if the last step does not say.
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
        """The resolved settings; written before the first step. Raises DamagedRecordError as `read_object`."""
        return read_object(self.evaluation_folder / "spec.json")

    def read_starts(self) -> list[Start]:
        """Return a row for each start; those of another evaluation than the cell's own come last.

        A row has `epoch` (from 1), `from_step`, `owner`, `time`, `registered` (the digest of the registration that the
        start found, or None) and the provenance of everything made from there on. Raises DamagedRecordError.
        """
        rows = read_starts(self.path)
        return rows if self.evaluation is None else [*rows, *read_starts(self.evaluation_folder)]

    @property
    def last_epoch(self) -> int:
        """The epoch of the last start; 0 before the first. Raises as `read_starts`."""
        return max((start["epoch"] for start in self.own.read_starts()), default=0)

    @property
    def provenance(self) -> dict[str, Any]:
        """The provenance of the last start of training. Raises DamagedRecordError without a start."""
        return self.own.provenances[-1]

    @property
    def provenances(self) -> list[dict[str, object]]:
        """The provenance of every start; raises as `provenance`."""
        starts = self.read_starts()
        if not starts:
            raise DamagedRecordError("records.file_missing", path=self.path / STARTS_FILE)
        return [{name: value for name, value in start.items() if name not in _START} for start in starts]

    def read_steps(self) -> list[dict[str, Any]]:
        """Return the rows of steps.jsonl.

        Raises DamagedRecordError, also if a finished cell has fewer rows than steps.
        """
        # Counted before the rows are read: the cell may finish meanwhile.
        n_steps = self._finished_steps()
        rows = self._current(read_jsonl(self.path / "steps.jsonl"))
        self._require_steps(len(rows), n_steps)
        return rows

    def read_step_columns(self) -> pyarrow.Table:
        """Return the rows of steps.jsonl by column, see `harness.records.tables`; raises as `read_steps`."""
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
        """Return the rows that count, without their epochs."""
        plain = cast(list[dict[str, Any]], rows)
        keys = [(row.pop("epoch", 0), row.get("step", 0), *(row.get(name) for name in _TELLS_ROWS)) for row in plain]
        return [row for row, counts in zip(rows, self._counts(keys), strict=True) if counts]

    def _counts(self, rows: Sequence[tuple[int, int, *tuple[object, ...]]]) -> list[bool]:
        """Return which rows count, given as (epoch, step, fields that tell rows of a step apart)."""
        superseded = self.superseded()
        latest: dict[tuple[object, ...], int] = {}
        for epoch, *what in rows:
            latest[tuple(what)] = max(epoch, latest.get(tuple(what), 0))
        return [not superseded(epoch, step) and epoch == latest[step, *rest] for epoch, step, *rest in rows]

    def superseded(self) -> Callable[[int, int], bool]:
        """Return a function (epoch, step) -> whether a later start has repeated that step."""
        begun = [(start["epoch"], start["from_step"]) for start in read_starts(self.path)]
        return lambda epoch, step: any(later > epoch and step > from_step for later, from_step in begun)

    def _finished_steps(self) -> int:
        """Return the number of steps that a finished cell has rows for; 0 before it is done.

        A diverged cell has rows up to the step where it was scored, an imported one those that its tool logged. Before
        the cell is done, the last row may be torn.
        """
        status = self.own.read_status()
        return int(status.get("logged_steps", status.get("step", 0))) if status["state"] == "done" else 0

    def _require_steps(self, n_rows: int, n_steps: int) -> None:
        if n_rows < n_steps:
            raise DamagedRecordError(
                "records.steps_missing", path=self.path / "steps.jsonl", n_rows=n_rows, n_steps=n_steps
            )

    def read_timing(self) -> list[TimingRow]:
        """Return the rows of timing.jsonl that count. Raises DamagedRecordError."""
        path = self.path / "timing.jsonl"
        return self._current(typed_rows(path, read_jsonl(path), TimingRow))

    def read_ends(self) -> dict[tuple[int, bool], float]:
        """Map (step, whether it is the evaluation after that step) to the Unix time in seconds when it ended.

        A start says when it began, and its rows of timing.jsonl how long each step or evaluation took. Raises
        DamagedRecordError.
        """
        starts = self.own.read_starts()
        epochs = [start["epoch"] for start in starts if "time" in start]
        rows, superseded = read_jsonl(self.path / "timing.jsonl"), self.superseded()
        ends: dict[tuple[int, bool], float] = {}
        for epoch, now_s in zip(epochs, begins_s(starts, self.path / STARTS_FILE), strict=True):
            for row in (row for row in rows if row["epoch"] == epoch):
                is_evaluation = "eval_s" in row
                # Superseded rows took time too, so the clock of their start advances before they are dropped.
                now_s += row.get("eval_s" if is_evaluation else "total_s") or 0.0
                if not superseded(epoch, row["step"]):
                    ends[row["step"], is_evaluation] = now_s
        return ends

    def read_begins(self) -> list[float]:
        """Return when its starts began, in Unix seconds; starts of its evaluation come last.

        The list is empty before the first start and for imported cells. Raises DamagedRecordError.
        """
        return begins_s(self.read_starts(), self.path / STARTS_FILE)

    def read_scores(self) -> list[ScoreRow]:
        """Return a row for each task of the final evaluation and of those along the curve.

        Raises as `harness.records.scores.read_scores`.
        """
        rows = read_scores(self.scores)
        return self._current(rows) if self.evaluation is None else rows

    def rollout_files(self) -> list[Path]:
        """Return the rollout files in the order of training, without those whose steps a later start repeated.

        Raises as `harness.records.rollouts.rollout_files`.
        """
        return rollout_files(self.rollouts, self.superseded())

    def read_rollouts(
        self, columns: Sequence[str], most_files: int | None = None, needed: Sequence[str] = ()
    ) -> pyarrow.Table | None:
        """Return columns of the training completions, see `harness.records.rollouts`; None if none are recorded."""
        return read_rollouts(self.rollouts, columns, most_files, needed, self.superseded())

    def read_embeddings(self) -> list[EmbeddedToken]:
        """Return the positions of the reflection words' tokens; [] before the cell is done, or if none were recorded.

        Raises DamagedRecordError.
        """
        return read_embeddings(self.path / EMBEDDINGS_FILE)

    def read_problems(self) -> list[ProblemRow]:
        """Return the problems of the cell's samples, in training ("train") and in evaluations ("test").

        Raises DamagedRecordError.
        """
        rows = read_problems(self.path / PROBLEMS_FILE)
        if self.evaluation is None:
            return rows
        in_training = [row for row in rows if row["split"] == "train"]
        return [*in_training, *read_problems(self.evaluation_folder / PROBLEMS_FILE)]

    def read_evals(
        self, columns: Sequence[str] | None = None, where: pyarrow.compute.Expression | None = None
    ) -> pyarrow.Table | None:
        """Return every graded sample of a finished cell's evaluations, one a row; None before the cell is done.

        columns: the columns to read, as far as they were recorded; all by default. where: which rows to keep. Raises
        DamagedRecordError.
        """
        return read_parquet(self.evals, columns, where) if self.evals.exists() else None
