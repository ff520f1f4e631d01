"""The paths of a planned cell's records, whether or not they exist yet.

A cell's folder is named by its training hash. Each further evaluation of the cell has a folder named by its evaluation
hash. So a different task, number of samples or decoding never retrains a cell.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.config.hashing import evaluation_hash, training_hashes
from harness.config.knobs import active
from harness.config.run_spec import RunSpec, recorded_spec
from harness.errors import RefusedError
from harness.plan.gate import differing
from harness.records import CellRecord, cell_directory_name
from harness.records.cell import EVALUATION_FILE, is_cell_directory_name
from harness.records.files import DamagedRecordError, read_object

HASH_DIGITS = 10
"""The number of digits of an evaluation's hash in the name of its folder."""


@dataclass(frozen=True)
class PlannedCell:
    """One arm with one seed, and its settings.

    hash: the training hash.
    evaluation: the evaluation hash.
    """

    arm: str
    seed: int
    spec: RunSpec
    hash: str
    evaluation: str

    @classmethod
    def of_arm(cls, arm: str, by_seed: Mapping[int, RunSpec]) -> list[PlannedCell]:
        """Return the cells of an arm. Their specs differ only in the seed. Raises as the hash functions."""
        first = next(iter(by_seed.values()))
        hashes, evaluation = training_hashes(first, by_seed), evaluation_hash(first)
        return [cls(arm, seed, spec, hashes[seed], evaluation) for seed, spec in by_seed.items()]

    @property
    def directory(self) -> str:
        return cell_directory_name(self.arm, self.seed, self.hash)

    def record(self, cells: Path) -> CellRecord:
        """Return the cell's record in a folder of cells, read under the planned evaluation."""
        return records_of([self], cells)[0]


def records_of(planned: Iterable[PlannedCell], cells: Path) -> list[CellRecord]:
    """Return the record of each planned cell in a folder of cells, read under the planned evaluation."""
    return [
        under_evaluation(CellRecord(cells / cell.directory, cell.arm, cell.seed, cell.hash), cell.evaluation)
        for cell in planned
    ]


def under_evaluation(record: CellRecord, evaluation: str) -> CellRecord:
    """Return the record, to be read under the evaluation with this hash.

    If the cell has not been trained, that evaluation will be part of its run. If the record of a trained cell's own
    evaluation cannot be read, the result is marked as damaged.
    """
    try:
        if not record.is_done or read_object(record.path / EVALUATION_FILE).get("hash") == evaluation:
            return record
    except DamagedRecordError as error:
        return replace(record, fault=str(error))
    return replace(record, evaluation=evaluation[:HASH_DIGITS])


_MOST_COMPARED = 200
"""The most finished cells, the newest first, that are compared with a missing cell."""


@dataclass(frozen=True)
class Change:
    """The reason why a cell must be trained or evaluated although a similar cell is finished."""

    cell: PlannedCell
    finished: CellRecord
    knobs: dict[str, tuple[object, object]]
    """The knobs that differ, with the value in the finished cell and the present value. If it is empty, all knobs are
    equal: data, the model's files, the code of a plug-in or the numerics of bench must have changed.
    """


def changes(missing: Sequence[PlannedCell], cells: Path) -> list[Change]:
    """Return, for each arm's first missing cell, what has changed since the nearest finished cell in the folder.

    The nearest cell has the fewest different knobs. Ties are broken in favour of the same arm, then the same seed, then
    the newest. An arm is left out if it only needs another seed, or if there is nothing to compare with.
    """
    finished = _finished_specs(cells) if missing else []
    found = []
    # The order is reversed, so that the dictionary keeps each arm's first missing cell. It is restored below.
    for cell in {cell.arm: cell for cell in reversed(missing)}.values():
        now = active(cell.spec)
        # The present knobs come first, in their order. The seed is not a knob.
        compared = [
            (record, {knob: (old, new) for knob, (new, old) in differing(now, active(spec)).items() if knob != "seed"})
            for record, spec in finished
        ]
        if not compared:
            continue
        nearest, knobs = min(compared, key=lambda one: (len(one[1]), one[0].arm != cell.arm, one[0].seed != cell.seed))
        if knobs or nearest.seed == cell.seed:
            found.append(Change(cell, nearest, knobs))
    return found[::-1]


def _finished_specs(cells: Path) -> list[tuple[CellRecord, RunSpec]]:
    """Return the newest trained cells in a folder, with their specs. Cells of other versions are left out."""
    folders = [path for path in cells.glob("*") if is_cell_directory_name(path.name)]
    records = [record for path in folders if (record := CellRecord.at(path)).is_done]
    records.sort(key=lambda record: record.path.stat().st_mtime, reverse=True)
    found = []
    for record in records[:_MOST_COMPARED]:
        with contextlib.suppress(RefusedError, DamagedRecordError):
            found.append((record, recorded_spec(record)))
    return found
