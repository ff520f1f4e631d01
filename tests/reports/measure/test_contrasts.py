from __future__ import annotations

import math
import shutil

import numpy as np
import pytest

from reports.measure import analyse
from reports.measure.contrasts import EQUAL_COMPLETIONS, Contrast
from reports.statistics import compare_paired
from tests.reports.rewriting import rewrite_rows
from tests.reports.synthetic import Changes, write_sweep

ARMS = {"base": 0.0, "up": 3.0, "down": -3.0}


def scored(arm: str, scores: list[float]) -> dict[tuple[str, int], dict[str, float]]:
    return {(arm, seed): {"score": score} for seed, score in enumerate(scores)}


def contrast_of(folder, arms=None, **options) -> Contrast:
    return analyse(write_sweep(folder, arms or {"base": 0.0, "up": 3.0}, **options)).contrasts[0]


def test_pairs_by_seed_in_percentage_points_at_the_shared_level(tmp_path):
    changes: Changes = {
        **scored("base", [0.50, 0.52, 0.54, 0.50]),
        **scored("up", [0.53, 0.54, 0.58, 0.54]),
        **scored("down", [0.48, 0.50, 0.52, 0.49]),
    }
    up, down = analyse(write_sweep(tmp_path, ARMS, seeds=4, changes=changes)).contrasts
    assert up.differences_pp == pytest.approx([3, 2, 4, 4])
    expected = compare_paired([53, 54, 58, 54], [50, 52, 54, 50], alpha=0.025, margin=1.0)
    assert up.comparison is not None
    assert (up.comparison.low, up.comparison.high) == pytest.approx((expected.low, expected.high))
    assert up.comparison.verdict == "better"
    assert down.comparison is not None
    assert down.comparison.difference == pytest.approx(-1.75)
    assert down.comparison.verdict == "worse"
    assert up.comparison.p_value > down.comparison.p_value  # so Holm doubles the second and lifts the first to it
    assert down.p_holm == pytest.approx(2 * down.comparison.p_value)
    assert up.p_holm == pytest.approx(max(up.comparison.p_value, down.p_holm))


def test_cells_that_were_not_measured_cost_their_pairs_and_are_named(tmp_path):
    states = ("failed", "invalid", "interrupted", "pending")
    changes = {("base", seed): {"state": state, "reason": "disk full"} for seed, state in enumerate(states)}
    contrast = contrast_of(tmp_path, changes=changes)
    assert contrast.seeds == [4, 5]
    expected = [(seed, f"base {state} (disk full)") for seed, state in enumerate(states)]
    assert [(pair.seed, pair.reason) for pair in contrast.missing] == expected
    assert contrast.comparison is not None
    assert contrast.comparison.n_pairs == 2


def test_a_collapsed_cell_stays_and_the_contrast_is_also_shown_without_it(tmp_path):
    assert contrast_of(tmp_path / "plain", seeds=3).without_flagged is None
    contrast = contrast_of(tmp_path / "sick", changes={("up", 1): {"flags": ["entropy_collapse"], "score": 0.05}})
    assert contrast.comparison is not None
    assert contrast.without_flagged is not None
    assert contrast.flagged_seeds == [1]
    assert (contrast.comparison.n_pairs, contrast.without_flagged.n_pairs) == (6, 5)
    assert contrast.comparison.difference < 0 < contrast.without_flagged.difference


def test_equal_digests_pair_by_pair_are_identical(tmp_path):
    same = {
        (arm, seed): {"digest": f"{seed}", "score": 0.5 + seed / 100} for arm in ("base", "up") for seed in range(3)
    }
    contrast = contrast_of(tmp_path / "same", seeds=3, changes=same)
    assert contrast.comparison is not None
    assert contrast.comparison.verdict == "identical"

    # Every evaluation of the synthetic sweep has the same two texts, but those of odd arms say more.
    changed = same | {("up", 1): {"digest": "x", "score": 0.51}}
    other = contrast_of(tmp_path / "other", seeds=3, changes=changed)
    assert other.comparison is not None
    assert other.comparison.verdict == "inconclusive" and other.comparison.note

    unknown = {key: value | {"digest": None} for key, value in same.items()}
    assert contrast_of(tmp_path / "unknown", seeds=3, changes=unknown).comparison.verdict == "inconclusive"  # type: ignore[union-attr]


def test_equal_completions_from_unequal_weights_are_said_as_such(tmp_path):
    equal = {(arm, seed): {"score": 0.5} for arm in ("base", "up") for seed in range(3)}
    sweep = write_sweep(tmp_path, {"base": 0.0, "up": 0.0}, seeds=3, changes=equal)
    treated, control = ([cell for cell in sweep.cells if cell.arm == arm] for arm in ("up", "base"))
    for cell, other in zip(treated, control, strict=True):
        shutil.copy(other.path / "evals.parquet", cell.path / "evals.parquet")
    (contrast,) = analyse(sweep).contrasts
    assert contrast.comparison is not None
    assert contrast.comparison.verdict == "inconclusive"
    assert contrast.comparison.note.endswith("; " + EQUAL_COMPLETIONS)


def test_a_spread_below_the_step_of_one_sample_is_unknown(tmp_path):
    """100 problems x 8 samples: one sample is 0.125 pp."""
    for name, step, verdict in (("below", 0.0005, "inconclusive"), ("above", 0.0015, "better")):
        changes = scored("base", [0.5, 0.5, 0.5]) | scored("up", [0.6, 0.6 + step, 0.6 + 2 * step])
        contrast = contrast_of(tmp_path / name, seeds=3, changes=changes)
        assert contrast.comparison is not None and contrast.comparison.verdict == verdict
        assert ("one sample" in contrast.comparison.note) is (verdict == "inconclusive")
        assert math.isnan(contrast.noise_low_pp) is (verdict == "better")


@pytest.mark.parametrize(("score", "where"), [(0.0, "floor"), (1.0, "ceiling")])
def test_arms_that_solve_nothing_or_everything_are_not_equivalent(tmp_path, score, where):
    """Nor do samples that all agree show any noise: an interval of no width would claim that new ones agree too."""
    sweep = write_sweep(
        tmp_path, {"base": 0.0, "up": 3.0}, seeds=3, changes=scored("base", [score] * 3) | scored("up", [score] * 3)
    )
    rewrite_rows(sweep, "scores.jsonl", lambda row: row | {"metrics": row["metrics"] | {"se_samples_pp": 0.0}})
    (contrast,) = analyse(sweep).contrasts
    assert contrast.comparison is not None
    assert contrast.comparison.verdict == "inconclusive" and where in contrast.comparison.note
    assert np.isnan([contrast.p_holm, contrast.noise_low_pp, contrast.noise_high_pp]).all()


@pytest.mark.parametrize("seeds", [1, 2])
def test_too_few_seeds_get_evaluation_noise_and_no_test(tmp_path, seeds):
    contrast = contrast_of(tmp_path, seeds=seeds)
    assert contrast.comparison is not None
    assert contrast.comparison.verdict == "no_test"
    half_width = 1.959964 * (2 / seeds) ** 0.5  # both evaluations of a pair have a standard error of 1 pp
    assert contrast.noise_high_pp - contrast.comparison.difference == pytest.approx(half_width)
    assert contrast.comparison.difference - contrast.noise_low_pp == pytest.approx(half_width)


def test_no_pair_at_all(tmp_path):
    changes = {("base", 0): {"state": "failed"}, ("up", 1): {"state": "failed"}}
    contrast = contrast_of(tmp_path, seeds=2, changes=changes)
    assert contrast.comparison is None
    assert [pair.seed for pair in contrast.missing] == [0, 1]


def test_a_contrast_without_a_test_still_counts_for_holm(tmp_path):
    changes = {("down", seed): {"state": "failed"} for seed in range(6)}
    up, down = analyse(write_sweep(tmp_path, ARMS, changes=changes)).contrasts
    assert up.comparison is not None
    assert up.p_holm == pytest.approx(2 * up.comparison.p_value)
    assert down.p_holm != down.p_holm


@pytest.mark.parametrize(
    ("tokens", "baseline_tokens", "ratio", "equal"),
    [
        (0, 200_000, 0.0, False),
        (200_000, 0, None, None),
        (0, 0, None, None),
        (204_000, 200_000, 1.02, True),
        (260_000, 200_000, 1.3, False),
    ],
)
def test_equal_tokens_are_checked(tmp_path, tokens, baseline_tokens, ratio, equal):
    changes = {("base", 0): {"generated_tokens": baseline_tokens}, ("up", 0): {"generated_tokens": tokens}}
    contrast = contrast_of(tmp_path, seeds=1, changes=changes)
    assert (contrast.token_ratio, contrast.equal_tokens) == (ratio, equal)


def test_equal_tokens_are_of_every_pair(tmp_path):
    """The means agree, and no pair does."""
    counts = {"base": [300_000, 100_000] * 3, "up": [100_000, 300_000] * 3}
    changes = {(arm, seed): {"generated_tokens": n} for arm, of in counts.items() for seed, n in enumerate(of)}
    contrast = contrast_of(tmp_path / "apart", changes=changes)
    assert (contrast.token_ratio, contrast.equal_tokens) == (1.0, False)
    assert contrast.token_ratios == pytest.approx([1 / 3, 3.0] * 3)
    nothing = contrast_of(tmp_path / "nothing", seeds=2, changes={("base", 1): {"generated_tokens": 0}})
    assert (nothing.token_ratios, nothing.token_ratio, nothing.equal_tokens) == ([], None, None)
