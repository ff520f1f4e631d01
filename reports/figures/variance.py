"""The variance budget: a bar for each declared contrast, split into the sources of its noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from harness.words import said
from reports.drawing.panels import as_strip, hide_labels, legend_at_bottom, strip_panels
from reports.drawing.rendering import Drawing
from reports.drawing.style import ARM_COLORS, GREY
from reports.figures import Figure
from reports.formats import interval, percent
from reports.measure import Analysis
from reports.measure.variance import PART_NAMES, declared_budgets, effect_budgets, variance_of
from reports.report import ErrorBudget, Share, Variance

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.container import BarContainer

COLORS = dict(zip(PART_NAMES, (*ARM_COLORS[:3], GREY), strict=True))
HATCHES = {"seeds": "", "seeds_x_problems": "///", "sampling": "\\\\\\", "problems": "xxx"}
TRAINED = said("reports.more_seeds_shrink_every")
EVALUATED = said("reports.more_samples_or_more")
ROOM_FOR_A_NUMBER = 0.07
"""A part that is narrower than this has no number."""


def draw_variance(analysis: Analysis) -> Drawing | None:
    """Draw the sources of noise of each contrast; None if no contrast's records determine them."""
    found = [(contrast, variance_of(budget)) for contrast, budget in declared_budgets(analysis)]
    shown = [
        (contrast.arm, variance, budget, judged)
        for contrast, variance in found
        if (budget := variance.new_problems) is not None
        # The error behind the verdict: over these problems, or over new ones if one checkpoint is evaluated.
        and (judged := variance.over(new_problems=not analysis.trains)) is not None
    ]
    if not shown:
        return None
    parts = [part for part in PART_NAMES if any(part in budget.parts for _, _, budget, _ in shown)]
    figure, panels = strip_panels(len(shown), height=0.3).draw([PART_NAMES[part] for part in parts])
    handles: dict[str, BarContainer] = {}
    for (axes,), (arm, variance, budget, judged) in zip(panels, shown, strict=True):
        handles |= _draw_bar(axes, budget.parts)
        ends = interval(judged.error_low_pp, judged.error_high_pp, signed=False, decimals=2)
        error = f"{judged.error_pp:.2f} pp {ends}"
        n = variance.n_seeds if analysis.trains else variance.n_problems
        as_strip(axes, arm, f"error {error}   n = {n}")
        axes.set_xlim(0, 1)
    strips = [axes for (axes,) in panels]
    hide_labels(strips[:-1], "x")
    strips[-1].xaxis.set_major_formatter(lambda value, _position: f"{value:.0%}")
    strips[-1].set_xlabel(said("reports.share_variance_mean_difference"))
    legend_at_bottom(figure, [handles[part] for part in parts])
    rows = [_data(arm, variance, budget, judged.error_pp) for arm, variance, budget, judged in shown]
    return Drawing(figure, _caption(analysis, [variance for _, variance, _, _ in shown]), rows)


def _draw_bar(axes: Axes, parts: Mapping[str, Share]) -> dict[str, BarContainer]:
    """Draw the parts side by side, and return their handles for the legend."""
    handles, left = {}, 0.0
    for name, part in parts.items():
        share = part.share
        handles[name] = axes.barh(
            0,
            share,
            1.2,
            left,
            color=COLORS[name],
            hatch=HATCHES[name],
            label=PART_NAMES[name],
            edgecolor="white",
            linewidth=0,
        )
        if share >= ROOM_FOR_A_NUMBER:
            # The number has a white box on dark pages too, so its colour is not INK, which turns white there.
            box = {"facecolor": "white", "edgecolor": "none", "pad": 1.2, "alpha": 0.85}
            axes.text(left + share / 2, 0, f"{share:.0%}", ha="center", va="center", color="#222222", bbox=box)
        left += share
    return handles


def _caption(analysis: Analysis, found: Sequence[Variance]) -> str:
    first = found[0]
    seeds = sorted({variance.n_seeds or 0 for variance in found})
    n = f"n = {seeds[0]}" if len(seeds) == 1 else f"n = {seeds[0]} to {seeds[-1]}"
    if effect_budgets(analysis):
        difference, pairs, mean = "main effect and interaction", "seeds", "effect"
    else:
        difference, pairs, mean = f"arm's difference from {analysis.sweep.baseline}", "pairs", "mean difference"
    sizes = said(
        "reports.problems_samples_each", n=n, pairs=pairs, n_problems=first.n_problems, n_samples=first.n_samples
    )
    if analysis.trains:
        advice, over = TRAINED, "these problems"
    else:
        advice, over = EVALUATED, "problems of this kind"
    parts = [
        said(
            "reports.what_noise_each_made", difference=difference, task=analysis.metric.task, sizes=sizes, advice=advice
        ),
        said("reports.error_standard_error_on", mean=mean, over=over, level=percent(first.level)),
    ]
    if not all(variance.sampling_known for variance in found):
        parts.append(said("reports.one_sample_per_problem"))
    return " ".join(parts)


def _data(name: str, variance: Variance, budget: ErrorBudget, error_pp: float) -> dict[str, str | float]:
    numbers = {
        f"{part}_{key}": value for part, share in budget.parts.items() for key, value in share if value is not None
    }
    return {"arm": name, "n_seeds": variance.n_seeds or 0, "error_pp": error_pp, **numbers}


VARIANCE = Figure(
    name="variance", title=said("reports.where_noise_difference_comes"), draw=draw_variance, group="Result", order=15
)
