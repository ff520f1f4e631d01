"""Metrics of an evaluation. Each is a `Metric(...)` at the top level of a file in this folder or in a plug-in."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypedDict, get_args

from evals.errors import EvalError
from harness.errors import InvalidError, RefusedError
from harness.plugins import Kind

if TYPE_CHECKING:
    from evals.samples import SampleRow

Unit = Literal["count", "percentage points", "tokens", "fraction"]
Better = Literal["more", "less"]
K = "{k}"


@dataclass(frozen=True, eq=False)
class Samples:
    """The graded samples of a finished evaluation of one task."""

    by_problem: Sequence[Sequence[SampleRow]]
    """The records [P][n]: n samples for each of P problems."""

    @classmethod
    def of(cls, rows: Iterable[SampleRow]) -> Samples:
        """Group records by problem.

        Raises ValueError if there are no rows, or if problems differ in their number of samples.
        """
        problems: dict[str, list[SampleRow]] = {}
        for row in rows:
            problems.setdefault(row["problem_id"], []).append(row)
        if not problems:
            raise InvalidError("evals.no_rows_to_score")
        drawn = {problem: len(samples) for problem, samples in problems.items()}
        fewest, most = min(drawn, key=drawn.__getitem__), max(drawn, key=drawn.__getitem__)
        if drawn[fewest] != drawn[most]:
            raise InvalidError(
                "evals.unequal_sample_counts",
                fewest=fewest,
                n_fewest=drawn[fewest],
                most=most,
                n_most=drawn[most],
            )
        return cls(list(problems.values()))

    @property
    def n(self) -> int:
        """The number of samples per problem."""
        return len(self.by_problem[0])

    @property
    def rows(self) -> list[SampleRow]:
        """All samples, problem by problem."""
        return [row for samples in self.by_problem for row in samples]

    @cached_property
    def counts(self) -> list[int]:
        """The number of correct samples of each problem [P]."""
        return [sum(row["correct"] for row in samples) for samples in self.by_problem]

    @cached_property
    def answers(self) -> list[list[Hashable | None]]:
        """A key for the answer of each sample [P][n], or None if the grader cannot read an answer.

        Equal answers have equal keys (see `canonical_answer`).
        """
        from evals.grading.numeric import canonical_answer

        return [
            [None if row["reason"] == "unparsed" else canonical_answer(row["extracted"]) for row in samples]
            for samples in self.by_problem
        ]


@dataclass(frozen=True)
class Metric:
    """One number of an evaluation, or one for each k.

    Raises EvalError for a name with a full stop, or for an unknown unit or direction.
    """

    name: str
    """The name in records. A name with `{k}`, e.g. `pass@{k}`, gives one metric for each k of the evaluation."""
    meaning: str
    """A one-line description."""
    unit: Unit
    """A "fraction" is in [0, 1]."""
    better: Better | None
    """The better direction, or None if neither direction is better as such."""
    compute: Callable[..., float | None]
    """samples -> value; for a name with `{k}`, (samples, k) -> value.

    Returns None if the value cannot be computed, e.g. a mean over no samples. Raises ValueError for a k that n samples
    do not support.
    """

    def __post_init__(self) -> None:
        if "." in self.name:
            raise EvalError("evals.full_stop_in_metric", metric=self.name)
        if self.unit not in get_args(Unit) or self.better not in (*get_args(Better), None):
            raise EvalError(
                "evals.metric_unit_or_direction",
                metric=self.name,
                unit=self.unit,
                better=self.better,
                units=", ".join(map(repr, get_args(Unit))),
            )

    @property
    def has_k(self) -> bool:
        return K in self.name

    @property
    def compares_arms(self) -> bool:
        """True if arms can be compared by this metric: it is a fraction, and more is better."""
        return self.unit == "fraction" and self.better == "more"

    def value(self, samples: Samples, k: int | None) -> float | None:
        """Compute the metric of these samples.

        k: None for a metric without k. Raises EvalError if the result is not a number.
        """
        value = self.compute(samples) if k is None else self.compute(samples, k)
        if value is None or (isinstance(value, int | float) and math.isfinite(value)):
            return value
        raise EvalError("evals.metric_value_not_finite", metric=self.name, value=value)


METRICS: Kind[Metric] = Kind(
    "metric",
    lambda thing: isinstance(thing, Metric),
    "evals.metrics",
    "bench ls metrics",
    summary_of=lambda one: f"{one.unit}{f', {one.better} is better' if one.better else ''}: {one.meaning}",
)


class MetricDescription(TypedDict):
    """The facts about a metric that records state, for readers that do not know it."""

    unit: Unit
    better: Better | None
    compares_arms: bool


def metrics_for(ks: Iterable[int]) -> dict[str, tuple[Metric, int | None]]:
    """Return the metrics of an evaluation with these values of k: maps each name in records to the metric and its k.

    Metrics that compare arms come first, and among them those with k; the others follow by unit. Raises RefusedError if
    two have the same name, such as a plug-in's `pass@8` and `pass@{k}`.
    """
    wanted = list(ks)
    found: dict[str, tuple[Metric, int | None]] = {}
    for metric in sorted(METRICS.all().values(), key=_place):
        for k in wanted if metric.has_k else (None,):
            name = metric.name.replace(K, str(k))
            if name in found and found[name] != (metric, k):
                raise RefusedError(
                    "evals.duplicate_metric_name", name=name, metric=metric.name, other_metric=found[name][0].name
                )
            found[name] = metric, k
    return found


def _place(metric: Metric) -> tuple[bool, bool, int]:
    return not metric.compares_arms, not metric.has_k, get_args(Unit).index(metric.unit)


def find_metric(name: str) -> Metric:
    """Return the metric with this name in records: `pass@{k}` for `pass@8`. Raises UnknownNameError."""
    for metric in METRICS.all().values():
        before, k, after = map(re.escape, metric.name.partition(K))
        if re.fullmatch(f"{before}[1-9][0-9]*{after}" if k else before, name):
            return metric
    return METRICS.find(name)


def metric_facts(name: str) -> MetricDescription:
    """Return what a reader of records must know about the metric with this name. Raises UnknownNameError."""
    metric = find_metric(name)
    return {"unit": metric.unit, "better": metric.better, "compares_arms": metric.compares_arms}


def metric_sources() -> list[str]:
    """Return the digests of the plug-ins that provide metrics."""
    return sorted({source.digest for name in METRICS.names() if (source := METRICS.source(name)) is not None})


def mean(values: Iterable[float]) -> float | None:
    """Return the mean, or None if there are no values."""
    numbers = list(values)
    return math.fsum(numbers) / len(numbers) if numbers else None
