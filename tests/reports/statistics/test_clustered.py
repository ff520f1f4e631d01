"""Clustered standard errors are those of inspect_ai, and what a comparison over problems makes of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import stdtrit

from reports.statistics import cluster_values, clustered_error, compare_paired

# inspect_ai 0.3.285: stderr(cluster="problem") of these scores.
EQUAL = (
    [1, 0, 1, 1, 0, 0, 1, 0, 1, 1, 1, 1, 0, 0, 0, 1, 1, 0, 0, 0],
    [c for c in "abcde" for _ in range(4)],
    0.158113883,
)
UNEQUAL = [1, 0, 1, 0, 0, 1, 0, 1, 1, 1, 0, 0.5, 0.25, 0.75, 1], [*"aaabbbbbccdeeee"], 0.10304020550551


@pytest.mark.parametrize(("scores", "clusters", "expected"), [EQUAL, UNEQUAL])
def test_the_error_is_that_of_inspect_ai(scores: list[float], clusters: list[str], expected: float) -> None:
    assert clustered_error(scores, clusters) == pytest.approx(expected, rel=1e-8)
    assert cluster_values(scores, clusters).mean() == pytest.approx(np.mean(scores), rel=1e-12)


@settings(max_examples=25)
@given(sizes=st.lists(st.integers(1, 5), min_size=3, max_size=12), seed=st.integers(0, 2**32 - 1))
def test_a_comparison_over_problems_has_the_clustered_error_of_the_paired_differences(
    sizes: list[int], seed: int
) -> None:
    """Clusters may have any sizes; where they are equal, the values compared are the means of problems."""
    rng = np.random.default_rng(seed)
    clusters = np.repeat(np.arange(len(sizes)), sizes).tolist()
    treated, control = rng.normal(size=(2, len(clusters)))
    found = compare_paired(cluster_values(treated, clusters), cluster_values(control, clusters))
    differences = treated - control
    residuals = np.bincount(clusters, weights=differences - differences.mean())
    n_clusters = len(sizes)
    error = math.sqrt(n_clusters / (n_clusters - 1) * float(residuals @ residuals)) / len(differences)
    assert found.difference == pytest.approx(differences.mean(), abs=1e-12)
    assert clustered_error(differences, clusters) == pytest.approx(error, rel=1e-9)
    half_width = float(stdtrit(n_clusters - 1, 0.975)) * error
    assert (found.high - found.low) / 2 == pytest.approx(half_width, rel=1e-9)
    if len({*sizes}) == 1:
        means = differences.reshape(n_clusters, -1).mean(axis=1)
        assert error == pytest.approx(means.std(ddof=1) / math.sqrt(n_clusters), rel=1e-9)


def test_few_problems_are_honest_where_samples_as_replicates_are_not() -> None:
    """30 problems, 8 samples each, and an effect that differs by problem: without any mean effect, 5% of the tests over
    problems reject, and twice as many of those over samples."""
    rng = np.random.default_rng(0)
    difficulty, own = rng.normal(0, 1.5, (2000, 30, 1)), rng.normal(0, 0.8, (2000, 30, 1))
    arms = [rng.random((2000, 30, 8)) < 1 / (1 + np.exp(-(difficulty + sign * own / 2))) for sign in (1, -1)]
    samples = arms[0].astype(float) - arms[1]
    clusters = np.repeat(np.arange(30), 8).tolist()
    errors = np.array([clustered_error(one.ravel(), clusters) for one in samples])
    assert 0.035 <= np.mean(np.abs(samples.mean(axis=(1, 2))) / errors > stdtrit(29, 0.975)) <= 0.065
    naive = samples.reshape(2000, -1).std(axis=1, ddof=1) / math.sqrt(240)
    assert np.mean(np.abs(samples.mean(axis=(1, 2))) / naive > stdtrit(239, 0.975)) > 0.09


def test_a_single_cluster_has_no_error() -> None:
    assert math.isnan(clustered_error([1.0, 0.0], ["a", "a"]))
