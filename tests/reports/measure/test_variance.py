"""The variance budget of contrasts, from the samples of their evaluations."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from harness.records import SweepRecord
from reports.figures.variance import draw_variance
from reports.measure import analyse
from reports.measure.variance import VarianceBudget, budget_of, variance_budgets
from reports.page.document import report_document
from reports.page.validity import validity_checks
from reports.page.verdict import statements, verdict_details
from reports.statistics import FloatArray, factorial_effects
from reports.statistics.comparison import FINE_SPREAD
from tests.frozen import frozen
from tests.reports.rewriting import changed, write_samples
from tests.reports.synthetic import write_sweep

SEED_SD, NOISE_SD = 0.1, 0.2


def drawn_arms(rng: np.random.Generator, n_seeds: int, n_problems: int = 40, n_samples: int = 8) -> list[FloatArray]:
    """Samples [n_seeds, n_problems, n_samples] of two arms. Both have the seed's effect, and 4 / 5 of the noise."""
    shape = (n_seeds, n_problems, n_samples)
    seeds, shared = rng.normal(0, SEED_SD, (n_seeds, 1, 1)), rng.normal(0, 2 * NOISE_SD, shape)
    return [50 + seeds + shared + rng.normal(0, NOISE_SD, shape) for _ in range(2)]


def test_the_covariance_of_the_arms_is_split_into_shared_noise_and_seeds():
    rng = np.random.default_rng(0)
    drawn = (dict(zip(("up", "base"), drawn_arms(rng, 12), strict=True)) for _ in range(100))
    found = [budget_of(arms, {"up": 1.0, "base": -1.0}, 0.05) for arms in drawn]
    noise = 4 * NOISE_SD**2 / (40 * 8)
    assert np.mean([one.shared_noise for one in found]) == pytest.approx(noise, rel=0.05)
    assert np.mean([one.covariance for one in found]) == pytest.approx(SEED_SD**2 + noise, rel=0.1)
    sampling = [one.components.sampling.value for one in found if one.components]
    assert np.mean(sampling) == pytest.approx(2 * NOISE_SD**2 / 8, rel=0.05)  # what they share is not in it


ARMS = {"low": (0, 0), "beta": (0, 1), "clip": (1, 0), "both": (1, 1)}
GRID = {arm: {"objective.rule.clip_high": (0.2, 0.28)[i], "objective.kl.beta": j} for arm, (i, j) in ARMS.items()}
OWN = {"seeds": 2.0, "seeds_x_problems": 3.0, "sampling": 16.0, "problems": 5.0}
"""Variances of what each arm has of its own; that of sampling is of a single sample."""


def drawn_factorial(rng: np.random.Generator, n_seeds: int = 8, n_problems: int = 40) -> dict[str, FloatArray]:
    """Four samples of each arm. They share a part of each kind, which is larger than their own."""
    shapes = {
        "seeds": (n_seeds, 1, 1),
        "seeds_x_problems": (n_seeds, n_problems, 1),
        "sampling": (n_seeds, n_problems, 4),
        "problems": (1, n_problems, 1),
    }
    arms = {arm: np.zeros(shapes["sampling"]) for arm in ARMS}
    for part, shape in shapes.items():
        shared = rng.normal(50, 6, shape)
        for drawn in arms.values():
            drawn += shared + rng.normal(0, OWN[part] ** 0.5, shape)
    return arms


@pytest.mark.slow
@pytest.mark.parametrize("effect", factorial_effects((2, 2), (0, 0)), ids=("main", "other main", "interaction"))
def test_the_parts_of_a_factorials_effects_are_recovered_within_a_tenth(effect):
    """What arms share cancels; of what each has of its own, an effect has the sum of its squared weights."""
    weights = {arm: float(effect.weights[place]) for arm, place in ARMS.items()}
    rng = np.random.default_rng(4)
    found = [budget_of(drawn_factorial(rng), weights, 0.05).components for _ in range(200)]
    for part, own in OWN.items():
        truth = own / (4 if part == "sampling" else 1) * sum(weight**2 for weight in weights.values())
        assert np.mean([getattr(one, part).value for one in found]) == pytest.approx(truth, rel=0.1), part


def test_arms_that_do_not_move_together_have_no_share_of_noise():
    assert VarianceBudget(None, covariance=-1.0, shared_noise=0.5).shared_noise_share is None
    assert VarianceBudget(None, covariance=2.0, shared_noise=0.5).shared_noise_share == 0.25
    assert VarianceBudget(None, covariance=2.0, shared_noise=3.0).shared_noise_share == 1


def sweep_with_samples(
    folder: Path, seeds: int, *, seed_sd: float = 0.05, n_samples: int = 8, names=("base", "up"), **fields
) -> SweepRecord:
    """30 problems. The arms share the seed's effect, and the noise of each sample but for 5 %."""
    rng = np.random.default_rng(1)
    arms = dict.fromkeys(names, 0.0)
    sweep = write_sweep(folder, arms, seeds=seeds)
    difficulty = rng.uniform(0.2, 0.8, 30)
    effects, noise = rng.normal(0, seed_sd, seeds), rng.random((seeds, 30, n_samples))
    changes = {}
    for cell in sweep.cells:
        own = np.where(rng.random(noise.shape) < 0.05, rng.random(noise.shape), noise)[cell.seed]
        right = own < (difficulty + effects[cell.seed])[:, None]
        write_samples(cell, right)
        changes[cell.arm, cell.seed] = {"score": float(right.mean())}
    kept = {cell.path.name: (cell.path / "evals.parquet").read_bytes() for cell in sweep.cells}
    sweep = write_sweep(folder / "scored", arms, seeds=seeds, changes=changes, **fields)
    for cell in sweep.cells:
        (cell.path / "evals.parquet").write_bytes(kept[cell.path.name])
    return sweep


@pytest.fixture(scope="module")
def twelve(tmp_path_factory):
    return analyse(sweep_with_samples(tmp_path_factory.mktemp("twelve"), 12))


@pytest.mark.slow
def test_the_budget_of_a_sweep_is_that_of_its_samples(twelve):
    (budget,) = variance_budgets(twelve)
    row: Any = report_document(twelve).contrasts[0]
    assert budget.components is not None
    found = row.variance
    assert (found.refused, found.n_seeds, found.n_problems, found.n_samples) == (None, 12, 30, 8)
    half_width = (row.high_pp - row.low_pp) / 2
    assert found.these_problems.error_pp == pytest.approx(half_width / 2.200985, rel=0.2)
    for budget, names in ((found.these_problems, 3), (found.new_problems, 4)):
        parts = budget.parts
        assert len(parts) == names
        assert sum(part.share for part in parts.values()) == pytest.approx(1)
        assert all(0 <= p.share_low <= p.share_high <= 1 for p in parts.values())


@pytest.mark.slow
def test_the_effects_of_a_factorial_have_budgets_and_its_arms_too(tmp_path):
    analysis = analyse(sweep_with_samples(tmp_path, 12, names=tuple(ARMS), grid=GRID))
    report: Any = report_document(analysis)
    *mains, interaction = report.interactions
    for row in report.interactions:
        error = row.variance.these_problems.error_pp
        assert error == pytest.approx((row.high_pp - row.low_pp) / 2 / stats.t.ppf((1 + row.level) / 2, 11), rel=0.35)
    assert [row.variance.refused for row in report.contrasts] == [None] * 3
    main_details, interaction_details = ([" ".join(one.details) for one in statements(report)][i] for i in (0, -1))
    correlations = [re.findall(r"ρ = (\d\.\d)", details) for details in (main_details, interaction_details)]
    assert [found[:1] for found in correlations] == [["0.9"], []] and "standard error of" in interaction_details
    drawing = draw_variance(analysis)
    assert drawing is not None and [row["arm"] for row in drawing.rows] == [row.arm for row in (*mains, interaction)]


def test_what_pairing_did_is_said_by_the_interval_of_the_correlation(twelve):
    """Six seeds, clearly positive or not; a bound shows on which side of 0 it lies."""
    report = report_document(twelve)
    strip = {check.label: check.value for check in validity_checks(twelve, report)}
    assert strip["Pairing ρ"].startswith("up 0.9") and "[" in strip["Pairing ρ"]
    row = changed(report.contrasts[0], next_step=None)
    variance = row.variance
    assert variance is not None
    six = {"n_pairs": 6, "correlation": -0.77, "correlation_low": -0.98, "correlation_high": 0.28}
    near_0 = [{"correlation": 0.5, "correlation_low": low, "correlation_high": 0.8} for low in (0.003, -0.003)]
    rows = [row, changed(row, **six), *(changed(row, **fields) for fields in near_0)]
    rows += [changed(row, variance=changed(variance, shared_noise_share=share)) for share in (None, 0.05, 0.9)]
    details = [verdict_details(one) for one in rows]
    frozen("reports/pairing", "\n".join([details[0][0], *(line for some in details for line in some if "ρ" in line)]))


def test_a_spread_that_is_unknown_has_no_parts_and_no_pairing_is_praised(tmp_path):
    """Four seeds whose differences stay below what one sample changes."""
    scores = {("base", seed): 0.4 + 0.05 * seed for seed in range(4)}
    scores |= {("up", seed): score for (_, seed), score in scores.items()} | {("up", 3): 0.55125}
    analysis = analyse(
        write_sweep(
            tmp_path, {"base": 0.0, "up": 0.0}, seeds=4, changes={key: {"score": s} for key, s in scores.items()}
        )
    )
    (statement,) = statements(report_document(analysis))
    assert FINE_SPREAD in statement.sentence
    assert not any("standard error of" in detail or "together" in detail for detail in statement.details)
    assert [budget.refused for budget in variance_budgets(analysis)] == [FINE_SPREAD]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seeds", "fields", "why"),
    [(2, {}, "3 pairs"), (3, {"metric": "eval.final.pass@4"}, "pass@4"), (3, {"gone": True}, "same number of samples")],
)
def test_what_the_records_do_not_show_is_refused(tmp_path, seeds, fields, why):
    gone = fields.pop("gone", False)
    sweep = write_sweep(tmp_path, {"base": 0.0, "up": 0.0}, seeds=seeds, **fields)
    if gone:
        (sweep.cells[1].path / "evals.parquet").unlink()
    analysis = analyse(sweep)
    (budget,) = variance_budgets(analysis)
    assert budget.components is None and budget.refused is not None and why in budget.refused
    assert draw_variance(analysis) is None
    variance = report_document(analysis).contrasts[0].variance
    assert variance is not None and variance.refused == budget.refused
