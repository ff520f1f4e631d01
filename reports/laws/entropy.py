"""R = -a exp(H) + b: reward is bought with entropy (Cui et al. 2505.22617, eq. 2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reports.laws.refusal import FloatArray, LawRefusedError, Numbers, finite_points

# A shift of H only rescales a, so what counts is the span of H itself; exp(H) then changes by 5 %.
MIN_SPAN_NATS = 0.05
# One odd step must not make a span: it is that of the middle 90 % of the points.
SPAN_QUANTILES = (0.05, 0.95)
# exp overflows at 709. No policy comes near: over a vocabulary of 150k tokens entropy is at most ln 150k = 12 nats.
MAX_ENTROPY_NATS = 600.0


@dataclass(frozen=True)
class EntropyLaw:
    """The fitted law; `a`, `b` in the unit of the reward. `rmse` is of the points that were fitted."""

    a: float
    b: float
    r2: float
    rmse: float
    n_points: int

    @property
    def ceiling(self) -> float:
        """The reward at H = 0, b - a, when all entropy is spent; with a <= 0 it is no ceiling but a floor."""
        return self.b - self.a

    def predict(self, entropy: Numbers) -> FloatArray:
        """Reward [n] at `entropy` [n] in nats."""
        return self.b - self.a * np.exp(np.asarray(entropy, dtype=np.float64))


def fit_entropy_law(entropy: Numbers, reward: Numbers) -> EntropyLaw:
    """Fit R = -a exp(H) + b by linear least squares on exp(H), which is exact.

    entropy [n]: the policy's mean entropy per token in nats, at temperature 1, of any size; sampled (-mean log p) or
    full (over the vocabulary). reward [n]: a training reward or a score at the same steps. Noise in the entropy makes
    `a` too small; the fit is of noise in the reward. Raises LawRefusedError, with the reason, for fewer than 8
    points, points that are not finite, a constant reward, an entropy below 0 or so large that exp overflows, or one
    that spans too little.
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
    """[n, 2]: exp(H - reference), which is at most 1 where the reference is the largest H, and ones."""
    return np.column_stack([np.exp(entropy - reference), np.ones_like(entropy)])


def require_entropies(entropy: FloatArray) -> None:
    """Raises LawRefusedError for entropies [n] that no fit of the law can use."""
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
    """Raises LawRefusedError for a reward [n] that is the same at every point, in which a fit finds rounding errors."""
    if np.ptp(reward) == 0:
        raise LawRefusedError(f"the reward is constant at {reward[0]:.3g}: there is nothing that entropy could explain")


def entropy_span_nats(entropy: FloatArray) -> float:
    # Of whole points: between the outermost two of 20, interpolation goes 5 % of the way to an odd one.
    low, high = SPAN_QUANTILES
    return float(np.quantile(entropy, high, method="lower") - np.quantile(entropy, low, method="higher"))
