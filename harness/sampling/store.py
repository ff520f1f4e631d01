"""Samples on disk, so that none is sampled twice: after a kill, the next run adds only what is missing.

evals.jsonl      graded samples as they came; evals.parquet: those of finished evaluations
problems.jsonl   the prompts and reference answers that they refer to
grading.json     grader and versions by which the stored verdicts were given
spec.json        the conditions under which all of a folder's samples were taken; others are never mixed in
samples.jsonl    completions that somebody else grades, as lm-eval does
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
"""The folder of a home with the stores of `bench eval`, by model and then by `store_name`."""
_COMPLETIONS_FILE = "samples.jsonl"
_IDENTITY = ("task", "step", "final", "problem_id", "sample")
"""Two rows that agree in these fields are the same sample."""

OnProgress = Callable[[int, int, str], None]
"""(how much is done, of how much, a remark)"""
AppendStart = Callable[[Path, Mapping[str, object]], None]


def ignore_progress(done: int, total: int, remark: str) -> None:
    """Stand in for an `OnProgress` if the caller has none."""


def store_name(task: str, asked: Mapping[str, object]) -> str:
    """Return the name of the folder with a task's samples that were all taken as `asked`."""
    return f"{file_name(task)}-{digest(asked)[:10]}"


@dataclass(frozen=True)
class SampleStore:
    """Graded samples in a file of rows, `<name>.jsonl`, and the compacted ones in `<name>.parquet`.

    One process writes at a time.
    """

    path: Path
    mark: Mapping[str, object] = field(default_factory=dict)
    """Fields that tell this store's rows from others in the same file; they come first in a row."""
    epoch: int | None = None
    """The number of the start of a cell that writes, for the end of each row."""
    keeps_tokens: bool = False
    """Rows hold their completion's `tokens` too."""
    problems: ProblemsFile | None = None
    """Where the problems are recorded that the samples refer to."""
    superseded: Callable[[int, int], bool] = lambda epoch, step: False
    """(epoch, step) -> whether rows of that start count no more; see `CellRecord.superseded`."""
    is_lasting: bool = False
    """True if it outlives evaluations: more samples may be requested later, and another grader."""

    @classmethod
    @contextmanager
    def opened(cls, folder: Path, asked: Mapping[str, object]) -> Iterator[SampleStore]:
        """Open the store in a folder of its own, whose samples were all taken as `asked`. Raises as `claimed`."""
        with claimed(folder, asked):
            store = cls(folder / SAMPLES_FILE, problems=ProblemsFile(folder / PROBLEMS_FILE), is_lasting=True)
            store.mend()
            yield store

    def mend(self) -> None:
        """Remove the torn last line that a kill may have left."""
        keep_jsonl(self.path, lambda row: True)

    def rows(self) -> list[SampleRow]:
        """Return every sample once, in the order in which they first came, without mark and epoch.

        Raises DamagedRecordError for a file that does not hold what was written.
        """
        parquet = self.path.with_suffix(".parquet")
        found = typed_rows(parquet, read_parquet(parquet).to_pylist(), SampleRow) if parquet.exists() else []
        found += typed_rows(self.path, read_jsonl(self.path), SampleRow)
        mine = [cast(dict[str, Any], row) for row in found]
        mine = [row for row in mine if all(row.get(name) == value for name, value in self.mark.items())]
        mine = [row for row in mine if "epoch" not in row or not self.superseded(row["epoch"], row["step"])]
        # A kill between compacting and removing leaves samples in both files. A row that an earlier start wrote late
        # follows those of the later one. The sort is stable, and the dictionary below keeps the last row of each
        # sample.
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
        """Record problems; call it before appending the samples that refer to them."""
        if self.problems is not None:
            self.problems.add(conditions.task.name, conditions.split, problems, conditions.prompts.ask)

    def compact(self, rows: Sequence[SampleRow]) -> None:
        """Write these rows to one parquet file. What came since stays in the .jsonl file until `drop`."""
        import pyarrow
        import pyarrow.parquet

        table = pyarrow.Table.from_pylist(cast(list[dict[str, Any]], list(rows)))
        write_atomic(
            self.path.with_suffix(".parquet"),
            lambda aside: pyarrow.parquet.write_table(table, aside, compression="zstd", write_page_checksum=True),
        )

    def drop(self) -> None:
        """Remove the .jsonl file: it was compacted, or is no longer needed."""
        remove(self.path)

    def graded(self, conditions: Conditions, again: bool = False) -> list[SampleRow]:
        """Return all rows, compacted, with verdicts of the grader as it is today.

        again: grade even if the stored verdicts are current.
        """
        rows, task = self.rows(), conditions.task
        if again or self._read_grading() != conditions.grading:
            rows = regrade(task, task.split(conditions.split).load(), rows, conditions.grader)
        # The order matters: the rows must be in the parquet file before the .jsonl file goes, and the grading is
        # claimed last.
        self.compact(rows)
        self.drop()
        self._write_grading(conditions.grading)
        return rows

    def begin(self, conditions: Conditions, there: Collection[SampleRow]) -> None:
        """Prepare for more samples: if the stored ones were graded otherwise, all will be graded again."""
        alike = not there or self._read_grading() == conditions.grading
        # {} equals no grading, so `graded` will grade every row.
        self._write_grading(conditions.grading if alike else {})

    def _read_grading(self) -> object:
        """Return the stored grading; None if it is unknown, which only means that the rows are graded again."""
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
    """A sampler that keeps each completion as it finishes, so that a repeated request is answered from the file.

    For evaluations that sample and grade in their own way, as lm-eval does. Use `opened`.

    policy: called if anything has to be sampled. append_start: adds a row with versions, machine and what is known of
    the model to a file of starts.
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

        asked: the conditions of whatever is sampled, all but prompt, parameters and names. Raises as `claimed`.
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
        # Prompt and parameters are in the key: unlike in a `SampleStore`, they may differ from call to call.
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
    """Hold a folder for this process alone until the block ends; create it if it is missing.

    asked: the conditions under which its contents were sampled, kept in its spec.json.

    Raises RefusedError if it holds samples of other or unknown conditions, if another process has it open, or if it
    cannot be read or written. Raises DamagedRecordError if its spec.json does not hold conditions.
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
    """Return whether an error concerns the folder, its contents or its parents, and not, say, a model's files."""
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
