"""Paired comparison of two training arms, its power, and the correction for several contrasts.

The unit of replication is the training seed: every array here is indexed by seed [n_seeds], and two arrays are paired
by position. Results are in the unit of the inputs. Missing numbers are NaN.

Sources: Student's paired t test; Fisher (1935) for the sign-flip test; Holm (1979); Miller 2411.00640 (paired analysis
of evaluations), Colas et al. 1806.08295 (how many seeds), Agarwal et al. 2108.13264 (interquartile mean).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Verdict = Literal["identical", "better", "worse", "equivalent", "inconclusive", "no_test"]

MIN_PAIRS = 3
TARGET_POWER = 0.8
NO_SPREAD = "no spread"

EXACT_SIGN_FLIP_PAIRS = 16
SIGN_FLIP_DRAWS = 100_000
# Subtracting two scores leaves rounding errors of about 1e-16 of their size; a spread below this is none.
RELATIVE_TOLERANCE = 1e-12


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


@dataclass(frozen=True)
class Power:
    """A paired design: `n` pairs find a true difference of `effect` with probability `power`."""

    n: int
    effect: float
    power: float


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
    treated, control = _scores("treatment", treatment), _scores("baseline", baseline)
    _require_paired(treated, control)
    _require_level(alpha)
    if margin is not None and not (math.isfinite(margin) and margin >= 0):
        raise ValueError(f"margin is {margin}: it must be a finite number >= 0, or None for no test of equivalence")

    n = len(treated)
    differences = treated - control
    rounding = RELATIVE_TOLERANCE * float(max(np.abs(treated).max(), np.abs(control).max()))
    if np.ptp(differences) <= rounding:
        center = float(differences[0])
        differences = np.full(n, 0.0 if abs(center) <= rounding else center)
    mean, sd = float(differences.mean()), _sd(differences)
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
        verdict=_verdict(n, low, high, margin, identical),
        note=_note(differences, sd, identical),
        median=float(np.median(differences)),
        iqm=interquartile_mean(differences),
        correlation=correlation,
        correlation_low=correlation_low,
        correlation_high=correlation_high,
        variance_ratio=_variance_ratio(sd, treated, control),
        detectable=sd * _detectable_sds(n, alpha, TARGET_POWER) if tested and sd > 0 else math.nan,
    )


def t_interval(values: Sequence[float] | FloatArray, alpha: float = 0.05) -> tuple[float, float]:
    """The t(n-1) interval of the mean of `values` [n] at level 1 - alpha; (NaN, NaN) for one value."""
    sample = _scores("values", values)
    low, high = t_band(sample[:, None], alpha)
    return float(low[0]), float(high[0])


def t_band(values: FloatArray, alpha: float = 0.05) -> tuple[FloatArray, FloatArray]:
    """Pointwise t(n-1) intervals of the mean over axis 0: [n, points] -> (low, high) [points]; NaN for n = 1."""
    from scipy.special import stdtrit

    _require_level(alpha)
    n = len(values)
    if n < 2:
        nothing = np.full(values.shape[1:], math.nan)
        return nothing, nothing
    half_width = stdtrit(n - 1, 1 - alpha / 2) * values.std(axis=0, ddof=1) / math.sqrt(n)
    mean = values.mean(axis=0)
    return mean - half_width, mean + half_width


def sign_flip_p_value(differences: Sequence[float] | FloatArray) -> float:
    """Two-sided p of the mean difference when the sign of each difference [n] is a fair coin (Fisher 1935).

    Exact over all 2^n sign patterns up to n = 16, so never below 2^(1-n); above that 1e5 draws with a fixed seed, the
    observed pattern counted among them.
    """
    sample = _scores("differences", differences)
    n = len(sample)
    exact = n <= EXACT_SIGN_FLIP_PAIRS
    signs = _sign_patterns(n) if exact else _sign_draws(n)
    observed = abs(float(sample.sum()))
    extreme = int(np.count_nonzero(np.abs(signs @ sample) >= observed - RELATIVE_TOLERANCE * np.abs(sample).sum()))
    return extreme / len(signs) if exact else (extreme + 1) / (len(signs) + 1)


def interquartile_mean(values: Sequence[float] | FloatArray) -> float:
    """Mean of `values` [n] without the lowest and the highest quarter (whole values, rounded down)."""
    ordered = np.sort(_scores("values", values))
    cut = len(ordered) // 4
    return float(ordered[cut : len(ordered) - cut].mean())


def holm(p_values: Sequence[float] | FloatArray) -> FloatArray:
    """Holm's adjusted p values [m] in the order given: reject those at or below alpha (Holm 1979).

    Raises ValueError for a p value outside [0, 1]; give 1.0 for a contrast that could not be tested.
    """
    p = np.asarray(p_values, dtype=np.float64)
    if p.ndim != 1 or not bool(np.all((p >= 0) & (p <= 1))):
        raise ValueError(f"p values are {p_values}: each must lie in [0, 1]; give 1.0 for a contrast without a test")
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)))
    return adjusted


def difference_sd(run_sd: float, correlation: float) -> float:
    """Standard deviation of a paired difference of two arms with run-to-run sd `run_sd` and pairing `correlation`."""
    if not (run_sd >= 0 and -1 <= correlation <= 1):
        raise ValueError(f"run_sd {run_sd} must be >= 0 and correlation {correlation} lie in [-1, 1]")
    return run_sd * math.sqrt(2 * (1 - correlation))


def power(
    sd: float,
    effect: float | None = None,
    n: int | None = None,
    *,
    alpha: float = 0.05,
    target: float = TARGET_POWER,
) -> Power:
    """Power of the paired t test, exactly by the noncentral t: solves for what is left out.

    sd: standard deviation of the paired differences, in the unit of `effect`; `difference_sd` gives it from pilot runs.
    With `effect`: the seeds needed for `target`. With `n`: the detectable effect. With both: the power they reach.
    Raises ValueError when neither is given or a number is out of range.
    """
    _require_level(alpha)
    if not (math.isfinite(sd) and sd > 0):
        raise ValueError(f"sd is {sd}: it must be a finite number > 0; estimate it from at least two pilot pairs")
    if effect is not None and not (math.isfinite(effect) and effect != 0):
        raise ValueError(f"effect is {effect}: it must be a finite number other than 0")
    if n is not None and n < MIN_PAIRS:
        raise ValueError(f"n is {n}: a paired test needs at least {MIN_PAIRS} seeds")
    if not alpha < target < 1:
        raise ValueError(f"target power is {target}: it must lie between alpha = {alpha} and 1")
    if effect is not None:
        in_sds = abs(effect) / sd
        n = n if n is not None else _pairs_needed(in_sds, alpha, target)
        return Power(n=n, effect=effect, power=_paired_t_power(in_sds, n, alpha))
    if n is not None:
        return Power(n=n, effect=sd * _detectable_sds(n, alpha, target), power=target)
    raise ValueError("neither effect nor n is given: name an effect to get seeds, or n to get a detectable effect")


def _scores(name: str, values: Sequence[float] | FloatArray) -> FloatArray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or len(array) == 0:
        raise ValueError(f"{name} has shape {array.shape}: give one score per seed, a non-empty list [n_seeds]")
    if not bool(np.isfinite(array).all()):
        bad = np.flatnonzero(~np.isfinite(array)).tolist()
        raise ValueError(f"{name} is not finite at positions {bad}: leave out seeds without a score, in both arms")
    return array


def _require_paired(treatment: FloatArray, baseline: FloatArray) -> None:
    if len(treatment) != len(baseline):
        raise ValueError(
            f"treatment has {len(treatment)} scores and baseline {len(baseline)}: a paired comparison needs the same"
            " seeds in both; leave out seeds that lack a partner"
        )


def _require_level(alpha: float) -> None:
    if not 0 < alpha < 1:
        raise ValueError(f"alpha is {alpha}: a significance level lies between 0 and 1, e.g. 0.05")


def _sd(values: FloatArray) -> float:
    return float(values.std(ddof=1)) if len(values) > 1 else math.nan


def _paired_t_p_value(mean: float, sd: float, n: int) -> float:
    from scipy.special import stdtr

    if sd == 0:
        return 1.0 if mean == 0 else 0.0
    return float(2 * stdtr(n - 1, -abs(mean) / (sd / math.sqrt(n))))


def _verdict(n: int, low: float, high: float, margin: float | None, identical: bool) -> Verdict:
    if identical:
        return "identical"
    if n < MIN_PAIRS:
        return "no_test"
    if low > 0:
        return "better"
    if high < 0:
        return "worse"
    if margin is not None and -margin <= low and high <= margin:
        return "equivalent"
    return "inconclusive"


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


@cache
def _sign_patterns(n: int) -> FloatArray:
    """All sign patterns [2^n, n]."""
    bits = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
    return np.asarray(1.0 - 2.0 * bits, dtype=np.float64)


def _sign_draws(n: int) -> FloatArray:
    """Seeded random sign patterns [SIGN_FLIP_DRAWS, n]."""
    return np.random.default_rng(0).choice(np.array([-1.0, 1.0]), size=(SIGN_FLIP_DRAWS, n))


def _paired_t_power(effect_sds: float, n: int, alpha: float) -> float:
    from scipy.special import stdtrit
    from scipy.stats import nct

    critical = float(stdtrit(n - 1, 1 - alpha / 2))
    noncentrality = effect_sds * math.sqrt(n)
    # The lower tail by symmetry: the distribution function has no value far out on the left.
    return float(nct.sf(critical, n - 1, noncentrality) + nct.sf(critical, n - 1, -noncentrality))


@cache
def _detectable_sds(n: int, alpha: float, target: float) -> float:
    from scipy.optimize import brentq

    upper = 1.0
    while _paired_t_power(upper, n, alpha) < target:
        upper *= 2
    return float(brentq(lambda effect: _paired_t_power(effect, n, alpha) - target, 0.0, upper, xtol=1e-10))


def _pairs_needed(effect_sds: float, alpha: float, target: float) -> int:
    from scipy.special import ndtri

    # A known variance would need this many; the t test needs a few more, so the search starts below the answer.
    n = max(MIN_PAIRS, math.floor(float(ndtri(1 - alpha / 2) + ndtri(target)) ** 2 / effect_sds**2))
    while _paired_t_power(effect_sds, n, alpha) < target:
        n += 1
    return n
