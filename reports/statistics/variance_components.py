"""Sources of noise in a paired difference: training seeds, problems, their interaction, evaluation samples.

The model is a two-way layout of random effects. The difference of two arms at seed s on problem p is

    d[s, p] = mean + seed[s] + problem[p] + seed_x_problem[s, p] + sampling[s, p]

where `sampling` is the mean noise of the samples in that cell. It can be estimated from repeated samples, but not from
a single one. Mean squares have the expectations of the balanced layout (Searle, Casella & McCulloch 1992, "Variance
Components", chapter 4). The components are therefore differences of mean squares, clipped at zero if chance makes them
negative.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from reports.statistics.means import MIN_PAIRS, RELATIVE_TOLERANCE, FloatArray, finite_table, require_level

PARTS = ("seeds", "seeds_x_problems", "sampling", "problems")
DRAWS = 4000

Table = Sequence[Sequence[float]] | FloatArray


@dataclass(frozen=True)
class Interval:
    """A number and its interval; NaN if the data cannot determine it."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class ErrorPart:
    """The contribution of one component to the error of a mean difference."""

    sd: Interval
    """In the unit of the scores."""
    share: Interval
    """Its share of the total variance, in [0, 1]."""


@dataclass(frozen=True)
class VarianceComponents:
    """The variance of d[s, p], split into four parts, in the squared unit of the scores, with intervals at 1 - `alpha`.

    With one sample per cell, sampling and seeds_x_problems cannot be separated: `sampling` is NaN, and
    `seeds_x_problems` contains both. If nothing is trained, seeds vary only the sampling: `seeds` and
    `seeds_x_problems` are NaN. With a single sample per problem, `sampling` is NaN as well, and `problems` contains
    both.
    """

    n_seeds: int
    n_problems: int
    n_samples: int
    alpha: float
    seeds: Interval
    """The variance of the seeds' main effects."""
    seeds_x_problems: Interval
    """The variance of the interaction: a seed's effect on individual problems."""
    sampling: Interval
    """The variance of the mean over the `n_samples` samples in a cell."""
    problems: Interval
    """The variance of the problems' main effects."""
    draws: FloatArray = field(repr=False, compare=False)
    """[4, n_draws]: the generalised pivots behind the intervals, in the order of PARTS. To get an interval for a
    function of the components, evaluate it at the draws.
    """

    @property
    def sampling_known(self) -> bool:
        return not math.isnan(self.sampling.value)

    def error_of_mean(
        self,
        n_seeds: int | None = None,
        n_problems: int | None = None,
        n_samples: int | None = None,
        *,
        new_problems: bool = False,
    ) -> Interval:
        """Return the standard error of the mean difference of a design of this size; by default the measured design.

        new_problems: True for the mean over all problems of this kind, False for the mean over these problems.
        Raises ValueError for a size below 1, or for another number of samples if the sampling variance is unknown.
        """
        weights = self._weights(n_seeds, n_problems, n_samples, new_problems)
        values, draws = self._values()
        return _interval(math.sqrt(weights @ values), np.sqrt(weights @ draws), self.alpha)

    def parts_of_mean(self, *, new_problems: bool = True) -> dict[str, ErrorPart]:
        """Return the contribution of each of PARTS to the variance of the mean difference of this design.

        `problems` is left out unless new_problems is true, and so are parts that are NaN. Shares are NaN if the total
        variance is zero.
        """
        weights = self._weights(None, None, None, new_problems)
        values, draws = (weights * self._values()[0], weights[:, None] * self._values()[1])
        shown = [i for i, name in enumerate(PARTS) if weights[i] > 0 and not math.isnan(getattr(self, name).value)]
        with np.errstate(invalid="ignore"):
            shares, drawn_shares = values / values.sum(), draws / draws.sum(axis=0)
        return {
            PARTS[i]: ErrorPart(
                sd=_interval(math.sqrt(values[i]), np.sqrt(draws[i]), self.alpha),
                share=_interval(float(shares[i]), drawn_shares[i], self.alpha),
            )
            for i in shown
        }

    def _values(self) -> tuple[FloatArray, FloatArray]:
        """Return the four components and their draws.

        NaN becomes 0: such a component does not exist, or another one contains it.
        """
        values = np.array([getattr(self, name).value for name in PARTS])
        return np.nan_to_num(values), np.nan_to_num(self.draws)

    def _weights(
        self, n_seeds: int | None, n_problems: int | None, n_samples: int | None, new_problems: bool
    ) -> FloatArray:
        """Return the factor of each of PARTS in the variance of the mean."""
        asked = ((n_seeds, self.n_seeds), (n_problems, self.n_problems), (n_samples, self.n_samples))
        seeds, problems, samples = (measured if wanted is None else wanted for wanted, measured in asked)
        if min(seeds, problems, samples) < 1:
            raise ValueError(
                f"{seeds} seeds, {problems} problems, {samples} samples: a design has at least one of each"
            )
        if samples != self.n_samples and not self.sampling_known:
            raise ValueError(
                f"the error with {samples} samples per problem is unknown: with one sample in each cell, the noise of"
                " sampling cannot be told from what a seed does to a problem; evaluate with two samples or more"
            )
        cells = seeds * problems
        # `sampling` is the variance of a mean of n_samples; another number of samples scales it.
        in_sampling = self.n_samples / samples / cells
        return np.array([1 / seeds, 1 / cells, in_sampling, 1 / problems if new_problems else 0.0])


def components(
    differences: Table, sampling_variance: Table | None = None, *, n_samples: int = 1, alpha: float = 0.05
) -> VarianceComponents:
    """Split the variance of `differences` [n_seeds, n_problems], each the mean over `n_samples` paired samples.

    sampling_variance [n_seeds, n_problems]: the unbiased estimate of each cell's sampling variance, i.e. the variance
    of its paired sample differences divided by n_samples; None for one sample.

    Intervals are generalised confidence intervals (Weerahandi 1993, J. Am. Stat. Assoc. 88:899): each mean square is
    divided by draws from its chi-square distribution, with a fixed seed. They assume normal effects. With few seeds
    they are wide, as they should be.

    Raises ValueError for other shapes, entries that are not finite, or fewer than three seeds or two problems.
    """
    require_level(alpha)
    table = finite_table("differences", differences, "[n_seeds, n_problems]")
    n_seeds, n_problems = table.shape
    if n_seeds < MIN_PAIRS or n_problems < 2:
        raise ValueError(
            f"differences have {n_seeds} seeds and {n_problems} problems: components need {MIN_PAIRS} seeds and 2"
            " problems"
        )
    squares, dfs = _mean_squares(table)
    rng = np.random.default_rng(0)
    # The first entry is the estimate; the others are the draws.
    seeds, problems, rest = (
        np.concatenate([[square], square * df / rng.chisquare(df, DRAWS)])
        for square, df in zip(squares, dfs, strict=True)
    )
    sampling = _sampling(sampling_variance, table.shape, n_samples, rng)
    # Expected mean squares: E[MS_seeds] = rest + n_problems var(seeds), and E[MS_problems] = rest + n_seeds
    # var(problems).
    between = [
        np.maximum(seeds - rest, 0) / n_problems,
        np.maximum(rest - np.nan_to_num(sampling), 0),
        sampling,
        np.maximum(problems - rest, 0) / n_seeds,
    ]
    found = {name: _interval(float(part[0]), part[1:], alpha) for name, part in zip(PARTS, between, strict=True)}
    return VarianceComponents(n_seeds, n_problems, n_samples, alpha, **found, draws=np.array([p[1:] for p in between]))


def components_of_problems(drawn: FloatArray, alpha: float = 0.05) -> VarianceComponents:
    """Split the variance of differences over problems into problems and sampling, if nothing is trained.

    drawn [n_seeds, n_problems, n_samples]: paired differences of individual samples. Seeds count as further samples.
    The intervals are computed as in `components`. Raises ValueError for other shapes, entries that are not finite, or
    fewer than two problems.
    """
    require_level(alpha)
    if drawn.ndim != 3 or drawn.size == 0:
        raise ValueError(f"drawn has shape {drawn.shape}: give [n_seeds, n_problems, n_samples], none of them 0")
    n_seeds, n_problems, n_samples = drawn.shape
    of_problem = finite_table("drawn", drawn.swapaxes(0, 1).reshape(n_problems, -1), "[n_problems, seeds x samples]")
    if n_problems < 2:
        raise ValueError("drawn has 1 problem: components need 2")
    n_drawn = of_problem.shape[1]
    rng = np.random.default_rng(0)
    square, df = float(of_problem.mean(axis=1).var(ddof=1)), n_problems - 1
    means = np.concatenate([[square], square * df / rng.chisquare(df, DRAWS)])
    noise = of_problem.var(axis=1, ddof=1)[None] / n_drawn if n_drawn > 1 else None
    sampling = _sampling(noise, (1, n_problems), n_drawn, rng)
    problems = np.maximum(means - np.nan_to_num(sampling), 0)
    absent = np.full(1 + DRAWS, math.nan)
    # `sampling` is the variance of a mean over the samples of all seeds. A cell has the samples of one seed, so its
    # variance is n_seeds times as large.
    parts = dict(zip(PARTS, (absent, absent, sampling * n_seeds, problems), strict=True))
    found = {name: _interval(float(part[0]), part[1:], alpha) for name, part in parts.items()}
    draws = np.array([part[1:] for part in parts.values()])
    return VarianceComponents(n_seeds, n_problems, n_samples, alpha, **found, draws=draws)


@dataclass(frozen=True)
class CrossedEstimate:
    """A mean difference over new seeds and new problems, with its interval at level 1 - `alpha`.

    The error and the interval are NaN for fewer than three seeds or two problems. They are also NaN if all differences
    are equal, because the spread is then unknown.
    """

    n_seeds: int
    n_problems: int
    alpha: float
    difference: float
    standard_error: float
    df: float
    """Satterthwaite's degrees of freedom."""
    low: float
    high: float


def over_seeds_and_problems(differences: Table, alpha: float = 0.05) -> CrossedEstimate:
    """Estimate the mean of `differences` [n_seeds, n_problems] over new training seeds and new problems of this kind.

    Its variance is (MS_seeds + MS_problems - MS_rest) / (n_seeds n_problems), but at least MS_rest / (n_seeds
    n_problems). The interval is Student's t with Satterthwaite's degrees of freedom (Satterthwaite 1946, Biometrics
    2:110); where the lower bound applies, they are the degrees of freedom of the rest. Replicate samples need no term
    of their own, because every mean square contains their noise.

    Raises ValueError for another shape or entries that are not finite.
    """
    from scipy.special import stdtrit

    require_level(alpha)
    table = finite_table("differences", differences, "[n_seeds, n_problems]")
    n_seeds, n_problems = table.shape
    mean = float(table.mean())
    if n_seeds < MIN_PAIRS or n_problems < 2 or np.ptp(table) <= RELATIVE_TOLERANCE * np.abs(table).max():
        return CrossedEstimate(n_seeds, n_problems, alpha, mean, *[math.nan] * 4)
    (seeds, problems, rest), dfs = _mean_squares(table)
    total = seeds + problems - rest
    # By chance, a difference of mean squares may come out too small, or even negative.
    if total > rest:
        df = total**2 / sum(square**2 / df for square, df in zip((seeds, problems, rest), dfs, strict=True))
    else:
        total, df = rest, dfs[2]
    error = math.sqrt(total / table.size)
    half_width = float(stdtrit(df, 1 - alpha / 2)) * error
    return CrossedEstimate(n_seeds, n_problems, alpha, mean, error, df, mean - half_width, mean + half_width)


def _mean_squares(table: FloatArray) -> tuple[tuple[float, float, float], tuple[int, int, int]]:
    """Return the mean squares of seeds, problems and the residual, and their degrees of freedom."""
    n_seeds, n_problems = table.shape
    by_seed, by_problem, mean = table.mean(axis=1), table.mean(axis=0), table.mean()
    rest = table - by_seed[:, None] - by_problem + mean
    dfs = (n_seeds - 1, n_problems - 1, (n_seeds - 1) * (n_problems - 1))
    sums = (n_problems * np.sum((by_seed - mean) ** 2), n_seeds * np.sum((by_problem - mean) ** 2), np.sum(rest**2))
    # Subtracting equal scores leaves rounding errors, which must not count as variance.
    rounding = (RELATIVE_TOLERANCE * float(np.abs(table).max())) ** 2
    seeds, problems, left = (
        0.0 if total <= rounding * table.size else float(total) / df for total, df in zip(sums, dfs, strict=True)
    )
    return (seeds, problems, left), dfs


def _sampling(given: Table | None, shape: tuple[int, ...], n_samples: int, rng: np.random.Generator) -> FloatArray:
    """Return the mean sampling variance of a cell, followed by draws of it [1 + DRAWS]; NaN if it is unknown."""
    if given is None or n_samples < 2:
        return np.full(1 + DRAWS, math.nan)
    variances = finite_table("sampling_variance", given, "[n_seeds, n_problems]")
    if variances.shape != shape:
        raise ValueError(f"sampling_variance has shape {variances.shape} and differences {shape}: give one for each")
    # A mean over many cells is nearly normal, unlike the mean squares.
    mean, error = float(variances.mean()), float(variances.std(ddof=1)) / math.sqrt(variances.size)
    return np.concatenate([[mean], np.maximum(mean + error * rng.standard_normal(DRAWS), 0)])


def _interval(value: float, draws: FloatArray, alpha: float) -> Interval:
    low, high = np.quantile(draws, [alpha / 2, 1 - alpha / 2])
    return Interval(value, float(low), float(high))
