"""The entropy law R = -a exp(H) + b: a policy buys reward with entropy (Cui et al. 2505.22617, eq. 2).

Beside it stands the law with a free scale of the entropy, R = -a exp(c H) + b; the law itself has c = 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reports.laws.points import FloatArray, LawRefusedError, Numbers, finite_points

# A shift of H only rescales a, so the span of H itself counts. Over this span exp(H) changes by 5%.
MIN_SPAN_NATS = 0.05
# The span is that of the middle 90% of the points, because a single odd step must not make one.
SPAN_QUANTILES = (0.05, 0.95)
# exp overflows at 709. No policy comes near: over a vocabulary of 150k tokens entropy is at most ln 150k = 12 nats.
MAX_ENTROPY_NATS = 600.0


@dataclass(frozen=True)
class EntropyLaw:
    """The fitted law. `a` and `b` have the unit of the reward; `r2` and `rmse` are those of the fitted points."""

    a: float
    b: float
    r2: float
    rmse: float
    n_points: int

    @property
    def ceiling(self) -> float:
        """The reward at H = 0, when all entropy is spent: b - a. With a <= 0 it is a floor, not a ceiling."""
        return self.b - self.a

    def predict(self, entropy: Numbers) -> FloatArray:
        """The reward [n] at `entropy` [n], in nats."""
        return self.b - self.a * np.exp(np.asarray(entropy, dtype=np.float64))


def fit_entropy_law(entropy: Numbers, reward: Numbers) -> EntropyLaw:
    """Fit R = -a exp(H) + b, exactly, by linear least squares on exp(H).

    entropy [n]: the policy's mean entropy per token, in nats, at temperature 1; sampled (-mean log p) or full (over the
    vocabulary). reward [n]: a training reward or a score at the same steps. The fit assumes that the noise is in the
    reward; noise in the entropy makes `a` too small.

    Raises LawRefusedError, which says why, for fewer than 8 points, points that are not finite, a constant reward, and
    entropies that are negative, so large that exp overflows, or too close to each other.
    """
    H, R = finite_points(entropy=entropy, reward=reward)
    require_entropies(H)
    require_moving(R)
    reference = float(H.max())
    design = law_design(H, reference)
    (slope, b), *_ = np.linalg.lstsq(design, R, rcond=None)
    residuals = R - design @ (slope, b)
    return EntropyLaw(
        a=float(-slope * np.exp(-reference)),
        b=float(b),
        r2=1 - float(np.mean(residuals**2) / R.var()),
        rmse=float(np.sqrt(np.mean(residuals**2))),
        n_points=len(H),
    )


def law_design(entropy: FloatArray, reference: float) -> FloatArray:
    """The design matrix [n, 2]: exp(H - reference), at most 1 if the reference is the largest H, and ones."""
    return np.column_stack([np.exp(entropy - reference), np.ones_like(entropy)])


def require_entropies(entropy: FloatArray) -> None:
    """Raises LawRefusedError for entropies [n] that the law cannot be fitted to."""
    if float(entropy.min()) < 0:
        raise LawRefusedError(f"entropy falls to {entropy.min():.3g} nats: that of a next token is never below 0")
    if float(entropy.max()) > MAX_ENTROPY_NATS:
        raise LawRefusedError(
            f"entropy reaches {entropy.max():.4g} nats, where exp overflows: the law is of the mean entropy per token,"
            " not of the sum over a completion"
        )
    span = entropy_span_nats(entropy)
    if span < MIN_SPAN_NATS:
        raise LawRefusedError(
            f"entropy spans {span:.3g} nats (its middle 90%), and the law needs {MIN_SPAN_NATS:g} to show"
        )


def require_moving(reward: FloatArray) -> None:
    """Raises LawRefusedError for a constant reward [n]: a fit would explain its rounding errors."""
    if np.ptp(reward) == 0:
        raise LawRefusedError(f"the reward is constant at {reward[0]:.3g}: there is nothing that entropy could explain")


def entropy_span_nats(entropy: FloatArray) -> float:
    # Whole points only: between the outermost two of 20, interpolation would go 5% of the way to an odd one.
    low, high = SPAN_QUANTILES
    return float(np.quantile(entropy, high, method="lower") - np.quantile(entropy, low, method="higher"))


# Beyond this, exp(c H) is a step at one end of the points, about which the other points say nothing.
MAX_EXPONENT = 20.0
# Below this, exp(c H) is linear to within rounding errors.
_NEAR_LINEAR = 1e-6
_STEP = 1e-5


@dataclass(frozen=True)
class FreeExponent:
    """The law with a free scale: R = level - slope (exp(c x) - 1) / c, with x = H - center_nats and c = `exponent`,
    near 0 where the reward is linear in the entropy. `r2` is that of the fitted points."""

    exponent: float
    level: float
    slope: float
    center_nats: float
    r2: float

    @property
    def ceiling(self) -> float:
        """The reward at H = 0."""
        return float(self.predict([0.0])[0])

    def predict(self, entropy: Numbers) -> FloatArray:
        """The reward [n] at `entropy` [n], in nats."""
        return self.level - self.slope * _bend(self._centered(entropy), self.exponent)

    def jacobian(self, entropy: FloatArray) -> FloatArray:
        """Derivatives [n, 3] of the reward at `entropy` [n] by level, slope and exponent."""
        x = self._centered(entropy)
        by_exponent = (_bend(x, self.exponent + _STEP) - _bend(x, self.exponent - _STEP)) / (2 * _STEP)
        return np.column_stack([np.ones_like(x), -_bend(x, self.exponent), -self.slope * by_exponent])

    def _centered(self, entropy: Numbers) -> FloatArray:
        return np.asarray(entropy, dtype=np.float64) - self.center_nats


def fit_free_exponent(entropy: Numbers, reward: Numbers) -> FreeExponent:
    """Fit R = -a exp(c H) + b for a, b and c by `scipy.optimize.curve_fit`, starting from the law (c = 1).

    entropy [n] in nats, reward [n]. Raises LawRefusedError for what `fit_entropy_law` refuses, and if c runs away or
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
        level=float(level),
        slope=float(slope),
        center_nats=center,
        r2=1 - float(np.mean(residuals**2)) / spread**2,
    )


def _bend(x: FloatArray, exponent: float) -> FloatArray:
    """(exp(c x) - 1) / c, which is x at c = 0: no parameter runs away if the points lie on a line."""
    return x if abs(exponent) < _NEAR_LINEAR else np.expm1(exponent * x) / exponent
