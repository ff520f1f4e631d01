"""Samples on disk. No sample is taken twice: after a kill, the next run adds only what is missing.

evals.jsonl      graded samples in the order in which they finished
evals.parquet    the graded samples of finished evaluations
problems.jsonl   the prompts and reference answers that the samples refer to
grading.json     the graders and versions that gave the stored verdicts
spec.json        the conditions of all samples in the folder; samples of other conditions are refused
samples.jsonl    completions that another program grades, such as lm-eval
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, cast

from evals.evaluate import regrade
from evals.sampler import Draw, Drawn, SamplingParams
from evals.samples import SampleRow
from evals.tasks.base import Problem
from harness.config.hashing import digest
from harness.errors import RefusedError
from harness.records.cell import STARTS_FILE
from harness.records.fence import remove
from harness.records.files import (
    PROBLEMS_FILE,
    DamagedRecordError,
    ProblemsFile,
    append_jsonl,
    file_name,
    is_disk_full,
    keep_jsonl,
    read_json,
    read_jsonl,
    typed_rows,
    write_atomic,
    write_json,
)
from harness.records.lease import LeaseTakenError, hold_lease
from harness.records.tables import read_parquet
from harness.sampling.conditions import Conditions

if TYPE_CHECKING:
    from harness.sampling.sampler import Policy

SAMPLES_FILE = "evals.jsonl"
EVALS = "evals"
"""The folder in a home with the stores of `bench eval`: a folder per model, and in it one per `store_name`."""
_COMPLETIONS_FILE = "samples.jsonl"
_IDENTITY = ("task", "step", "final", "problem_id", "sample")
"""Two rows that agree in these fields are the same sample."""

OnProgress = Callable[[int, int, str], None]
"""on_progress(done, total, remark)"""
AppendStart = Callable[[Path, Mapping[str, object]], None]


def ignore_progress(done: int, total: int, remark: str) -> None:
    """Do nothing. This is the default `OnProgress`."""


def store_name(task: str, asked: Mapping[str, object]) -> str:
    """Return the name of the folder for a task's samples under the conditions `asked`."""
    return f"{file_name(task)}-{digest(asked)[:10]}"


@dataclass(frozen=True)
class SampleStore:
    """Graded samples: new rows in `<name>.jsonl`, and compacted rows in `<name>.parquet`.

    Only one process may write at a time.
    """

    path: Path
    mark: Mapping[str, object] = field(default_factory=dict)
    """Fields, written first in each row, that distinguish this store's rows from others in the same file."""
    epoch: int | None = None
    """The number of the cell's launch that writes, stored at the end of each row; None outside cells."""
    keeps_tokens: bool = False
    """True if rows include the `tokens` of their completion."""
    problems: ProblemsFile | None = None
    """The file that records the samples' problems."""
    superseded: Callable[[int, int], bool] = lambda epoch, step: False
    """(epoch, step) -> whether a later launch of the cell replaced these rows; see `CellRecord.superseded`."""
    is_lasting: bool = False
    """True if the store outlives an evaluation, so that more samples or another grader may be requested later."""

    @classmethod
    @contextmanager
    def opened(cls, folder: Path, asked: Mapping[str, object]) -> Iterator[SampleStore]:
        """Open the store in its own folder, for samples under the conditions `asked`. Raises like `claimed`."""
        with claimed(folder, asked):
            store = cls(folder / SAMPLES_FILE, problems=ProblemsFile(folder / PROBLEMS_FILE), is_lasting=True)
            store.mend()
            yield store

    def mend(self) -> None:
        """Remove the torn last line that a kill may have left."""
        keep_jsonl(self.path, lambda row: True)

    def rows(self) -> list[SampleRow]:
        """Return every sample once, in the order in which they were first stored, without mark and epoch.

        Raises DamagedRecordError if a file is damaged.
        """
        parquet = self.path.with_suffix(".parquet")
        found = typed_rows(parquet, read_parquet(parquet).to_pylist(), SampleRow) if parquet.exists() else []
        found += typed_rows(self.path, read_jsonl(self.path), SampleRow)
        mine = [cast(dict[str, Any], row) for row in found]
        mine = [row for row in mine if all(row.get(name) == value for name, value in self.mark.items())]
        mine = [row for row in mine if "epoch" not in row or not self.superseded(row["epoch"], row["step"])]
        # A kill between compacting and dropping leaves samples in both files. A row that an earlier launch wrote late
        # may follow rows of a later launch. The stable sort puts later launches last, and the dictionary below keeps
        # the last row of each sample.
        mine.sort(key=lambda row: row.get("epoch", 0))
        once = {tuple(row.get(name) for name in _IDENTITY): row for row in mine}
        left_out = {*self.mark, "epoch"}
        return [
            cast(SampleRow, {name: value for name, value in row.items() if name not in left_out})
            for row in once.values()
        ]

    def append(self, rows: Sequence[SampleRow]) -> None:
        """Append rows, with the store's mark and epoch."""
        last = {} if self.epoch is None else {"epoch": self.epoch}
        append_jsonl(self.path, ({**self.mark, **row, **last} for row in rows))

    def record_problems(self, problems: Sequence[Problem], conditions: Conditions) -> None:
        """Record problems. Call this before appending samples that refer to them."""
        if self.problems is not None:
            self.problems.add(conditions.task.name, conditions.split, problems, conditions.prompts.ask)

    def compact(self, rows: Sequence[SampleRow]) -> None:
        """Write these rows to the parquet file. The .jsonl file stays until `drop`."""
        import pyarrow
        import pyarrow.parquet

        table = pyarrow.Table.from_pylist(cast(list[dict[str, Any]], list(rows)))
        write_atomic(
            self.path.with_suffix(".parquet"),
            lambda aside: pyarrow.parquet.write_table(table, aside, compression="zstd", write_page_checksum=True),
        )

    def drop(self) -> None:
        """Remove the .jsonl file, after its rows were compacted or if they are no longer needed."""
        remove(self.path)

    def graded(self, conditions: Conditions, again: bool = False) -> list[SampleRow]:
        """Return all rows with verdicts of the current graders, and compact them.

        again: grade again even if the stored verdicts are current.
        """
        rows, task = self.rows(), conditions.task
        if again or self._read_grading() != conditions.grading:
            rows = regrade(task, task.split(conditions.split).load(), rows, conditions.grader)
        # The order matters: the rows must be in the parquet file before the .jsonl file is removed, and the grading is
        # written last.
        self.compact(rows)
        self.drop()
        self._write_grading(conditions.grading)
        return rows

    def begin(self, conditions: Conditions, there: Collection[SampleRow]) -> None:
        """Prepare for more samples. If the samples `there` have another grading, mark all for grading again."""
        alike = not there or self._read_grading() == conditions.grading
        # {} differs from every grading, so `graded` will grade every row again.
        self._write_grading(conditions.grading if alike else {})

    def _read_grading(self) -> object:
        """Return the stored grading, or None if it is missing or damaged. The rows are then graded again."""
        path = self.path.with_name("grading.json")
        try:
            return read_json(path) if path.exists() else None
        except DamagedRecordError:
            return None

    def _write_grading(self, grading: Mapping[str, object]) -> None:
        write_json(self.path.with_name("grading.json"), grading)


class _Completion(TypedDict):
    key: str
    text: str
    n_tokens: int
    truncated: bool


@dataclass(frozen=True)
class RememberingSampler:
    """A sampler that stores each finished completion, and answers repeated requests from the file.

    It is for evaluations that sample and grade in their own way, such as lm-eval's. Create it with `opened`.

    policy: called only if something must be sampled.
    append_start: appends a row with versions, machine and model facts to the file of launches.
    """

    folder: Path
    policy: Policy
    append_start: AppendStart
    on_progress: OnProgress
    _known: dict[str, Drawn]

    @classmethod
    @contextmanager
    def opened(
        cls,
        folder: Path,
        asked: Mapping[str, object],
        policy: Policy,
        append_start: AppendStart,
        on_progress: OnProgress,
    ) -> Iterator[RememberingSampler]:
        """Open the sampler of a folder.

        asked: the conditions of all samples, except the prompts, sampling parameters and names of individual samples.
        Raises the errors of `claimed`.
        """
        with claimed(folder, asked):
            path = folder / _COMPLETIONS_FILE
            # Remove the torn last line that a kill may have left.
            keep_jsonl(path, lambda row: True)
            known = {
                row["key"]: Drawn(row["text"], row["n_tokens"], row["truncated"])
                for row in typed_rows(path, read_jsonl(path), _Completion)
            }
            yield cls(folder, policy, append_start, on_progress, known)

    def draw(self, draws: Sequence[Draw], params: SamplingParams) -> list[Drawn]:
        """Implement `evals.sampler.Sampler.draw`."""
        # Prompt and parameters are part of the key, because here they may differ from call to call.
        keys = [digest([draw.prompt, draw.example, draw.sample, asdict(params)]) for draw in draws]
        missing = [index for index, key in enumerate(keys) if key not in self._known]
        if missing:
            self._draw_missing([draws[index] for index in missing], [keys[index] for index in missing], params)
        return [self._known[key] for key in keys]

    def _draw_missing(self, draws: Sequence[Draw], keys: Sequence[str], params: SamplingParams) -> None:
        there = len(self._known)
        sampler = self.policy()
        self.on_progress(0, len(draws), f"{there} are there already" if there else "drawing")
        self.append_start(self.folder / STARTS_FILE, {"model": sampler.language_model.account()})
        done = 0

        def keep(index: int, drawn: Drawn) -> None:
            nonlocal done
            named = {"key": keys[index], "example": draws[index].example, "sample": draws[index].sample}
            kept = {"text": drawn.text, "n_tokens": drawn.n_tokens, "truncated": drawn.truncated}
            append_jsonl(self.folder / _COMPLETIONS_FILE, [named | kept])
            self._known[keys[index]] = drawn
            done += 1
            self.on_progress(done, len(draws), "drawing")

        sampler.draw(draws, params, keep)


@contextmanager
def claimed(folder: Path, asked: Mapping[str, object]) -> Iterator[None]:
    """Lock a folder for this process inside this context. Creates the folder if it is missing.

    asked: the conditions of the folder's samples, which its spec.json records.
    Raises RefusedError if the folder contains samples of other or unknown conditions, if another process has locked it,
    or if it cannot be read or written. Raises DamagedRecordError if its spec.json is damaged.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with hold_lease(folder):
            _require_same(folder / "spec.json", asked)
            yield
    except LeaseTakenError as error:
        raise RefusedError("sampling.folder_claimed", folder=folder, error=error) from None
    except OSError as error:
        if is_disk_full(error) or not _is_about(error, folder):
            raise
        raise RefusedError("sampling.folder_not_writable", path=error.filename, reason=error.strerror) from None


def _is_about(error: OSError, folder: Path) -> bool:
    """Return whether an error is about the folder, its contents or its parents, and not about, say, a model's files."""
    if not isinstance(error.filename, str):
        return False
    place = Path(error.filename)
    return place == folder or place in folder.parents or folder in place.parents


def _require_same(path: Path, asked: Mapping[str, object]) -> None:
    if not path.exists():
        files = (SAMPLES_FILE, "evals.parquet", _COMPLETIONS_FILE)
        if samples := [name for name in files if (path.parent / name).exists()]:
            raise RefusedError(
                "sampling.conditions_unknown", folder=path.parent, samples=", ".join(samples), name=path.name
            )
        write_json(path, asked)
        return
    there = read_json(path)
    if not isinstance(there, dict):
        raise DamagedRecordError("sampling.conditions_damaged", path=path)
    if there != asked:
        differing = sorted(name for name in {*there, *asked} if there.get(name) != asked.get(name))
        raise RefusedError("sampling.samples_of_another_spec", folder=path.parent, differing=", ".join(differing))
