"""The graded samples of a cell's final evaluation, in a few kB, because a sweep may have a thousand cells.

The table of samples is reduced to counts by problem as soon as it is read. All comparisons by problem use these counts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from harness.records.files import DamagedRecordError
from harness.records.tables import REMEDY, as_array, require_values
from reports.statistics import FloatArray

if TYPE_CHECKING:
    import pyarrow

COLUMNS = ("problem_id", "sample", "correct", "verdicts")


@dataclass(frozen=True)
class FinalSamples:
    """The samples of a final evaluation, counted by problem. Imported samples may lack columns."""

    n_samples: int
    """The total number of samples, over all problems."""
    problems: tuple[str, ...]
    """[n_problems] in the order of the evaluation; empty if the records lack the problem ids or the verdicts."""
    drawn: npt.NDArray[np.int32]
    """[n_problems] the number of samples of each problem."""
    right: npt.NDArray[np.int32]
    """[n_problems] the number of correct samples of each problem."""
    disagreement_frac: float | None
    """The share of samples on which the graders do not all agree; None with fewer than two graders."""
    graders: tuple[str, ...]
    """Their names; () with fewer than two."""
    _bits: bytes | None
    """The `grid`, packed into one bit per sample."""

    @classmethod
    def of(cls, path: Path, table: pyarrow.Table) -> FinalSamples:
        """Count a table of samples, which was read from `path` and has those of COLUMNS that were recorded.

        Raises DamagedRecordError for missing values, or if `correct` is not boolean.
        """
        require_values(path, table, table.column_names)
        if "correct" in table.column_names and str(table.schema.field("correct").type) != "bool":
            raise DamagedRecordError("reports.verdicts_not_boolean", path=path, remedy=REMEDY)
        disagreement_frac, graders = _disagreement(path, table)
        if table.num_rows == 0 or not {"problem_id", "correct"} <= set(table.column_names):
            nothing = np.zeros(0, dtype=np.int32)
            return cls(table.num_rows, (), nothing, nothing, disagreement_frac, graders, None)
        coded = table["problem_id"].combine_chunks().dictionary_encode()
        problem = as_array(coded.indices)
        correct = as_array(table["correct"])
        drawn = np.bincount(problem)
        bits = None
        if "sample" in table.column_names and drawn.min() == drawn.max():
            # Sort by problem, then by sample number.
            bits = np.packbits(correct[np.lexsort((as_array(table["sample"]), problem))]).tobytes()
        return cls(
            table.num_rows,
            _one_copy(tuple(str(name) for name in coded.dictionary.to_pylist())),
            drawn.astype(np.int32),
            np.bincount(problem, weights=correct).astype(np.int32),
            disagreement_frac,
            graders,
            bits,
        )

    @property
    def is_known(self) -> bool:
        """True if the verdict on each sample is recorded together with its problem."""
        return bool(self.problems)

    @property
    def right_fracs(self) -> FloatArray:
        """The share of correct samples of each problem [n_problems]."""
        return np.asarray(self.right / self.drawn, dtype=np.float64)

    @property
    def grid(self) -> npt.NDArray[np.bool_] | None:
        """The verdicts [n_problems, samples]: True for a correct sample, ordered by sample number.

        Samples with the same number share their sampling noise across cells. None if the samples have no numbers, or if
        problems have different numbers of samples.
        """
        if self._bits is None:
            return None
        right = np.unpackbits(np.frombuffer(self._bits, dtype=np.uint8), count=self.n_samples)
        return right.reshape(len(self.problems), -1).astype(np.bool_)

    def named(self, names: Mapping[str, str]) -> FinalSamples:
        """Keep only the problems in `names`, each renamed to the id that it maps to."""
        kept = [place for place, problem in enumerate(self.problems) if problem in names]
        grid = self.grid
        return replace(
            self,
            n_samples=int(self.drawn[kept].sum()),
            problems=tuple(names[self.problems[place]] for place in kept),
            drawn=self.drawn[kept],
            right=self.right[kept],
            _bits=None if grid is None else np.packbits(grid[kept]).tobytes(),
        )

    def pass_at_pp(self, k: int) -> dict[str, float]:
        """Compute pass@k of each problem (arXiv:2107.03374, eq. 1), by problem id, in percent.

        Problems with fewer than k samples are left out.
        """
        counted = zip(self.problems, self.drawn.tolist(), self.right.tolist(), strict=True)
        return {
            problem: 100 * (1 - math.comb(drawn - right, k) / math.comb(drawn, k))
            for problem, drawn, right in counted
            if drawn >= k
        }


@lru_cache(maxsize=8)
def _one_copy(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the first of several equal tuples, so that cells with the same problems share one copy of their names."""
    return names


def _disagreement(path: Path, table: pyarrow.Table) -> tuple[float | None, tuple[str, ...]]:
    """Return the share of samples on which graders disagree, and the graders; (None, ()) with fewer than two."""
    if "verdicts" not in table.column_names:
        return None, ()
    # Few distinct texts occur, so each is parsed once.
    counted = [(_votes(path, pair["values"]), pair["counts"]) for pair in table["verdicts"].value_counts().to_pylist()]
    if not counted or min(len(votes) for votes, _ in counted) < 2:
        return None, ()
    disagree = sum(count for votes, count in counted if len(set(votes.values())) > 1)
    return float(disagree / table.num_rows), tuple(dict.fromkeys(name for votes, _ in counted for name in votes))


def _votes(path: Path, verdicts: str) -> Mapping[str, object]:
    """Return each grader's verdict on a sample. Raises DamagedRecordError if they are not a JSON object."""
    try:
        by_grader = json.loads(verdicts)
    except json.JSONDecodeError:
        by_grader = None
    if not isinstance(by_grader, dict):
        raise DamagedRecordError("reports.sample_verdicts_damaged", path=path, verdicts=verdicts, remedy=REMEDY)
    return by_grader
