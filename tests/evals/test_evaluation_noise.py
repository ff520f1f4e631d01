"""How noisy a benchmark's score is, for problems whose difficulty has a Beta distribution of a given mean and size."""

from __future__ import annotations

import math

import numpy as np
import pytest

from evals.estimators.standard_errors import se_over_problems, se_over_samples

REPLICATES = 200


@pytest.mark.parametrize(
    ("problems", "samples", "mean", "size", "these_pp", "new_pp"),
    [
        (30, 32, 0.304, 1.5, 1.15, 5.4),  # AIME of one year
        (60, 32, 0.304, 1.5, 0.8, 3.8),  # of two
        (500, 4, 0.76, 2.45, 0.8, 1.3),  # MATH-500
    ],
)
def test_few_problems_are_the_larger_noise(problems, samples, mean, size, these_pp, new_pp):
    """The estimates agree with the spread that new samples, or new problems, really give."""
    rng = np.random.default_rng(0)
    difficulty = rng.beta(mean * size, (1 - mean) * size, (REPLICATES, problems))
    counts = rng.binomial(samples, difficulty)
    estimated_new = math.sqrt(np.mean([(se_over_problems(row, samples) or 0) ** 2 for row in counts.tolist()]))
    estimated_these = math.sqrt(np.mean([(se_over_samples(row, samples) or 0) ** 2 for row in counts.tolist()]))
    assert 100 * estimated_new == pytest.approx(new_pp, rel=0.04)
    assert 100 * estimated_these == pytest.approx(these_pp, rel=0.05)
    scores = 100 * counts.mean(axis=1) / samples
    assert scores.std() == pytest.approx(new_pp, rel=0.15)
    assert (scores - 100 * difficulty.mean(axis=1)).std() == pytest.approx(these_pp, rel=0.15)
