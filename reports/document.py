"""report.json: every number of a report as plain data. NaN becomes null."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from reports.across_tasks import across_tasks_rows
from reports.analysis import Analysis
from reports.arms import ArmSummary, hidden_knob_warnings
from reports.contrasts import Contrast
from reports.flips import find_flips
from reports.interactions import interaction_rows, interactions
from reports.law_rows import law_rows
from reports.measurements import finite
from reports.new_problems import new_problems_row, over_new_problems
from reports.overoptimisation import proxy_and_truth
from reports.sharpening import gain_curves, sharpening
from reports.statistics import PairedComparison

if TYPE_CHECKING:
    from harness.records import CellRecord

Report = dict[str, list[dict[str, Any]]]

SECTIONS = ("contrasts", "arms", "cells", "laws", "interactions", "across_tasks", "flips", "reflection")
"""Keys of every report.json, of lists that may be empty."""


def report_document(analysis: Analysis) -> Report:
    """The contents of report.json: contrasts, arms, cells, laws, effects of a factorial, arms over all tasks, flips.

    Scores and differences are in percentage points.
    """
    gains = {curve.arm: asdict(sharpening(curve)) for curve in gain_curves(analysis)}
    document: Report = {
        "contrasts": [
            contrast_row(
                contrast,
                metric=analysis.sweep.metric,
                margin_pp=analysis.sweep.margin_pp,
                n_contrasts=len(analysis.contrasts),
                warnings=hidden_knob_warnings(analysis.arm(contrast.arm), analysis.arm(contrast.baseline)),
            )
            | {"new_problems": new_problems_row(over_new_problems(analysis.sweep, analysis.measurements, contrast))}
            for contrast in analysis.contrasts
        ],
        "arms": [
            _arm(analysis, arm) | {"rank": _rank(analysis, arm), "sharpening": gains.get(arm.arm)}
            for arm in analysis.arms
        ],
        "cells": [_cell(analysis, cell) for cell in analysis.sweep.cells],
        "laws": law_rows(analysis),
        "interactions": interaction_rows(interactions(analysis.sweep, analysis.measurements)),
        "across_tasks": across_tasks_rows(analysis.across_tasks),
        "flips": [flip.as_row() for flip in find_flips(analysis)],
        "reflection": [asdict(row) for row in analysis.reflection.arms],
    }
    return {key: [without_nan(row) for row in rows] for key, rows in document.items()}


def contrast_row(
    contrast: Contrast, *, metric: str, margin_pp: float, n_contrasts: int, warnings: list[str]
) -> dict[str, Any]:
    """One of `contrasts` of report.json."""
    return {
        "arm": contrast.arm,
        "baseline": contrast.baseline,
        "metric": metric,
        **_comparison(contrast.comparison),
        "p_holm": contrast.p_holm,
        "n_contrasts": n_contrasts,
        "margin_pp": margin_pp,
        "seeds": contrast.seeds,
        "differences_pp": contrast.differences_pp,
        "missing": [asdict(pair) for pair in contrast.missing],
        "flagged_seeds": contrast.flagged_seeds,
        "without_flagged": _comparison(contrast.without_flagged) if contrast.flagged_seeds else None,
        "noise_low_pp": contrast.noise_low_pp,
        "noise_high_pp": contrast.noise_high_pp,
        "token_ratios": contrast.token_ratios,
        "token_ratio": contrast.token_ratio,
        "equal_tokens": contrast.equal_tokens,
        "warnings": warnings,
    }


def _comparison(comparison: PairedComparison | None) -> dict[str, Any]:
    c = comparison
    return {
        "difference_pp": None if c is None else c.difference,
        "low_pp": None if c is None else c.low,
        "high_pp": None if c is None else c.high,
        "level": None if c is None else 1 - c.alpha,
        "p": None if c is None else c.p_value,
        "p_sign_flip": None if c is None else c.p_sign_flip,
        "verdict": "no_test" if c is None else c.verdict,
        "note": "" if c is None else c.note,
        "n_pairs": 0 if c is None else c.n_pairs,
        "median_pp": None if c is None else c.median,
        "iqm_pp": None if c is None else c.iqm,
        "correlation": None if c is None else c.correlation,
        "correlation_low": None if c is None else c.correlation_low,
        "correlation_high": None if c is None else c.correlation_high,
        "variance_ratio": None if c is None else c.variance_ratio,
        "detectable_pp": None if c is None else c.detectable,
    }


def _arm(analysis: Analysis, arm: ArmSummary) -> dict[str, Any]:
    sweep, metric = analysis.sweep, analysis.metric
    before = finite(analysis.base_metrics.get(metric.name))
    return {
        "arm": arm.arm,
        "metric": sweep.metric,
        "task": metric.task,
        "n": arm.n,
        "level": 1 - sweep.alpha,
        "before_pp": None if before is None else 100 * before,
        "before_ece": finite(analysis.base_metrics.get("ece")),
        "budget_tokens": sweep.budget_tokens,
        **{key: value for key, value in asdict(arm).items() if key != "arm"},
        "proxy_and_truth": None if (end := proxy_and_truth(analysis.measurements[arm.arm])) is None else asdict(end),
    }


def _rank(analysis: Analysis, arm: ArmSummary) -> int | None:
    """1 for the highest mean score; equal scores share a rank. None without a score."""
    if arm.mean_pp is None:
        return None
    return 1 + sum(other.mean_pp is not None and other.mean_pp > arm.mean_pp for other in analysis.arms)


def _cell(analysis: Analysis, cell: CellRecord) -> dict[str, Any]:
    measurement = next((m for m in analysis.measurements[cell.arm] if m.cell.seed == cell.seed), None)
    return {
        "arm": cell.arm,
        "seed": cell.seed,
        "hash": cell.hash,
        "state": cell.state,
        "reason": cell.reason,
        "flags": cell.flags,
        "digest": cell.digest,
        "score_pp": None if measurement is None else measurement.score_pp,
        "generated_tokens": cell.generated_tokens,
        "step": cell.step,
        "steps": cell.steps,
        "total_s": None if measurement is None else measurement.seconds("total_s"),
    }


def without_nan(value: Any) -> Any:
    """Plain data with None for what is not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_nan(item) for item in value]
    return value
