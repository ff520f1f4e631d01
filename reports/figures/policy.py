"""The policy during training: its entropy, the length of completions, clipping, KL, groups without signal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from harness.words import said
from reports.drawing.curves import draw_step_field, seeds_per_arm
from reports.drawing.grid import Column, Trace, draw_step_grid
from reports.drawing.marks import mark
from reports.drawing.rendering import DataRow, Drawing
from reports.drawing.style import LEGEND_ROW_IN, arm_styles, legend_columns, new_figure, short_name
from reports.figures import Figure
from reports.measure import Analysis

if TYPE_CHECKING:
    from reports.measure.measurements import Measurement


def draw_entropy(analysis: Analysis) -> Drawing | None:
    """Draw the entropy over the whole vocabulary or, if it was not recorded, an estimate from the sampled tokens."""
    scale = _largest_entropies(analysis)
    full = draw_step_field(
        analysis,
        "entropy/full",
        "entropy (nats per token)",
        said("reports.mean_entropy_policys_next", scale=scale),
    )
    return full or draw_step_field(
        analysis,
        "entropy/sampled",
        said("reports.sampled_entropy_nats_per"),
        said("reports.sampled_entropy_mean_log"),
    )


def _largest_entropies(analysis: Analysis) -> str:
    """Return the part of the caption that states the largest possible entropy: that of the uniform distribution."""
    cells = [measurement for some in analysis.measurements.values() for measurement in some]
    sizes = sorted({size for cell in cells if (size := _vocabulary_tokens(cell)) is not None})
    return "".join(said("reports.tokens_most_ln", size=size, log=math.log(size)) for size in sizes)


def _vocabulary_tokens(measurement: Measurement) -> int | None:
    model = measurement.cell.provenance.get("model")
    size = model.get("vocabulary_tokens") if isinstance(model, dict) else None
    return size if isinstance(size, int) and size > 0 else None


def draw_entropy_score(analysis: Analysis) -> Drawing | None:
    """Draw each cell's final score against its mean entropy in training; None if no cell recorded both."""
    sweep, metric = analysis.sweep, analysis.metric
    rows: list[DataRow] = [
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
    figure = new_figure(3.2 + LEGEND_ROW_IN * math.ceil(len(labels) / columns))
    axes = figure.subplots()
    styles = arm_styles(sweep.arms, sweep.baseline)
    for arm, label in labels.items():
        x, y = ([row[key] for row in by_arm[arm]] for key in ("mean_entropy_nats", "score_pp"))
        (dots,) = axes.plot(x, y, styles[arm].marker, color=styles[arm].color, markersize=5, label=label)
        mark(dots, arm, "seed", [int(row["seed"]) for row in by_arm[arm]])
    axes.locator_params(axis="x", nbins=5)
    axes.set_xlabel(said("reports.mean_entropy_training_nats"))
    axes.set_ylabel(f"final {metric.name} of {metric.task} (%)")
    figure.legend(loc="outside lower center", ncols=columns)
    counts = seeds_per_arm([len(by_arm[arm]) for arm in labels])
    caption = said("reports.each_point_finished_cell", counts=counts)
    return Drawing(figure, caption, rows)


LENGTH_COLUMNS = (
    Column("tokens per completion", Trace("len/mean", "mean"), Trace("len/p95", "95th percentile")),
    Column("mean tokens by verdict", Trace("len/correct", "right"), Trace("len/incorrect", "wrong")),
    Column("truncated", Trace("len/truncated_frac"), as_percent=True),
)


def draw_length(analysis: Analysis) -> Drawing | None:
    return draw_step_grid(
        analysis,
        LENGTH_COLUMNS,
        said("reports.tokens_per_completion_each"),
    )


STABILITY_COLUMNS = (
    Column(
        "tokens clipped",
        Trace("clip/high_frac_sign_aware", "above, A > 0"),
        Trace("clip/low_frac_sign_aware", "below, A < 0"),
        as_percent=True,
        never=said("reports.no_token_clipped"),
    ),
    Column(said("reports.kl_start_nats_per"), Trace("kl/exact_start")),
    Column(
        "groups of a prompt",
        Trace("reward/frac_zero_std", "equal rewards"),
        Trace("reward/frac_all_1", "all right"),
        as_percent=True,
    ),
)


def draw_stability(analysis: Analysis) -> Drawing | None:
    """Draw early signs of failing training: clipping, KL, and groups of a prompt without signal."""
    return draw_step_grid(
        analysis,
        STABILITY_COLUMNS,
        said("reports.share_tokens_loss_on"),
    )


ENTROPY = Figure(
    name="entropy", title="Policy entropy", draw=draw_entropy, group="Policy", order=90, over_training=True
)
ENTROPY_SCORE = Figure(
    name="entropy_score",
    title=said("reports.final_score_against_entropy"),
    draw=draw_entropy_score,
    group="Policy",
    order=110,
)
LENGTH = Figure(name="length", title="Completion length", draw=draw_length, group="Policy", order=120)
STABILITY = Figure(
    name="stability", title=said("reports.clipping_kl_groups_without"), draw=draw_stability, group="Policy", order=130
)
