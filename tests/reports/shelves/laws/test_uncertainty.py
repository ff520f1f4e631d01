from __future__ import annotations

import numpy as np
import pytest

from reports.shelves.laws import (
    EntropyRun,
    LawRefusedError,
    fit_entropy_law,
    fit_free_exponent,
    free_exponent_uncertainty,
    law_uncertainty,
    pooled,
)
from reports.shelves.laws.uncertainty import block_length
from tests.refusals import refuses
from tests.reports.shelves.laws.curves import A, B, ar1, law_run

REPLICATES = 300


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n_runs", "n", "correlation", "spread", "held"),
    [
        *((1, 120, 0.9, 0.0, 0.95), (3, 60, 0.6, 0.03, 0.95)),
        *(
            pytest.param(n_runs, n, correlation, spread, held, marks=pytest.mark.slow)
            for n_runs, n, correlation, spread, held in (
                (1, 120, 0.0, 0.0, 0.95),
                (1, 120, 0.6, 0.0, 0.95),
                (1, 40, 0.6, 0.0, 0.95),
                (1, 20, 0.6, 0.0, 0.91),
                (6, 60, 0.6, 0.03, 0.95),
            )
        ),
    ],
)
def test_intervals_hold_the_true_parameters(n_runs, n, correlation, spread, held):
    rng = np.random.default_rng(0)
    hits = []
    for _ in range(REPLICATES):
        runs = [law_run(n, rng, correlation=correlation, spread=spread) for _ in range(n_runs)]
        law = fit_entropy_law(np.concatenate([r.entropy for r in runs]), np.concatenate([r.reward for r in runs]))
        found = law_uncertainty(runs)
        widths = (found.half_width_a(), found.half_width_b(), found.half_widths([0.0])[0])
        errors = (law.a - A, law.b - B, law.ceiling - (B - A))
        hits.append([abs(error) <= width for error, width in zip(errors, widths, strict=True)])
    assert np.mean(hits, axis=0) == pytest.approx(np.full(3, held), abs=0.04)


def test_naive_standard_errors_would_be_far_too_small():
    """What the blocks are for: with one point a block the interval is as narrow as if steps were independent."""
    run = law_run(120, np.random.default_rng(0), correlation=0.9)
    found = law_uncertainty([run])
    assert found.parameters.block_points is not None and found.parameters.block_points > 10
    design = np.column_stack([np.exp(run.entropy), np.ones(120)])
    residuals = run.reward - fit_entropy_law(run.entropy, run.reward).predict(run.entropy)
    naive = np.sqrt(np.linalg.inv(design.T @ design)[0, 0] * residuals.var())
    assert found.half_width_a() > 2.5 * 1.96 * naive


def test_the_interval_of_the_line_is_that_of_its_parameters():
    run = law_run(100, np.random.default_rng(0), correlation=0.0)
    found = law_uncertainty([run])
    assert found.half_widths([-50.0])[0] == pytest.approx(found.half_width_b())  # where exp(H) is gone
    far = 30.0
    assert found.half_widths([far])[0] == pytest.approx(found.half_width_a() * np.exp(far), rel=1e-6)
    # Independent points: the textbook's standard errors.
    design = np.column_stack([np.exp(run.entropy), np.ones(100)])
    residuals = run.reward - fit_entropy_law(run.entropy, run.reward).predict(run.entropy)
    textbook = np.sqrt(np.linalg.inv(design.T @ design)[0, 0] * (residuals @ residuals) / 98)
    assert found.parameters.block_points == 1
    assert found.half_width_a() == pytest.approx(1.984 * textbook, rel=0.05)


def test_over_runs_the_error_is_that_of_the_mean_of_their_fits():
    """For runs that share their entropies, whose pooled fit is the mean of their own."""
    rng = np.random.default_rng(0)
    runs = [law_run(60, rng, spread=0.1) for _ in range(5)]
    runs = [EntropyRun(run.step, runs[0].entropy, run.reward) for run in runs]
    found = law_uncertainty(runs)
    own = [fit_entropy_law(run.entropy, run.reward) for run in runs]
    t = 2.776445  # 97.5% quantile with 4 degrees of freedom
    for half_width, values in (
        (found.half_width_a(), [law.a for law in own]),
        (found.half_width_b(), [law.b for law in own]),
        (found.half_widths([0.0])[0], [law.ceiling for law in own]),
    ):
        assert half_width == pytest.approx(t * np.std(values, ddof=1) / np.sqrt(5), rel=1e-6)
    assert (found.parameters.df, found.parameters.block_points) == (4, None)


def test_large_entropies_do_not_overflow():
    run = law_run(60, np.random.default_rng(0))
    shifted = EntropyRun(run.step, run.entropy + 300, run.reward)
    assert law_uncertainty([shifted]).half_width_b() == pytest.approx(law_uncertainty([run]).half_width_b())
    assert law_uncertainty([shifted]).half_width_a() == pytest.approx(
        law_uncertainty([run]).half_width_a() * np.exp(-300.0)
    )


def test_blocks_grow_with_autocorrelation_and_points():
    rng = np.random.default_rng(0)
    lengths = [np.mean([block_length(ar1(n, rho, 1, rng)) for _ in range(50)]) for n, rho in
               ((200, 0.0), (200, 0.5), (200, 0.9), (1600, 0.5))]  # fmt: skip
    assert lengths[0] < 4 < lengths[1] < lengths[2] and lengths[1] < lengths[3]
    assert lengths[3] == pytest.approx((np.sqrt(6) * 0.5 / 0.75) ** (2 / 3) * 1600 ** (1 / 3), rel=0.1)
    assert block_length(np.zeros(8)) == 1
    assert block_length(np.repeat([0.0, 1.0], 4)) <= 2


@pytest.mark.slow
@pytest.mark.parametrize("n_runs", [1, 3, 6, 12])
@pytest.mark.parametrize(("exponent", "spread"), [(1.0, 0.03), (-0.7, 0.0), (-0.7, 0.03)])
def test_intervals_hold_the_true_exponent_and_its_ceiling(n_runs, exponent, spread):
    """Entropies of runs differ by a tenth as well; 200 replicates, so 90% is 3 standard errors below 95%."""
    if n_runs == 1 and spread:
        pytest.skip("one run leaves the variance between runs out")
    rng = np.random.default_rng(0)
    hits = []
    for _ in range(200):
        runs = []
        for _ in range(n_runs):
            run = law_run(60, rng)
            a, b = A + spread * rng.normal(), B + spread * rng.normal()
            entropy = run.entropy * (1 + 0.1 * rng.normal() * (n_runs > 1))
            noise = run.reward - (B - A * np.exp(run.entropy))
            runs.append(EntropyRun(run.step, entropy, b - a * np.expm1(exponent * entropy) / exponent + noise))
        found = fit_free_exponent(*pooled(runs))
        width = free_exponent_uncertainty(runs, found)
        hits.append([abs(found.exponent - exponent) <= width.exponent, abs(found.ceiling - B) <= width.ceiling])
    exact, ceiling = np.mean(hits, axis=0)
    assert exact >= 0.90 and ceiling >= 0.88


def test_without_one_run_the_others_must_determine_the_law():
    """Two runs of one entropy each, far apart: either alone has no slope."""
    rng = np.random.default_rng(0)
    runs = [EntropyRun(np.arange(8.0), np.full(8, entropy), rng.normal(0, 1, 8)) for entropy in (0.5, 1.0)]
    with refuses(LawRefusedError, "reports.shelves.laws.law_hangs_on_one_unit", unit="run"):
        law_uncertainty(runs)
