"""The samples of one model on one task, on disk: appended as they finish, compacted when all are there.

spec.json        the conditions under which they were drawn; others are never mixed in
evals.jsonl      samples as they came; evals.parquet: those of finished evaluations
provenance.json  machine, versions and model of those that were drawn last
grading.json     grader and versions by which the stored verdicts were given
scores.json      of the evaluation as last asked for
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from evals.evaluate import SampleRow
from harness.errors import RefusedError
from harness.evaluate.conditions import Conditions
from harness.records.files import append_jsonl, file_name, keep_jsonl, read_json, read_jsonl, write_atomic, write_json
from harness.records.lease import LeaseTakenError, hold_lease


def store_folder(home: Path, conditions: Conditions) -> Path:
    """`<home>/evals/<model>/<task>-<hash>`."""
    return home / "evals" / conditions.subject.label / f"{file_name(conditions.task.name)}-{conditions.hash()[:10]}"


@contextmanager
def claimed(path: Path, asked: dict[str, Any]) -> Iterator[None]:
    """The folder at a path, made if it is not there, for this process alone. `asked`: the conditions under which what
    it holds was drawn, kept in its spec.json.

    Raises RefusedError if it holds samples of other conditions, if another process has it open, or if it cannot be
    written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with hold_lease(path):
            _require_same(path / "spec.json", asked)
            yield
    except LeaseTakenError as error:
        raise RefusedError(f"{path}: {error} Wait for it, or evaluate under other conditions.") from None
    except PermissionError as error:
        raise RefusedError(
            f"{error.filename or path}: cannot be written. Make it writable, or choose another place with --home "
            "DIR or BENCH_HOME."
        ) from None


@dataclass(frozen=True)
class SampleStore:
    """Use `opened`, which makes sure that this process alone writes, and that what is there belongs together."""

    path: Path

    @classmethod
    @contextmanager
    def opened(cls, path: Path, conditions: Conditions) -> Iterator[SampleStore]:
        """The store at a path. Raises as `claimed`."""
        with claimed(path, conditions.as_json()):
            store = cls(path)
            keep_jsonl(store._fresh, lambda row: True)  # without the torn end that a kill may have left
            yield store

    @property
    def _fresh(self) -> Path:
        return self.path / "evals.jsonl"

    @property
    def _compacted(self) -> Path:
        return self.path / "evals.parquet"

    def rows(self) -> list[SampleRow]:
        """Every sample once, in the order of problems and samples in which they came."""
        rows = cast(list[SampleRow], read_jsonl(self._fresh))
        if self._compacted.exists():
            import pyarrow.parquet

            rows = [*cast(list[SampleRow], pyarrow.parquet.read_table(self._compacted).to_pylist()), *rows]
        # A kill between compacting and removing leaves samples in both.
        return list({(row["problem_id"], row["sample"]): row for row in rows}.values())

    def append(self, rows: Sequence[SampleRow]) -> None:
        append_jsonl(self._fresh, cast(Sequence[dict[str, Any]], rows))

    def compact(self, rows: Sequence[SampleRow]) -> None:
        """Replace all that is there by these rows, in one parquet file."""
        import pyarrow
        import pyarrow.parquet

        table = pyarrow.Table.from_pylist(cast(list[dict[str, Any]], list(rows)))
        write_atomic(self._compacted, lambda aside: pyarrow.parquet.write_table(table, aside, compression="zstd"))
        self._fresh.unlink(missing_ok=True)

    def read_grading(self) -> dict[str, Any] | None:
        path = self.path / "grading.json"
        return dict(read_json(path)) if path.exists() else None

    def write_grading(self, grading: dict[str, Any]) -> None:
        write_json(self.path / "grading.json", grading)

    def write_provenance(self, document: dict[str, Any]) -> None:
        write_json(self.path / "provenance.json", document)

    def write_scores(self, document: dict[str, Any]) -> None:
        write_json(self.path / "scores.json", document)


def _require_same(path: Path, asked: dict[str, Any]) -> None:
    if not path.exists():
        write_json(path, asked)
        return
    there = read_json(path)
    if there != asked:
        differing = sorted(name for name in {*there, *asked} if there.get(name) != asked.get(name))
        raise RefusedError(
            f"{path.parent} holds samples of another spec: it differs in {', '.join(differing)}. Samples of two specs "
            "are never mixed: move that folder away, or give another --home."
        )
