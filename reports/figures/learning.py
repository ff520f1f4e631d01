"""Learning over training: held-out scores, reward and accuracy, difference from the baseline, preference pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from harness.words import said
from reports.drawing.curves import (
    count_from_zero,
    curve_rows,
    describe_curves,
    draw_curves,
    draw_step_field,
    draw_training,
)
from reports.drawing.grid import Column, Trace, draw_step_grid
from reports.drawing.rendering import Drawing
from reports.drawing.style import GREY, bounded_view, short_name
from reports.figures import Figure
from reports.measure import Analysis
from reports.measure.contrasts import alpha_of_each
from reports.measure.curves import evaluation_curves, paired_curves, training_axis
from reports.measure.measurements import Measurement

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_learning(analysis: Analysis) -> Drawing | None:
    """Draw the compared metric over training; None if no cell was evaluated more than once.

    A single point is not a curve.
    """
    metric = analysis.metric
    curves = evaluation_curves(analysis, metric.name, analysis.sweep.alpha)
    if all(len(line.x) < 2 for curve in curves for line in curve.lines):
        return None
    starts = [analysis.base_metrics(arm).get(metric.name) for arm in analysis.measurements]
    before = said("reports.first_model_before_training") if any(score is not None for score in starts) else ""
    what = said("reports.on_held_out_problems", name=metric.name, task=metric.task, before=before)
    in_percent = [curve.scaled(100) for curve in curves]
    return draw_training(analysis, in_percent, "score_pp", f"{metric.name} of {metric.task}, held out (%)", what)


def draw_reward(analysis: Analysis) -> Drawing | None:
    """Draw the training reward; None if no cell recorded it."""
    what = said("reports.mean_reward_each_steps")
    drawn_at = {
        arm: (cells[0].cell.spec.get("rollout") or {}).get("temperature")
        for arm, cells in analysis.measurements.items()
        if cells
    }
    if len({*drawn_at.values()}) > 1:
        what += said("reports.they_sample_different_temperatures")
    return draw_step_field(analysis, "reward/mean", "training reward", what)


PROXY_COLUMNS = (
    Column("training reward", Trace("reward/mean"), own_scale=True),
    Column("right answers", Trace("reward/correct"), as_percent=True, limits=(-0.03, 1.03)),
)


def draw_proxy(analysis: Analysis) -> Drawing | None:
    """Draw the training reward next to accuracy; None if every cell was rewarded for correctness alone."""
    if not any(_has_proxy(measurement) for cells in analysis.measurements.values() for measurement in cells):
        return None
    return draw_step_grid(
        analysis,
        PROXY_COLUMNS,
        said("reports.mean_training_reward_each"),
    )


def _has_proxy(measurement: Measurement) -> bool:
    """Return whether a cell's reward differs from its accuracy in any step that recorded both."""
    reward, truth = measurement.steps["reward/mean"], measurement.steps["reward/correct"]
    return bool((reward != truth)[~np.isnan(reward) & ~np.isnan(truth)].any())


def draw_paired_difference(analysis: Analysis) -> Drawing | None:
    """Draw each arm's difference from the baseline over training, paired by seed.

    None if no pair of cells was evaluated during training.
    """
    sweep, metric, axis = analysis.sweep, analysis.metric, training_axis(analysis)
    # Use the level of the verdicts, so that the band ends in the interval of the forest plot.
    alpha = alpha_of_each(sweep, len(analysis.contrasts))
    held_out = evaluation_curves(analysis, metric.name, alpha)
    curves = [curve.scaled(100) for curve in paired_curves(held_out, sweep.baseline, alpha)]
    if not curves:
        return None
    seen = np.concatenate([line.y for curve in curves for line in curve.lines])
    bands = np.concatenate([ends for curve in curves for ends in (curve.low, curve.high)])
    low, high = bounded_view(seen.tolist(), bands.tolist())
    margin = 0.05 * (high - low)

    def set_up(axes: Axes) -> None:
        axes.axhspan(-sweep.margin_pp, sweep.margin_pp, color=GREY, alpha=0.2, linewidth=0)
        axes.axhline(0, color=GREY, linewidth=0.9, zorder=0)
        axes.set_ylim(min(low, -sweep.margin_pp) - margin, max(high, sweep.margin_pp) + margin)
        count_from_zero(axes)

    ylabel = f"{metric.name} of {metric.task}: difference (pp)"
    figure = draw_curves(analysis, curves, xlabel=axis.label, ylabel=ylabel, set_up=set_up)
    caption = said(
        "reports.on_held_out_problems_draw_paired_difference",
        name=metric.name,
        task=metric.task,
        short_name=short_name(sweep.baseline),
        unit=axis.unit,
        describe_curves=describe_curves(curves, alpha),
        margin_pp=sweep.margin_pp,
    )
    return Drawing(figure, caption, curve_rows(curves, axis.field, "difference_pp"))


PREFERENCE_COLUMNS = (
    Column(
        "log-prob (nats per token)",
        Trace("logps/chosen_mean", "chosen"),
        Trace("logps/rejected_mean", "rejected"),
    ),
    Column("margin of rewards", Trace("rewards/margin"), reference=0, own_scale=True),
    Column("accuracy of rewards", Trace("rewards/accuracy"), reference=0.5, limits=(-0.03, 1.03)),
)


def draw_preference(analysis: Analysis) -> Drawing | None:
    """Draw how training on pairs changes log-probs, reward margin and accuracy; None if no cell trained on pairs."""
    return draw_step_grid(
        analysis,
        PREFERENCE_COLUMNS,
        said("reports.mean_log_prob_per"),
    )


LEARNING = Figure(
    name="learning",
    title="Held-out learning curves",
    draw=draw_learning,
    group="Learning",
    order=20,
    over_training=True,
)
REWARD = Figure(
    name="reward", title="Training reward", draw=draw_reward, group="Learning", order=30, over_training=True
)
PROXY = Figure(
    name="proxy",
    title=said("reports.training_reward_true_verdict"),
    draw=draw_proxy,
    group="Learning",
    order=35,
    over_training=True,
)
PAIRED_DIFFERENCE = Figure(
    name="paired_difference",
    title=said("reports.difference_from_baseline_along"),
    draw=draw_paired_difference,
    group="Learning",
    order=40,
    over_training=True,
)
PREFERENCE = Figure(
    name="preference",
    title=said("reports.chosen_rejected_answers_training"),
    draw=draw_preference,
    group="Learning",
    order=60,
)
