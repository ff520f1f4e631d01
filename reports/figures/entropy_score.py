"""Final score against the entropy that the policy kept while it trained: a point a cell."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from reports.analysis import Analysis
from reports.figures import Figure
from reports.figures.style import WIDTH_IN, Drawing, arm_styles, legend_columns, short_name

LEGEND_ROW_IN = 0.22


def draw_entropy_score(analysis: Analysis) -> Drawing | None:
    """None when no cell recorded its entropy."""
    from matplotlib.figure import Figure

    sweep, metric = analysis.sweep, analysis.metric
    rows: list[dict[str, str | int | float]] = [
        {"arm": arm, "seed": m.cell.seed, "mean_entropy_nats": entropy, "score_pp": m.score_pp}
        for arm, cells in analysis.measurements.items()
        for m in cells
        if (entropy := m.step_mean("entropy/full")) is not None and m.score_pp is not None
    ]
    if not rows:
        return None
    by_arm = {arm: [row for row in rows if row["arm"] == arm] for arm in sweep.arms}
    labels = {arm: f"{short_name(arm)} (n = {len(points)})" for arm, points in by_arm.items() if points}
    columns = legend_columns([*labels.values()])
    height_in = 3.2 + LEGEND_ROW_IN * math.ceil(len(labels) / columns)
    figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
    axes = figure.subplots()
    styles = arm_styles(sweep.arms, sweep.baseline)
    for arm, label in labels.items():
        x, y = ([row[key] for row in by_arm[arm]] for key in ("mean_entropy_nats", "score_pp"))
        axes.plot(x, y, styles[arm].marker, color=styles[arm].color, markersize=5, label=label)
    axes.set_xlabel("mean entropy in training (nats per token)")
    axes.set_ylabel(f"final {metric.name} of {metric.task} (%)")
    figure.legend(loc="outside lower center", ncols=columns)
    caption = (
        f"A point for each finished cell, {_counts(by_arm)}; no band. Entropy of the policy's next-token distribution, "
        "over the whole vocabulary, averaged over the steps of training: an association, not a cause."
    )
    return Drawing(figure, caption, rows)


def _counts(by_arm: Mapping[str, Sequence[object]]) -> str:
    counts = sorted({len(points) for points in by_arm.values() if points})
    return f"n = {counts[0]} an arm" if len(counts) == 1 else f"n = {counts[0]} to {counts[-1]} an arm"


ENTROPY_SCORE = Figure(
    name="entropy_score",
    title="Final score against entropy in training",
    draw=draw_entropy_score,
    group="Policy",
    order=110,
)
