"""Where the records of a planned cell are, or will be.

A cell's folder is named by its training hash, and an evaluation that it was not run with by its evaluation hash, so
that asking for another task, more samples or another decoding never trains anew. Cells of earlier versions, in folders
named by the semantic hash, are found too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evals.errors import EvalError
from harness.config.hashing import earlier_hash, evaluation_hash, semantic_hash, training_hash, training_hashes
from harness.config.knobs import active
from harness.config.model_source import parse_source
from harness.config.run_spec import RunSpec, recorded_spec
from harness.errors import RefusedError
from harness.plan.gate import ABSENT
from harness.records import CellRecord, cell_directory_name
from harness.records.cell import EVALUATION_FILE, is_cell_directory_name
from harness.records.files import DamagedRecordError, read_object

HASH_DIGITS = 10


@dataclass(frozen=True)
class PlannedCell:
    """One arm x one seed, with everything it does. hash: of its training. evaluation: the hash of its evaluation."""

    arm: str
    seed: int
    spec: RunSpec
    hash: str
    evaluation: str

    @classmethod
    def of_arm(cls, arm: str, by_seed: Mapping[int, RunSpec]) -> list[PlannedCell]:
        """The cells of an arm, whose specs differ in the seed only. Raises as the hashes."""
        first = next(iter(by_seed.values()))
        hashes, evaluation = training_hashes(first, by_seed), evaluation_hash(first)
        return [cls(arm, seed, spec, hashes[seed], evaluation) for seed, spec in by_seed.items()]

    @property
    def directory(self) -> str:
        return cell_directory_name(self.arm, self.seed, self.hash)

    def record(self, cells: Path) -> CellRecord:
        """Its record in a folder of cells, read under its evaluation."""
        return records_of([self], cells)[0]

    def _filed_earlier(self, folders: Sequence[Path]) -> Iterator[CellRecord]:
        """Cells of earlier versions that were trained alike, among those of this arm and seed: those with the same
        evaluation first."""
        if not folders:
            return
        today = semantic_hash(self.spec)
        for folder in folders:
            if folder.name == cell_directory_name(self.arm, self.seed, today):
                yield CellRecord(folder, self.arm, self.seed, today)
        for folder in folders:
            record = CellRecord.at(folder)
            if record.is_done and (spec := spec_of_earlier(record)) and training_hash(spec) == self.hash:
                yield record


def records_of(planned: Iterable[PlannedCell], cells: Path) -> list[CellRecord]:
    """The record of each planned cell in a folder of cells, which is listed once at most; see `PlannedCell.record`."""
    alike: dict[str, list[Path]] | None = None
    records = []
    for cell in planned:
        record = CellRecord(cells / cell.directory, cell.arm, cell.seed, cell.hash)
        if not record.path.exists():
            alike = _by_arm_and_seed(cells) if alike is None else alike
            record = next(cell._filed_earlier(alike.get(f"{cell.arm}-s{cell.seed}", [])), record)
        records.append(under_evaluation(record, cell.evaluation))
    return records


def _by_arm_and_seed(cells: Path) -> dict[str, list[Path]]:
    """The folders of cells by `<arm>-s<seed>`."""
    found: dict[str, list[Path]] = {}
    for folder in sorted(cells.iterdir()) if cells.is_dir() else []:
        found.setdefault(folder.name.rpartition("-")[0], []).append(folder)
    return found


def under_evaluation(record: CellRecord, evaluation: str) -> CellRecord:
    """The record as it is read under the evaluation of this hash, which becomes a cell's own evaluation once the cell
    is trained. A record whose own evaluation cannot be read is damaged."""
    try:
        if not record.is_done or _own_evaluation(record) == evaluation:
            return record
    except DamagedRecordError as error:
        return replace(record, fault=str(error))
    return replace(record, evaluation=evaluation[:HASH_DIGITS])


def _own_evaluation(record: CellRecord) -> str | None:
    """The hash of the evaluation that a trained cell was run with; None if nothing says it."""
    path = record.path / EVALUATION_FILE
    if path.exists():
        return read_object(path).get("hash")
    spec = spec_of_earlier(record)
    return None if spec is None else evaluation_hash(spec)


def spec_of_earlier(record: CellRecord) -> RunSpec | None:
    """The spec of a trained cell that an earlier version filed under its semantic hash; None where code, data or model
    of today would give it another one, so that its numbers need not be today's."""
    if (record.path / EVALUATION_FILE).exists():
        return None
    try:
        spec = recorded_spec(record)
        if semantic_hash(spec).startswith(record.path.name[-HASH_DIGITS:]):
            return spec
        earlier = earlier_hash(spec)
    except (RefusedError, EvalError, DamagedRecordError):  # of another version, or what it refers to is gone
        return None
    if earlier is None or not earlier.startswith(record.path.name[-HASH_DIGITS:]):
        return None
    # That fingerprint passed over files of the model's folder: they must be older than the cell.
    planned_s = (record.path / "spec.json").stat().st_mtime
    return None if parse_source(spec.model.source).differs_since(planned_s) else spec


_MOST_COMPARED = 200


@dataclass(frozen=True)
class Change:
    """Why a cell is to be trained, or evaluated, although one like it is finished.

    knobs: what differs, knob -> (the value of the finished cell, the value now). {}: all are equal, so that data, the
    model's files, the code of a plug-in or the numerics of bench have changed.
    """

    cell: PlannedCell
    finished: CellRecord
    knobs: dict[str, tuple[Any, Any]]


def changes(missing: Sequence[PlannedCell], cells: Path) -> list[Change]:
    """For the first missing cell of each arm, what has changed against the nearest finished cell in the folder: the one
    with the fewest other knobs; where two are as near, one of the same arm or seed, else the newest. Arms are left out
    of which only another seed is missing, or which have nothing to compare with."""
    finished = _finished_specs(cells) if missing else []
    found = []
    for cell in {cell.arm: cell for cell in reversed(missing)}.values():
        compared = [(record, _differing(spec, cell.spec)) for record, spec in finished]
        if not compared:
            continue
        nearest, knobs = min(compared, key=lambda one: (len(one[1]), one[0].arm != cell.arm, one[0].seed != cell.seed))
        if knobs or nearest.seed == cell.seed:
            found.append(Change(cell, nearest, knobs))
    return found[::-1]


def _finished_specs(cells: Path) -> list[tuple[CellRecord, RunSpec]]:
    """The trained cells of a folder, the newest of them, with the specs under which they were evaluated; without those
    of other versions."""
    folders = [path for path in cells.glob("*") if is_cell_directory_name(path.name)]
    records = [record for path in folders if (record := CellRecord.at(path)).is_done]
    records.sort(key=lambda record: record.path.stat().st_mtime, reverse=True)
    found = []
    for record in records[:_MOST_COMPARED]:
        with contextlib.suppress(RefusedError, DamagedRecordError):
            found.append((record, recorded_spec(record)))
    return found


def _differing(finished: RunSpec, wanted: RunSpec) -> dict[str, tuple[Any, Any]]:
    before, now = active(finished), active(wanted)
    return {
        knob: (before.get(knob, ABSENT), now.get(knob, ABSENT))
        for knob in dict.fromkeys([*now, *before])
        if knob != "seed" and before.get(knob, ABSENT) != now.get(knob, ABSENT)
    }
