"""The figure of reward against entropy, with the fitted law, its ceiling, and the forecast from early training."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from harness.words import said
from reports.drawing.curves import PANEL_CHARACTERS, arm_label, legend_below, panel_columns, seeds_per_arm
from reports.drawing.rendering import DataRow, Drawing
from reports.drawing.style import GREY, INK, ArmStyle, arm_styles, new_figure
from reports.figures import Figure
from reports.formats import number, percent
from reports.measure import Analysis
from reports.shelves.laws import FIRST_FRAC, first_part
from reports.shelves.laws.law_fits import ENTROPY_KINDS, EntropyFit, pooled_fits

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as MatplotlibFigure
    from matplotlib.lines import Line2D


STRETCHES = 20
TITLE_CHARACTERS = 46
GRID_POINTS = 100
# A ceiling may be far from all points. The view extends beyond the points by at most this share of their range.
CEILING_RANGE = 0.6
FORECAST_DASH = (0, (4, 2))
FREE_DOTS = (0, (1, 1.5))


def draw_entropy_law(analysis: Analysis) -> Drawing | None:
    """Draw a panel for each arm: the training reward or, if it was not recorded, the score on the first task.

    None if entropy or reward was not recorded, or if no arm follows the law.
    """
    fits = _shown(pooled_fits(analysis))
    if all(fit.law is None for fit in fits):
        return None
    sweep = analysis.sweep
    styles = arm_styles(sweep.arms, sweep.baseline)
    points = {fit.arm: [*_stretches(fit)] for fit in fits}
    figure = _figure(fits, points, styles)
    return Drawing(
        figure,
        _caption(fits, sweep.alpha, figure.axes[0].get_ylim()),
        [row for rows in points.values() for row in rows],
    )


def _shown(fits: Sequence[EntropyFit]) -> list[EntropyFit]:
    """Return the fits to the first target, using the first kind of entropy for which there are points."""
    target = fits[0].target if fits else None
    of_target = [fit for fit in fits if fit.target == target]
    kind = next((kind for kind in ENTROPY_KINDS if any(fit.entropy == kind for fit in of_target)), None)
    return [fit for fit in of_target if fit.entropy == kind]


def _stretches(fit: EntropyFit) -> Iterator[DataRow]:
    """Yield means over equal shares of each seed's points, separately for the first part of training and the rest."""
    for seed, run in fit.runs.items():
        head = first_part(run)
        for part, chosen, most in (
            ("first", head, round(STRETCHES * FIRST_FRAC)),
            ("later", ~head, STRETCHES - round(STRETCHES * FIRST_FRAC)),
        ):
            columns = np.array([run.step[chosen], run.entropy[chosen], run.reward[chosen]])
            for stretch in np.array_split(columns, min(most, columns.shape[1]) or 1, axis=1):
                if stretch.size:
                    step, entropy, reward = stretch.mean(axis=1).tolist()
                    yield {
                        "arm": fit.arm,
                        "seed": seed,
                        "part": part,
                        "step": step,
                        "entropy_nats": entropy,
                        "reward": reward,
                    }


def _figure(
    fits: Sequence[EntropyFit], points: dict[str, list[DataRow]], styles: dict[str, ArmStyle]
) -> MatplotlibFigure:
    columns = min(panel_columns(), len(fits))
    rows = -(-len(fits) // columns)
    figure = new_figure(1.1 + 2.1 * rows)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for fit, axes in zip(fits, grid.flat, strict=False):
        _draw_points(axes, points[fit.arm], styles[fit.arm])
        _draw_forecast(axes, fit, styles[fit.arm])
        _draw_law(axes, fit, styles[fit.arm])
        axes.set_title(_title(fit, PANEL_CHARACTERS * panel_columns() // columns), loc="left")
    filled = list(grid.flat[: len(fits)])
    _scale(filled[0], fits, points)
    for empty in grid.flat[len(fits) :]:
        empty.set_visible(False)
    for axes in filled[-columns:]:
        axes.tick_params(labelbottom=True)
        axes.set_xlabel("entropy (nats per token)")
    target = fits[0].target
    figure.supylabel(f"{target.name} (%)" if target.unit == "pp" else target.name, fontsize=9)
    legend_below(figure, _legend(fits, filled[0].get_ylim()))
    return figure


def _shows_ceiling(fit: EntropyFit, view: tuple[float, float]) -> bool:
    return fit.ceiling is not None and view[0] <= fit.ceiling.value <= view[1]


def _legend(fits: Sequence[EntropyFit], view: tuple[float, float]) -> list[Line2D]:
    """Return the legend's handles, in a neutral colour, because each arm has its own panel. view: the limits of y."""
    from matplotlib.lines import Line2D

    first = f"first {FIRST_FRAC:.0%} of training"
    handles = [
        Line2D([], [], color=INK, marker="o", linestyle="none", markersize=3.5, label=first),
        Line2D([], [], color=INK, marker="o", linestyle="none", markersize=3.5, markerfacecolor="none", label="later"),
    ]
    if any(fit.law is not None for fit in fits):
        handles.append(Line2D([], [], color=INK, linewidth=1.8, label="law"))
    if any(fit.exponent is not None for fit in fits):
        handles.append(Line2D([], [], color=INK, linewidth=0.9, linestyle=FREE_DOTS, label="with a free exponent"))
    if any(_shows_ceiling(fit, view) for fit in fits):
        handles.append(Line2D([], [], color=INK, marker="d", linestyle="none", markersize=6, label="ceiling at H = 0"))
    if any(fit.forecast is not None for fit in fits):
        handles.append(Line2D([], [], color=GREY, linewidth=1.2, linestyle=FORECAST_DASH, label=f"law of the {first}"))
    return handles


def _draw_points(axes: Axes, rows: Sequence[DataRow], style: ArmStyle) -> None:
    for part, fill in (("first", style.color), ("later", "none")):
        x, y = ([row[key] for row in rows if row["part"] == part] for key in ("entropy_nats", "reward"))
        (dots,) = axes.plot(x, y, marker=style.marker, linestyle="none", color=style.color, markerfacecolor=fill)
        dots.set(markersize=3.5, markeredgewidth=0.7)


def _draw_law(axes: Axes, fit: EntropyFit, style: ArmStyle) -> None:
    """Draw the fitted law: thick over the points, thin from the smallest entropy down to 0, where the ceiling is."""
    if fit.law is None:
        return
    smallest, largest = _range(fit)
    for start, end, width in ((0.0, smallest, 0.9), (smallest, largest, 1.8)):
        grid = np.linspace(start, end, GRID_POINTS)
        axes.plot(grid, fit.law.predict(grid), color=style.color, linewidth=width)
    if fit.exponent is not None:
        grid = np.linspace(0.0, largest, GRID_POINTS)
        axes.plot(grid, fit.exponent.predict(grid), color=INK, linewidth=0.9, linestyle=FREE_DOTS)
    if fit.ceiling is not None:
        ceiling, low, high = fit.ceiling
        axes.axhline(ceiling, color=style.color, linewidth=0.7, linestyle=":")
        axes.plot([0, 0], [low, high], color=style.color, linewidth=2.0)
        axes.plot(0, ceiling, marker="d", linestyle="none", markersize=6, color=style.color)


def _draw_forecast(axes: Axes, fit: EntropyFit, style: ArmStyle) -> None:
    """Draw the law fitted to the first part alone, with its band."""
    found = fit.forecast
    if found is None:
        return
    grid = np.linspace(0, _range(fit)[1], GRID_POINTS)
    center, half_widths = found.law.predict(grid), found.uncertainty.half_widths(grid, fit.alpha)
    axes.fill_between(grid, center - half_widths, center + half_widths, color=style.color, alpha=0.14, linewidth=0)
    axes.plot(grid, center, color=GREY, linewidth=1.2, linestyle=FORECAST_DASH)


def _scale(axes: Axes, fits: Sequence[EntropyFit], points: dict[str, list[DataRow]]) -> None:
    """Set x from 0 to the largest entropy, and y to include the points and any nearby ceilings and forecasts."""
    rewards = [float(row["reward"]) for rows in points.values() for row in rows]
    low, high = min(rewards), max(rewards)
    room = CEILING_RANGE * ((high - low) or abs(high) or 1.0)
    wanted = [low, high, *_ends_of_bars(fits)]
    wanted += [fit.forecast.law.ceiling for fit in fits if fit.forecast is not None]
    low, high = max(low - room, min(wanted)), min(high + room, max(wanted))
    margin = 0.06 * ((high - low) or 1.0)
    axes.set_ylim(low - margin, high + margin)
    axes.locator_params(axis="y", nbins=5)  # More ticks would need decimals, whose labels take space from the panels.
    largest = max(_range(fit)[1] for fit in fits) or 1.0
    axes.set_xlim(-0.04 * largest, 1.04 * largest)


def _ends_of_bars(fits: Sequence[EntropyFit]) -> Iterator[float]:
    """Yield the ends of the ceilings' intervals."""
    for fit in fits:
        if fit.ceiling is not None:
            yield from (fit.ceiling.low, fit.ceiling.high)


def _ends_of_bands(fits: Sequence[EntropyFit]) -> Iterator[float]:
    """Yield the ends of the forecasts' bands at both sides of the view."""
    for fit in fits:
        if fit.forecast is not None:
            sides = [0.0, _range(fit)[1]]
            center, half_widths = (
                fit.forecast.law.predict(sides),
                fit.forecast.uncertainty.half_widths(sides, fit.alpha),
            )
            yield from (*(center - half_widths), *(center + half_widths))


def _range(fit: EntropyFit) -> tuple[float, float]:
    """Return the smallest and largest entropy of an arm."""
    entropies = np.concatenate([run.entropy for run in fit.runs.values()])
    return float(entropies.min()), float(entropies.max())


def _title(fit: EntropyFit, characters: int) -> str:
    name = arm_label(fit.arm, len(fit.runs), characters)
    return f"{name}\n{textwrap.fill(_finding(fit), TITLE_CHARACTERS)}"


def _finding(fit: EntropyFit) -> str:
    if fit.law is None or fit.a is None:
        return f"law refused: {fit.refused}"
    ceiling = "no ceiling (a ≤ 0)" if fit.ceiling is None else f"ceiling {number(fit.ceiling.value)}"
    if fit.ceiling is not None and fit.exponent is not None:
        ceiling += f" ({number(fit.exponent.ceiling)} with exponent {fit.exponent.exponent:.2g})"
    if fit.a.low <= 0 <= fit.a.high:
        ceiling += ", a may be 0"
    if fit.forecast is None:
        return f"{ceiling}, R² {fit.law.r2:.2f}"
    return f"{ceiling}, R² {fit.law.r2:.2f}, forecast {'wins' if fit.forecast.beats else 'loses'}"


def _ceilings(fits: Sequence[EntropyFit], alpha: float, view: tuple[float, float]) -> str:
    """Return the part of the caption about ceilings: how visible ones are drawn, and where the others are."""
    shown = [_shows_ceiling(fit, view) for fit in fits if fit.ceiling is not None]
    drawn = said("reports.shelves.laws.diamond_bar_its_ceiling", level=percent(1 - alpha))
    beyond = (
        said("reports.shelves.laws.ceiling_not_drawn_lies")
        if any(shown)
        else said("reports.shelves.laws.its_ceiling_lies_beyond")
    )
    return drawn * any(shown) + beyond * (not all(shown))


def _caption(fits: Sequence[EntropyFit], alpha: float, view: tuple[float, float]) -> str:
    what = {
        "full": said("reports.shelves.laws.policys_mean_next_token"),
        "sampled": said("reports.shelves.laws.sampled_entropy_mean_log"),
    }[fits[0].entropy]
    counts = [len(fit.runs) for fit in fits]
    parts = [
        said(
            "reports.shelves.laws.h_each_point_mean",
            what=what,
            stretches=STRETCHES,
            seeds_per_arm=seeds_per_arm(counts),
            first_frac=FIRST_FRAC,
        ),
        said("reports.shelves.laws.line_r_exp_h", ceilings=_ceilings(fits, alpha, view)),
        said("reports.shelves.laws.dashed_law_first_alone", first_frac=FIRST_FRAC, level=percent(1 - alpha)),
    ]
    ends = [*_ends_of_bars(fits), *_ends_of_bands(fits)]
    if min(ends, default=view[0]) < view[0] or max(ends, default=view[1]) > view[1]:
        parts.append(said("reports.shelves.laws.bars_bands_reach_edge"))
    if any(fit.law is None for fit in fits):
        parts.append(said("reports.shelves.laws.if_fit_refused_its"))
    acting = [fit.arm for fit in fits if fit.interventions]
    if acting:
        parts.append(said("reports.shelves.laws.arms_act_on_entropy", acting=", ".join(acting)))
    hot = sorted({fit.temperature for fit in fits} - {1.0})
    if hot:
        parts.append(
            said("reports.shelves.laws.entropy_recorded_temperature_not", hot=", ".join(f"{t:g}" for t in hot))
        )
    return " ".join(parts)


ENTROPY_LAW = Figure(
    name="entropy_law",
    title=said("reports.shelves.laws.reward_against_entropy_fitted"),
    draw=draw_entropy_law,
    group="Policy",
    order=100,
)
