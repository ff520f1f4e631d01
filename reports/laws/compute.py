"""The compute law: a sigmoid of the score in log tokens, for runs without a recorded entropy (2510.13786, eq. 1)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reports.laws.points import FloatArray, LawRefusedError, Numbers, finite_points

MAX_EXPONENT = 20.0
# A parameter this close to a bound, as a share of its range, was stopped by the bound: the points do not say it.
BOUND_MARGIN = 0.01
MAX_EVALUATIONS = 2000


@dataclass(frozen=True)
class ComputeLaw:
    """R(C) = start + (asymptote - start) / (1 + (midpoint_tokens / C)^exponent), in the unit of the fitted scores."""

    start: float
    asymptote: float
    exponent: float
    midpoint_tokens: float
    r2: float
    n_points: int

    def predict(self, tokens: Numbers) -> FloatArray:
        """The score [n] after `tokens` [n] generated tokens, each above 0."""
        return _sigmoid(
            np.log(np.asarray(tokens, dtype=np.float64)),
            self.start,
            self.asymptote - self.start,
            self.exponent,
            np.log(self.midpoint_tokens),
        )


def fit_compute_law(tokens: Numbers, score: Numbers, start: float | None = None) -> ComputeLaw:
    """Fit the sigmoid to evaluations by `scipy.optimize.curve_fit`.

    tokens [n]: generated up to each evaluation, above 0; score [n]. start: the score before training, where the curve
    begins; None: it is fitted too.

    Raises LawRefusedError for fewer than 8 evaluations, points that are not finite, a constant score, an exponent or a
    midpoint that runs away (as they do for noise alone), and points that end before the midpoint: an asymptote is a
    fit beyond the midpoint, and a guess before it.
    """
    from scipy.optimize import curve_fit

    C, R = finite_points(tokens=tokens, score=score)
    if float(C.min()) <= 0:
        raise LawRefusedError(f"tokens begin at {C.min():g}: the curve is in log tokens, so each count must be above 0")
    if np.ptp(R) == 0 or np.ptp(C) == 0:
        raise LawRefusedError("score or tokens are constant: there is no curve")
    x = np.log(C)
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
        raise LawRefusedError(f"the sigmoid does not converge ({error})") from None
    gain, exponent, middle = map(float, fitted[:3])
    begin = first if start is not None else float(fitted[3])
    if middle >= high:
        raise LawRefusedError("the points end before the sigmoid's midpoint: its asymptote would be a guess")
    if middle <= low and start is None:
        raise LawRefusedError("the points begin beyond the sigmoid's midpoint: its start would be a guess")
    if middle < low - (1 - 3 * BOUND_MARGIN) * width:  # its range is three times as wide as the points
        raise LawRefusedError(f"the midpoint runs to {np.exp(middle):.3g} tokens, where no point is near")
    if exponent > (1 - BOUND_MARGIN) * MAX_EXPONENT:
        raise LawRefusedError(f"the exponent runs to {exponent:.0f}: a step between two points, and no curve")
    if exponent < BOUND_MARGIN * MAX_EXPONENT:
        raise LawRefusedError(f"the exponent falls to {exponent:.2g}: the points have no bend")
    residuals = R - _sigmoid(x, begin, gain, exponent, middle)
    return ComputeLaw(
        start=begin,
        asymptote=begin + gain,
        exponent=exponent,
        midpoint_tokens=float(np.exp(middle)),
        r2=1 - float(np.mean(residuals**2)) / float(R.var()),
        n_points=len(R),
    )


def _sigmoid(x: FloatArray, start: float, gain: float, exponent: float, middle: float) -> FloatArray:
    from scipy.special import expit

    return np.asarray(start + gain * expit(exponent * (x - middle)), dtype=np.float64)
