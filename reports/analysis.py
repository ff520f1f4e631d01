"""Everything a report is drawn from: a sweep's finished cells, its arms and its contrasts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from reports.across_tasks import AcrossTasks, across_tasks
from reports.arms import ArmSummary, summarise_arm
from reports.contrasts import Contrast, compare_arms
from reports.curves import Axis, training_axis
from reports.entropy_laws import EntropyFit, entropy_fits
from reports.measurements import Measurement, Metric, Row, read_measurements
from reports.problems import ProblemScores, problem_scores
from reports.processes import process_count
from reports.reflection import DEFAULT_WORDS, Reflection, read_reflection

if TYPE_CHECKING:
    from harness.records import SweepRecord


@dataclass(frozen=True)
class Analysis:
    """`measurements`: the finished cells of each arm, by seed. `arms` and `contrasts` are in the sweep's order.

    `processes`: how many work on what is read or computed later.
    """

    sweep: SweepRecord
    metric: Metric
    measurements: dict[str, list[Measurement]]
    arms: list[ArmSummary]
    contrasts: list[Contrast]
    reflection_words: Sequence[str] = DEFAULT_WORDS
    processes: int = 1

    @cached_property
    def reflection(self) -> Reflection:
        """What became of the reflection words in training; reads all completions."""
        return read_reflection(self.measurements, self.reflection_words, self.processes)

    @cached_property
    def axis(self) -> Axis:
        """What all curves of training run over."""
        return training_axis(self.measurements)

    @cached_property
    def entropy_fits(self) -> list[EntropyFit]:
        """The entropy law of every arm."""
        return entropy_fits(self.sweep, self.metric, self.measurements, self.processes)

    @cached_property
    def across_tasks(self) -> list[AcrossTasks]:
        """Every arm over all tasks, of three or more."""
        return across_tasks(self.sweep, self.metric, self.measurements)

    @property
    def base_evaluation(self) -> Row | None:
        """The evaluation of the model before training on the compared task; None until measured."""
        return next((row for row in reversed(self.sweep.base_scores) if row["task"] == self.metric.task), None)

    @property
    def base_metrics(self) -> dict[str, float | None]:
        """Metrics of the model before training, on the compared task; empty until measured."""
        return {} if self.base_evaluation is None else dict(self.base_evaluation["metrics"])

    @cached_property
    def problems(self) -> ProblemScores:
        """How often each arm solves each problem of the compared task."""
        return problem_scores(self.measurements)

    def arm(self, name: str) -> ArmSummary:
        return next(arm for arm in self.arms if arm.arm == name)


def analyse(sweep: SweepRecord, reflection_words: Sequence[str] = DEFAULT_WORDS) -> Analysis:
    """Read and compare a sweep; raises as `read_measurements`."""
    processes = process_count(len(sweep.cells))
    measurements = read_measurements(sweep, processes)
    return Analysis(
        sweep=sweep,
        metric=Metric.of(sweep),
        measurements=measurements,
        arms=[
            summarise_arm(arm, cells, alpha=sweep.alpha, budget_tokens=sweep.budget_tokens)
            for arm, cells in measurements.items()
        ],
        contrasts=compare_arms(sweep, measurements),
        reflection_words=reflection_words,
        processes=processes,
    )
