"""How many different answers the samples of a problem give, before and after training."""

from __future__ import annotations

from reports.analysis import Analysis
from reports.figures import Figure
from reports.figures.lines import seeds_per_arm
from reports.figures.panels import MEAN_Y, SEEDS_Y, STRIPS, as_strip, keep_only_grid, share_limits
from reports.figures.style import BASE_MODEL, GREY, Drawing, arm_styles, short_name
from reports.formats import number, percent
from reports.measurements import finite
from reports.statistics import MIN_PAIRS, t_interval

FIELD = "distinct_answers"


def draw_distinct_answers(analysis: Analysis) -> Drawing | None:
    """None when no final evaluation counted them, as in older records."""
    sweep = analysis.sweep
    by_arm = {
        arm: {m.cell.seed: value for m in cells if (value := m.final_value(FIELD)) is not None}
        for arm, cells in analysis.measurements.items()
    }
    by_arm = {arm: values for arm, values in by_arm.items() if values}
    if not by_arm:
        return None
    before = _before(analysis)
    styles = arm_styles(sweep.arms, sweep.baseline)
    figure, panels = STRIPS(len(by_arm)).draw()
    strips = [axes for (axes,) in panels]
    for axes, (arm, by_seed) in zip(strips, by_arm.items(), strict=True):
        style, values = styles[arm], [*by_seed.values()]
        mean = sum(values) / len(values)
        if len(values) >= MIN_PAIRS:
            axes.plot(t_interval(values, sweep.alpha), [MEAN_Y, MEAN_Y], color=style.color, linewidth=2.0)
        axes.plot(values, [SEEDS_Y] * len(values), "o", color=style.color, markersize=4, alpha=0.7)
        axes.plot(mean, MEAN_Y, style.marker, color=style.color, markersize=8)
        if before is not None:
            axes.plot(before, MEAN_Y, "x", color=GREY, markersize=7, markeredgewidth=1.8)
        as_strip(axes, short_name(arm), f"{number(mean)} (n = {len(values)})")
        axes.margins(x=0.08)
    share_limits(strips, "x")
    keep_only_grid(strips[:-1], "x")
    strips[-1].set_xlabel(f"different answers per problem of {analysis.metric.task}")
    caption = (
        f"How many different answers the samples of a problem give between them, {_samples(analysis)}, averaged over"
        f" the problems of {analysis.metric.task}. Small dots: seeds ({seeds_per_arm([*map(len, by_arm.values())])});"
        f" large marker: their mean; {_bar(by_arm, sweep.alpha)}"
    )
    if before is not None:
        caption += f" Grey cross: the model before training, evaluated once: {number(before)}."
    rows: list[dict[str, str | int | float]] = [
        {"arm": arm, "seed": seed, FIELD: value} for arm, by_seed in by_arm.items() for seed, value in by_seed.items()
    ]
    return Drawing(figure, caption, rows + ([] if before is None else [{"arm": BASE_MODEL, "seed": "", FIELD: before}]))


def _before(analysis: Analysis) -> float | None:
    """Of the model before training, if it was asked as often: more samples give more answers."""
    base = analysis.base_evaluation
    if base is None or base.get("n_samples") not in _sample_counts(analysis):
        return None
    return finite(base["metrics"].get(FIELD))


def _sample_counts(analysis: Analysis) -> set[int]:
    finals = [m.final for cells in analysis.measurements.values() for m in cells]
    return {final["n_samples"] for final in finals if final is not None and "n_samples" in final}


def _samples(analysis: Analysis) -> str:
    return " or ".join(map(str, sorted(_sample_counts(analysis)))) + " of them"


def _bar(by_arm: dict[str, dict[int, float]], alpha: float) -> str:
    if all(len(values) < MIN_PAIRS for values in by_arm.values()):
        return f"fewer than {MIN_PAIRS} seeds: no band."
    return f"bar: {percent(1 - alpha)} t interval of the mean over training seeds, from {MIN_PAIRS} seeds on."


DISTINCT_ANSWERS = Figure(
    name="distinct_answers",
    title="Different answers to a problem",
    draw=draw_distinct_answers,
    group="Policy",
    order=180,
)
