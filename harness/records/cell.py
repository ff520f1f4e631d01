"""The folder of one cell: where each record lies, and how to read it. Layout: docs/reference/records.md.

Each start of a cell has a number, its epoch, and a row in starts.jsonl that says who started it, where and from which
step. Rows of steps, scores, timing and samples carry the epoch of their writer. An owner that was taken for dead may
append one more row as it wakes up (see `harness.records.fence`). Readers drop rows of steps that a later start has
begun anew, and of the same row by two starts they take that of the later one.

A cell is evaluated once as part of its run. Whoever asks for another evaluation of the trained cell finds it in a
folder of its own, evaluations/<hash>/, with the same files: spec.json, status.json, starts.jsonl, scores.jsonl,
evals.parquet and problems.jsonl.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from harness.records.counted import Counted, count, shortfall
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
    write_json,
)
from harness.records.lease import is_leased
from harness.records.rollouts import read_rollouts, rollout_files
from harness.records.rows import CellState, ScoreRow, Start, Status
from harness.records.schema import SCHEMA
from harness.records.scores import read_scores
from harness.records.status import checked_status, status_in, with_remedy
from harness.records.tables import read_columns, read_parquet
from harness.secrets import redact

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.compute

_DIRECTORY = re.compile(r"(?P<arm>.+)-s(?P<seed>\d+)-(?P<hash>[0-9a-f]{10})")
RowOfStep = TypeVar("RowOfStep")
_TELLS_ROWS = ("task", "final")
_START = ("epoch", "from_step", "owner", "time", "registered")
EVALUATIONS = "evaluations"
EVALUATION_FILE = "evaluation.json"
STARTS_FILE = "starts.jsonl"
EMBEDDINGS_FILE = "embeddings.jsonl"
_COUNTED = (STARTS_FILE, "steps.jsonl", "timing.jsonl", "scores.jsonl", PROBLEMS_FILE, "rollouts")


def cell_directory_name(arm: str, seed: int, training_hash: str) -> str:
    return f"{arm}-s{seed}-{training_hash[:10]}"


def write_status(folder: Path, state: CellState, **fields: object) -> None:
    """Replace status.json in the folder of a cell or an evaluation, keeping earlier fields that are not given."""
    path = folder / "status.json"
    earlier = read_object(path) if path.exists() else {}
    write_json(path, {"schema": SCHEMA} | earlier | {"state": state, "reason": None} | fields)


def read_starts(folder: Path) -> list[Start]:
    """Return the rows of starts.jsonl, without any that an owner wrote after a later start. Raise
    DamagedRecordError."""
    rows: list[Start] = []
    path = folder / STARTS_FILE
    for row in typed_rows(path, read_jsonl(path), Start):
        if not rows or row["epoch"] > rows[-1]["epoch"]:
            rows.append(row)
    return rows


def begins_s(starts: Sequence[Start], path: Path) -> list[float]:
    """When the starts in a starts.jsonl began, in Unix seconds; imported ones do not say it and are left out.

    Raises DamagedRecordError, naming the file, if a time is none.
    """
    try:
        return [datetime.fromisoformat(start["time"]).timestamp() for start in starts if "time" in start]
    except (TypeError, ValueError) as error:
        raise DamagedRecordError(f"{path}: is damaged ({error}). Restore the file.") from None


def is_cell_directory_name(name: str) -> bool:
    return _DIRECTORY.fullmatch(name) is not None


@dataclass(frozen=True)
class CellRecord:
    """One cell on disk; `arm`, `seed` and `hash` are its identity. Attributes that change are read anew each time.

    evaluation: which one its samples, scores and state are read from: the name of a folder under `evaluations`, or
    None for the evaluation that the cell was run with. fault: what a reader found to be damaged in it. seen: a
    status that is not to be read anew.
    """

    path: Path
    arm: str
    seed: int
    hash: str
    evaluation: str | None = None
    fault: str | None = None
    seen: Status | None = field(default=None, repr=False, compare=False)

    @classmethod
    def at(cls, path: Path) -> CellRecord:
        """The cell in a folder named `<arm>-s<seed>-<hash10>`; ValueError for any other name."""
        match = _DIRECTORY.fullmatch(path.name)
        if match is None:
            raise ValueError(f"{path} is not a cell: cells are named <arm>-s<seed>-<hash10>.")
        return cls(path, match["arm"], int(match["seed"]), match["hash"])

    @property
    def own(self) -> CellRecord:
        """The same cell under the evaluation that it was run with."""
        return self if self.evaluation is None else replace(self, evaluation=None, seen=None)

    @property
    def as_it_stands(self) -> CellRecord:
        """The same, which keeps the status of now, for a reader who asks for it again and again."""
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
        with self.log.open("a", encoding="utf-8") as handle:
            handle.write(redact(text))

    def read_status(self) -> Status:
        """status.json, or that of a cell that never started. `state` is `running` exactly while the lease is alive, and
        `damaged` where status.json is not what was written, or a finished cell lacks some of what it counted.

        Of a trained cell under another evaluation, `state` and `reason` are those of the evaluation.
        """
        if self.seen is not None:
            return self._with_fault(self.seen)
        status = self._written_status()
        is_running = self.fault is None and is_leased(self.path)
        return {**status, "state": "running", "reason": None} if is_running else status

    def _written_status(self) -> Status:
        """Whatever a lease says."""
        status = status_in(self.path)
        if self.fault is not None or self.evaluation is None or status["state"] != "done":
            return self._with_fault(status)
        evaluated = status_in(self.evaluation_folder)
        if "digest" in evaluated:  # of its answers
            status = {**status, "digest": evaluated["digest"]}
        return {**status, "state": evaluated["state"], "reason": evaluated.get("reason")}

    def _with_fault(self, status: Status) -> Status:
        return status if self.fault is None else {**status, "state": "damaged", "reason": self.fault}

    def is_named_in(self, error: DamagedRecordError) -> bool:
        """Whether the error is about this cell, which was not known to be damaged."""
        return self.fault is None and f"{self.path}/" in str(error)

    def require_readable(self) -> None:
        """Raise DamagedRecordError if its state is unknown, or it is done and lacks some of what it counted."""
        if fault := self.fault or checked_status(self.path)[1] or checked_status(self.evaluation_folder)[1]:
            raise DamagedRecordError(fault)

    def require_whole(self) -> None:
        """Raise DamagedRecordError unless a finished cell has all that it counted, byte for byte."""
        for folder in dict.fromkeys((self.path, self.evaluation_folder)):
            for name, there in status_in(folder).get("records", {}).items():
                if (fault := shortfall(folder / name, there)) is not None:
                    raise DamagedRecordError(with_remedy(fault, folder))

    def count(self, *also: str) -> Counted:
        """The size on disk of its files of rows (the evaluation's), its rollouts and the files named."""
        return count(self.evaluation_folder, [*_COUNTED, *also])

    def count_finished(self) -> Counted:
        """The same of a finished cell, or of one of its evaluations that is finished."""
        return self.count(self.evals.name, EVALUATION_FILE, EMBEDDINGS_FILE)

    def shortfall(self, counted: Counted) -> str | None:
        """What its files lack of what was counted, in words; None if all of it is there, or was put aside for another
        evaluation."""
        for name, there in counted.items():
            places = [self.path / name, *self.path.glob(f"{EVALUATIONS}/*/{name}")]
            faults = [shortfall(path, there) for path in places]
            if all(faults):
                return faults[0]
        return None

    def write_status(self, state: CellState, **fields: object) -> None:
        """Replace status.json, that of the evaluation if it is not the cell's own, keeping earlier fields that are not
        given."""
        write_status(self.evaluation_folder, state, **fields)

    @property
    def is_done(self) -> bool:
        """Whether the records say so, though this process may hold the lease."""
        return bool(self._written_status()["state"] == "done")

    @property
    def lacks(self) -> Literal["training", "evaluation"] | None:
        """What is still to be done; a cell that lacks its evaluation is trained already."""
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
        """blake2b of the final weights of a finished cell; of its answers where it only evaluates a checkpoint."""
        return self.read_status().get("digest")

    @property
    def step(self) -> int:
        return int(self.read_status().get("step", 0))

    @property
    def steps(self) -> int | None:
        return self.read_status().get("steps")

    @property
    def generated_tokens(self) -> int | None:
        """In training: of a cell that is done as its status says, else up to its last recorded step; None where an
        imported cell's source does not say.

        Raises DamagedRecordError if that step does not say it.
        """
        status = self.read_status()
        if "generated_tokens" in status or status["state"] == "damaged":
            known: int | None = status.get("generated_tokens", 0)
            return known
        path = self.path / "steps.jsonl"
        row = read_last_row(path)
        if not isinstance(n_tokens := 0 if row is None else row.get("generated_tokens"), int):
            raise DamagedRecordError(f"{path}, last row: lacks generated_tokens. Restore the file.")
        return n_tokens

    @property
    def spec(self) -> dict[str, Any]:
        """Raises DamagedRecordError without one; a cell has it from before its first step."""
        return read_object(self.evaluation_folder / "spec.json")

    def read_starts(self) -> list[Start]:
        """A row for each start: `epoch` (from 1), `from_step`, `owner`, `time`, `registered` (the digest of the
        registration that it found, or None), and the provenance of what was made from there on. Starts of another
        evaluation than the cell's own come last.

        Raises DamagedRecordError.
        """
        rows = read_starts(self.path)
        return rows if self.evaluation is None else [*rows, *read_starts(self.evaluation_folder)]

    @property
    def last_epoch(self) -> int:
        """That of its last start; 0 before the first. Raises as `read_starts`."""
        return max((start["epoch"] for start in self.own.read_starts()), default=0)

    @property
    def provenance(self) -> dict[str, Any]:
        """That of the last start of training. Raises DamagedRecordError without one; every cell that was run has it."""
        return self.own.provenances[-1]

    @property
    def provenances(self) -> list[dict[str, object]]:
        """Those of all starts; raises as `provenance`."""
        starts = self.read_starts()
        if not starts:
            raise DamagedRecordError(
                f"{self.path / STARTS_FILE}: is missing. Restore it, or delete its folder and run the sweep again."
            )
        return [{name: value for name, value in start.items() if name not in _START} for start in starts]

    def read_steps(self) -> list[dict[str, Any]]:
        """Rows of steps.jsonl. Raises DamagedRecordError, also for fewer rows than a finished cell has steps."""
        n_steps = self._finished_steps()  # first: the cell may finish meanwhile
        rows = self._current(read_jsonl(self.path / "steps.jsonl"))
        self._require_steps(len(rows), n_steps)
        return rows

    def read_step_columns(self) -> pyarrow.Table:
        """The same by column, see `harness.records.tables`; raises as `read_steps`."""
        n_steps = self._finished_steps()
        table = read_columns(self.path / "steps.jsonl")
        if "epoch" in table.column_names:
            steps = zip(table["epoch"].to_pylist(), table["step"].to_pylist(), strict=True)
            kept = self._counts([(epoch or 0, step) for epoch, step in steps])
            table = table.drop_columns("epoch")
            table = table if all(kept) else table.filter(kept)
        self._require_steps(len(table), n_steps)
        return table

    def _current(self, rows: list[RowOfStep]) -> list[RowOfStep]:
        """The rows that count, without their epochs."""
        plain = cast(list[dict[str, Any]], rows)
        keys = [(row.pop("epoch", 0), row.get("step", 0), *(row.get(name) for name in _TELLS_ROWS)) for row in plain]
        return [row for row, counts in zip(rows, self._counts(keys), strict=True) if counts]

    def _counts(self, rows: Sequence[tuple[int, int, *tuple[object, ...]]]) -> list[bool]:
        """Return which rows count, given as (epoch, step, what tells rows of a step apart)."""
        superseded = self.superseded()
        latest: dict[tuple[object, ...], int] = {}
        for epoch, *what in rows:
            latest[tuple(what)] = max(epoch, latest.get(tuple(what), 0))
        return [not superseded(epoch, step) and epoch == latest[step, *rest] for epoch, step, *rest in rows]

    def superseded(self) -> Callable[[int, int], bool]:
        """(epoch, step) -> whether a later start has begun that step anew."""
        begun = [(start["epoch"], start["from_step"]) for start in read_starts(self.path)]
        return lambda epoch, step: any(later > epoch and step > from_step for later, from_step in begun)

    def _finished_steps(self) -> int:
        """Steps of which a finished cell has rows: one that diverged, up to where it was scored; an imported one, those
        that its tool logged. 0 before it is done, when its last row may be torn."""
        status = self.own.read_status()
        return int(status.get("logged_steps", status.get("step", 0))) if status["state"] == "done" else 0

    def _require_steps(self, n_rows: int, n_steps: int) -> None:
        if n_rows < n_steps:
            raise DamagedRecordError(
                f"{self.path / 'steps.jsonl'}: is damaged (it holds {n_rows} of the {n_steps} steps that "
                "status.json counts). Restore the file, or move its folder away."
            )

    def read_timing(self) -> list[dict[str, Any]]:
        return self._current(read_jsonl(self.path / "timing.jsonl"))

    def read_ends(self) -> dict[tuple[int, bool], float]:
        """When steps and evaluations ended, in Unix seconds: (step, whether it is an evaluation after it) -> time.

        A start says when it began, and its rows of timing.jsonl how long each thing took. Raises DamagedRecordError.
        """
        starts = self.own.read_starts()
        epochs = [start["epoch"] for start in starts if "time" in start]
        rows, superseded = read_jsonl(self.path / "timing.jsonl"), self.superseded()
        ends: dict[tuple[int, bool], float] = {}
        for epoch, now_s in zip(epochs, begins_s(starts, self.path / STARTS_FILE), strict=True):
            for row in (row for row in rows if row["epoch"] == epoch):
                is_evaluation = "eval_s" in row
                now_s += row.get("eval_s" if is_evaluation else "total_s") or 0.0
                if not superseded(epoch, row["step"]):
                    ends[row["step"], is_evaluation] = now_s
        return ends

    def read_begins(self) -> list[float]:
        """When its starts began, in Unix seconds, those of its evaluation last; [] before the first, and for imported
        cells. Raises DamagedRecordError."""
        return begins_s(self.read_starts(), self.path / STARTS_FILE)

    def read_scores(self) -> list[ScoreRow]:
        """A row for each task of the final evaluation and of those along the curve; raises as
        `harness.records.scores.read_scores`."""
        rows = read_scores(self.scores)
        return self._current(rows) if self.evaluation is None else rows

    def rollout_files(self) -> list[Path]:
        """In the order of training, but for those whose steps a later start made anew; raises as
        `harness.records.rollouts.rollout_files`."""
        return rollout_files(self.rollouts, self.superseded())

    def read_rollouts(
        self, columns: Sequence[str], most_files: int | None = None, needed: Sequence[str] = ()
    ) -> pyarrow.Table | None:
        """Columns of the completions drawn in training, see `harness.records.rollouts`; None if none are recorded."""
        return read_rollouts(self.rollouts, columns, most_files, needed, self.superseded())

    def read_embeddings(self) -> list[EmbeddedToken]:
        """Where tokens of reflection words lie; [] before the cell is done, and where nothing of it is known. Raises
        DamagedRecordError."""
        return read_embeddings(self.path / EMBEDDINGS_FILE)

    def read_problems(self) -> list[ProblemRow]:
        """The problems that the cell's samples refer to, in training ("train") and in evaluations ("test"). Raises
        DamagedRecordError."""
        rows = read_problems(self.path / PROBLEMS_FILE)
        if self.evaluation is None:
            return rows
        in_training = [row for row in rows if row["split"] == "train"]
        return [*in_training, *read_problems(self.evaluation_folder / PROBLEMS_FILE)]

    def read_evals(
        self, columns: Sequence[str] | None = None, where: pyarrow.compute.Expression | None = None
    ) -> pyarrow.Table | None:
        """Every graded sample of a finished cell's evaluations, a row each; None before the cell is done.

        columns: to read, those of them that were recorded; all by default. where: which rows to keep. Raises
        DamagedRecordError.
        """
        return read_parquet(self.evals, columns, where) if self.evals.exists() else None
