"""Coverage: the change in pass@k at every k, against the baseline and against the model before training.

If training only makes likelier what the model could already do, pass@k rises at k = 1 but falls at large k, where the
untrained model's variety wins (Yue et al., arXiv:2504.13837).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from harness.words import said
from reports.formats import in_words
from reports.measure import Analysis, derived
from reports.measure.contrasts import alpha_of_each
from reports.measure.curves import Curve, Line, base_line_over_k, curves_over_k, mean_curve
from reports.measure.measurements import Measurement
from reports.report import CoverageRow
from reports.statistics import (
    CoverageWord,
    FloatArray,
    all_k,
    coverage_word,
    pass_curve,
    sampling_covariance,
    simultaneous_half_widths,
)

TIE_DECIMALS = 9
"""Decimals kept of a difference in percentage points. Rounding errors are smaller, one sample's effect larger."""
UNKNOWN_NOISE = said("reports.noise_model_before_training_coverage")
FEW_SEEDS = "fewer than 3 seeds"


@dataclass(frozen=True)
class Crossover:
    """The first k at which a positive difference turns negative."""

    k: float
    """The last k at which the difference is 0, if it stays at 0 before it falls."""
    low: float | None
    """The smallest k at which the band contains 0; None if there is no band or that k was not evaluated."""
    high: float | None
    """The largest k at which the band contains 0; None under the same conditions."""


@dataclass(frozen=True)
class Coverage:
    """The change in pass@k of one arm, in percentage points."""

    arm: str
    against: str | None
    """The baseline; None for the model before training."""
    alpha: float
    curve: Curve
    """The difference at each k, with a simultaneous band at level 1 - alpha."""
    word: CoverageWord
    crossover: Crossover | None
    at_ceiling: bool
    """True if pass@k is 100% on both sides at the largest k, where no difference can show."""
    no_gain: bool
    """True if the model before training already has pass@k = 100% at the largest k, where no gain can show."""
    note: str
    """The reason why there is no band; "" if there is one."""


@derived
def coverage(analysis: Analysis) -> list[Coverage]:
    """Compare each arm with the baseline, then each arm with the model before training.

    Arms with pass@k at fewer than two values of k are left out. Each of the two comparisons divides this look's alpha
    among its own arms.
    """
    counts = analysis.by_seed(problems_by_right)
    return [*_against_baseline(analysis, counts), *_against_base_model(analysis, counts)]


def problems_by_right(measurement: Measurement) -> list[int] | None:
    """Count the problems of the final evaluation that have 0, 1, ... correct samples [samples + 1].

    None if no samples were kept, or if problems have different numbers of samples.
    """
    samples = measurement.final_samples
    if samples is None or not samples.is_known or np.ptp(samples.drawn) > 0:
        return None
    return [int(count) for count in np.bincount(samples.right, minlength=samples.drawn[0] + 1)]


def _against_baseline(analysis: Analysis, counts: dict[str, dict[int, list[int]]]) -> list[Coverage]:
    """Compare each arm with the baseline, seed by seed."""
    baseline = analysis.sweep.baseline
    others = counts.get(baseline, {})
    alpha = alpha_of_each(analysis.sweep, len(analysis.contrasts))
    found = []
    for arm, own in counts.items():
        seeds = [seed for seed in own if seed in others]
        if arm == baseline or not seeds:
            continue
        ks = all_k(min(len(problems) - 1 for side in (own, others) for problems in (side[seed] for seed in seeds)))
        if len(ks) < 2:
            continue
        after, before = (np.array([pass_curve(side[seed], ks) for seed in seeds]) for side in (own, others))
        noise = [sampling_covariance(side[seed], ks) for side in (own, others) for seed in seeds]
        # A difference has the noise of both sides. `noise` is averaged over the runs of both, hence the factor 2.
        sampling = 2 * np.mean(noise, axis=0)
        half_widths = simultaneous_half_widths(after - before, sampling, None, alpha)
        found.append(_coverage(arm, baseline, alpha, seeds, ks, after, before, half_widths))
    return found


def _against_base_model(analysis: Analysis, counts: dict[str, dict[int, list[int]]]) -> list[Coverage]:
    """Compare each arm with the model before training.

    That model is evaluated once, so all seeds share its sampling noise. The band includes it.
    """
    alpha = alpha_of_each(analysis.sweep, len(analysis.arms))
    by_arm: dict[str, list[int] | None] = {
        arm: None if (row := analysis.base_evaluation(arm)) is None else row.get("problems_by_right")
        for arm in analysis.measurements
    }
    found = [
        Coverage(curve.arm, None, alpha, curve, "cannot tell", crossover(curve), False, False, UNKNOWN_NOISE)
        for curve in gain_curves(analysis)
        if by_arm[curve.arm] is None
    ]
    for arm, own in counts.items():
        before = by_arm[arm]
        if before is None:
            continue
        ks = all_k(min(len(problems) - 1 for problems in (before, *own.values())))
        if len(ks) > 1:
            after = np.array([pass_curve(problems, ks) for problems in own.values()])
            start = np.tile(pass_curve(before, ks), (len(after), 1))
            sampling = np.mean([sampling_covariance(problems, ks) for problems in own.values()], axis=0)
            half_widths = simultaneous_half_widths(after - start, sampling, sampling_covariance(before, ks), alpha)
            found.append(_coverage(arm, None, alpha, [*own], ks, after, start, half_widths))
    return found


def gain_curves(analysis: Analysis) -> list[Curve]:
    """Compute pass@k after training minus before it, from the recorded metrics, in percentage points without a band."""
    curves = []
    for curve in curves_over_k(analysis, "pass"):
        before = base_line_over_k(analysis.base_metrics(curve.arm), "pass")
        if before is None:
            continue
        gains = [gain for line in curve.lines if len((gain := _gain(line, before)).x) > 1]
        if gains and len((mean := mean_curve(curve.arm, gains, analysis.sweep.alpha)).grid) > 1:
            nothing = np.full(len(mean.grid), np.nan)
            curves.append(Curve(mean.arm, mean.lines, mean.grid, mean.mean, nothing, nothing))
    return curves


def _gain(after: Line, before: Line) -> Line:
    k, mine, theirs = np.intersect1d(after.x, before.x, return_indices=True)
    return Line(after.seed, k, after.y[mine] - before.y[theirs])


def _coverage(
    arm: str,
    against: str | None,
    alpha: float,
    seeds: Sequence[int],
    ks: Sequence[int],
    after: FloatArray,
    before: FloatArray,
    half_widths: FloatArray,
) -> Coverage:
    """Build the coverage of one arm from fractions: after and before [seeds, K], half_widths [K]."""
    k, curves = np.array(ks, dtype=np.float64), after - before
    lines = [Line(seed, k, 100 * curve) for seed, curve in zip(seeds, curves, strict=True)]
    mean, width = 100 * curves.mean(axis=0), 100 * half_widths
    curve = Curve(arm, lines, k, mean, mean - width, mean + width)
    word = coverage_word(k, np.round(curve.low, TIE_DECIMALS), np.round(curve.high, TIE_DECIMALS))
    at_ceiling = bool((np.minimum(after[:, -1], before[:, -1]) == 1).all())
    no_gain = against is None and bool((before[:, -1] == 1).all())
    note = FEW_SEEDS if np.isnan(width).any() else ""
    return Coverage(arm, against, alpha, curve, word, crossover(curve), at_ceiling, no_gain, note)


def arms_without_gain(analysis: Analysis) -> list[str]:
    """Return the arms whose model before training already solves every problem at the largest k."""
    return [one.arm for one in coverage(analysis) if one.no_gain]


def no_gain_sentence(arms: Sequence[str], no_gain: Collection[str], k: int) -> str:
    """Say that no gain can show at the largest k; "" unless that holds for an arm of `no_gain`."""
    held = [arm for arm in arms if arm in no_gain]
    if not held:
        return ""
    return said("reports.no_gain_can_show", of_arms="" if held == [*arms] else f" of {in_words(held)}", k=k)


def crossover(curve: Curve) -> Crossover | None:
    """Find the crossover of a curve; None if its mean never turns from positive to negative."""
    log_k = np.log2(curve.grid)
    # A difference that is 0 except for rounding is a tie.
    mean, lower, upper = (np.round(line, TIE_DECIMALS) for line in (curve.mean, curve.low, curve.high))
    # `maximum.accumulate` is true from the first k with a gain onwards, so a fall counts only after a gain.
    falls = np.flatnonzero(np.maximum.accumulate(mean > 0) & (mean < 0))
    if not len(falls):
        return None
    after = int(falls[0])
    low = high = None
    if not np.isnan(lower).any():
        # The lower end of the band falls through 0 before the mean does, the upper end after it.
        above = np.flatnonzero((lower[:-1] > 0) & (lower[1:] <= 0))
        above = above[above < after]
        below = np.flatnonzero((upper[:-1] >= 0) & (upper[1:] < 0))
        below = below[below >= after - 1]
        low = float(2 ** _root(log_k, lower, int(above[-1]) + 1)) if len(above) else None
        high = float(2 ** _root(log_k, upper, int(below[0]) + 1)) if len(below) else None
    return Crossover(float(2 ** _root(log_k, mean, after)), low, high)


def _root(x: FloatArray, y: FloatArray, after: int) -> float:
    """Interpolate linearly between points `after` - 1 and `after`, and return the x at which y crosses 0."""
    share = y[after - 1] / (y[after - 1] - y[after])
    return float(x[after - 1] + share * (x[after] - x[after - 1]))


def coverage_rows(analysis: Analysis) -> list[CoverageRow]:
    """Build the coverage rows of report.json."""
    return [
        CoverageRow(
            arm=one.arm,
            against=one.against,
            task=analysis.metric.task,
            n=one.curve.n,
            level=1 - one.alpha,
            k=[int(k) for k in one.curve.grid],
            difference_pp=one.curve.mean.tolist(),
            low_pp=one.curve.low.tolist(),
            high_pp=one.curve.high.tolist(),
            word=one.word,
            at_ceiling=one.at_ceiling,
            note=one.note,
            crossover_k=None if one.crossover is None else one.crossover.k,
            crossover_low=None if one.crossover is None else one.crossover.low,
            crossover_high=None if one.crossover is None else one.crossover.high,
        )
        for one in coverage(analysis)
    ]
