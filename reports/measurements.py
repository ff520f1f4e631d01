"""What one finished cell measured, read from its records once, and the metric that a sweep compares."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.records.scores import METRIC_PREFIX, accuracy_names
from reports.columns import Columns
from reports.processes import each_in_processes

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.compute

    from harness.records import CellRecord, SweepRecord
    from harness.records.files import DamagedRecordError

Row = dict[str, Any]


class MetricError(ValueError):
    """A metric that arms cannot be compared by: of another form, never recorded, or no accuracy."""


@dataclass(frozen=True)
class Metric:
    """A metric of the final evaluation of one task, e.g. pass@1 of arithmetic."""

    task: str
    name: str

    @classmethod
    def of(cls, sweep: SweepRecord) -> Metric:
        """The one that a sweep compares. Raises as `parse`."""
        return cls.parse(sweep.metric, sweep)

    @classmethod
    def parse(cls, metric: str, sweep: SweepRecord) -> Metric:
        """Parse `eval.final.<task>.<metric>` or `eval.final.<metric>`, which means the first of the sweep's tasks.

        Raises MetricError for another form, a task that is not among them, or a metric of which more is not better.
        """
        if not metric.startswith(METRIC_PREFIX):
            raise MetricError(f"metric is {metric!r}: give eval.final.<task>.<metric>, or eval.final.<metric>")
        task, _, name = metric.removeprefix(METRIC_PREFIX).rpartition(".")
        if task and task not in sweep.tasks:
            raise MetricError(f"metric {metric!r} names the task {task!r}: evaluated were {', '.join(sweep.tasks)}")
        if not sweep.compares_arms(name):
            raise MetricError(
                f"metric is {metric!r}: arms are compared in percentage points and the higher is called better, so it"
                f" must be a fraction in [0, 1] of which more is better: {', '.join(accuracy_names(sweep.k))}"
            )
        return cls(task or sweep.tasks[0], name)


@dataclass(frozen=True)
class Measurement:
    """A finished cell. Fractions lie in [0, 1]; a number that was not recorded is None."""

    cell: CellRecord
    metric: Metric

    @cached_property
    def steps(self) -> Columns:
        """Of steps.jsonl. Raises DamagedRecordError, also where a row lacks what curves run over or is of no later step
        than the one before it."""
        path = self.cell.path / "steps.jsonl"
        columns = _columns(path, self.cell.read_step_columns(), ("step", "generated_tokens"))
        if (back := np.flatnonzero(np.diff(columns["step"]) <= 0)).size:
            raise _damaged(path, f"row {back[0] + 2} is of no later step than the row before it")
        return columns

    @cached_property
    def timing(self) -> Columns:
        """Of timing.jsonl. Raises DamagedRecordError."""
        from harness.records.tables import read_columns

        path = self.cell.path / "timing.jsonl"
        return _columns(path, read_columns(path))

    @cached_property
    def scores(self) -> list[Row]:
        """Rows of scores.jsonl, of every task, in the order in which they were written. Raises DamagedRecordError."""
        return self.cell.read_scores()

    @cached_property
    def evaluations(self) -> list[Row]:
        """The scores on the compared task."""
        return [row for row in self.scores if row["task"] == self.metric.task]

    def on_task(self, task: str) -> Measurement:
        """The same cell by the same metric of another task."""
        other = Measurement(self.cell, Metric(task, self.metric.name))
        vars(other)["scores"] = self.scores  # read once
        return other

    @cached_property
    def final_samples(self) -> pyarrow.Table | None:
        """Problem, verdict and number of every sample of the final evaluation on the compared task, without the texts;
        None where the cell kept no samples. Older records may lack columns. Raises DamagedRecordError for gaps."""
        from harness.records.tables import require_values

        table = self.read_final_samples(["problem_id", "sample", "correct", "verdicts"])
        if table is not None:
            require_values(self.cell.evals, table, table.column_names)
            if "correct" in table.column_names and str(table.schema.field("correct").type) != "bool":
                raise _damaged(self.cell.evals, "the column correct holds something that is not true or false")
        return table

    def read_final_samples(
        self, columns: list[str], where: pyarrow.compute.Expression | None = None
    ) -> pyarrow.Table | None:
        """These columns of the samples of the final evaluation on the compared task; None where none were kept."""
        import pyarrow.compute as pc

        final = pc.field("final") & (pc.field("task") == self.metric.task)
        return self.cell.read_evals(columns, final if where is None else final & where)

    @cached_property
    def final(self) -> Row | None:
        """The final evaluation: the one that is compared, never the best checkpoint."""
        return next((row for row in reversed(self.evaluations) if row["final"]), None)

    def final_value(self, name: str) -> float | None:
        return None if self.final is None else finite(self.final["metrics"].get(name))

    @cached_property
    def score_pp(self) -> float | None:
        """The compared metric, in percentage points. Raises MetricError when it is not in [0, 1]."""
        value = self.final_value(self.metric.name)
        if value is None:
            return None
        if not 0 <= value <= 1:
            raise MetricError(
                f"{self.metric.name} of {self.cell.arm} seed {self.cell.seed} is {value}: arms are compared in"
                " percentage points, so it must be a fraction in [0, 1]. See the cell's scores.jsonl, or compare"
                " another metric"
            )
        return 100 * value

    def step_mean(self, key: str) -> float | None:
        known = self.steps.known(key)
        return float(known.mean()) if len(known) else None

    @property
    def length_slope_tokens(self) -> float | None:
        """Least-squares growth of the mean completion, in tokens over 100 steps; None with fewer than two steps."""
        step, length = self.steps["step"], self.steps["len/mean"]
        known = ~np.isnan(length)
        if known.sum() < 2:
            return None
        return float(100 * np.polyfit(step[known], length[known], 1)[0])

    def seconds(self, phase: str) -> float | None:
        known = self.timing.known(phase)
        return float(known.sum()) if len(known) else None

    @cached_property
    def grader_disagreement_frac(self) -> float | None:
        """Fraction of the final samples on which the graders do not all agree; None with fewer than two graders.

        Raises DamagedRecordError for verdicts that are no JSON object.
        """
        table = self.final_samples
        if table is None or "verdicts" not in table.column_names:
            return None
        counted = [
            (_votes(self.cell.evals, pair["values"]), pair["counts"])
            for pair in table["verdicts"].value_counts().to_pylist()
        ]
        if not counted or min(len(votes) for votes, _ in counted) < 2:
            return None
        return float(sum(count for votes, count in counted if len(set(votes)) > 1) / table.num_rows)


def _with_records(measurement: Measurement) -> Measurement:
    """The same, with what every report looks at read."""
    for name in ("steps", "timing", "scores", "final_samples"):
        getattr(measurement, name)
    return measurement


def _columns(path: Path, table: pyarrow.Table, needed: Sequence[str] = ()) -> Columns:
    """Of what was read from `path`."""
    try:
        return Columns.of(table, needed)
    except ValueError as error:
        raise _damaged(path, str(error)) from None


def _damaged(path: Path, fault: str) -> DamagedRecordError:
    from harness.records.files import DamagedRecordError

    return DamagedRecordError(f"{path}: {fault}. Restore the file, or move its folder away.")


def _votes(path: Path, verdicts: str) -> list[Any]:
    """What each grader said of a sample."""
    from harness.records.files import DamagedRecordError

    try:
        by_grader = json.loads(verdicts)
    except json.JSONDecodeError:
        by_grader = None
    if not isinstance(by_grader, dict):
        raise DamagedRecordError(
            f"{path}: is damaged: a sample's verdicts are {verdicts!r}, no JSON object. Restore it, or move its folder "
            "away."
        )
    return list(by_grader.values())


def finite(value: float | None) -> float | None:
    """The value as a float, None when it is missing or not finite."""
    return float(value) if value is not None and math.isfinite(value) else None


def mean_of(values: Iterable[float | None]) -> float | None:
    """Mean of the finite values; None without any."""
    present = [number for value in values if (number := finite(value)) is not None]
    return sum(present) / len(present) if present else None


def read_measurements(sweep: SweepRecord, processes: int = 1) -> dict[str, list[Measurement]]:
    """The finished cells of each arm, arms and seeds in the sweep's order; with more than one process, read at once.

    Raises ValueError when no cell is done, MetricError when none recorded the compared metric, DamagedRecordError for
    records that are not what was written.
    """
    metric = Metric.of(sweep)
    measured = [Measurement(cell, metric) for cell in sweep.cells if cell.state == "done"]
    for measurement in measured:
        _ = measurement.cell.spec  # only one of an arm is looked at, but a damaged one is named whichever it is
    if processes > 1:
        measured = each_in_processes(_with_records, measured, processes)
    done = {(m.cell.arm, m.cell.seed): m for m in measured}
    if not done:
        raise ValueError(f"no cell of {sweep.name} is done: a report needs at least one; `bench run` makes them")
    if all(measurement.score_pp is None for measurement in done.values()):
        recorded = {name for m in done.values() if m.final is not None for name in m.final["metrics"]}
        names = sorted(filter(sweep.compares_arms, recorded))
        if metric.name in names:
            raise MetricError(
                f"the final {metric.name!r} on {metric.task} is not a finite number in any finished cell of "
                f"{sweep.name}: nothing can be compared. See the cells' scores.jsonl, or compare another metric"
            )
        nearest = difflib.get_close_matches(metric.name, names, n=3, cutoff=0.3) or names
        raise MetricError(
            f"no finished cell of {sweep.name} has a final {metric.name!r} on {metric.task}: the metric must be"
            f" recorded; nearest names: {', '.join(nearest) or 'none, there is no final evaluation'}"
        )
    return {arm: [done[arm, seed] for seed in sweep.seeds if (arm, seed) in done] for arm in sweep.arms}
