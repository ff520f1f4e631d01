"""The exact power of t tests, by the noncentral t distribution: seeds for an effect, or an effect for seeds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from reports.statistics.means import MIN_PAIRS, require_level

TARGET_POWER = 0.8
QUADRATURE_POINTS = 1000


@dataclass(frozen=True)
class Power:
    """A paired design: `n` pairs detect a true difference of `effect` with probability `power`."""

    n: int
    effect: float
    power: float


def power(
    sd: float,
    effect: float | None = None,
    n: int | None = None,
    *,
    alpha: float = 0.05,
    target: float = TARGET_POWER,
) -> Power:
    """Compute the power of the paired t test, or solve for the argument that is left out (Colas et al. 1806.08295).

    sd: the standard deviation of the paired differences, in the unit of `effect`. `difference_sd` computes it from that
    of single runs.
    With `effect` alone: the number of seeds that reaches the target power.
    With `n` alone: the effect that this many seeds detect.
    With both: the power that the design reaches.

    Raises ValueError if neither is passed or a number is out of range.
    """
    require_level(alpha)
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
        return Power(n=n, effect=sd * detectable_standard_errors(n - 1, alpha, target) / math.sqrt(n), power=target)
    raise ValueError("neither effect nor n is given: name an effect to get seeds, or n to get a detectable effect")


def difference_sd(run_sd: float, correlation: float) -> float:
    """Return the standard deviation of a paired difference, from that of single runs and the arms' correlation.

    correlation: of the two arms' scores over seeds. Raises ValueError for numbers out of range.
    """
    if not (run_sd >= 0 and -1 <= correlation <= 1):
        raise ValueError(f"run_sd {run_sd} must be >= 0 and correlation {correlation} lie in [-1, 1]")
    return run_sd * math.sqrt(2 * (1 - correlation))


def sd_upper_bound(sd: float, n: int, confidence: float = 0.8) -> float:
    """Return the one-sided upper bound of the true standard deviation behind an estimate `sd` from `n` normal values.

    A pilot's sd is too low more often than too high, and then a design that relies on it is underpowered. Plan with
    this bound instead (Browne 1995, Statistics in Medicine 14:1933). Raises ValueError for fewer than two values.
    """
    from scipy.special import chdtri

    if n < 2 or not sd >= 0 or not 0 < confidence < 1:
        raise ValueError(f"sd {sd} must be >= 0, n {n} at least 2 and confidence {confidence} between 0 and 1")
    # chdtri takes the probability of the upper tail.
    return sd * math.sqrt((n - 1) / float(chdtri(n - 1, confidence)))


@cache
def detectable_standard_errors(df: float, alpha: float, target: float = TARGET_POWER) -> float:
    """Return the true mean, in standard errors, that a two-sided t test detects with power `target`.

    df: the degrees of freedom of the test.
    """
    from scipy.optimize import brentq

    # brentq needs a bracket: double the upper end until its power exceeds the target.
    upper = 1.0
    while t_test_power(upper, df, alpha) < target:
        upper *= 2
    return float(brentq(lambda shift: t_test_power(shift, df, alpha) - target, 0.0, upper, xtol=1e-10))


def t_test_power(shift: float, df: float, alpha: float) -> float:
    """Return the probability that a two-sided t test rejects if the true mean is `shift` standard errors from zero."""
    from scipy.special import nctdtr, stdtrit  # scipy.stats takes a second to import

    critical = float(stdtrit(df, 1 - alpha / 2))
    # The lower tail follows by symmetry. In the far tails nctdtr returns NaN; there the probability is 0 or 1 to eight
    # digits.
    not_above, not_below = map(float, nctdtr(df, (shift, -shift), critical))
    return (1 - (0 if math.isnan(not_above) else not_above)) + (1 - (1 if math.isnan(not_below) else not_below))


def equivalence_power(margin: float, df: float, alpha: float) -> float:
    """Return the probability that the t interval lies within [-margin, margin] if the true mean is zero.

    The interval has level 1 - alpha. margin: in standard errors. The power is integrated numerically over the
    chi-square distribution of the estimated variance.
    """
    from scipy.special import chdtri, ndtr, stdtrit

    # Midpoints of equally likely slices of the chi-square distribution.
    tails = (np.arange(QUADRATURE_POINTS) + 0.5) / QUADRATURE_POINTS
    half_widths = stdtrit(df, 1 - alpha / 2) * np.sqrt(chdtri(df, tails) / df)
    return float(np.maximum(2 * ndtr(margin - half_widths) - 1, 0).mean())


def fewest(settles: Callable[[int], bool], most: int, start: int = 1) -> int | None:
    """Return the smallest number from `start` to `most` that settles a question; None if `most` does not settle it.

    Assumes that every larger number settles it too.
    """
    if not settles(most):
        return None
    low, high = start - 1, start
    # Doubling, then bisection, takes far fewer calls than counting up.
    while high < most and not settles(high):
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if settles(middle) else (middle, high)
    return high


def _paired_t_power(effect_sds: float, n: int, alpha: float) -> float:
    return t_test_power(effect_sds * math.sqrt(n), n - 1, alpha)


def _pairs_needed(effect_sds: float, alpha: float, target: float) -> int:
    from scipy.special import ndtri

    # This many pairs would suffice if the variance were known. The t test needs a few more, so the search starts below
    # the answer.
    n = max(MIN_PAIRS, math.floor(float(ndtri(1 - alpha / 2) + ndtri(target)) ** 2 / effect_sds**2))
    while _paired_t_power(effect_sds, n, alpha) < target:
        n += 1
    return n
