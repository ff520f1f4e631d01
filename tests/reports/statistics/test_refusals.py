from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from reports.statistics import (
    cluster_values,
    compare_paired,
    compare_unpaired,
    components,
    factorial_effects,
    holm,
    interquartile_mean_over_tasks,
    look_alphas,
    over_seeds_and_problems,
    power,
    probability_of_improvement,
    sd_upper_bound,
)
from tests.frozen import frozen

SCORES = [1.0, 2.0, 3.0]
REFUSED: Mapping[str, Callable[[], object]] = {
    "no score": lambda: compare_paired([], []),
    "a score that is not finite": lambda: compare_paired([1.0, math.nan, 2.0], SCORES),
    "a baseline that is not finite": lambda: compare_unpaired([1.0, 1.0], [1.0, math.inf]),
    "a table of scores": lambda: compare_unpaired([[1.0]], [[1.0]]),  # type: ignore[list-item]
    "scores that do not pair": lambda: compare_paired([1.0, 2.0], [1.0]),
    "alpha 0": lambda: compare_paired(SCORES, SCORES, alpha=0.0),
    "alpha 1": lambda: compare_unpaired(SCORES, SCORES, alpha=1.0),
    "a margin below 0": lambda: compare_paired(SCORES, SCORES, margin=-1.0),
    "no margin": lambda: compare_unpaired(SCORES, SCORES, margin=math.nan),
    "alpha of several tasks": lambda: interquartile_mean_over_tasks([[1.0, 2.0], [1.0, 2.0]], alpha=2),
    "one task": lambda: interquartile_mean_over_tasks([1.0, 2.0]),  # type: ignore[list-item]
    "other tasks": lambda: probability_of_improvement([[1.0, 2.0]], [[1.0]]),
    "p not a number": lambda: holm([math.nan]),
    "p below 0": lambda: holm([-0.1]),
    "p above 1": lambda: holm([1.1]),
    "power of nothing": lambda: power(1.0),
    "power of no effect": lambda: power(1.0, effect=0.0),
    "power of two seeds": lambda: power(1.0, n=2),
    "all power": lambda: power(1.0, effect=1.0, target=1.0),
    "power below the level": lambda: power(1.0, effect=1.0, target=0.01),
    "power without spread": lambda: power(0.0, effect=1.0),
    "the spread of one": lambda: sd_upper_bound(1.0, 1),
    "no factor": lambda: factorial_effects((), []),
    "a factor without levels": lambda: factorial_effects((3, 0), [0, 0]),
    "a level that is not there": lambda: factorial_effects((2,), [2]),
    "too few levels": lambda: factorial_effects((2, 2), [0]),
    "scores of another grid": lambda: factorial_effects((2, 2), [0, 0])[0].sides(np.zeros((3, 2, 3))),
    "components of a list": lambda: components([1.0, 2.0]),  # type: ignore[list-item]
    "components of nothing": lambda: components([[]]),
    "problems that are not finite": lambda: over_seeds_and_problems([[1.0, math.nan]]),
    "two seeds": lambda: components([[1.0, 2.0], [2.0, 3.0]]),
    "other variances": lambda: components(np.zeros((3, 4)), np.zeros((3, 3)), n_samples=2),
    "looks that do not grow": lambda: look_alphas((12, 12), (0.02, 0.02)),
    "a score without a cluster": lambda: cluster_values([1.0, 0.0], ["a"]),
}


def test_what_has_no_answer_is_refused() -> None:
    lines = []
    for name, call in REFUSED.items():
        try:
            call()
        except ValueError as error:
            lines.append(f"{name}: {error}")
        else:
            raise AssertionError(name)
    frozen("reports/statistics", "\n".join(lines))
