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
from harness.records.files import (
    DamagedRecordError,
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
from harness.records.tables import naming_damage

_SAMPLES = ("evals.jsonl", "evals.parquet", "samples.jsonl")


def store_folder(home: Path, conditions: Conditions) -> Path:
    """`<home>/evals/<model>/<task>-<hash>`."""
    return home / "evals" / conditions.subject.label / f"{file_name(conditions.task.name)}-{conditions.hash()[:10]}"


@contextmanager
def claimed(path: Path, asked: dict[str, Any]) -> Iterator[None]:
    """The folder at a path, made if it is not there, for this process alone. `asked`: the conditions under which what
    it holds was drawn, kept in its spec.json.

    Raises RefusedError if it holds samples of other conditions or of unknown ones, if another process has it open, or
    if it cannot be read or written; DamagedRecordError if the conditions in it are no such thing.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with hold_lease(path):
            _require_same(path / "spec.json", asked)
            yield
    except LeaseTakenError as error:
        raise RefusedError(f"{path}: {error} Wait for it, or evaluate under other conditions.") from None
    except OSError as error:
        if is_disk_full(error) or not _is_about(error, path):
            raise
        raise RefusedError(
            f"{error.filename}: cannot be written ({error.strerror}). Make it writable, or choose another place with "
            "--home DIR or BENCH_HOME."
        ) from None


def _is_about(error: OSError, folder: Path) -> bool:
    """Whether it is about the folder, what is in it or what it is in, and not about a model's files, say."""
    if not isinstance(error.filename, str):
        return False
    place = Path(error.filename)
    return place == folder or place in folder.parents or folder in place.parents


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
        """Every sample once, in the order of problems and samples in which they came.

        Raises DamagedRecordError for a file that is not what was written.
        """
        rows = typed_rows(self._fresh, read_jsonl(self._fresh), SampleRow)
        if self._compacted.exists():
            rows = [*typed_rows(self._compacted, _read_parquet(self._compacted), SampleRow), *rows]
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

    def read_grading(self) -> Any:
        """None if it is not known, which only means that the rows are to be graded again."""
        path = self.path / "grading.json"
        try:
            return read_json(path) if path.exists() else None
        except DamagedRecordError:
            return None

    def write_grading(self, grading: dict[str, Any]) -> None:
        write_json(self.path / "grading.json", grading)

    def write_provenance(self, document: dict[str, Any]) -> None:
        write_json(self.path / "provenance.json", document)

    def write_scores(self, document: dict[str, Any]) -> None:
        write_json(self.path / "scores.json", document)


def _read_parquet(path: Path) -> list[dict[str, Any]]:
    import pyarrow
    import pyarrow.parquet

    with naming_damage(path):
        rows: list[dict[str, Any]] = pyarrow.parquet.read_table(pyarrow.BufferReader(path.read_bytes())).to_pylist()
    return rows


def _require_same(path: Path, asked: dict[str, Any]) -> None:
    if not path.exists():
        if samples := [name for name in _SAMPLES if (path.parent / name).exists()]:
            raise RefusedError(
                f"{path.parent} holds samples ({', '.join(samples)}) without {path.name}, so under which conditions "
                f"they were drawn is not known. Restore {path.name}, or move that folder away."
            )
        write_json(path, asked)
        return
    there = read_json(path)
    if not isinstance(there, dict):
        raise DamagedRecordError(f"{path}: is damaged: it holds no conditions. Restore it, or move its folder away.")
    if there != asked:
        differing = sorted(name for name in {*there, *asked} if there.get(name) != asked.get(name))
        raise RefusedError(
            f"{path.parent} holds samples of another spec: it differs in {', '.join(differing)}. Samples of two specs "
            "are never mixed: move that folder away, or give another --home."
        )
