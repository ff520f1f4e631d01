"""The compute law: a sigmoid of the score in log tokens, for runs without a recorded entropy (2510.13786, eq. 1).

A sigmoid has four parameters and readily follows noise, so it is shown only if noise alone would hardly fit as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from reports.shelves.laws.entropy import FloatArray, LawRefusedError, Numbers, finite_points
from reports.shelves.laws.uncertainty import Jackknife, LawInterval, jackknife

MAX_EXPONENT = 20.0
# A parameter this close to a bound, as a share of its range, was stopped by the bound instead of determined by the
# points.
BOUND_MARGIN = 0.01
MAX_EVALUATIONS = 2000

MOST_CHANCE = 0.05
"""A fit is refused if noise alone fits as well in a larger share of cases."""
DRAWS = 999
RUNS_TO_FLIP = 6
"""The fewest runs for flipping whole runs: only two of 2^6 sign patterns fit best, a share below `MOST_CHANCE`."""
NOISE_CORRELATION = 0.9
"""The autocorrelation assumed for a run that does not learn, if there are too few runs to flip.

Noise with a lower autocorrelation follows a sigmoid less often, so the assumption is cautious.
"""
# The sigmoids to compare noise with: exponents for points that span one unit of log tokens, and the number of
# midpoints.
_SHAPE_EXPONENTS = (0.5, 4.0, 8.0, 16.0, 64.0)
_SHAPE_MIDPOINTS = 25


@dataclass(frozen=True)
class ComputeLaw:
    """R(C) = start + (asymptote - start) / (1 + (midpoint_tokens / C)^exponent), in the unit of the fitted scores."""

    start: float
    asymptote: float
    exponent: float
    midpoint_tokens: float
    r2: float
    n_points: int
    p_noise: float
    """The share of pure-noise draws that fit a sigmoid at least as well."""
    parameters: Jackknife
    """The jackknife of asymptote, ln exponent and ln midpoint_tokens, and of `start` if it was fitted as well."""

    def predict(self, tokens: Numbers) -> FloatArray:
        """Return the score [n] after `tokens` [n] generated tokens, each above 0."""
        log_tokens = np.log(np.asarray(tokens, dtype=np.float64))
        return _sigmoid(
            log_tokens, self.start, self.asymptote - self.start, self.exponent, np.log(self.midpoint_tokens)
        )

    def interval(self, name: str, alpha: float = 0.05) -> tuple[float, float]:
        """Return the interval of `asymptote`, `exponent` or `midpoint_tokens` at level 1 - alpha.

        The last two are positive, and their intervals are symmetric on the log scale.
        """
        place = ("asymptote", "exponent", "midpoint_tokens").index(name)
        gradient = np.eye(len(self.parameters.covariance))[[place]]
        half_width = float(self.parameters.half_widths(gradient, alpha)[0])
        value: float = getattr(self, name)
        if place == 0:
            return value - half_width, value + half_width
        with np.errstate(over="ignore"):
            return float(value * np.exp(-half_width)), float(value * np.exp(half_width))


def fit_compute_law(
    tokens: Numbers, score: Numbers, start: float | None = None, *, run_lengths: Sequence[int] | None = None
) -> ComputeLaw:
    """Fit the sigmoid to evaluations by `scipy.optimize.curve_fit`.

    tokens [n]: generated up to each evaluation, above 0.
    score [n]: the score of each evaluation.
    start: the score before training, where the curve begins; if None, it is fitted as well.
    run_lengths: the number of points of each run, in the order of training; None if all points belong to one run.

    Raises LawRefusedError for fewer than 8 evaluations, points that are not finite, a constant score, or an exponent or
    midpoint that diverges. It is also raised if the points end before the midpoint, where the asymptote would be a
    guess, or if noise alone fits as well in more than 5% of cases (`noise_p_value`).
    """
    from scipy.optimize import curve_fit

    C, R = finite_points(tokens=tokens, score=score)
    if float(C.min()) <= 0:
        raise LawRefusedError("reports.shelves.laws.tokens_not_positive", least=C.min())
    if np.ptp(R) == 0 or np.ptp(C) == 0:
        raise LawRefusedError("reports.shelves.laws.no_curve")
    lengths = [len(R)] if run_lengths is None else list(run_lengths)
    x = np.log(C)
    p_noise = noise_p_value(x, R, lengths)
    if p_noise > MOST_CHANCE:
        raise LawRefusedError("reports.shelves.laws.noise_fits_as_well", p_noise=p_noise)
    # The first guess runs from the first to the last score, with its midpoint in the middle of the points.
    low, high = float(x.min()), float(x.max())
    width = high - low
    first = float(R[x.argmin()]) if start is None else start
    guess = [float(R[x.argmax()]) - first, 4 / width, (low + high) / 2]
    bounds = [[-np.inf, 0.0, low - width], [np.inf, MAX_EXPONENT, high + width]]

    def from_start(x: FloatArray, gain: float, exponent: float, middle: float, begin: float = first) -> FloatArray:
        return _sigmoid(x, begin, gain, exponent, middle)

    if start is None:
        guess, bounds = [*guess, first], [[*bounds[0], -np.inf], [*bounds[1], np.inf]]
    try:
        fitted, *_ = curve_fit(from_start, x, R, p0=guess, bounds=bounds, max_nfev=MAX_EVALUATIONS)
    except RuntimeError as error:
        raise LawRefusedError("reports.shelves.laws.sigmoid_does_not_converge", error=error) from None
    gain, exponent, middle = map(float, fitted[:3])
    begin = first if start is not None else float(fitted[3])
    if middle >= high:
        raise LawRefusedError("reports.shelves.laws.points_end_before_midpoint")
    if middle <= low and start is None:
        raise LawRefusedError("reports.shelves.laws.points_begin_beyond_midpoint")
    if middle < low - (1 - 3 * BOUND_MARGIN) * width:  # The midpoint's range is three times as wide as the points.
        raise LawRefusedError("reports.shelves.laws.midpoint_far_from_points", midpoint_tokens=np.exp(middle))
    if exponent > (1 - BOUND_MARGIN) * MAX_EXPONENT:
        raise LawRefusedError("reports.shelves.laws.exponent_too_high", exponent=exponent)
    if exponent < BOUND_MARGIN * MAX_EXPONENT:
        raise LawRefusedError("reports.shelves.laws.exponent_too_low", exponent=exponent)
    residuals = R - _sigmoid(x, begin, gain, exponent, middle)
    jacobian = _jacobian(x, gain, exponent, middle)
    return ComputeLaw(
        start=begin,
        asymptote=begin + gain,
        exponent=exponent,
        midpoint_tokens=float(np.exp(middle)),
        r2=1 - float(np.mean(residuals**2)) / float(R.var()),
        n_points=len(R),
        p_noise=p_noise,
        parameters=jackknife(jacobian if start is None else jacobian[:, :3], residuals, lengths),
    )


def compare_compute_laws(law: ComputeLaw, other: ComputeLaw, alpha: float = 0.05) -> dict[str, LawInterval]:
    """Compare two laws by name: the difference of the asymptotes, and the ratios of the exponents and the midpoints.

    Both laws must be fitted to complete runs of the same seeds in the same order, because the jackknife leaves out
    pairs of runs. Raises ValueError for laws of single runs, or for different numbers of runs.
    """
    paired = law.parameters.minus(other.parameters)
    half_widths = paired.half_widths(np.eye(paired.changes.shape[1])[:3], alpha)
    gap, half_width = law.asymptote - other.asymptote, float(half_widths[0])
    found = {"asymptote": LawInterval.around(gap, half_width)}
    with np.errstate(over="ignore"):
        factors = np.exp(half_widths[1:]).tolist()
    for name, factor in zip(("exponent", "midpoint_tokens"), factors, strict=True):
        ratio = getattr(law, name) / getattr(other, name)
        found[name] = LawInterval(ratio, ratio / factor, ratio * factor)
    return found


def noise_p_value(log_tokens: FloatArray, score: FloatArray, run_lengths: Sequence[int]) -> float:
    """Return the share of trendless draws that fit some sigmoid at least as well as the observed scores [n].

    Each run is taken relative to its mean. With six or more runs, whole runs are flipped about their means at random,
    which is valid whatever the noise within a run. Fewer runs cannot distinguish drifting noise from a trend, so they
    are compared with simulated drifting runs of the same spread: AR(1) noise with `NOISE_CORRELATION`. In both cases
    the observed scores count as one of 1 + 999 draws.
    """
    rng = np.random.default_rng(0)
    ends = np.cumsum(run_lengths)[:-1]
    centered = [run - run.mean() for run in np.split(score, ends)]
    if len(centered) >= RUNS_TO_FLIP:
        signs = rng.choice([-1.0, 1.0], size=(DRAWS, len(centered)))
        drawn = np.repeat(signs, run_lengths, axis=1) * np.concatenate(centered)
    else:
        drawn = np.concatenate([_drifting(run, rng) for run in centered], axis=1)
    shapes = _shapes(log_tokens, ends)
    explained = np.abs(np.vstack([np.concatenate(centered), drawn]) @ shapes.T).max(axis=1)
    # The tolerance counts ties that differ only by rounding, such as the flip of all runs at once.
    return float(np.mean(explained >= explained[0] * (1 - 1e-9)))


def _drifting(run: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Draw noise [DRAWS, n_points] with the sum of squares of `run` [n_points], each draw centred at its own mean."""
    drawn = rng.normal(size=(len(run), DRAWS))
    for point in range(1, len(run)):
        drawn[point] = NOISE_CORRELATION * drawn[point - 1] + np.sqrt(1 - NOISE_CORRELATION**2) * drawn[point]
    drawn -= drawn.mean(axis=0)
    lengths = np.linalg.norm(drawn, axis=0)
    return np.asarray((drawn * (np.linalg.norm(run) / np.maximum(lengths, np.finfo(float).tiny))).T, dtype=np.float64)


def _shapes(log_tokens: FloatArray, ends: FloatArray) -> FloatArray:
    """Return sigmoids [n_shapes, n_points] from slow to abrupt, centred within each run and normalised to length 1."""
    low, high = float(log_tokens.min()), float(log_tokens.max())
    shapes = np.array([
        _sigmoid(log_tokens, 0.0, 1.0, exponent / (high - low), middle)
        for exponent in _SHAPE_EXPONENTS
        for middle in np.linspace(low - (high - low), high, _SHAPE_MIDPOINTS)
    ])  # fmt: skip
    centered = np.concatenate([run - run.mean(axis=1, keepdims=True) for run in np.split(shapes, ends, axis=1)], axis=1)
    lengths = np.sqrt((centered**2).sum(axis=1, keepdims=True))
    # A sigmoid that is flat over the points cannot be normalised.
    moving = lengths[:, 0] > 1e-9 * np.sqrt(len(log_tokens))
    return np.asarray(centered[moving] / lengths[moving], dtype=np.float64)


def _sigmoid(x: FloatArray, start: float, gain: float, exponent: float, middle: float) -> FloatArray:
    from scipy.special import expit

    return np.asarray(start + gain * expit(exponent * (x - middle)), dtype=np.float64)


def _jacobian(x: FloatArray, gain: float, exponent: float, middle: float) -> FloatArray:
    """Return derivatives [n, 4] of the sigmoid by its asymptote, ln exponent, ln midpoint_tokens and start."""
    share = _sigmoid(x, 0.0, 1.0, exponent, middle)
    bend = gain * share * (1 - share) * exponent
    return np.column_stack([share, bend * (x - middle), -bend, 1 - share])
