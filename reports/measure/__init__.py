"""Everything that a report computes from a sweep's records. No module here writes a page.

An `Analysis` reads a sweep once: its finished cells (`measurements`), the summaries of its arms (`arms`), and the
comparisons between arms (`contrasts`). Every other module computes one quantity from an analysis: `curves`, `problems`,
`flips`, ...
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from reports.measure.arms import summarise_arms
from reports.measure.contrasts import Contrast, compare_arms
from reports.measure.measurements import Measurement, TaskMetric, read_measurements
from reports.report import ArmRow

if TYPE_CHECKING:
    from harness.records import SweepRecord
    from harness.records.rows import EvaluationRow

Derived = TypeVar("Derived")
Value = TypeVar("Value")


@dataclass(frozen=True)
class Analysis:
    """A sweep that has been read and compared: the input of every figure and table of a report."""

    sweep: SweepRecord
    metric: TaskMetric
    measurements: dict[str, list[Measurement]]
    """The finished cells of each arm, in the order of seeds."""
    contrasts: list[Contrast]
    """One for each arm except the baseline, in the order of the sweep file."""
    reflection_words: Sequence[str] | None = None
    """The words whose tokens are counted over the course of training; None for the default list."""
    processes: int = 1
    """The number of processes for later computations."""
    over: str | None = None
    """The `field` of the `curves.Axis` to use as the x axis of curves; None for the first that all cells recorded."""
    known: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The cached results of `derived` functions, keyed by function name."""

    @functools.cached_property
    def arms(self) -> list[ArmRow]:
        """The summaries of the arms, in the order of the sweep file."""
        return summarise_arms(self)

    def base_evaluation(self, arm: str | None = None) -> EvaluationRow | None:
        """Return the compared task's scores of the model that an arm started from, or None if it was not evaluated.

        Without an arm, return the scores of the model that all arms started from, or None if they started from
        different models.
        """
        rows = self.sweep.base_scores_of(arm)
        return next((row for row in reversed(rows) if row["task"] == self.metric.task), None)

    def base_metrics(self, arm: str | None = None) -> dict[str, float | None]:
        """Return the metrics in `base_evaluation`, or {} if that is None."""
        found = self.base_evaluation(arm)
        return {} if found is None else found["metrics"]

    @property
    def trains(self) -> bool:
        """True if the sweep trains its cells; False if all of them evaluate the same checkpoint."""
        return self.sweep.checkpoint is None

    @property
    def seeds(self) -> str:
        """The randomness that the sweep's seeds vary, as a phrase for captions."""
        return "training seeds" if self.trains else "evaluation seeds"

    def arm(self, name: str) -> ArmRow:
        return next(arm for arm in self.arms if arm.arm == name)

    def by_seed(self, value: Callable[[Measurement], Value | None]) -> dict[str, dict[int, Value]]:
        """Compute a value for every finished cell, and return the values by arm and seed.

        Cells for which `value` returns None are left out, and so are arms with no remaining cell.
        """
        found = {
            arm: {m.cell.seed: one for m in cells if (one := value(m)) is not None}
            for arm, cells in self.measurements.items()
        }
        return {arm: values for arm, values in found.items() if values}


def derived(compute: Callable[[Analysis], Derived]) -> Callable[[Analysis], Derived]:
    """Decorate a function so that its result is computed once per analysis and then cached.

    The cache is pickled with the analysis for the processes that draw figures, so the result must be picklable.
    """
    name = _name_of(compute)

    @functools.wraps(compute)
    def computed_once(analysis: Analysis) -> Derived:
        if name not in analysis.known:
            analysis.known[name] = compute(analysis)
        result: Derived = analysis.known[name]
        return result

    return computed_once


def remember(analysis: Analysis, compute: Callable[[Analysis], Derived], result: Derived) -> None:
    """Store a result that another process computed, so that the `derived` function returns it."""
    analysis.known[_name_of(compute)] = result


def _name_of(compute: Callable[[Analysis], object]) -> str:
    return f"{compute.__module__}.{compute.__qualname__}"


def analyse(sweep: SweepRecord, reflection_words: Sequence[str] | None = None, processes: int = 1) -> Analysis:
    """Read and compare a sweep with this number of processes. Raises as `read_measurements`."""
    measurements = read_measurements(sweep, processes)
    return Analysis(
        sweep=sweep,
        metric=TaskMetric.of(sweep),
        measurements=measurements,
        contrasts=compare_arms(sweep, measurements),
        reflection_words=reflection_words,
        processes=processes,
    )
