"""The paths of a planned cell's records, whether they exist yet or not.

A cell's folder is named by its training hash. An evaluation that it was not run with is named by its evaluation hash.
Another task, more samples or another decoding therefore never train a cell anew.
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
"""Digits of an evaluation's hash in the name of its records."""


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
        """Return the cells of an arm, whose specs differ only in the seed. Raises as the hashes."""
        first = next(iter(by_seed.values()))
        hashes, evaluation = training_hashes(first, by_seed), evaluation_hash(first)
        return [cls(arm, seed, spec, hashes[seed], evaluation) for seed, spec in by_seed.items()]

    @property
    def directory(self) -> str:
        """The name of its folder."""
        return cell_directory_name(self.arm, self.seed, self.hash)

    def record(self, cells: Path) -> CellRecord:
        """Return its record in a folder of cells, read under its evaluation."""
        return records_of([self], cells)[0]


def records_of(planned: Iterable[PlannedCell], cells: Path) -> list[CellRecord]:
    """Return the record of each planned cell in a folder of cells, read under its evaluation."""
    return [
        under_evaluation(CellRecord(cells / cell.directory, cell.arm, cell.seed, cell.hash), cell.evaluation)
        for cell in planned
    ]


def under_evaluation(record: CellRecord, evaluation: str) -> CellRecord:
    """Return the record as it is read under the evaluation of this hash.

    That evaluation becomes a cell's own once the cell is trained. A record whose own evaluation cannot be read is
    damaged.
    """
    try:
        if not record.is_done or read_object(record.path / EVALUATION_FILE).get("hash") == evaluation:
            return record
    except DamagedRecordError as error:
        return replace(record, fault=str(error))
    return replace(record, evaluation=evaluation[:HASH_DIGITS])


_MOST_COMPARED = 200
"""The newest so many finished cells are compared with a missing one."""


@dataclass(frozen=True)
class Change:
    """Why a cell must be trained or evaluated although one like it is finished."""

    cell: PlannedCell
    finished: CellRecord
    knobs: dict[str, tuple[object, object]]
    """What differs, knob -> (the value of the finished cell, the value now). {}: all knobs are equal, so that data, the
    model's files, the code of a plug-in or the numerics of bench have changed."""


def changes(missing: Sequence[PlannedCell], cells: Path) -> list[Change]:
    """Return, for the first missing cell of each arm, what has changed since the nearest finished cell in the folder.

    The nearest cell has the fewest other knobs. Among equals one of the same arm or seed is preferred, then the newest.
    Arms are left out if only another seed of them is missing, or if there is nothing to compare with.
    """
    finished = _finished_specs(cells) if missing else []
    found = []
    # Reversed, so that the first missing cell of each arm stays in the dictionary. The result is turned back below.
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
    """Return the newest trained cells of a folder, with the specs under which they were evaluated.

    Cells of other versions are left out.
    """
    folders = [path for path in cells.glob("*") if is_cell_directory_name(path.name)]
    records = [record for path in folders if (record := CellRecord.at(path)).is_done]
    records.sort(key=lambda record: record.path.stat().st_mtime, reverse=True)
    found = []
    for record in records[:_MOST_COMPARED]:
        with contextlib.suppress(RefusedError, DamagedRecordError):
            found.append((record, recorded_spec(record)))
    return found
