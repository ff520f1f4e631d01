"""pass@k and maj@k over k, and how pass@k differs from the baseline and from the model before training."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from harness.words import said
from reports.drawing.curves import curve_rows, describe_curves, draw_curves, log2_scale, seeds_per_arm
from reports.drawing.rendering import Drawing
from reports.drawing.style import BASE_MODEL, GREY
from reports.figures import Figure
from reports.formats import percent
from reports.measure import Analysis
from reports.measure.coverage import arms_without_gain, coverage, no_gain_sentence
from reports.measure.curves import Curve, base_line_over_k, curves_over_k

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_pass_at_k(analysis: Analysis) -> Drawing | None:
    return _draw_over_k(analysis, "pass", said("reports.chance_least_one_k"))


def draw_maj_at_k(analysis: Analysis) -> Drawing | None:
    return _draw_over_k(analysis, "maj", said("reports.chance_majority_vote_k"))


def draw_sharpening(analysis: Analysis) -> Drawing | None:
    """Draw pass@k minus that of the model before training; None unless both have it at two or more values of k."""
    return _draw_coverage(
        analysis,
        of_baseline=False,
        ylabel="pass@k: trained - before (pp)",
        what=said("reports.pass_k_after_training", task=analysis.metric.task),
    )


def draw_coverage(analysis: Analysis) -> Drawing | None:
    """Draw pass@k minus the baseline's; None unless the cells of a contrast kept at least two samples per problem."""
    baseline = analysis.sweep.baseline
    return _draw_coverage(
        analysis,
        of_baseline=True,
        ylabel="pass@k: arm - baseline (pp)",
        what=said("reports.pass_k_on_task", task=analysis.metric.task, baseline=baseline),
    )


def _draw_coverage(analysis: Analysis, *, of_baseline: bool, ylabel: str, what: str) -> Drawing | None:
    """Draw differences in pass@k with their simultaneous bands.

    of_baseline: compare with the baseline; otherwise with the model before training.
    what: the beginning of the caption.
    """
    shown = [one for one in coverage(analysis) if (one.against is not None) is of_baseline]
    if not shown:
        return None
    curves = [one.curve for one in shown]
    largest = int(max(curve.grid[-1] for curve in curves))

    def set_up(axes: Axes) -> None:
        log2_scale(axes, [2**power for power in range(largest.bit_length())])
        axes.axhline(0, color=GREY, linewidth=0.9, zorder=0)

    figure = draw_curves(analysis, curves, xlabel="k (log scale)", ylabel=ylabel, set_up=set_up)
    parts = [what]
    if not of_baseline:
        # A gain at the largest k is a finding only where the model before training left room for one.
        parts += [] if all(one.no_gain for one in shown) else [said("reports.line_above_0_at_largest")]
        parts += filter(None, [no_gain_sentence([one.arm for one in shown], arms_without_gain(analysis), largest)])
    parts.append(f"Seeds: {seeds_per_arm([curve.n for curve in curves])}.")
    if any(not one.note for one in shown):
        alpha = shown[0].alpha
        shared = said("reports.band_shared", overall=percent(1 - alpha * len(shown))) if len(shown) > 1 else ""
        band = said("reports.band_every_k_once", level=percent(1 - alpha), shared=shared)
        parts.append(f"{band}." if of_baseline else said("reports.noise_model_before_training", band=band))
    parts += [f"No band: {note}." for note in dict.fromkeys(one.note for one in shown if one.note)]
    parts.append(said("reports.coverage_table_says_word"))
    return Drawing(figure, " ".join(parts), curve_rows(curves, "k", "difference_pp" if of_baseline else "gain_pp"))


def _draw_over_k(analysis: Analysis, family: str, what: str) -> Drawing | None:
    """Draw `<family>@k` of every arm and of the model before training; None for fewer than two values of k.

    A single point is not a curve. what: the beginning of the caption.
    """
    curves = curves_over_k(analysis, family)
    ks = _evaluated_k(curves)
    if len(ks) < 2:
        return None
    base_model = base_line_over_k(analysis.base_metrics(), family)
    figure = draw_curves(
        analysis,
        curves,
        xlabel="k (log scale)",
        ylabel=f"{family}@k of {analysis.metric.task} (%)",
        base_model=base_model,
        set_up=partial(log2_scale, ticks=ks),
    )
    caption = f"{what} Final evaluation on {analysis.metric.task}. {describe_curves(curves, analysis.sweep.alpha)}"
    y_name = f"{family}_at_k_pp"
    rows = list(curve_rows(curves, "k", y_name))
    if base_model is not None:
        rows += [
            {"arm": BASE_MODEL, "seed": "", "k": float(k), y_name: float(value)}
            for k, value in zip(base_model.x, base_model.y, strict=True)
        ]
    return Drawing(figure, caption, rows)


def _evaluated_k(curves: Sequence[Curve]) -> list[int]:
    return sorted({int(x) for curve in curves for line in curve.lines for x in line.x})


PASS_AT_K = Figure(name="pass_at_k", title="pass@k", draw=draw_pass_at_k, group="Result", order=70)
MAJ_AT_K = Figure(name="maj_at_k", title="Majority vote of k samples", draw=draw_maj_at_k, group="Result", order=80)
COVERAGE = Figure(
    name="coverage", title=said("reports.difference_pass_k_every"), draw=draw_coverage, group="Result", order=165
)
SHARPENING = Figure(name="sharpening", title="Sharpening or learning", draw=draw_sharpening, group="Result", order=170)
