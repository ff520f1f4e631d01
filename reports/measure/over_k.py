"""pass@k and maj@k over k, in percent."""

from __future__ import annotations

from collections.abc import Mapping

from reports.measure import Analysis
from reports.measure.curves import Curve, Line, Points, curves_of, to_line
from reports.measure.measurements import Measurement


def curves_over_k(analysis: Analysis, family: str) -> list[Curve]:
    """A metric of the final evaluation over k. family: `pass` or `maj`, for pass@k or maj@k."""

    def points(m: Measurement) -> Points:
        return points_over_k({} if m.final is None else m.final["metrics"], family)

    return [curve.scaled(100) for curve in curves_of(analysis, points)]


def points_over_k(metrics: Mapping[str, float | None], family: str) -> list[tuple[float, float | None]]:
    """The pairs (k, value) of every `<family>@k` among the metrics, by k."""
    named = {name: name.removeprefix(f"{family}@") for name in metrics if name.startswith(f"{family}@")}
    return sorted(((int(k), metrics[name]) for name, k in named.items() if k.isdecimal()), key=lambda point: point[0])


def base_line_over_k(metrics: Mapping[str, float | None], family: str) -> Line | None:
    """The line of the model before training; None if it was not measured."""
    line = to_line(0, points_over_k(metrics, family))
    return Line(0, line.x, 100 * line.y) if len(line.x) else None
