"""Two arms compared seed by seed: the primary analysis of a sweep."""

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
    sample_sd,
)
from reports.statistics.interquartile import interquartile_mean
from reports.statistics.intervals import t_interval, t_p_value
from reports.statistics.power_analysis import detectable_standard_errors
from reports.statistics.sign_flip import sign_flip_p_value
from reports.statistics.verdicts import MIN_PAIRS, Verdict, verdict_of

NO_SPREAD = "no spread"


@dataclass(frozen=True)
class PairedComparison:
    """Treatment minus baseline over `n_pairs` seeds; NaN where there are too few pairs for a number.

    `low`, `high` and the correlation's interval are at level 1 - `alpha`. `variance_ratio` is the variance of the
    paired mean difference over that of an unpaired analysis: below 1 the pairing helped. `detectable` is the true
    difference that a design with this many pairs and this spread finds with 80% power.
    """

    n_pairs: int
    alpha: float
    difference: float
    low: float
    high: float
    p_value: float
    p_sign_flip: float
    verdict: Verdict
    note: str
    median: float
    iqm: float
    correlation: float
    correlation_low: float
    correlation_high: float
    variance_ratio: float
    detectable: float


def compare_paired(
    treatment: Sequence[float] | FloatArray,
    baseline: Sequence[float] | FloatArray,
    alpha: float = 0.05,
    margin: float | None = None,
    *,
    identical: bool = False,
) -> PairedComparison:
    """Compare two arms seed by seed: mean difference, t(n-1) interval, paired t test and verdict.

    treatment, baseline: scores [n_seeds], paired by position. alpha: two-sided level; divide it by the number of
    contrasts before the call. margin: half-width of the region of equivalence, in the unit of the scores. identical:
    the caller knows that the weights behind every pair are equal, which no score can show.

    The verdict is the first that holds of: identical; no_test (fewer than three pairs); better or worse (interval on
    one side of zero); equivalent (interval inside [-margin, margin]: two one-sided tests at alpha / 2); inconclusive.
    Differences that are all equal give a zero-width interval and the note "no spread".
    Raises ValueError for empty, unequal or non-finite scores and for an alpha or margin out of range.
    """
    treated, control = finite_scores("treatment", treatment), finite_scores("baseline", baseline)
    _require_paired(treated, control)
    require_level(alpha)
    require_margin(margin)

    n = len(treated)
    differences = treated - control
    rounding = RELATIVE_TOLERANCE * float(max(np.abs(treated).max(), np.abs(control).max()))
    if np.ptp(differences) <= rounding:
        center = float(differences[0])
        differences = np.full(n, 0.0 if abs(center) <= rounding else center)
    mean, sd = float(differences.mean()), sample_sd(differences)
    tested = n >= MIN_PAIRS
    low, high = t_interval(differences, alpha) if tested else (math.nan, math.nan)
    correlation, correlation_low, correlation_high = _correlation(treated, control, alpha)
    return PairedComparison(
        n_pairs=n,
        alpha=alpha,
        difference=mean,
        low=low,
        high=high,
        p_value=_paired_t_p_value(mean, sd, n) if tested else math.nan,
        p_sign_flip=sign_flip_p_value(differences) if tested else math.nan,
        verdict=verdict_of(n, low, high, margin, identical),
        note=_note(differences, sd, identical),
        median=float(np.median(differences)),
        iqm=interquartile_mean(differences),
        correlation=correlation,
        correlation_low=correlation_low,
        correlation_high=correlation_high,
        variance_ratio=_variance_ratio(sd, treated, control),
        detectable=sd / math.sqrt(n) * detectable_standard_errors(n - 1, alpha) if tested and sd > 0 else math.nan,
    )


def _require_paired(treatment: FloatArray, baseline: FloatArray) -> None:
    if len(treatment) != len(baseline):
        raise ValueError(
            f"treatment has {len(treatment)} scores and baseline {len(baseline)}: a paired comparison needs the same"
            " seeds in both; leave out seeds that lack a partner"
        )


def _paired_t_p_value(mean: float, sd: float, n: int) -> float:
    if sd == 0:
        return 1.0 if mean == 0 else 0.0
    return t_p_value(mean / (sd / math.sqrt(n)), n - 1)


def _note(differences: FloatArray, sd: float, identical: bool) -> str:
    if identical:
        return "equal weights, different scores: the evaluation is not deterministic" if differences.any() else ""
    return NO_SPREAD if sd == 0 else ""


def _correlation(treatment: FloatArray, baseline: FloatArray, alpha: float) -> tuple[float, float, float]:
    """Pearson's r with Fisher's z interval, which knows nothing below four pairs."""
    from scipy.special import ndtri

    n = len(treatment)
    if n < MIN_PAIRS or np.ptp(treatment) == 0 or np.ptp(baseline) == 0:
        return math.nan, math.nan, math.nan
    r = float(np.corrcoef(treatment, baseline)[0, 1])
    if n == MIN_PAIRS:
        return r, -1.0, 1.0
    if abs(r) >= 1 - RELATIVE_TOLERANCE:
        return r, r, r
    half_width = float(ndtri(1 - alpha / 2)) / math.sqrt(n - 3)
    return r, math.tanh(math.atanh(r) - half_width), math.tanh(math.atanh(r) + half_width)


def _variance_ratio(sd: float, treatment: FloatArray, baseline: FloatArray) -> float:
    if len(treatment) < MIN_PAIRS:
        return math.nan
    unpaired = float(treatment.var(ddof=1) + baseline.var(ddof=1))
    return sd**2 / unpaired if unpaired > 0 else math.nan
