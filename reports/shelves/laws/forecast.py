"""The forecast of the entropy law from the beginning of training, compared with three simpler forecasts.

Any two monotone series fit each other well, so a good fit alone proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.errors import InvalidError
from reports.shelves.laws.entropy import (
    MIN_POINTS,
    EntropyLaw,
    EntropyRun,
    FloatArray,
    LawRefusedError,
    fit_entropy_law,
)
from reports.shelves.laws.uncertainty import LawUncertainty, law_uncertainty, pooled

BoolArray = npt.NDArray[np.bool_]
Predict = Callable[[EntropyRun], FloatArray]
"""Predicts the reward at each point of a run."""

FIRST_FRAC = 0.3
# The first rival averages several steps, because the reward of a single step is too noisy.
LAST_POINTS = 3
# The fewest points in the first part of a run from which a line of its own can be fitted.
LEAST_FIRST = 2


@dataclass(frozen=True)
class Forecast:
    """The law fitted to the first `first_frac` of each run, and three rivals, compared by RMSE on the rest.

    The law is given the later entropies. Each rival is fitted twice, to every run separately and, like the law, to all
    runs pooled; the smaller error counts.
    """

    law: EntropyLaw
    """Fitted to the first parts only, like `uncertainty`."""
    uncertainty: LawUncertainty
    first_frac: float
    n_predicted: int
    rmse_law: float
    rmse_last: float
    """The error of the rival that continues the mean of the last points before the cut."""
    rmse_step: float
    """The error of a straight line in log(1 + step)."""
    rmse_line: float
    """The error of a straight line in the entropy, which is given the same later entropies. It shows what exp(H) adds.
    """

    @property
    def beats(self) -> bool:
        """True if the law predicts better than all rivals, and the 95% interval of its a is above 0.

        Without the second condition, a flat line would often win for rewards that do not follow the entropy.
        """
        rivals = (self.rmse_last, self.rmse_step, self.rmse_line)
        return self.law.a > self.uncertainty.half_width_a() and self.rmse_law < min(rivals)


def forecast(runs: Sequence[EntropyRun], first_frac: float = FIRST_FRAC) -> Forecast:
    """Fit the law to the first parts of all runs pooled, and predict the rest of each run.

    first_frac: a run's first part has its points up to this fraction of its last step.
    Raises LawRefusedError if the first parts have too few points, span too little entropy, or leave nothing to predict.
    Raises ValueError for a `first_frac` that is not between 0 and 1.
    """
    if not 0 < first_frac < 1:
        raise InvalidError("reports.shelves.laws.first_frac_out_of_range", first_frac=first_frac)
    heads = [first_part(run, first_frac) for run in runs]
    first = [_part(run, head) for run, head in zip(runs, heads, strict=True) if head.any()]
    n_first = sum(map(len, first))
    if n_first < MIN_POINTS:
        raise LawRefusedError(
            "reports.shelves.laws.few_first_points", n_first=n_first, first_frac=first_frac, min_points=MIN_POINTS
        )
    if all(head.all() or head.sum() < LEAST_FIRST for head in heads):
        raise LawRefusedError("reports.shelves.laws.no_run_with_both_parts", least_first=LEAST_FIRST)
    uncertainty = law_uncertainty(first)
    law = fit_entropy_law(*pooled(first))
    halves = [(_part(run, head), _part(run, ~head)) for run, head in zip(runs, heads, strict=True)]
    # Score the law and its rivals on the same runs: those with a first part long enough for a rival's line.
    halves = [(seen, rest) for seen, rest in halves if len(seen) >= LEAST_FIRST]
    together = [seen for seen, _ in halves]

    def rmse(fit: Callable[[Sequence[EntropyRun]], Predict]) -> float:
        """Return a rival's RMSE: fitted to each run or to all runs pooled, whichever is smaller."""
        own = [fit([seen])(rest) - rest.reward for seen, rest in halves]
        shared = fit(together)
        return min(_root_mean_square(own), _root_mean_square([shared(rest) - rest.reward for _, rest in halves]))

    return Forecast(
        law=law,
        uncertainty=uncertainty,
        first_frac=first_frac,
        n_predicted=sum(len(rest) for _, rest in halves),
        rmse_law=_root_mean_square([law.predict(rest.entropy) - rest.reward for _, rest in halves]),
        rmse_last=rmse(_mean_of_last),
        rmse_step=rmse(lambda seen: _line(seen, lambda run: np.log1p(run.step))),
        rmse_line=rmse(lambda seen: _line(seen, lambda run: run.entropy)),
    )


def _mean_of_last(seen: Sequence[EntropyRun]) -> Predict:
    """Predict that rewards stay at the mean of the last points."""
    mean = np.mean([run.reward[-LAST_POINTS:].mean() for run in seen])
    return lambda rest: np.full(len(rest), mean)


def _line(seen: Sequence[EntropyRun], over: Callable[[EntropyRun], FloatArray]) -> Predict:
    """Predict that rewards continue along their least-squares line over a quantity of each point."""
    x = np.concatenate([over(run) for run in seen])
    y = np.concatenate([run.reward for run in seen])
    center = x.mean()
    design = np.column_stack([np.ones_like(x), x - center])
    (level, slope), *_ = np.linalg.lstsq(design, y, rcond=None)
    return lambda rest: np.asarray(level + slope * (over(rest) - center), dtype=np.float64)


def _root_mean_square(errors: Sequence[FloatArray]) -> float:
    return float(np.sqrt(np.mean(np.concatenate(errors) ** 2)))


def first_part(run: EntropyRun, first_frac: float = FIRST_FRAC) -> BoolArray:
    """Return which points of a run [points] are at or before `first_frac` of its last step."""
    return np.asarray(run.step <= first_frac * run.step[-1])


def _part(run: EntropyRun, chosen: BoolArray) -> EntropyRun:
    return EntropyRun(run.step[chosen], run.entropy[chosen], run.reward[chosen])
