"""Two arms compared whose runs share no seeds: Welch's t test."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from reports.statistics.checks import (
    RELATIVE_TOLERANCE,
    FloatArray,
    finite_scores,
    require_level,
    require_margin,
)
from reports.statistics.interquartile import interquartile_mean
from reports.statistics.intervals import t_p_value
from reports.statistics.paired import NO_SPREAD
from reports.statistics.power_analysis import detectable_standard_errors
from reports.statistics.verdicts import MIN_PAIRS, Verdict, verdict_of


@dataclass(frozen=True)
class UnpairedComparison:
    """Treatment minus baseline; NaN where an arm has too few runs for a number.

    The fields that `PairedComparison` has too mean the same; `median` and `iqm` are differences of the arms' own.
    `df`: Welch's degrees of freedom.
    """

    n_treatment: int
    n_baseline: int
    alpha: float
    difference: float
    low: float
    high: float
    p_value: float
    verdict: Verdict
    note: str
    median: float
    iqm: float
    df: float
    detectable: float


def compare_unpaired(
    treatment: Sequence[float] | FloatArray,
    baseline: Sequence[float] | FloatArray,
    alpha: float = 0.05,
    margin: float | None = None,
) -> UnpairedComparison:
    """Compare two arms whose runs do not pair: difference of means, Welch's interval and test, verdict.

    treatment [n_treatment], baseline [n_baseline]: scores, in any order. alpha, margin and the verdict as in
    `compare_paired`, except that weights cannot be known to be identical; no_test: fewer than three runs in an arm.
    Use it only where seeds do not pair: it leaves their shared variance in.
    Raises ValueError for empty or non-finite scores and for an alpha or margin out of range.

    Source: Welch (1947), Biometrika 34:28, with the Welch-Satterthwaite degrees of freedom.
    """
    from scipy.special import stdtrit

    treated, control = finite_scores("treatment", treatment), finite_scores("baseline", baseline)
    require_level(alpha)
    require_margin(margin)

    rounding = RELATIVE_TOLERANCE * float(max(np.abs(treated).max(), np.abs(control).max()))
    difference = float(treated.mean() - control.mean())
    if abs(difference) <= rounding:
        difference = 0.0
    n = min(len(treated), len(control))
    tested = n >= MIN_PAIRS
    error, df = _standard_error(treated, control, rounding) if tested else (math.nan, math.nan)
    half_width = float(stdtrit(df, 1 - alpha / 2)) * error if error > 0 else error
    low, high = difference - half_width, difference + half_width
    return UnpairedComparison(
        n_treatment=len(treated),
        n_baseline=len(control),
        alpha=alpha,
        difference=difference,
        low=low,
        high=high,
        p_value=_p_value(difference, error, df),
        verdict=verdict_of(n, low, high, margin),
        note=NO_SPREAD if error == 0 else "",
        median=float(np.median(treated) - np.median(control)),
        iqm=interquartile_mean(treated) - interquartile_mean(control),
        df=df,
        detectable=error * detectable_standard_errors(df, alpha) if error > 0 else math.nan,
    )


def _standard_error(treated: FloatArray, control: FloatArray, rounding: float) -> tuple[float, float]:
    """Of the difference of the means, and its degrees of freedom; (0, NaN) without any spread."""
    variances = [
        0.0 if np.ptp(scores) <= rounding else float(scores.var(ddof=1)) / len(scores) for scores in (treated, control)
    ]
    total = sum(variances)
    if total == 0:
        return 0.0, math.nan
    df = total**2 / sum(
        variance**2 / (len(scores) - 1) for variance, scores in zip(variances, (treated, control), strict=True)
    )
    return math.sqrt(total), df


def _p_value(difference: float, error: float, df: float) -> float:
    if error == 0:
        return 1.0 if difference == 0 else 0.0
    return t_p_value(difference / error, df)
