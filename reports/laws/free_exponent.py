"""The law with a free scale of the entropy beside it: R = -a exp(c H) + b, where the law has c = 1."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reports.laws.entropy import require_entropies, require_moving
from reports.laws.refusal import FloatArray, LawRefusedError, Numbers, finite_points

# Beyond this exp(c H) is a step at one end of the points: nothing that the others say.
MAX_EXPONENT = 20.0
_NEAR_LINEAR = 1e-6


@dataclass(frozen=True)
class FreeExponent:
    """`exponent`: c; near 0 the reward is linear in the entropy. `ceiling`: the reward at H = 0. `r2`: of the fit."""

    exponent: float
    ceiling: float
    r2: float


def fit_free_exponent(entropy: Numbers, reward: Numbers) -> FreeExponent:
    """Fit R = -a exp(c H) + b for a, b and c by `scipy.optimize.curve_fit`, from the law (c = 1) on.

    entropy [n] in nats, reward [n]. Raises LawRefusedError for what `fit_entropy_law` refuses, and where c runs away or
    the fit does not converge.
    """
    from scipy.optimize import curve_fit

    H, R = finite_points(entropy=entropy, reward=reward)
    require_entropies(H)
    require_moving(R)
    center = float(H.mean())
    spread = float(R.std())

    def curve(x: FloatArray, level: float, slope: float, exponent: float) -> FloatArray:
        return level - slope * _bend(x, exponent)

    start = (float(R.mean()), spread / float(H.std()), 1.0)
    bounds = ((-np.inf, -np.inf, -MAX_EXPONENT), (np.inf, np.inf, MAX_EXPONENT))
    try:
        (level, slope, exponent), *_ = curve_fit(curve, H - center, R, p0=start, bounds=bounds)
    except RuntimeError as error:
        raise LawRefusedError(f"the fit of a free exponent does not converge ({error})") from None
    if abs(exponent) > 0.99 * MAX_EXPONENT:
        raise LawRefusedError(f"the free exponent runs to {exponent:.0f}: one end of the points alone bends the curve")
    residuals = R - curve(H - center, level, slope, exponent)
    return FreeExponent(
        exponent=float(exponent),
        ceiling=float(curve(np.array([-center]), level, slope, exponent)[0]),
        r2=1 - float(np.mean(residuals**2)) / spread**2,
    )


def _bend(x: FloatArray, exponent: float) -> FloatArray:
    """(exp(c x) - 1) / c, which is x at c = 0: no parameter runs away where the points are on a line."""
    return x if abs(exponent) < _NEAR_LINEAR else np.expm1(exponent * x) / exponent
