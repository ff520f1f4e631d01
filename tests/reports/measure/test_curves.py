from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from harness.records import SweepRecord
from reports.measure import analyse
from reports.measure.coverage import UNKNOWN_NOISE, coverage, gain_curves
from reports.measure.curves import (
    STEPS,
    TOKENS,
    Curve,
    evaluation_curves,
    evaluation_mean,
    mean_curve,
    paired_curves,
    points_over_k,
    step_curves,
    to_line,
    training_axis,
)
from reports.page.document import report_document
from reports.statistics import t_interval
from tests.reports.rewriting import rewrite_rows, write_steps
from tests.reports.synthetic import score_row, write_sweep


def test_seeds_with_different_x_are_interpolated_onto_the_range_they_share():
    first = to_line(0, [(0, 0.0), (100, 1.0), (200, 2.0)])
    second = to_line(1, [(50, 1.0), (150, 2.0), (250, 3.0)])
    third = to_line(2, [(0, 1.0), (50, 1.0), (200, 1.0), (250, 1.0)])
    curve = mean_curve("arm", [first, second, third], alpha=0.05)
    np.testing.assert_allclose(curve.grid, [50, 125, 200])
    np.testing.assert_allclose(curve.mean, [2.5 / 3, 4 / 3, 5.5 / 3])  # (x / 100 + (x + 50) / 100 + 1) / 3
    assert (curve.low[1], curve.high[1]) == pytest.approx(t_interval([1.25, 1.75, 1.0]))


def test_a_line_drops_missing_values_and_keeps_the_last_at_one_x():
    line = to_line(0, [(10, 0.5), (20, None), (30, math.nan), (40, 0.6), (40, 0.7)])
    np.testing.assert_array_equal(line.x, [10, 40])
    np.testing.assert_array_equal(line.y, [0.5, 0.7])


@pytest.mark.parametrize(
    ("seeds", "rows", "axis"),
    [(2, [{"step": 1, "generated_tokens": 0}], STEPS), (1, [], TOKENS)],
    ids=["one cell that generates nothing", "one that ended before its first step"],
)
def test_the_axis_is_that_of_all_cells_that_trained(tmp_path, seeds, rows, axis):
    sweep = write_sweep(tmp_path, {"base": 0.0, "other": 0.0}, seeds=seeds)
    assert training_axis(analyse(sweep)) == TOKENS
    write_steps(sweep.cells[-1], rows)
    assert training_axis(analyse(sweep)) == axis


def test_curves_over_either_axis(tmp_path):
    sweep = write_sweep(tmp_path, {"base": 0.0, "other": 0.0}, seeds=1)
    base = sweep.cells[0]
    for axis, last in (("generated_tokens", base.generated_tokens), ("step", base.step)):
        analysis = analyse(sweep)
        assert training_axis(analysis).field == axis
        steps, _ = step_curves(analysis, "len/mean")
        scores, _ = evaluation_curves(analysis, "pass@1", alpha=0.05)
        assert steps.grid[-1] == scores.grid[-1] == last
        assert (scores.grid[0], scores.mean[0]) == (0, 0.35)  # the model before training
        assert (len(steps.grid), len(scores.grid)) == (40, 5)
        rewrite_rows(sweep, "steps.jsonl", lambda row: row | {"generated_tokens": 0}, arm="other")


def test_evaluations_end_in_the_mean_of_the_last_values_where_the_seeds_end_on_average():
    lines = [to_line(seed, [(0, 0.0), (100, 1.0), (200 + 60 * seed, 2.0 + seed)]) for seed in range(3)]
    curve = evaluation_mean("arm", lines, alpha=0.05)
    np.testing.assert_allclose(curve.grid, [0, 100, 200, 260])
    np.testing.assert_allclose(curve.mean, [0, 1, (2 + (1 + 2 * 100 / 160) + (1 + 3 * 100 / 220)) / 3, 3])
    assert (curve.low[-1], curve.high[-1]) == pytest.approx(t_interval([2.0, 3.0, 4.0]))


def test_seeds_that_end_nearly_together_get_no_second_point_beside_the_last():
    lines = [to_line(seed, [(0, 0.0), (100, 1.0), (200 + seed, 2.0)]) for seed in range(3)]
    np.testing.assert_allclose(evaluation_mean("arm", lines, alpha=0.05).grid, [0, 100, 201])


@pytest.mark.parametrize("ends", [1, 3])
def test_evaluations_that_end_together_are_averaged_as_anything_else(ends):
    lines = [to_line(seed, [(0, 0.0), (64, 1.0 + seed), (70, 3.0)]) for seed in range(ends)]
    curve, expected = evaluation_mean("arm", lines, alpha=0.05), mean_curve("arm", lines, alpha=0.05)
    for field in ("grid", "mean", "low", "high"):
        np.testing.assert_array_equal(getattr(curve, field), getattr(expected, field))


@pytest.mark.parametrize(
    ("begun", "early", "grid"),
    [(0, [(0, 0.5), (20, 0.1)], [0, 20, 140]), (0, [(0, 0.1)], [0, 400 / 3]), (50, [(20, 0.1)], [140])],
)
def test_a_seed_that_ended_very_early_counts_at_the_end(begun, early, grid):
    others = [to_line(seed, [(begun, 0.5), (100, 0.6), (200, 0.7)]) for seed in (1, 2)]
    curve = evaluation_mean("arm", [to_line(0, early), *others], alpha=0.05)
    np.testing.assert_allclose(curve.grid, grid)
    assert curve.mean[-1] == pytest.approx(0.5)
    assert (curve.low[-1], curve.high[-1]) == pytest.approx(t_interval([0.1, 0.7, 0.7]))


@pytest.mark.parametrize(
    ("fractions", "known_before"),
    [((0.8, 1.2, 1.0, 0.9, 1.1, 0.7), True), ((1.0, 0.1, 1.0, 1.05, 1.0, 0.9), True), ((0.8, 1.2, 1.0), False)],
)
def test_curves_end_in_what_the_table_and_the_verdict_say(tmp_path, fractions, known_before):
    """Cells that stop at a number of steps generate different tokens; one that diverged, few."""
    before: dict[str, Any] = {} if known_before else {"base_scores": []}
    sweep = write_sweep(tmp_path, {"base": 0.0, "up": 3.0, "down": -2.0}, seeds=3, **before)
    cut_tokens(sweep, fractions)
    analysis = analyse(sweep)
    held_out = evaluation_curves(analysis, "pass@1", sweep.alpha)
    for curve, arm in zip(held_out, analysis.arms, strict=True):
        assert end_of(curve) == pytest.approx((arm.mean_pp, arm.low_pp, arm.high_pp))
        assert np.all(np.diff(curve.grid) > 0)
    paired = paired_curves(held_out, "base", sweep.alpha / len(analysis.contrasts))
    for curve, contrast in zip(paired, analysis.contrasts, strict=True):
        assert contrast.comparison is not None
        comparison = contrast.comparison
        assert end_of(curve) == pytest.approx((comparison.difference, comparison.low, comparison.high))
        assert np.all(np.diff(curve.grid) > 0)


def test_each_arm_begins_with_the_model_that_it_starts_from(tmp_path):
    starts = {"base": [score_row(0, 0, 0.35, final=True)], "up": [score_row(0, 0, 0.2, final=True)]}
    sweep = write_sweep(tmp_path, {"base": 0.0, "up": 3.0}, seeds=3, base_scores=[], base_scores_by_arm=starts)
    analysis = analyse(sweep)
    first = [curve.mean[0] for curve in evaluation_curves(analysis, "pass@1", sweep.alpha)]
    assert first == pytest.approx([0.35, 0.2])
    gains = {curve.arm: curve.mean[0] for curve in gain_curves(analysis)}
    after = {arm.arm: arm.mean_pp or 0.0 for arm in analysis.arms}
    assert gains == pytest.approx({"base": after["base"] - 35, "up": after["up"] - 20})
    assert [(row.arm, row.note) for row in coverage(analysis) if row.against is None] == [
        ("base", UNKNOWN_NOISE),
        ("up", UNKNOWN_NOISE),
    ]
    assert [arm.before_pp for arm in report_document(analysis).arms] == [35.0, 20.0]


def cut_tokens(sweep: SweepRecord, fractions: tuple[float, ...]) -> None:
    """Let cells generate these fractions of their tokens, again from the first where cells are more."""
    for i, cell in enumerate(sweep.cells):
        rows = [
            {**row, "generated_tokens": int((row["generated_tokens"] or 0) * fractions[i % len(fractions)])}
            for row in cell.read_scores()
        ]
        (cell.path / "scores.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def end_of(curve: Curve) -> tuple[float, float, float]:
    """Mean and band of the last point, in percentage points."""
    return 100 * curve.mean[-1], 100 * curve.low[-1], 100 * curve.high[-1]


def test_paired_curves_subtract_seed_by_seed_at_the_x_of_the_arm():
    baseline = [to_line(0, [(0, 1.0), (10, 2.0)]), to_line(1, [(0, 1.0), (6, 1.0), (10, 1.0)])]
    treated = [to_line(1, [(0, 3.0), (5, 4.0), (8, 4.0)]), to_line(2, [(0, 0.0), (10, 0.0)])]
    curves = [mean_curve("base", baseline, 0.05), mean_curve("up", treated, 0.05)]
    (paired,) = paired_curves(curves, "base", alpha=0.05)
    (line,) = paired.lines
    assert (paired.arm, line.seed) == ("up", 1)  # seed 2 has no partner
    np.testing.assert_array_equal(
        line.x, [0, 5, 9]
    )  # not 6, where only the baseline was evaluated; the ends, 8 and 10, meet
    np.testing.assert_array_equal(line.y, [2, 3, 3])
    np.testing.assert_array_equal(paired.scaled(100).mean, [200, 300, 300])


def test_arms_without_a_pair_or_a_shared_range_have_no_paired_curve():
    baseline = mean_curve("base", [to_line(0, [(0, 1.0), (10, 2.0)])], 0.05)
    later = mean_curve("later", [to_line(0, [(20, 1.0), (30, 2.0)])], 0.05)
    other = mean_curve("other", [to_line(1, [(0, 1.0), (10, 2.0)])], 0.05)
    assert paired_curves([baseline, later, other], "base", 0.05) == []
    assert paired_curves([later, other], "base", 0.05) == []


def test_points_over_k_are_of_one_family_and_ordered():
    metrics = {"pass@16": 0.9, "avg@n": 0.3, "pass@2": 0.5, "pass^2": 0.1, "maj@2": 0.4, "cons@n": 0.6}
    assert points_over_k(metrics, "pass") == [(2, 0.5), (16, 0.9)]
    assert points_over_k(metrics, "maj") == [(2, 0.4)]
