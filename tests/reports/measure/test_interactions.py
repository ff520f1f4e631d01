from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from reports.figures.interactions import draw_interactions, draw_means
from reports.measure import analyse
from reports.page.document import report_document
from reports.page.effects import effect_table, secondary_note
from reports.page.validity import validity_checks
from reports.page.verdict import secondary_statements, statements
from reports.statistics import compare_paired, holm
from tests.frozen import frozen
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


def changes(
    seeds: int, noise: tuple[float, ...] = (0.0, 0.004, -0.004), scores: dict[str, float] = SCORES
) -> dict[tuple[str, int], dict[str, Any]]:
    """Scores with a strong seed effect that cancels, and a little noise on one arm."""
    return {
        (arm, seed): {"score": score + 0.1 * (seed % 2) + (noise[seed % 3] if arm == "both" else 0.0)}
        for arm, score in scores.items()
        for seed in range(seeds)
    }


def report(folder: Path, **fields: Any) -> Any:
    given: dict[str, Any] = {"seeds": 3, "grid": GRID, "changes": changes(3)} | fields
    sweep = write_sweep(folder, dict.fromkeys(GRID, 0.0), **given)
    return report_document(analyse(sweep))


def rows(folder: Path, **fields: Any) -> Any:
    return report(folder, **fields).interactions


def test_main_effects_and_the_difference_of_differences(tmp_path):
    clip, beta, both = rows(tmp_path)
    assert (clip.kind, clip.knobs, clip.values, clip.reference) == ("main", [CLIP], [0.28], [0.2])
    assert clip.difference_pp == pytest.approx((2 + 10) / 2)
    assert beta.difference_pp == pytest.approx((3 + 11) / 2)
    assert (both.kind, both.knobs, both.values) == ("interaction", [CLIP, BETA], [0.28, 0.1])
    assert both.difference_pp == pytest.approx(8)
    assert both.differences_pp == pytest.approx([8.0, 8.4, 7.6])
    assert [one.difference_pp for one in clip.within] == pytest.approx([2, 10])
    assert [one.value for one in clip.within] == [0.001, 0.1] and both.within == []


def test_intervals_and_p_are_corrected_over_the_effects_and_no_other_contrast(tmp_path):
    document = report(tmp_path)
    effects, arms = document.interactions, document.contrasts
    assert [row.n_contrasts for row in effects] == [3, 3, 3]
    assert effects[2].level == pytest.approx(1 - 0.05 / 3)
    half_width = stats.t.ppf(1 - 0.05 / 6, 2) * 0.4 / math.sqrt(3)
    assert effects[2].high_pp - effects[2].low_pp == pytest.approx(2 * half_width)
    assert [row.p_holm for row in effects] == pytest.approx(holm([row.p for row in effects]).tolist())
    # Two arms differ from the baseline by the same in every seed: of unknown spread, they count as p = 1.
    assert [row.p for row in arms[:2]] == [None, None]
    assert arms[2].p_holm == pytest.approx(3 * arms[2].p)


def test_an_effect_is_judged_by_the_rules_of_a_contrast(tmp_path):
    """Against the comparison of its seeds' differences with 0."""
    noise = (0.0, 0.02, -0.02)
    scores = dict.fromkeys(SCORES, 0.5) | {"both": 0.503}
    found = rows(tmp_path, margin_pp=9.0, changes=changes(6, noise, scores), seeds=6)
    for row in found:
        alone = compare_paired(row.differences_pp, [0.0] * 6, alpha=0.05 / 3, margin=9.0)
        assert (row.low_pp, row.high_pp) == pytest.approx((alone.low, alone.high))
        assert row.verdict == alone.verdict == "equivalent"
    assert [row.verdict for row in rows(tmp_path / "up", changes=changes(6), seeds=6)] == ["better"] * 3


def test_effects_lead_and_arms_come_second(tmp_path):
    document = report(tmp_path, changes=changes(6), seeds=6)
    assert [*document.as_json()][:2] == ["headline", "interactions"]
    rows = [line for one in statements(document) for line in (one.sentence, *one.details)]
    assert [one.sentence.partition(" ")[0] for one in secondary_statements(document)] == ["kl", "clip", "both"]
    note = secondary_note(document.interactions, document.contrasts)
    few = report(tmp_path / "few", changes=changes(3) | {("kl", 1): {"state": "failed", "reason": "why"}})
    gone = changes(2) | {("low", 0): {"state": "failed"}, ("kl", 1): {"state": "failed"}}
    none = report(tmp_path / "none", seeds=2, changes=gone)
    assert [row.verdict for row in none.interactions] == ["no_test"] * 3
    equal = report(tmp_path / "equal", changes=changes(3, noise=(0.0, 0.0, 0.0)))
    rows += [str(note), *(one.sentence for other in (few, none, equal) for one in statements(other))]
    frozen("reports/factorial", "\n".join(rows))


def test_an_effect_that_turns_round_leads_with_its_size_at_each_value(tmp_path):
    """On average it is a gain of 2 pp. `clip` mirrors the noise of `both`: without noise there is no interval."""
    turned = changes(6, scores={"low": 0.50, "kl": 0.50, "clip": 0.54, "both": 0.456})
    turned |= {("clip", seed): {"score": 1.04 - turned["both", seed]["score"] + 0.2 * (seed % 2)} for seed in range(6)}
    document = report(tmp_path, changes=turned, seeds=6)
    (at_low, at_high) = document.interactions[0].within
    for one, arm, reference in ((at_low, "clip", "low"), (at_high, "both", "kl")):
        scores = [[100 * turned[name, seed]["score"] for seed in range(6)] for name in (arm, reference)]
        alone = compare_paired(scores[0], scores[1], alpha=0.05 / 3)
        assert (one.low_pp, one.high_pp) == pytest.approx((alone.low, alone.high))
    (row,) = document.headline
    size = f"{at_low.difference_pp:+.1f} pp [{at_low.low_pp:+.1f}, {at_low.high_pp:+.1f}] at 0.001, -4.4 pp ["
    assert f": {size}" in row.sentence


def test_a_knob_that_changes_no_weight_is_identical_and_interacts_with_nothing(tmp_path):
    same = {
        (arm, seed): {"score": 0.5 + 0.01 * seed + (0.02 if arm in ("kl", "both") else 0), "digest": f"{beta}{seed}"}
        for arm, beta in (("low", 0), ("kl", 1), ("clip", 0), ("both", 1))
        for seed in range(3)
    }
    clip, beta, both = rows(tmp_path, changes=same)
    assert (clip.verdict, both.verdict) == ("identical", "identical")
    assert beta.verdict != "identical"


def test_effects_are_against_the_values_of_the_baseline(tmp_path):
    clip, _, both = rows(tmp_path, baseline="both")
    assert (clip.values, clip.reference) == ([0.2], [0.28])
    assert (clip.arm, clip.baseline, both.arm) == ("clip_high=0.2", "clip_high=0.28", "clip_high=0.2:beta=0.001")
    assert clip.difference_pp == pytest.approx(-6)
    assert both.difference_pp == pytest.approx(8)


def test_only_seeds_with_a_score_in_every_arm_count(tmp_path):
    document = report(tmp_path, changes=changes(3) | {("kl", 1): {"state": "failed", "reason": "why"}})
    (clip, *_) = document.interactions
    assert clip.seeds == [0, 2]
    (missing,) = clip.missing
    assert missing.seed == 1 and missing.reason.startswith("kl ") and "(why)" in missing.reason
    assert clip.difference_pp == pytest.approx((2 + 10 - 0.2) / 2)
    assert (clip.verdict, clip.p, clip.p_holm, clip.low_pp) == ("no_test", None, None, None)
    assert clip.noise_low_pp < clip.difference_pp < clip.noise_high_pp


def test_a_seed_with_a_flagged_cell_counts_and_is_left_out_once_more(tmp_path):
    clip, *_ = rows(tmp_path, changes=changes(4) | {("kl", 1): {"flags": ["nan"], "score": 0.1}}, seeds=4)
    assert clip.flagged_seeds == [1] and clip.n_pairs == 4
    assert clip.without_flagged.n_pairs == 3
    assert clip.without_flagged.difference_pp == pytest.approx(6, abs=0.3)


def test_a_sweep_that_is_no_factorial_has_none(tmp_path):
    document = report(tmp_path / "a", grid={})
    assert document.interactions == [] and effect_table([]) is None
    assert {one.sentence.partition(" ")[0] for one in statements(document)} == {"kl", "clip", "both"}
    one_knob = {arm: {CLIP: value} for arm, value in zip(GRID, (0.2, 0.24, 0.28, 0.32), strict=True)}
    assert rows(tmp_path / "b", grid=one_knob) == []


def test_the_arms_of_an_incomplete_grid_are_the_question_and_the_strip_says_why(tmp_path):
    partial = {arm: GRID[arm] for arm in ("low", "kl", "clip")}
    sweep = write_sweep(tmp_path, dict.fromkeys(partial, 0.0), seeds=2, grid=partial)
    document = report_document(analysis := analyse(sweep))
    assert document.interactions == [] and len(statements(document)) == 2
    (check,) = [one for one in validity_checks(analysis, document) if one.label == "Factorial"]
    assert check.value.startswith("1 arm") and not check.ok


def test_a_knob_with_one_value_is_no_factor(tmp_path):
    alike = {arm: {**point, "eval.k": [1, 2]} for arm, point in GRID.items()}
    assert [row.knobs for row in rows(tmp_path, grid=alike)] == [[CLIP], [BETA], [CLIP, BETA]]


@pytest.mark.parametrize("draw", [draw_interactions, draw_means])
def test_figures_show_every_seed_of_every_combination(tmp_path, draw):
    sweep = write_sweep(tmp_path, dict.fromkeys(GRID, 0.0), seeds=3, grid=GRID, changes=changes(3))
    drawing = draw(analyse(sweep))
    assert len(drawing.rows) == 4 * 3
    chosen = {"first_value": "0.28", "second_value": "0.1", "seed": 1}
    (row,) = [row for row in drawing.rows if chosen.items() <= row.items()]
    assert row["score_pp"] == pytest.approx(73.4)
    flat = write_sweep(tmp_path / "flat", {"one": 0.0, "other": 1.0}, seeds=3)
    assert draw(analyse(flat)) is None
