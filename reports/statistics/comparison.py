"""Comparisons of two arms: paired by seed, as in the analysis of a sweep, or unpaired if the runs share no seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from reports.statistics.means import (
    MIN_PAIRS,
    RELATIVE_TOLERANCE,
    FloatArray,
    finite_scores,
    interquartile_mean,
    require_level,
    t_interval,
)
from reports.statistics.p_values import sign_flip_p_value, t_p_value
from reports.statistics.power_analysis import detectable_standard_errors

Verdict = Literal["identical", "better", "worse", "equivalent", "inconclusive", "no_test"]

UNLIKE_SCORES = "equal weights, different scores: the evaluation is not deterministic"
"""The note of a comparison of identical weights whose scores differ."""

# Tolerates rounding, so that a spread of exactly one quantum is not below it.
SPREAD_TOLERANCE = 1e-9

FEW_PAIRS = 6
"""With fewer pairs, a spread below one quantum may be an accident, because scores can take only discrete values."""

NO_SPREAD = "all differences are equal, so their spread is unknown"
FINE_SPREAD = f"the spread is below what one sample changes, so with fewer than {FEW_PAIRS} seeds it counts as unknown"
AT_THE_FLOOR = "both arms are at the floor: no seed scores above the lowest score there is"
AT_THE_CEILING = "both arms are at the ceiling: no seed scores below the highest score there is"


@dataclass(frozen=True)
class Comparison:
    """Treatment minus baseline, in the unit of the scores. A number is NaN if there are too few runs to compute it."""

    alpha: float
    difference: float
    low: float
    """The lower end of the t interval of the mean difference, at level 1 - `alpha`; NaN if the spread is unknown."""
    high: float
    """The upper end of that interval."""
    p_value: float
    """NaN if the spread is unknown."""
    verdict: Verdict
    note: str
    """A remark on unusual scores, or ""."""
    median: float
    iqm: float
    detectable: float
    """The true difference that a design with this many runs and this spread detects with 80% power."""

    @property
    def level(self) -> float:
        """The confidence level of the interval."""
        return 1 - self.alpha


@dataclass(frozen=True)
class PairedComparison(Comparison):
    """A comparison over `n_pairs` seeds. `median` and `iqm` refer to the paired differences."""

    n_pairs: int
    sd: float
    """The standard deviation of the paired differences; NaN if the spread is unknown."""
    p_sign_flip: float
    correlation: float
    """Pearson's correlation of the two arms' scores over seeds."""
    correlation_low: float
    """The lower end of its interval at level 1 - `alpha`; NaN, like `correlation_high`, if the spread is unknown."""
    correlation_high: float
    variance_ratio: float
    """The variance of the paired mean difference divided by that of an unpaired analysis; below 1 if pairing helped.

    NaN if the spread is unknown, because a spread of zero would make pairing look perfect.
    """


@dataclass(frozen=True)
class UnpairedComparison(Comparison):
    """A comparison of runs that share no seeds.

    median, iqm: the difference of the arms' medians and of their interquartile means.
    """

    n_treatment: int
    n_baseline: int
    df: float
    """Welch's degrees of freedom."""


def compare_paired(
    treatment: Sequence[float] | FloatArray,
    baseline: Sequence[float] | FloatArray,
    alpha: float = 0.05,
    margin: float | None = None,
    *,
    identical: bool = False,
    quantum: float = 0.0,
    limits: tuple[float, float] | None = None,
) -> PairedComparison:
    """Compare two arms seed by seed: mean difference, t(n-1) interval, paired t test and verdict.

    treatment, baseline: scores [n_seeds], paired by position.
    alpha: the two-sided level; divide it by the number of contrasts before the call.
    margin: half the width of the equivalence region, in the unit of the scores; None for no test of equivalence.
    identical: the caller knows that both weights of every pair are equal, which scores cannot show.
    quantum: how far one sample moves a score.
    limits: the lowest and the highest possible score.

    The verdict is the first of these that applies:
    * identical: as passed in.
    * no_test: there are fewer than three pairs.
    * better, worse: the interval lies on one side of zero.
    * equivalent: the interval lies within [-margin, margin], i.e. two one-sided tests at alpha / 2.
    * inconclusive: none of the above.

    The spread is unknown if all differences are equal. It is also unknown if there are fewer than six pairs and their
    standard deviation is below one quantum. Because scores are discrete, such coincidences are common, and a t test
    would mistake them for certainty. In both cases there is no interval and no p value, the verdict is inconclusive,
    and `note` gives the reason.

    Raises ValueError for empty, unequal or non-finite scores and for an alpha, margin or quantum out of range.
    """
    treated, control, rounding = _checked(treatment, baseline, alpha, margin, quantum)
    if len(treated) != len(control):
        raise ValueError(
            f"treatment has {len(treated)} scores and baseline {len(control)}: a paired comparison needs the same"
            " seeds in both; leave out seeds that lack a partner"
        )
    n = len(treated)
    differences = treated - control
    # Differences that vary only by rounding are made equal: they show no spread.
    if np.ptp(differences) <= rounding:
        center = float(differences[0])
        differences = np.full(n, 0.0 if abs(center) <= rounding else center)
    mean = float(differences.mean())
    # The mean of equal numbers may round, and their sd would not be 0.
    sd = math.nan if n < 2 else 0.0 if np.ptp(differences) == 0 else float(differences.std(ddof=1))
    tested = n >= MIN_PAIRS
    unknown = "" if identical or n < 2 else _unknown_spread(sd, n, quantum, (treated, control), limits)
    known = tested and not unknown
    error, df = (sd / math.sqrt(n), n - 1) if known else (math.nan, math.nan)
    # Identical weights with equal scores have error 0 and an interval of width 0. An unknown error is NaN, which makes
    # both ends NaN.
    low, high = t_interval(differences, alpha) if known and sd > 0 else (mean - error, mean + error)
    correlation, *correlation_ends = _correlation(treated, control, alpha)
    correlation_low, correlation_high = (math.nan, math.nan) if unknown else correlation_ends
    return PairedComparison(
        n_pairs=n,
        sd=math.nan if unknown else sd,
        alpha=alpha,
        difference=mean,
        low=low,
        high=high,
        p_value=_p_value(mean, error, df),
        p_sign_flip=sign_flip_p_value(differences) if tested else math.nan,
        verdict=_verdict(n, low, high, margin, identical),
        note=UNLIKE_SCORES if identical and differences.any() else unknown if tested else "",
        median=float(np.median(differences)),
        iqm=interquartile_mean(differences),
        correlation=correlation,
        correlation_low=correlation_low,
        correlation_high=correlation_high,
        variance_ratio=math.nan if unknown else _variance_ratio(sd, treated, control),
        detectable=_detectable(error, df, alpha),
    )


def compare_unpaired(
    treatment: Sequence[float] | FloatArray,
    baseline: Sequence[float] | FloatArray,
    alpha: float = 0.05,
    margin: float | None = None,
    *,
    quantum: float = 0.0,
    limits: tuple[float, float] | None = None,
) -> UnpairedComparison:
    """Compare two arms whose runs are not paired: difference of means, Welch's interval and test, verdict.

    treatment [n_treatment], baseline [n_baseline]: scores, in any order. alpha, margin, quantum, limits and the verdict
    are those of `compare_paired`, without identical. no_test means fewer than three runs in an arm. The spread is that
    of the difference between one run of each arm. Use this only if seeds do not pair: the variance that paired runs
    share would stay in the error.

    Raises ValueError for empty or non-finite scores and for an alpha, margin or quantum out of range.

    Source: Welch (1947), Biometrika 34:28, with the Welch-Satterthwaite degrees of freedom.
    """
    from scipy.special import stdtrit

    treated, control, rounding = _checked(treatment, baseline, alpha, margin, quantum)
    difference = float(treated.mean() - control.mean())
    if abs(difference) <= rounding:
        difference = 0.0
    n = min(len(treated), len(control))
    tested = n >= MIN_PAIRS
    error, df, sd = _welch(treated, control, rounding) if tested else (math.nan, math.nan, math.nan)
    unknown = _unknown_spread(sd, n, quantum, (treated, control), limits) if tested else ""
    if unknown:
        error, df = math.nan, math.nan
    # NaN in df or error makes the interval NaN, and then `_verdict` returns inconclusive or no_test.
    half_width = float(stdtrit(df, 1 - alpha / 2)) * error
    low, high = difference - half_width, difference + half_width
    return UnpairedComparison(
        n_treatment=len(treated),
        n_baseline=len(control),
        alpha=alpha,
        difference=difference,
        low=low,
        high=high,
        p_value=_p_value(difference, error, df),
        verdict=_verdict(n, low, high, margin),
        note=unknown,
        median=float(np.median(treated) - np.median(control)),
        iqm=interquartile_mean(treated) - interquartile_mean(control),
        df=df,
        detectable=_detectable(error, df, alpha),
    )


def _checked(
    treatment: Sequence[float] | FloatArray,
    baseline: Sequence[float] | FloatArray,
    alpha: float,
    margin: float | None,
    quantum: float,
) -> tuple[FloatArray, FloatArray, float]:
    """Check the arguments, and return the scores of both arms and the rounding error of a difference of two scores.

    Raises ValueError for invalid scores, or for an alpha, margin or quantum out of range.
    """
    treated, control = finite_scores("treatment", treatment), finite_scores("baseline", baseline)
    require_level(alpha)
    if margin is not None and not (math.isfinite(margin) and margin >= 0):
        raise ValueError(f"margin is {margin}: it must be a finite number >= 0, or None for no test of equivalence")
    if not (math.isfinite(quantum) and quantum >= 0):
        raise ValueError(f"quantum is {quantum}: it must be a finite number >= 0, the step in which scores change")
    return treated, control, RELATIVE_TOLERANCE * float(max(np.abs(treated).max(), np.abs(control).max()))


def _verdict(n: int, low: float, high: float, margin: float | None, identical: bool = False) -> Verdict:
    if identical:
        return "identical"
    if n < MIN_PAIRS:
        return "no_test"
    # An interval of NaN fails each of these comparisons, so an unknown spread ends as inconclusive.
    if low > 0:
        return "better"
    if high < 0:
        return "worse"
    if margin is not None and -margin <= low and high <= margin:
        return "equivalent"
    return "inconclusive"


def _unknown_spread(
    sd: float, n: int, quantum: float, arms: tuple[FloatArray, FloatArray], limits: tuple[float, float] | None
) -> str:
    """Return why `sd` does not reveal the spread of the differences, or "" if it does."""
    if sd == 0:
        for limit, note in zip(limits or (), (AT_THE_FLOOR, AT_THE_CEILING), strict=False):
            if all(bool((scores == limit).all()) for scores in arms):
                return note
        return NO_SPREAD
    return FINE_SPREAD if n < FEW_PAIRS and sd < quantum * (1 - SPREAD_TOLERANCE) else ""


def _p_value(difference: float, error: float, df: float) -> float:
    """Return the two-sided p value of a difference.

    error: its standard error. It is 0 only if the weights are known to be equal; then p is 1.
    """
    return 1.0 if error == 0 else t_p_value(difference / error, df)


def _detectable(error: float, df: float, alpha: float) -> float:
    return error * detectable_standard_errors(df, alpha) if error > 0 else math.nan


def _correlation(treatment: FloatArray, baseline: FloatArray, alpha: float) -> tuple[float, float, float]:
    """Return Pearson's r and the two ends of Fisher's z interval.

    All three are NaN for fewer than three pairs, or if all scores of an arm are equal. The interval is [-1, 1] for
    three pairs. At r = 1 or -1 its ends are NaN, because it would have no width.
    """
    from scipy.special import ndtri

    n = len(treatment)
    if n < MIN_PAIRS or np.ptp(treatment) == 0 or np.ptp(baseline) == 0:
        return math.nan, math.nan, math.nan
    r = float(np.corrcoef(treatment, baseline)[0, 1])
    if n == MIN_PAIRS:
        return r, -1.0, 1.0
    if abs(r) >= 1 - RELATIVE_TOLERANCE:
        return r, math.nan, math.nan
    # atanh(r) is nearly normal with standard error 1 / sqrt(n - 3).
    half_width = float(ndtri(1 - alpha / 2)) / math.sqrt(n - 3)
    return r, math.tanh(math.atanh(r) - half_width), math.tanh(math.atanh(r) + half_width)


def _variance_ratio(sd: float, treatment: FloatArray, baseline: FloatArray) -> float:
    if len(treatment) < MIN_PAIRS:
        return math.nan
    unpaired = float(treatment.var(ddof=1) + baseline.var(ddof=1))
    return sd**2 / unpaired if unpaired > 0 else math.nan


def _welch(treated: FloatArray, control: FloatArray, rounding: float) -> tuple[float, float, float]:
    """Return the standard error of the difference of the means, its degrees of freedom, and the sd of a difference.

    The sd is that of the difference between one run of each arm. If no arm has any spread, the result is (0, NaN, 0).
    """
    arms = (treated, control)
    spread = [0.0 if np.ptp(scores) <= rounding else float(scores.var(ddof=1)) for scores in arms]
    variances = [variance / len(scores) for variance, scores in zip(spread, arms, strict=True)]
    total = sum(variances)
    if total == 0:
        return 0.0, math.nan, 0.0
    df = total**2 / sum(variance**2 / (len(scores) - 1) for variance, scores in zip(variances, arms, strict=True))
    return math.sqrt(total), df, math.sqrt(sum(spread))
