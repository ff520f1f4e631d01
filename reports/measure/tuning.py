"""Arms that were each tuned first: the searches' results and costs, and the difference between the arms' best settings.

A verdict on tuned arms is about their best possible settings. The settings that a search found score somewhat below
those, and the shortfall differs between arms. More seeds cannot reveal it, because every seed uses the same settings.
So the interval is widened by the uncertainty that the searches left, and a verdict holds only if the wider interval
supports it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from reports.report import BestDifference, TuningRow
from reports.statistics import PairedComparison

if TYPE_CHECKING:
    from harness.records import CellRecord
    from harness.records.sweep import TunedArm, Tuning
    from reports.measure.contrasts import Contrast

_DECIDED = ("better", "worse", "equivalent")


def best_difference(
    comparison: PairedComparison, arm: TunedArm, baseline: TunedArm, tuning: Tuning, margin_pp: float
) -> BestDifference:
    """Estimate the difference between the best settings from the difference between the settings that were found.

    The best setting of an arm scores `short_pp` above the one found, with a standard deviation of `short_sd_pp`. The
    comparison uses other seeds than the searches, so the variances add.
    """
    from scipy.special import ndtri

    # The skewed shortfall is treated as normal. Simulated sweeps keep their level with that; see the tests.
    difference = comparison.difference + arm.short_pp - baseline.short_pp
    left_sd = math.hypot(arm.short_sd_pp, baseline.short_sd_pp)
    half = math.hypot((comparison.high - comparison.low) / 2, float(ndtri(1 - comparison.alpha / 2)) * left_sd)
    low, high = difference - half, difference + half
    holds = {"better": low > 0, "worse": high < 0, "equivalent": -margin_pp <= low and high <= margin_pp}
    return BestDifference(
        trials=tuning.trials,
        knobs=tuning.knobs,
        difference_pp=difference,
        low_pp=low,
        high_pp=high,
        left_sd_pp=left_sd,
        settles=holds.get(comparison.verdict, True),
    )


def judge_bests(contrast: Contrast, tuning: Tuning | None, margin_pp: float) -> Contrast:
    """Make a contrast of two tuned arms inconclusive if its verdict does not hold for their best settings."""
    if tuning is None or not {contrast.arm, contrast.baseline} <= tuning.arms.keys():
        return contrast
    arms = tuning.arms[contrast.arm], tuning.arms[contrast.baseline]

    def judged(comparison: PairedComparison | None) -> PairedComparison | None:
        if comparison is None or comparison.verdict not in _DECIDED:
            return comparison
        settles = best_difference(comparison, *arms, tuning, margin_pp).settles
        return comparison if settles else replace(comparison, verdict="inconclusive")

    bests = None
    if contrast.comparison is not None:
        bests = best_difference(contrast.comparison, *arms, tuning, margin_pp)
    return replace(
        contrast,
        comparison=judged(contrast.comparison),
        without_flagged=judged(contrast.without_flagged),
        bests=bests,
    )


def tuning_rows(
    tuning: Tuning | None, arms: Sequence[str], means_pp: Mapping[str, float | None], cells: Sequence[CellRecord]
) -> list[TuningRow]:
    """Build `tuning` of report.json: one row per tuned arm.

    means_pp: each arm's mean score with fresh seeds.
    cells: the cells of the comparison.
    """
    if tuning is None:
        return []
    return [
        TuningRow(
            arm=arm,
            **tuning.arms[arm].model_dump(),
            trials=tuning.trials,
            seeds=tuning.seeds,
            fresh_pp=means_pp[arm],
            verdict_tokens=sum(cell.generated_tokens or 0 for cell in cells if cell.arm == arm),
        )
        for arm in arms
        if arm in tuning.arms
    ]
