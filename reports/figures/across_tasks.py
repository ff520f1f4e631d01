"""Arms over all tasks together: interquartile mean, and probability of improvement over the baseline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.words import said
from reports.drawing.curves import seeds_per_arm
from reports.drawing.marks import mark
from reports.drawing.panels import as_strip, hide_labels, strip_panels
from reports.drawing.rendering import DataRow, Drawing
from reports.drawing.style import GREY, ArmStyle, arm_styles, is_narrow
from reports.figures import Figure
from reports.formats import percent
from reports.measure import Analysis
from reports.measure.across_tasks import AcrossTasks, across_tasks, across_tasks_rows
from reports.statistics import MIN_PAIRS, MIN_RUNS_FOR_IMPROVEMENT, Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes


NO_BETTER = 0.5
"""The probability of improvement if the arms do not differ."""


def draw_across_tasks(analysis: Analysis) -> Drawing | None:
    """Draw a row for each arm; None for fewer than three tasks, or if no run has a score on all of them."""
    sweep = analysis.sweep
    # The baseline has no improvement over itself. It comes first, because the last row carries the tick labels.
    arms = sorted(across_tasks(analysis), key=lambda arm: arm.arm != sweep.baseline)
    if not arms:
        return None
    compared = any(arm.improvement is not None for arm in arms)
    styles = arm_styles(sweep.arms, sweep.baseline)
    ends = [end for arm in arms for end in (arm.iqm_pp.value, arm.iqm_pp.low, arm.iqm_pp.high) if not math.isnan(end)]
    low, high = min(ends), max(ends)
    pad = 0.06 * (high - low) or 1.0
    figure, panels = strip_panels(len(arms), columns=2 if compared else 1, height=0.26).draw()
    for arm, row in zip(arms, panels, strict=True):
        _draw_estimate(row[0], arm.arm, arm.iqm_pp, styles[arm.arm])
        as_strip(row[0], arm.arm)
        row[0].set_xlim(low - pad, high + pad)
        if arm.improvement is not None:
            row[1].axvline(NO_BETTER, color=GREY, linewidth=0.9)
            _draw_estimate(row[1], arm.arm, arm.improvement, styles[arm.arm])
            as_strip(row[1], "")
            row[1].set_xlim(-0.04, 1.04)
        elif compared:
            row[1].set_axis_off()
            row[1].text(0.5, 0.5, "baseline", ha="center", va="center", transform=row[1].transAxes, color=GREY)
    hide_labels((axes for row in panels[:-1] for axes in row), "x")
    panels[-1][0].set_xlabel(f"{'IQM' if is_narrow() else 'interquartile mean'} of {analysis.metric.name} (%)")
    if compared:
        panels[-1][1].set_xlabel("P(improvement)" if is_narrow() else "probability of improvement")
    return Drawing(figure, _caption(analysis, arms), [_known(row.as_json()) for row in across_tasks_rows(arms)])


def _draw_estimate(axes: Axes, arm: str, estimate: Estimate, style: ArmStyle) -> None:
    """Draw an estimate with its interval; the marker is hollow if the interval is unknown."""
    known = not math.isnan(estimate.low)
    mark(axes.plot([estimate.low, estimate.high], [0, 0], color=style.color, linewidth=2.0)[0], arm, "interval")
    fill = style.color if known else "none"
    point = axes.plot(estimate.value, 0, style.marker, color=style.color, markersize=8, markerfacecolor=fill)[0]
    mark(point, arm, "mean")


def _caption(analysis: Analysis, arms: Sequence[AcrossTasks]) -> str:
    sweep = analysis.sweep
    counts = [len(arm.seeds) for arm in arms]
    parts = [
        said(
            "reports.final_all_runs_on",
            name=analysis.metric.name,
            tasks=", ".join(sweep.tasks),
            seeds_per_arm=seeds_per_arm(counts),
        )
    ]
    if any(arm.improvement is not None for arm in arms):
        parts[0] += said("reports.probability_run_arm_beats", baseline=sweep.baseline, no_better=NO_BETTER)
    parts[0] += "."
    if any(not math.isnan(arm.iqm_pp.low) for arm in arms):
        parts.append(said("reports.bar_t_interval_over", level=percent(1 - sweep.alpha)))
    if any(math.isnan(one.low) for arm in arms for one in (arm.iqm_pp, arm.improvement) if one is not None):
        parts.append(
            said(
                "reports.hollow_marker_no_interval",
                min_pairs=MIN_PAIRS,
                min_runs_for_improvement=MIN_RUNS_FOR_IMPROVEMENT,
            )
        )
    shown = {arm.arm for arm in arms}
    if absent := [arm for arm in sweep.arms if arm not in shown]:
        parts.append(said("reports.not_shown_because_no", absent="; ".join(absent)))
    return " ".join(parts)


def _known(row: dict[str, object]) -> DataRow:
    """Convert a row of report.json to a data row: lists become their lengths, and missing values are dropped."""
    plain = {key: len(value) if isinstance(value, list) else value for key, value in row.items()}
    # NaN is not equal to itself.
    return {key: value for key, value in plain.items() if isinstance(value, str | int | float) and value == value}


ACROSS_TASKS = Figure(
    name="across_tasks", title="Arms over all tasks", draw=draw_across_tasks, group="Result", order=140
)
