"""The entropy law R = -a exp(H) + b: a policy trades entropy for reward (Cui et al. 2505.22617, eq. 2).

`FreeExponent` has an additional factor c, R = -a exp(c H) + b; the law itself has c = 1. The module also contains the
points that all laws are fitted to, and the checks that refuse them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.errors import WordedError

FloatArray = npt.NDArray[np.float64]
Numbers = Sequence[float] | FloatArray

MIN_POINTS = 8


class LawRefusedError(WordedError, ValueError):
    """The points do not determine the law. The message says why."""


def finite_points(**columns: Numbers) -> list[FloatArray]:
    """Return the columns as floats [n]. Raises LawRefusedError unless they are finite, equally long and long enough."""
    arrays = [np.asarray(column, dtype=np.float64) for column in columns.values()]
    names = " and ".join(columns)
    if any(array.ndim != 1 for array in arrays) or len({len(array) for array in arrays}) > 1:
        shapes = ", ".join(str(array.shape) for array in arrays)
        raise LawRefusedError("reports.shelves.laws.shapes_differ", names=names, shapes=shapes)
    for name, array in zip(columns, arrays, strict=True):
        bad = int(np.count_nonzero(~np.isfinite(array)))
        if bad:
            raise LawRefusedError("reports.shelves.laws.points_not_finite", name=name, n_bad=bad, n_points=len(array))
    if len(arrays[0]) < MIN_POINTS:
        raise LawRefusedError("reports.shelves.laws.few_points", n_points=len(arrays[0]), min_points=MIN_POINTS)
    return arrays


@dataclass(frozen=True)
class EntropyRun:
    """The points of one training run, as arrays [points]."""

    step: FloatArray
    """Increasing; step 0 is the model before training."""
    entropy: FloatArray
    """In nats per token."""
    reward: FloatArray
    """A training reward or a score."""

    def __len__(self) -> int:
        return len(self.step)


# A shift of H only rescales a, so the span of H counts, not its level. Over this span exp(H) changes by 5%.
MIN_SPAN_NATS = 0.05
# The span covers the middle 90% of the points, so that a single odd step cannot widen it.
SPAN_QUANTILES = (0.05, 0.95)
# exp overflows at 709. No policy comes near that: with a vocabulary of 150k tokens, entropy is at most ln 150k = 12
# nats.
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
        """The reward at H = 0, when all entropy is spent: b - a. If a <= 0, it is a floor instead of a ceiling."""
        return self.b - self.a

    def predict(self, entropy: Numbers) -> FloatArray:
        """Return the reward [n] at `entropy` [n], in nats."""
        return self.b - self.a * np.exp(np.asarray(entropy, dtype=np.float64))


def fit_entropy_law(entropy: Numbers, reward: Numbers) -> EntropyLaw:
    """Fit R = -a exp(H) + b exactly, by linear least squares on exp(H).

    entropy [n]: the policy's mean entropy per token, in nats, at temperature 1; sampled (-mean log p) or full (over the
    vocabulary).
    reward [n]: a training reward or a score at the same steps.
    The fit assumes that only the reward is noisy. Noise in the entropy makes `a` too small.

    Raises LawRefusedError, with the reason, for fewer than 8 points, points that are not finite, or a constant reward.
    It is also raised if entropies are negative, so large that exp overflows, or too close to each other.
    """
    H, R = finite_points(entropy=entropy, reward=reward)
    require_entropies(H)
    require_moving(R)
    # Relative to the largest entropy, exp(H - reference) is at most 1 and cannot overflow.
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
    """Return the design matrix [n, 2]: exp(H - reference), which is at most 1 for the largest H, and ones."""
    return np.column_stack([np.exp(entropy - reference), np.ones_like(entropy)])


def require_entropies(entropy: FloatArray) -> None:
    """Raise LawRefusedError for entropies [n] that the law cannot be fitted to."""
    if float(entropy.min()) < 0:
        raise LawRefusedError("reports.shelves.laws.entropy_below_zero", least_nats=entropy.min())
    if float(entropy.max()) > MAX_ENTROPY_NATS:
        raise LawRefusedError("reports.shelves.laws.entropy_overflows", largest_nats=entropy.max())
    span = entropy_span_nats(entropy)
    if span < MIN_SPAN_NATS:
        raise LawRefusedError("reports.shelves.laws.entropy_span_small", span_nats=span, min_span_nats=MIN_SPAN_NATS)


def require_moving(reward: FloatArray) -> None:
    """Raise LawRefusedError for a constant reward [n], of which a fit would explain the rounding errors."""
    if np.ptp(reward) == 0:
        raise LawRefusedError("reports.shelves.laws.reward_constant", reward=reward[0])


def entropy_span_nats(entropy: FloatArray) -> float:
    # Use existing points only. With 20 points, interpolation would move the quantile 5% of the way towards an outlier.
    low, high = SPAN_QUANTILES
    return float(np.quantile(entropy, high, method="lower") - np.quantile(entropy, low, method="higher"))


# Beyond this, exp(c H) is a step at one end of the points, and the other points say nothing about it.
MAX_EXPONENT = 20.0
# Below this, (exp(c x) - 1) / c differs from the line x by less than one part in a million for each nat of x.
_NEAR_LINEAR = 1e-6
# Densest around 0, where the curve turns from a step at one end of the points into a step at the other end.
_TRIED_EXPONENTS = tuple((MAX_EXPONENT * np.sinh(np.linspace(-4, 4, 25)) / np.sinh(4)).tolist())
_EXPONENT_TOLERANCE = 1e-9


@dataclass(frozen=True)
class FreeExponent:
    """The law with a free exponent: R = level - slope (exp(c x) - 1) / c, with x = H - center_nats and c = `exponent`.

    If the reward is linear in the entropy, c is near 0. `r2` refers to the fitted points.
    """

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
        """Return the reward [n] at `entropy` [n], in nats."""
        return self.level - self.slope * _bend(self._centered(entropy), self.exponent)

    def jacobian(self, entropy: FloatArray) -> FloatArray:
        """Return derivatives [n, 3] of the reward at `entropy` [n] by level, slope and exponent."""
        x = self._centered(entropy)
        bend, c = _bend(x, self.exponent), self.exponent
        # The limit at c = 0, where the formula would be 0 / 0.
        by_exponent = x**2 / 2 if abs(c) < _NEAR_LINEAR else (x * np.exp(c * x) - bend) / c
        return np.column_stack([np.ones_like(x), -bend, -self.slope * by_exponent])

    def _centered(self, entropy: Numbers) -> FloatArray:
        return np.asarray(entropy, dtype=np.float64) - self.center_nats


def fit_free_exponent(entropy: Numbers, reward: Numbers) -> FreeExponent:
    """Fit R = -a exp(c H) + b for a, b and c, by least squares.

    For any c, the best a and b are those of a line in exp(c H), so only c is searched (variable projection, Golub and
    Pereyra 1973, SIAM J. Numer. Anal. 10:413). The search first tries `_TRIED_EXPONENTS`, then refines around the best
    with `scipy.optimize.minimize_scalar`.

    entropy [n]: in nats. reward [n]. Raises LawRefusedError under the conditions of `fit_entropy_law`, and if c
    diverges.
    """
    from scipy.optimize import minimize_scalar

    H, R = finite_points(entropy=entropy, reward=reward)
    require_entropies(H)
    require_moving(R)
    center = float(H.mean())
    x, centered = H - center, R - R.mean()
    total = float(centered @ centered)
    ends = float(x.min()), float(x.max())

    def unexplained(exponent: float) -> float:
        """Return the share of the rewards' variance that remains with the best level and slope."""
        # Shifting and scaling exp(c x) does not change the share. The shift keeps exponents at or below 0, so nothing
        # overflows. expm1 preserves precision near c = 0.
        shape = x if abs(exponent) < _NEAR_LINEAR else np.expm1(exponent * x - max(exponent * end for end in ends))
        shape = shape - shape.mean()
        return 1 - float(centered @ shape) ** 2 / (float(shape @ shape) * total)

    best = min(range(len(_TRIED_EXPONENTS)), key=[*map(unexplained, _TRIED_EXPONENTS)].__getitem__)
    around = _TRIED_EXPONENTS[max(0, best - 1)], _TRIED_EXPONENTS[min(best + 1, len(_TRIED_EXPONENTS) - 1)]
    found = minimize_scalar(unexplained, bounds=around, method="bounded", options={"xatol": _EXPONENT_TOLERANCE})
    exponent = float(found.x)
    if abs(exponent) > 0.99 * MAX_EXPONENT:
        raise LawRefusedError("reports.shelves.laws.free_exponent_runs_off", exponent=exponent)
    bend = _bend(x, exponent)
    moved = bend - bend.mean()
    slope = -float(centered @ moved) / float(moved @ moved)
    return FreeExponent(
        exponent=exponent,
        level=float(R.mean()) + slope * float(bend.mean()),
        slope=slope,
        center_nats=center,
        r2=1 - float(found.fun),
    )


def _bend(x: FloatArray, exponent: float) -> FloatArray:
    """Return (exp(c x) - 1) / c, or its limit x at c = 0, so that no parameter diverges if the points are on a line."""
    return x if abs(exponent) < _NEAR_LINEAR else np.expm1(exponent * x) / exponent
