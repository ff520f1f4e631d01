from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.records import SweepRecord
from harness.records.looks import Look
from harness.words import said
from reports.figures.over_k import draw_sharpening
from reports.measure import Analysis, analyse
from reports.measure.contrasts import alpha_of_each
from reports.measure.coverage import (
    Crossover,
    arms_without_gain,
    coverage,
    coverage_rows,
    crossover,
    gain_curves,
    no_gain_sentence,
    problems_by_right,
)
from reports.measure.curves import Curve, Line
from reports.page.coverage import coverage_sentence, coverage_table
from reports.report import CoverageRow
from reports.statistics import FloatArray
from tests.frozen import frozen
from tests.reports.rewriting import changed, write_samples
from tests.reports.synthetic import write_sweep

SAMPLES = 16
UNKNOWN = "cannot tell"


def crossing(of: Curve) -> Crossover:
    found = crossover(of)
    assert found is not None
    return found


def curve(ks, mean, half_width=np.nan, n=3) -> Curve:
    grid, middle = np.array(ks, dtype=float), np.array(mean, dtype=float)
    return Curve(
        "arm", [Line(seed, grid, middle) for seed in range(n)], grid, middle, middle - half_width, middle + half_width
    )


def test_the_crossover_is_where_the_gain_falls_through_0_on_the_log_scale():
    # From +2 at k = 4 to -2 at k = 16: half-way in log2 is k = 8. The band's ends cross a quarter of that way off.
    found = crossing(curve([1, 4, 16, 64], [5, 2, -2, -6], half_width=1.0))
    assert found.k == pytest.approx(8)
    assert found.low == pytest.approx(2 ** (3 - 0.5))
    assert found.high == pytest.approx(2 ** (3 + 0.5))


def test_the_ends_of_an_interval_are_where_those_of_the_band_fall_through_0():
    found = crossing(curve([1, 4, 16, 64], [5, 2, -2, -6], half_width=3.0))
    assert found.low == pytest.approx(2 ** (2 * 2 / 3))  # from 2 at k = 1 to -1 at k = 4
    assert found.high == pytest.approx(2 ** (4 + 2 / 4))  # from 1 at k = 16 to -3 at k = 64


@pytest.mark.parametrize(
    "mean",
    [
        [3, 2, 1],
        [-1, -2, -3],
        [-2, 1, 3],
        *([3, 1, 0, 0], [0, 0, 0, 0], [3, 0, 1, 0], [3, 1, 0, -1e-14], [0, 0, -1, -2]),
    ],
)
@pytest.mark.parametrize("half_width", [0.0, 0.5])
def test_a_gain_that_never_falls_through_0_and_a_tie_have_no_crossover(mean, half_width):
    assert crossover(curve([1, 2, 4, 8][: len(mean)], mean, half_width)) is None


@pytest.mark.parametrize(
    ("mean", "crossover"),
    [
        ([3, 0, 0, -1], 4),  # the last k of a flat stretch
        ([3, 0, -1, -2], 2),
        ([3, 0, 1, -1], 2**2.5),  # a tie on the way is none
        ([0, 2, -2, 0], 2**1.5),
        ([-1, 2, -2, 1], 2**1.5),
    ],
)
def test_the_crossover_is_where_the_gain_goes_below_0(mean, crossover):
    assert crossing(curve([1, 2, 4, 8], mean)).k == pytest.approx(crossover)


@pytest.mark.parametrize("half_width", [2.0, np.nan])
def test_an_interval_is_open_where_the_band_holds_0_to_the_end_or_there_is_none(half_width):
    found = crossing(curve([1, 2, 4], [1, 0.5, -0.5], half_width))
    assert found.k == pytest.approx(2**1.5) and found.low is None and found.high is None


@given(st.floats(0.1, 5), st.floats(-3, -0.1), st.floats(0.01, 4))
def test_an_interval_holds_its_crossover(start, end, half_width):
    found = crossing(curve([1, 2, 4, 8], np.linspace(start, end, 4), half_width))
    assert found is not None
    assert found.low is None or found.low <= found.k
    assert found.high is None or found.high >= found.k


def test_gains_are_of_the_trained_over_the_base_model(tmp_path):
    sweep = write_sweep(tmp_path, {"base": 0.0}, seeds=1, changes={("base", 0): {"score": 0.5}})
    (found,) = gain_curves(analyse(sweep))
    np.testing.assert_array_equal(found.grid, [1, 2, 4, 8])
    assert found.mean[0] == pytest.approx(15)  # from 35 %
    assert found.mean[3] == pytest.approx(100 * (0.5 + 0.18 - (1 - 0.65 ** (8**0.6))))


def with_rates(
    folder: Path, rates: dict[str, FloatArray], before: FloatArray | None = None, seeds: int = 6
) -> Analysis:
    """A sweep whose arms solve each problem at these rates, and the model before training at `before`."""
    rng = np.random.default_rng(0)
    sweep: SweepRecord = write_sweep(folder, dict.fromkeys(rates, 0.0), seeds=seeds)
    for cell in sweep.cells:
        right = rng.random((len(rates[cell.arm]), SAMPLES)) < rates[cell.arm][:, None]
        write_samples(cell, right)
    if before is not None:
        counts = np.bincount(rng.binomial(SAMPLES, before), minlength=SAMPLES + 1)
        sweep.base_scores[0]["problems_by_right"] = counts.tolist()
    return analyse(sweep)


EASY, HARD = np.full(100, 0.5), np.full(100, 0.02)
"""Half of the problems are solved now and then, the other half hardly ever."""
BEFORE = np.concatenate([EASY, HARD])
SHARPER = np.concatenate([EASY + 0.4, 0 * HARD])  # what it could do anyway, and nothing else
WIDER = np.concatenate([EASY - 0.12, HARD + 0.1])  # more problems, none of them often
BETTER = np.concatenate([EASY + 0.2, HARD + 0.1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rates", "word"),
    [(SHARPER, "sharpened"), (WIDER, "discovered"), (BETTER, "both"), (BEFORE, UNKNOWN), (BEFORE / 4, UNKNOWN)],
)
def test_the_word_against_the_baseline_and_against_the_model_before_training(tmp_path, rates, word):
    analysis = with_rates(tmp_path, {"base": BEFORE, "arm": rates}, BEFORE)
    of_baseline, of_same, of_before = coverage(analysis)
    assert (of_baseline.arm, of_baseline.against, of_baseline.word) == ("arm", "base", word)
    assert (of_same.arm, of_same.against, of_same.word) == ("base", None, UNKNOWN)
    assert (of_before.arm, of_before.against, of_before.word) == ("arm", None, word)
    np.testing.assert_array_equal(of_baseline.curve.grid, np.arange(1, SAMPLES + 1))
    true = 100 * np.mean([(1 - BEFORE) ** k - (1 - rates) ** k for k in range(1, SAMPLES + 1)], axis=1)
    for found in (of_baseline, of_before):
        assert (found.curve.low <= true).all() and (true <= found.curve.high).all()
    if word == "sharpened":
        assert of_before.crossover is not None and of_before.crossover.low is not None
        crossing_k = float(np.interp(0, -true, np.arange(1, SAMPLES + 1)))
        assert of_before.crossover.low < crossing_k < (of_before.crossover.high or SAMPLES)


@pytest.mark.slow
def test_the_noise_of_the_model_before_training_is_in_its_band(tmp_path):
    """It is evaluated once: with many seeds hardly anything else is left."""
    analysis = with_rates(tmp_path, {"base": BEFORE}, BEFORE, seeds=12)
    (found,) = coverage(analysis)
    alone = 100 * np.sqrt(np.mean(BEFORE * (1 - BEFORE)) / SAMPLES / len(BEFORE))
    assert found.curve.high[0] - found.curve.mean[0] > 2 * alone


@pytest.mark.slow
def test_without_counts_of_the_model_before_training_or_with_two_seeds_there_is_no_word(tmp_path):
    rows = coverage_rows(with_rates(tmp_path / "six", {"base": BEFORE, "arm": SHARPER}))
    words = [("base", "sharpened"), (None, UNKNOWN), (None, UNKNOWN)]
    assert [(row.against, row.word) for row in rows] == words
    assert rows[1].note and {*rows[1].low_pp} == {None}
    assert coverage(with_rates(tmp_path / "two", {"base": BEFORE, "arm": SHARPER}, seeds=2))[0].word == UNKNOWN
    sweep = write_sweep(tmp_path / "none", {"base": 0.0, "arm": 1.0}, seeds=3, base_scores=[])
    for cell in sweep.cells:
        (cell.path / "evals.parquet").unlink()
    assert coverage(analyse(sweep)) == []


@pytest.mark.slow
def test_levels_are_shared_by_the_arms(tmp_path):
    one = with_rates(tmp_path / "one", {"base": BEFORE, "arm": SHARPER}, seeds=3)
    two = with_rates(tmp_path / "two", {"base": BEFORE, "arm": SHARPER, "other": SHARPER}, seeds=3)
    assert [coverage(analysis)[0].alpha for analysis in (one, two)] == [0.05, 0.025]
    seen = Look(question=two.sweep.asks, seeds=[0, 1], evaluation=None, planned=False)
    again = replace(two, sweep=two.sweep.model_copy(update={"looks": [seen]}))
    assert coverage(again)[0].alpha == alpha_of_each(again.sweep, 2) < 0.025


@pytest.mark.slow
def test_the_page_says_what_arms_do_and_where_nothing_could_be_lost(tmp_path):
    analysis = with_rates(tmp_path, {"base": BEFORE, "arm": SHARPER}, BEFORE)
    rows = coverage_rows(analysis)
    alike = [changed(row, arm=arm, word=UNKNOWN) for row in rows[:1] for arm in ("arm", "other", "third")]
    frozen("reports/coverage", "\n".join([coverage_sentence(rows), coverage_sentence(alike), rows[1].note]))
    table = coverage_table(rows)
    assert table is not None and len(table.rows) == 3 and BOTH_SOLVED not in table.note
    solved = with_rates(tmp_path / "solved", {"base": np.ones(20), "arm": np.ones(20)})
    table = coverage_table(coverage_rows(solved))
    assert table is not None and BOTH_SOLVED in table.note
    assert coverage_sentence([]) == "" and coverage_table([]) is None


BOTH_SOLVED = said("reports.largest_k_which_every")
ROOM_FOR_A_GAIN = said("reports.line_above_0_at_largest")


@pytest.mark.slow
def test_a_model_that_already_solves_every_problem_at_the_largest_k_cannot_gain_there(tmp_path):
    """A start that solves each problem once in 16 samples has pass@16 = 1: only a loss can show there."""
    for name, solved, arms in (("once", 1, ["base", "arm"]), ("none", 0, [])):
        sweep = with_rates(tmp_path / name, {"base": BEFORE, "arm": BEFORE}, BEFORE, seeds=3).sweep
        counts = [0] * (SAMPLES + 1)
        counts[solved] = len(BEFORE)
        sweep.base_scores[0]["problems_by_right"] = counts
        analysis = analyse(sweep)
        assert arms_without_gain(analysis) == arms
        of_start = [row for row in coverage_rows(analysis) if row.against is None]
        assert not any(row.at_ceiling for row in of_start)
        sentence = said("reports.no_gain_can_show", of_arms="", k=SAMPLES)
        table, drawing = coverage_table(of_start, arms), draw_sharpening(analysis)
        assert table is not None and drawing is not None
        assert (sentence in table.note) == (sentence in drawing.caption) == bool(arms)
        assert (ROOM_FOR_A_GAIN in drawing.caption) == (not arms)


def test_a_model_that_cannot_gain_is_named_with_its_arms_and_in_the_sentence(tmp_path):
    assert no_gain_sentence(["a", "b"], [], 16) == ""
    assert no_gain_sentence(["a", "b"], ["a"], 16) == said("reports.no_gain_can_show", of_arms=" of a", k=16)
    row = CoverageRow(
        arm="a", against=None, task="t", n=3, level=0.95, k=[1, 16], difference_pp=[5, 0], low_pp=[1, -1],
        high_pp=[9, 1], word=UNKNOWN, at_ceiling=False, note="", crossover_k=None, crossover_low=None,
        crossover_high=None,
    )  # fmt: skip
    unclear, full = coverage_sentence([row]), coverage_sentence([row], ["a"])
    assert said("reports.higher_at_1_unclear_at_k", k=16) in unclear
    assert said("reports.higher_at_1_full_at_k", k=16) in full
    assert coverage_sentence([changed(row, against="base")], ["a"]).endswith(unclear.rpartition(":")[2])
    solved = coverage_sentence([changed(row, at_ceiling=True)])
    assert said("reports.higher_at_1_solved_at_k", k=16) in solved


def test_problems_by_right_samples(tmp_path):
    (measured,) = with_rates(tmp_path, {"base": np.array([0.0, 0.0, 1.0])}, seeds=1).measurements["base"]
    assert problems_by_right(measured) == [2, *[0] * 15, 1]


def test_all_k_of_a_flat_stretch_lie_in_the_interval():
    found = crossing(curve([1, 2, 4, 8], [3, 0, 0, -1], half_width=0.0))
    assert (found.low, found.k, found.high) == pytest.approx((2, 4, 4))
