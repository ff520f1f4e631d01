"""The measurements of one finished cell, read from its records once, and the metric that a sweep compares.

The rows of steps.jsonl and timing.jsonl are kept by column: a sweep has tens of thousands of rows with some sixty
fields, but a mean or a curve needs a single field.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from harness.errors import InvalidError, WordedError, few, nearest
from harness.records.scores import METRIC_PREFIX, accuracy_names
from harness.records.tables import as_array, read_columns
from harness.words import said
from reports.measure.final_samples import COLUMNS, FinalSamples
from reports.processes import each_in_processes
from reports.statistics import FloatArray

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.compute

    from harness.records import CellRecord, SweepRecord
    from harness.records.files import DamagedRecordError
    from harness.records.rows import ScoreRow

_DRAWN = re.compile(r"[@^]([0-9]+)$")
READ_TOGETHER = 25
"""The number of cells that a process reads at a time, so that data they share is sent and stored once."""


@dataclass(frozen=True)
class Columns:
    """Columns of numbers, stored as one array of integers and one of floats.

    For a thousand cells this takes a tenth of the objects that one array per field would need.
    """

    length: int
    """The number of rows."""
    places: Mapping[str, tuple[Literal["integers", "floats"], int]]
    """Maps each field to its array and its row in that array, in the order of the records."""
    integers: npt.NDArray[np.int64]
    """[integer fields, length] the fields that are integers in every row."""
    floats: FloatArray
    """[other fields, length] NaN if a row has no value."""

    @classmethod
    def of(cls, table: pyarrow.Table, needed: Sequence[str] = ()) -> Columns:
        """Convert a table.

        Raises ValueError, naming the field, if a column is not numeric or a `needed` one has a gap.
        """
        fields = {name: _numbers(name, table[name]) for name in table.column_names}
        integers = {name: values for name, values in fields.items() if values.dtype.kind == "i"}
        floats = [values for name, values in fields.items() if name not in integers]
        columns = cls(
            len(table),
            _places(tuple(fields), tuple(integers)),
            np.array([*integers.values()], dtype=np.int64).reshape(len(integers), len(table)),
            np.array(floats, dtype=np.float64).reshape(len(floats), len(table)),
        )
        for name in needed:
            if len(table) and (gaps := np.flatnonzero(np.isnan(columns[name]))).size:
                raise ValueError(f"row {gaps[0] + 1} lacks {name!r}")
        return columns

    @property
    def fields(self) -> dict[str, npt.NDArray[np.int64] | FloatArray]:
        """The recorded values [length] of each field, including infinities."""
        return {name: getattr(self, kind)[row] for name, (kind, row) in self.places.items()}

    def __getitem__(self, field: str) -> FloatArray:
        """Return the values [length] of a field, with NaN for non-finite values; all NaN if it was not recorded."""
        if field not in self.places:
            return np.full(self.length, np.nan)
        kind, row = self.places[field]
        # astype copies, so the stored infinities stay and `fields` still shows them.
        values: FloatArray = getattr(self, kind)[row].astype(np.float64)
        values[~np.isfinite(values)] = np.nan
        return values

    def known(self, field: str) -> FloatArray:
        """Return the finite values of a field, in order."""
        values = self[field]
        return values[~np.isnan(values)]


@lru_cache(maxsize=32)
def _places(names: tuple[str, ...], integers: tuple[str, ...]) -> dict[str, tuple[Literal["integers", "floats"], int]]:
    """Build `Columns.places`, cached so that all cells with the same fields share it."""
    found: dict[str, tuple[Literal["integers", "floats"], int]] = {}
    n_floats = 0
    for name in names:
        if name in integers:
            found[name] = ("integers", integers.index(name))
        else:
            found[name] = ("floats", n_floats)
            n_floats += 1
    return found


def _numbers(name: str, column: pyarrow.ChunkedArray) -> npt.NDArray[np.int64] | FloatArray:
    from pyarrow import types

    if not (types.is_integer(column.type) or types.is_floating(column.type) or types.is_null(column.type)):
        raise ValueError(f"{name!r} holds something that is not a number")
    return as_array(column if types.is_integer(column.type) else column.cast("float64"))


class MetricError(WordedError, ValueError):
    """A metric by which arms cannot be compared: it is malformed, was never recorded, or is not an accuracy."""


@dataclass(frozen=True)
class TaskMetric:
    """A metric of the final evaluation of one task, e.g. pass@1 of arithmetic."""

    task: str
    name: str

    @classmethod
    def of(cls, sweep: SweepRecord) -> TaskMetric:
        """Return the metric that a sweep compares. Raises MetricError, like `parse`."""
        return cls.parse(sweep.metric, sweep)

    @classmethod
    def parse(cls, metric: str, sweep: SweepRecord) -> TaskMetric:
        """Parse `eval.final.<task>.<metric>`, or `eval.final.<metric>` for the sweep's first task.

        Raises MetricError if it has another form, the sweep does not have the task, or the metric is not an accuracy.
        """
        if not metric.startswith(METRIC_PREFIX):
            raise MetricError("reports.metric_malformed", metric=metric)
        task, _, name = metric.removeprefix(METRIC_PREFIX).rpartition(".")
        if task and task not in sweep.tasks:
            raise MetricError("reports.metric_of_unknown_task", metric=metric, task=task, tasks=", ".join(sweep.tasks))
        if not sweep.compares_arms(name):
            fractions = accuracy_names(sweep.k)
            raise MetricError(
                "reports.metric_not_comparable",
                metric=metric,
                nearest=nearest(name, fractions),
                known=", ".join(fractions),
            )
        return cls(task or sweep.tasks[0], name)


@dataclass(frozen=True)
class Measurement:
    """A finished cell and its measurements. Fractions are in [0, 1]; a number that was not recorded is None."""

    cell: CellRecord
    metric: TaskMetric
    names: Mapping[str, str] | None = field(default=None, compare=False)
    """Maps the problems to include to the ids that both sides of a comparison share; None for all, unchanged."""

    @cached_property
    def trainer(self) -> str:
        """The cell's `trainer.type`: `bench`, or the trainer that runs the user's own program."""
        return str(self.cell.spec.get("trainer", {}).get("type", "bench"))

    @cached_property
    def steps(self) -> Columns:
        """The rows of steps.jsonl.

        Raises DamagedRecordError if the file cannot be read, a row lacks the x of curves, or steps do not increase.
        """
        path = self.cell.path / "steps.jsonl"
        counted = ("generated_tokens",) if self.cell.generated_tokens is not None else ()
        columns = _columns(path, self.cell.read_step_columns(), ("step", *counted))
        if (back := np.flatnonzero(np.diff(columns["step"]) <= 0)).size:
            raise _damaged(path, said("reports.step_row_no_later", back=back[0] + 2))
        return columns

    @cached_property
    def timing(self) -> Columns:
        """The rows of timing.jsonl. Raises DamagedRecordError if they cannot be read."""
        path = self.cell.path / "timing.jsonl"
        return _columns(path, read_columns(path))

    @cached_property
    def scores(self) -> list[ScoreRow]:
        """The rows of scores.jsonl for all tasks, in the order of training. Raises DamagedRecordError."""
        return self.cell.read_scores()

    @cached_property
    def evaluations(self) -> list[ScoreRow]:
        """The rows of scores.jsonl for the compared task."""
        return [row for row in self.scores if row["task"] == self.metric.task]

    def on_task(self, task: str) -> Measurement:
        """Return the same cell, measured by the same metric on another task."""
        other = Measurement(self.cell, TaskMetric(task, self.metric.name))
        vars(other)["scores"] = self.scores  # Share the rows, so that they are read once.
        return other

    @cached_property
    def final_samples(self) -> FinalSamples | None:
        """The counted samples of the final evaluation on the compared task; None if the cell kept none.

        Raises DamagedRecordError if they cannot be read.
        """
        table = self.read_final_samples(COLUMNS)
        samples = None if table is None else FinalSamples.of(self.cell.evals, table)
        return samples if samples is None or self.names is None else samples.named(self.names)

    def read_final_samples(
        self, columns: Sequence[str], where: pyarrow.compute.Expression | None = None
    ) -> pyarrow.Table | None:
        """Read columns of the compared task's final samples, optionally filtered by `where`; None if none were kept."""
        import pyarrow.compute as pc

        final = pc.field("final") & (pc.field("task") == self.metric.task)
        return self.cell.read_evals(columns, final if where is None else final & where)

    @cached_property
    def final(self) -> ScoreRow | None:
        """The final evaluation, whose scores are compared. It is that of the last checkpoint, not of the best.

        If `names` selects only some of its problems, it contains no metric but the compared one.
        """
        row = next((row for row in reversed(self.evaluations) if row["final"]), None)
        if row is None or self.names is None or len(self.names) == row.get("n_problems"):
            return row
        scores = self.problem_scores_pp
        metrics: dict[str, float | None] = {}
        if scores:
            metrics[self.metric.name] = statistics.fmean(scores.values()) / 100
        return {**row, "n_problems": len(scores), "metrics": metrics}

    def final_value(self, name: str) -> float | None:
        return None if self.final is None else finite(self.final["metrics"].get(name))

    @cached_property
    def score_pp(self) -> float | None:
        """The compared metric, in percentage points. Raises MetricError if it is not a fraction."""
        value = self.final_value(self.metric.name)
        if value is None:
            return None
        if not 0 <= value <= 1:
            raise MetricError(
                "reports.score_not_a_fraction",
                metric=self.metric.name,
                arm=self.cell.arm,
                seed=self.cell.seed,
                value=value,
            )
        return 100 * value

    @property
    def quantum_pp(self) -> float:
        """How far the compared metric moves when one sample's verdict flips, in percentage points.

        If the metric scores k of a problem's n samples, one sample is worth k / n of a problem. A metric without a k in
        its name, such as a plug-in's, is assumed to score individual samples. 0 if the records do not give the number
        of samples.
        """
        row = self.final
        problems, samples = (None, None) if row is None else (row.get("n_problems"), row.get("n_samples"))
        if not problems or not samples:
            return 0.0
        drawn = _DRAWN.search(self.metric.name)
        k = samples if self.metric.name == "cons@n" else int(drawn[1]) if drawn else 1
        return float(100 * k / (problems * samples))

    @cached_property
    def evaluates_checkpoint(self) -> bool:
        """True if the cell evaluates a checkpoint without training, so that problems are the replicates."""
        return self.cell.spec.get("checkpoint") is not None

    @cached_property
    def problem_scores_pp(self) -> dict[str, float]:
        """The compared metric of each problem in the final evaluation, by problem id, in percent.

        Available for pass@k and avg@n; empty for other metrics, or if no samples were kept.
        """
        name = "pass@1" if self.metric.name == "avg@n" else self.metric.name
        if self.final_samples is None or not name.startswith("pass@"):
            return {}
        return self.final_samples.pass_at_pp(int(name.removeprefix("pass@")))

    @property
    def spent_tokens(self) -> float | None:
        """The token count that should be equal in both arms: generated in training, or per answer of a checkpoint."""
        return self.final_value("mean_tokens") if self.evaluates_checkpoint else self.cell.generated_tokens

    def step_mean(self, key: str) -> float | None:
        known = self.steps.known(key)
        return float(known.mean()) if len(known) else None

    @property
    def length_slope_tokens(self) -> float | None:
        """The least-squares growth of the mean completion, in tokens per 100 steps; None for fewer than two steps."""
        step, length = self.steps["step"], self.steps["len/mean"]
        known = ~np.isnan(length)
        if known.sum() < 2:
            return None
        return float(100 * np.polyfit(step[known], length[known], 1)[0])

    def seconds(self, phase: str) -> float | None:
        known = self.timing.known(phase)
        return float(known.sum()) if len(known) else None

    @property
    def drawn_samples(self) -> int:
        """The number of samples drawn in all evaluations, including those during training."""
        return sum(row.get("n_problems", 0) * row.get("n_samples", 0) for row in self.scores)

    @cached_property
    def as_first_evaluated(self) -> Measurement:
        """The same cell with its original evaluation, the one that timing.jsonl timed."""
        return self if self.cell.evaluation is None else Measurement(self.cell.own, self.metric)

    @cached_property
    def sample_s(self) -> float | None:
        """The seconds that sampling and grading one evaluation sample took; None if they were not timed."""
        first = self.as_first_evaluated
        seconds, samples = first.seconds("eval_s"), first.drawn_samples
        return seconds / samples if seconds and samples else None

    @property
    def grader_disagreement_frac(self) -> float | None:
        """The share of final samples on which the graders disagree; None for fewer than two graders."""
        return None if self.final_samples is None else self.final_samples.disagreement_frac


def _with_records(measurements: list[Measurement]) -> list[Measurement]:
    """Read the records that every report uses, and return the measurements that now hold them."""
    for measurement in measurements:
        for name in ("steps", "timing", "scores", "final_samples"):
            getattr(measurement, name)
    return measurements


def _columns(path: Path, table: pyarrow.Table, needed: Sequence[str] = ()) -> Columns:
    """Convert a table that was read from `path`. Raises DamagedRecordError, naming the path, if it is faulty."""
    try:
        return Columns.of(table, needed)
    except ValueError as error:
        raise _damaged(path, str(error)) from None


def _damaged(path: Path, fault: str) -> DamagedRecordError:
    from harness.records.files import DamagedRecordError

    return DamagedRecordError("reports.measurement_damaged", path=path, fault=fault)


def finite(value: float | None) -> float | None:
    """Return the value as a float, or None if it is missing or not finite."""
    return float(value) if value is not None and math.isfinite(value) else None


def mean_of(values: Iterable[float | None]) -> float | None:
    """Return the mean of the finite values, or None if there are none."""
    present = [number for value in values if (number := finite(value)) is not None]
    return sum(present) / len(present) if present else None


def read_measurements(sweep: SweepRecord, processes: int = 1) -> dict[str, list[Measurement]]:
    """Read the finished cells of each arm, with arms and seeds in the order of the sweep file.

    processes: if above 1, all records are read at once, in parallel. Otherwise each is read on first use.
    Raises InvalidError if no cell is done, MetricError if no cell recorded the compared metric, and DamagedRecordError
    for damaged records.
    """
    metric = TaskMetric.of(sweep)
    measured = [Measurement(cell, metric) for cell in sweep.cells if cell.state == "done"]
    for measurement in measured:
        measurement.cell.require_whole()
        _ = measurement.cell.spec  # Raise now for any damaged spec; a report reads only one per arm.
    if processes > 1:
        parts = [measured[start : start + READ_TOGETHER] for start in range(0, len(measured), READ_TOGETHER)]
        measured = [one for part in each_in_processes(_with_records, parts, processes) for one in part]
    done = {(m.cell.arm, m.cell.seed): m for m in measured}
    if not done:
        raise InvalidError("reports.no_cell_done", sweep=sweep.name)
    if all(measurement.score_pp is None for measurement in done.values()):
        recorded = {name for m in done.values() if m.final is not None for name in m.final["metrics"]}
        names = sorted(filter(sweep.compares_arms, recorded))
        if metric.name in names:
            raise MetricError("reports.metric_not_finite", metric=metric.name, task=metric.task, sweep=sweep.name)
        raise MetricError(
            "reports.metric_not_recorded",
            sweep=sweep.name,
            metric=metric.name,
            task=metric.task,
            nearest=nearest(metric.name, names),
            known=few(names),
        )
    return {arm: [done[arm, seed] for seed in sweep.seeds if (arm, seed) in done] for arm in sweep.arms}
