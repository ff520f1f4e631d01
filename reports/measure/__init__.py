"""What is read from the records of a sweep and computed from them: no drawing and no page.

An `Analysis` is a sweep as a report looks at it: its finished cells (`measurements`), and its arms and contrasts
(`arms`, `contrasts`), read and compared once. Every other module computes one thing from an analysis: `curves`,
`problems`, `flips`, ...
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
    """What every figure and every table of a report is made from.

    measurements: the finished cells of each arm, by seed. contrasts: in the order of the sweep file.
    reflection_words: the words whose tokens are followed through training; None: those that we follow by default.
    processes: how many work on what is computed later. over: the field of `curves.Axis` that curves run over; None: the
    first that all cells recorded.
    """

    sweep: SweepRecord
    metric: TaskMetric
    measurements: dict[str, list[Measurement]]
    contrasts: list[Contrast]
    reflection_words: Sequence[str] | None = None
    processes: int = 1
    over: str | None = None
    known: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The results of functions that are `derived`, by their names."""

    @functools.cached_property
    def arms(self) -> list[ArmRow]:
        """In the order of the sweep file."""
        return summarise_arms(self)

    def base_evaluation(self, arm: str | None = None) -> EvaluationRow | None:
        """The evaluation on the compared task of the model that an arm starts from, or all arms; None until it is
        measured, and of all arms where they start from different models."""
        rows = self.sweep.base_scores_of(arm)
        return next((row for row in reversed(rows) if row["task"] == self.metric.task), None)

    def base_metrics(self, arm: str | None = None) -> dict[str, float | None]:
        """The metrics in `base_evaluation`; empty where that is None."""
        found = self.base_evaluation(arm)
        return {} if found is None else found["metrics"]

    @property
    def trains(self) -> bool:
        """Whether cells train; else all evaluate one checkpoint."""
        return self.sweep.checkpoint is None

    @property
    def seeds(self) -> str:
        """What a seed is one of."""
        return "training seeds" if self.trains else "evaluation seeds"

    def arm(self, name: str) -> ArmRow:
        return next(arm for arm in self.arms if arm.arm == name)

    def by_seed(self, value: Callable[[Measurement], Value | None]) -> dict[str, dict[int, Value]]:
        """A value of every finished cell that has one, by arm and seed; arms without any are left out."""
        found = {
            arm: {m.cell.seed: one for m in cells if (one := value(m)) is not None}
            for arm, cells in self.measurements.items()
        }
        return {arm: values for arm, values in found.items() if values}


def derived(compute: Callable[[Analysis], Derived]) -> Callable[[Analysis], Derived]:
    """Decorates what is computed from an analysis once, however many figures and tables ask for it.

    The result travels with the analysis to the processes that draw figures, so it must be picklable.
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
    """Let a function that is `derived` return this result, which another one came by."""
    analysis.known[_name_of(compute)] = result


def _name_of(compute: Callable[[Analysis], object]) -> str:
    return f"{compute.__module__}.{compute.__qualname__}"


def analyse(sweep: SweepRecord, reflection_words: Sequence[str] | None = None, processes: int = 1) -> Analysis:
    """Read and compare a sweep, in so many processes. Raises as `read_measurements`."""
    measurements = read_measurements(sweep, processes)
    return Analysis(
        sweep=sweep,
        metric=TaskMetric.of(sweep),
        measurements=measurements,
        contrasts=compare_arms(sweep, measurements),
        reflection_words=reflection_words,
        processes=processes,
    )
