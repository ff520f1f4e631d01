from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from reports.measure import analyse
from reports.measure.measurements import Row
from reports.page.document import report_document
from reports.page.tables import effect_name, interaction_table
from reports.statistics import benjamini_hochberg
from tests.reports.synthetic import write_sweep

pytestmark = pytest.mark.slow

CLIP, BETA = "objective.rule.clip_high", "objective.kl.beta"
GRID = {
    "low": {CLIP: 0.2, BETA: 0.001},
    "kl": {CLIP: 0.2, BETA: 0.1},
    "clip": {CLIP: 0.28, BETA: 0.001},
    "both": {CLIP: 0.28, BETA: 0.1},
}
SCORES = {"low": 0.50, "kl": 0.53, "clip": 0.52, "both": 0.63}


def changes(seeds: int, noise: tuple[float, ...] = (0.0, 0.004, -0.004)) -> dict[tuple[str, int], dict[str, Any]]:
    """Scores with a strong seed effect that cancels, and a little noise on one arm."""
    return {
        (arm, seed): {"score": score + 0.1 * (seed % 2) + (noise[seed % 3] if arm == "both" else 0.0)}
        for arm, score in SCORES.items()
        for seed in range(seeds)
    }


def rows(folder: Path, **fields: Any) -> list[Row]:
    given: dict[str, Any] = {"seeds": 3, "grid": GRID, "changes": changes(3)} | fields
    sweep = write_sweep(folder, dict.fromkeys(GRID, 0.0), **given)
    return report_document(analyse(sweep))["interactions"]


def test_main_effects_and_the_difference_of_differences(tmp_path):
    clip, beta, both = rows(tmp_path)
    assert (clip["kind"], clip["knobs"], clip["values"], clip["reference"]) == ("main", [CLIP], [0.28], [0.2])
    assert clip["difference_pp"] == pytest.approx((2 + 10) / 2)
    assert beta["difference_pp"] == pytest.approx((3 + 11) / 2)
    assert (both["kind"], both["knobs"], both["values"]) == ("interaction", [CLIP, BETA], [0.28, 0.1])
    assert both["difference_pp"] == pytest.approx(8)
    assert both["high_pp"] - both["low_pp"] == pytest.approx(2 * 4.302653 * 0.4 / math.sqrt(3))
    assert both["level"] == 0.95
    assert both["seeds"] == [0, 1, 2]
    assert [row["q"] for row in (clip, beta, both)] == pytest.approx(
        benjamini_hochberg([row["p"] for row in (clip, beta, both)]).tolist()
    )


def test_effects_are_against_the_values_of_the_baseline(tmp_path):
    clip, _, both = rows(tmp_path, baseline="both")
    assert (clip["values"], clip["reference"]) == ([0.2], [0.28])
    assert clip["difference_pp"] == pytest.approx(-6)
    assert both["difference_pp"] == pytest.approx(8)


def test_only_seeds_with_a_score_in_every_arm_count(tmp_path):
    found = rows(tmp_path, changes=changes(3) | {("kl", 1): {"state": "failed", "reason": "why"}})
    assert found[0]["seeds"] == [0, 2]
    assert found[0]["difference_pp"] == pytest.approx((2 + 10 - 0.2) / 2)
    assert found[0]["p"] is None and found[0]["q"] is None and found[0]["low_pp"] is None


def test_a_sweep_that_is_no_factorial_has_none(tmp_path):
    assert rows(tmp_path / "a", grid=None) == []
    assert interaction_table([]) is None


def test_an_incomplete_grid_is_refused_with_the_reason(tmp_path):
    partial = {arm: GRID[arm] for arm in ("low", "kl", "clip")}
    sweep = write_sweep(tmp_path, dict.fromkeys(partial, 0.0), seeds=2, grid=partial)
    (row,) = found = report_document(analyse(sweep))["interactions"]
    assert row["refused"].startswith("1 of the grid's arms")
    assert "1 of the grid's arms" in (interaction_table(found) or pytest.fail()).note


def test_no_seed_in_every_arm_is_refused(tmp_path):
    gone = changes(2) | {("low", 0): {"state": "failed"}, ("kl", 1): {"state": "failed"}}
    (row,) = rows(tmp_path, seeds=2, changes=gone)
    assert row["refused"] == "no seed has a score in every arm of the grid"


def test_the_table_names_effects_by_the_last_part_of_their_knobs(tmp_path):
    found = rows(tmp_path)
    assert [effect_name(row) for row in found] == [
        "clip_high 0.28 against 0.2", "beta 0.1 against 0.001", "clip_high 0.28 × beta 0.1",
    ]  # fmt: skip
    table = interaction_table(found)
    assert table is not None
    assert table.rows[2][:2] == ["clip_high 0.28 × beta 0.1", "+8.0"]
    assert "over 3 seeds" in table.note and "all 3 effects" in table.note


def test_factors_with_one_value_or_values_that_are_lists(tmp_path):
    grid = {"low": {CLIP: 0.2, "eval.k": [1, 2]}, "high": {CLIP: 0.28, "eval.k": [1, 2]}}
    sweep = write_sweep(tmp_path, {"low": 0.0, "high": 1.0}, seeds=3, grid=grid)
    (row,) = report_document(analyse(sweep))["interactions"]
    assert row["knobs"] == [CLIP]
