"""Rows of records as points of MLflow's curves.

A long sweep has millions of points. A curve is therefore stored as columns: one object per point would take ten times
as long.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class TimedRow(NamedTuple):
    """A row of a record, and the time at which it was written, in Unix milliseconds."""

    values: Mapping[str, Any]
    at_ms: int


class MetricCurve(NamedTuple):
    """The points of one metric, as columns of equal length."""

    steps: NDArray[np.int64]
    """The rollout batch of each point."""
    values: NDArray[np.float64]
    """The values, all of them finite."""
    times_ms: NDArray[np.int64]
    """Unix milliseconds."""

    @property
    def last(self) -> tuple[float, int, int]:
        """The (value, time, step) that MLflow shows as the metric's value.

        It is the point of the last step, among these the latest in time, and among these the one with the largest
        value.
        """
        import numpy as np

        place = np.lexsort((self.values, self.times_ms, self.steps))[-1]
        return self.values[place].item(), self.times_ms[place].item(), self.steps[place].item()

    def points(self) -> Iterable[tuple[float, int, int]]:
        return zip(self.values.tolist(), self.times_ms.tolist(), self.steps.tolist(), strict=True)

    def distinct(self) -> MetricCurve:
        """Return the curve without repeated points, in order of time."""
        import numpy as np

        order = np.lexsort((self.values, self.steps, self.times_ms))
        is_new = np.ones(len(order), dtype=bool)
        is_new[1:] = np.any([np.diff(column[order]) != 0 for column in self], axis=0)
        kept = order[is_new]
        return MetricCurve(self.steps[kept], self.values[kept], self.times_ms[kept])


Curves = dict[str, MetricCurve]
"""Maps MLflow's name of each metric to its curve. No curve is empty."""


def count_points(curves: Curves) -> int:
    return sum(len(curve.steps) for curve in curves.values())


@cache
def mlflow_name(name: str) -> str:
    """Return a name that MLflow accepts.

    Letters, digits and `_-./` are kept. `@` becomes `_at_`, so that `pass@1` is `pass_at_1`. `^` becomes `_hat_`. Any
    other character becomes `_`.
    """
    return re.sub(r"[^\w\-./]", "_", name.replace("@", "_at_").replace("^", "_hat_"))


def score_curves(rows: Sequence[TimedRow]) -> Curves:
    """Return rows of scores.jsonl as curves named `eval/<task>/<metric>`.

    Each is one curve from the model before training to the final evaluation. The final evaluation, by which arms are
    compared, is also returned as `eval/final/<task>/<metric>`.
    """
    return joined(
        value_curves(f"{prefix}/{values['task']}/", values["metrics"], at_ms, values["step"])
        for values, at_ms in rows
        for prefix in (("eval", "eval/final") if values["final"] else ("eval",))
    )


def value_curves(prefix: str, values: Mapping[str, object], at_ms: int, step: int = 0) -> Curves:
    """Return the numeric values as curves `<prefix><key>` with one point each."""
    return row_curves(prefix, [TimedRow({**values, "step": step}, at_ms)])


def joined(parts: Iterable[Curves]) -> Curves:
    """Return one set of curves with the points of several sets."""
    import numpy as np

    pieces: dict[str, list[MetricCurve]] = {}
    for part in parts:
        for name, curve in part.items():
            pieces.setdefault(name, []).append(curve)
    return {
        name: some[0] if len(some) == 1 else MetricCurve(*map(np.concatenate, zip(*some, strict=True)))
        for name, some in pieces.items()
    }


def row_curves(prefix: str, rows: Sequence[TimedRow]) -> Curves:
    """Return the numeric values in rows as curves `<prefix><key>`."""
    import numpy as np

    steps = np.array([row.values["step"] for row in rows], dtype=np.int64)
    times_ms = np.array([row.at_ms for row in rows], dtype=np.int64)
    keys = dict.fromkeys(key for row in rows for key in row.values if key != "step")
    parts: list[Curves] = []
    for key in keys:
        found = [row.values.get(key) for row in rows]
        values = np.array([value if isinstance(value, (int, float)) else math.nan for value in found], dtype=np.float64)
        # A missing value, null in the records, becomes a gap in the curve. MLflow would store infinity as 1.8e308.
        is_there = np.isfinite(values)
        if is_there.any():
            parts.append(
                {mlflow_name(prefix + key): MetricCurve(steps[is_there], values[is_there], times_ms[is_there])}
            )
    return joined(parts)
