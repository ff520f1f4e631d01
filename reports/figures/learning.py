"""Learning in training: held-out scores, reward and true verdict, distance to the baseline, preference pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

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
    before = "; the first is the model before training" if any(score is not None for score in starts) else ""
    what = (
        f"{metric.name} on held-out problems of {metric.task}. The last point is the final evaluation, by which arms"
        f" are compared{before}."
    )
    in_percent = [curve.scaled(100) for curve in curves]
    return draw_training(analysis, in_percent, "score_pp", f"{metric.name} of {metric.task}, held out (%)", what)


def draw_reward(analysis: Analysis) -> Drawing | None:
    """Draw the training reward; None if no cell recorded it."""
    what = "Mean reward of each step's rollouts, on training prompts. Arms are not compared by it."
    drawn_at = {
        arm: (cells[0].cell.spec.get("rollout") or {}).get("temperature")
        for arm, cells in analysis.measurements.items()
        if cells
    }
    if len({*drawn_at.values()}) > 1:
        what += " They sample at different temperatures, which by itself changes the reward."
    return draw_step_field(analysis, "reward/mean", "training reward", what)


PROXY_COLUMNS = (
    Column("training reward", Trace("reward/mean"), own_scale=True),
    Column("right answers", Trace("reward/correct"), as_percent=True, limits=(-0.03, 1.03)),
)


def draw_proxy(analysis: Analysis) -> Drawing | None:
    """Draw training reward next to the true verdict; None if every cell was trained on the true verdict alone."""
    if not any(_has_proxy(measurement) for cells in analysis.measurements.values() for measurement in cells):
        return None
    return draw_step_grid(
        analysis,
        PROXY_COLUMNS,
        "Mean training reward of each step's rollouts, and the share of right answers among the same completions, on"
        " training prompts. Some arms train on a reward other than right answers alone. If the reward rises and the"
        " share does not, an arm learns to game its reward. Rewards of different arms share no scale.",
    )


def _has_proxy(measurement: Measurement) -> bool:
    """Return whether a cell's training reward differs from the true verdict in any step that recorded both."""
    reward, truth = measurement.steps["reward/mean"], measurement.steps["reward/correct"]
    return bool((reward != truth)[~np.isnan(reward) & ~np.isnan(truth)].any())


def draw_paired_difference(analysis: Analysis) -> Drawing | None:
    """Draw the difference of each arm from the baseline, seed by seed.

    None if no two cells of a seed were evaluated along training.
    """
    sweep, metric, axis = analysis.sweep, analysis.metric, training_axis(analysis)
    # The level of the verdicts, so that a band ends in the interval of the forest plot.
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
    caption = (
        f"{metric.name} on held-out problems of {metric.task}, minus that of {short_name(sweep.baseline)} with the same"
        f" seed at equal {axis.unit}. Only the last evaluation is tested; those before"
        " it may have fewer samples. The last difference stands at the mean of the points where the two cells end."
        f" {describe_curves(curves, alpha)} Grey band: the region of"
        f" equivalence, ±{sweep.margin_pp:g} pp."
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
    """Draw what training on pairs does to the two sides of a pair; None if no cell trained on pairs."""
    return draw_step_grid(
        analysis,
        PREFERENCE_COLUMNS,
        "Mean log-prob per token of the chosen and of the rejected answers under the policy. The usual failure is that"
        " both fall while the margin grows. Rewards are those of the arm's objective. The margin, chosen minus"
        " rejected, is on the scale of that objective, so each arm has its own axis. Accuracy is the share of pairs"
        " with a margin above 0, ties counting half. Grey lines: no margin, and the accuracy of guessing.",
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
    title="Training reward and the true verdict",
    draw=draw_proxy,
    group="Learning",
    order=35,
    over_training=True,
)
PAIRED_DIFFERENCE = Figure(
    name="paired_difference",
    title="Difference from the baseline along training",
    draw=draw_paired_difference,
    group="Learning",
    order=40,
    over_training=True,
)
PREFERENCE = Figure(
    name="preference", title="Chosen and rejected answers in training", draw=draw_preference, group="Learning", order=60
)
