from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.formats import MISSING, Table
from reports.measure import Analysis, analyse
from reports.measure.curves import Curve, Line
from reports.measure.over_k import gain_curves, points_over_k, sharpening
from reports.page.document import report_document
from reports.page.tables import report_tables
from tests.reports.rewriting import rewrite_rows
from tests.reports.synthetic import write_sweep


def curve(ks, mean, half_width=np.nan, n=3) -> Curve:
    grid, middle = np.array(ks, dtype=float), np.array(mean, dtype=float)
    return Curve(
        "arm", [Line(seed, grid, middle) for seed in range(n)], grid, middle, middle - half_width, middle + half_width
    )


def test_the_crossover_is_where_the_gain_falls_through_0_on_the_log_scale():
    # From +2 at k = 4 to -2 at k = 16: half-way in log2 is k = 8. The band's ends cross a quarter of that way off.
    found = sharpening(curve([1, 4, 16, 64], [5, 2, -2, -6], half_width=1.0))
    assert found.crossover_k == pytest.approx(8)
    assert found.crossover_low == pytest.approx(2 ** (3 - 0.5))
    assert found.crossover_high == pytest.approx(2 ** (3 + 0.5))
    assert (found.gain_at_smallest_pp, found.gain_at_largest_pp) == (5, -6)
    assert (found.smallest_k, found.largest_k, found.n) == (1, 64, 3)


def test_the_ends_of_an_interval_are_where_those_of_the_band_fall_through_0():
    found = sharpening(curve([1, 4, 16, 64], [5, 2, -2, -6], half_width=3.0))
    assert found.crossover_low == pytest.approx(2 ** (2 * 2 / 3))  # from 2 at k = 1 to -1 at k = 4
    assert found.crossover_high == pytest.approx(2 ** (4 + 2 / 4))  # from 1 at k = 16 to -3 at k = 64


@pytest.mark.parametrize("mean", [[3, 2, 1], [-1, -2, -3], [-2, 1, 3]])
def test_a_gain_that_never_falls_through_0_has_no_crossover(mean):
    found = sharpening(curve([1, 2, 4], mean, half_width=0.5))
    assert (found.crossover_k, found.crossover_low, found.crossover_high) == (None, None, None)


@pytest.mark.parametrize("mean", [[3, 1, 0, 0], [0, 0, 0, 0], [3, 0, 1, 0], [3, 1, 0, -1e-14], [0, 0, -1, -2]])
@pytest.mark.parametrize("half_width", [0.0, 0.5])
def test_a_tie_is_no_crossover(mean, half_width):
    found = sharpening(curve([1, 2, 4, 8], mean, half_width))
    assert (found.crossover_k, found.crossover_low, found.crossover_high) == (None, None, None)


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
    assert sharpening(curve([1, 2, 4, 8], mean)).crossover_k == pytest.approx(crossover)


def test_all_k_of_a_flat_stretch_lie_in_the_interval():
    found = sharpening(curve([1, 2, 4, 8], [3, 0, 0, -1], half_width=0.0))
    assert (found.crossover_low, found.crossover_k, found.crossover_high) == pytest.approx((2, 4, 4))


def test_an_interval_is_open_where_the_band_holds_0_to_the_end():
    found = sharpening(curve([1, 2, 4], [1, 0.5, -0.5], half_width=2.0))
    assert found.crossover_k is not None
    assert (found.crossover_low, found.crossover_high) == (None, None)


def test_without_a_band_there_is_no_interval():
    found = sharpening(curve([1, 2, 4], [1, 0.5, -0.5]))
    assert found.crossover_k == pytest.approx(2**1.5)
    assert (found.crossover_low, found.crossover_high) == (None, None)


@given(st.floats(0.1, 5), st.floats(-3, -0.1), st.floats(0.01, 4))
def test_an_interval_holds_its_crossover(start, end, half_width):
    found = sharpening(curve([1, 2, 4, 8], np.linspace(start, end, 4), half_width))
    assert found.crossover_k is not None
    assert found.crossover_low is None or found.crossover_low <= found.crossover_k
    assert found.crossover_high is None or found.crossover_high >= found.crossover_k


def test_gains_are_of_the_trained_over_the_base_model(tmp_path):
    sweep = write_sweep(tmp_path, {"base": 0.0}, seeds=1, changes={("base", 0): {"score": 0.5}})
    (found,) = gain_curves(analyse(sweep))
    np.testing.assert_array_equal(found.grid, [1, 2, 4, 8])
    assert found.mean[0] == pytest.approx(15)  # from 35 %
    assert found.mean[3] == pytest.approx(100 * (0.5 + 0.18 - (1 - 0.65 ** (8**0.6))))


def test_without_a_base_evaluation_there_is_nothing(tmp_path):
    assert gain_curves(analyse(write_sweep(tmp_path, {"base": 0.0}, seeds=1, base_scores=None))) == []


def test_the_table_says_how_far_an_open_interval_reaches(tmp_path):
    analysis = analyse(write_sweep(tmp_path, {"base": 0.0, "up": 1.0}, seeds=3))
    report = report_document(analysis)
    report["arms"][0]["sharpening"] |= {"crossover_k": 3.0, "crossover_low": None, "crossover_high": 5.0}
    report["arms"][1]["sharpening"] |= {"crossover_k": 3.0, "crossover_low": 2.0, "crossover_high": None}
    (table,) = (
        table for table in report_tables(analysis, report) if table.title == "Gain over the model before training"
    )
    assert [row[3:5] for row in table.rows] == [["3", "[< 1, 5]"], ["3", "[2, > 8]"]]


def sharpening_table(analysis: Analysis) -> Table:
    tables = report_tables(analysis, report_document(analysis))
    (table,) = (table for table in tables if table.title == "Gain over the model before training")
    return table


def test_the_table_says_where_nothing_could_be_lost(tmp_path):
    """At the largest k all problems are solved before and after training, but for one seed of one arm."""
    before = {"pass@1": 0.35, "pass@2": 0.4, "pass@4": 0.5, "pass@8": 1.0}
    base_scores = [{"task": "arithmetic", "metrics": before}]
    sweep = write_sweep(tmp_path, {"base": 0.0, "up": 1.0, "lost": 0.0}, seeds=2, base_scores=base_scores)
    rewrite_rows(sweep, "scores.jsonl", lambda row: row | {"metrics": row["metrics"] | {"pass@8": 1.0}})
    (*_, lost) = sweep.cells
    rows = [row | {"metrics": row["metrics"] | {"pass@8": 0.9}} for row in lost.read_scores()]
    (lost.path / "scores.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = sharpening_table(analyse(sweep))
    assert [row[2:5] for row in table.rows[:2]] == [["+0.0", MISSING, MISSING]] * 2
    assert table.rows[2][2] == "-5.0" and table.rows[2][3] != MISSING
    assert "At k = 8, pass@k is 100% before and after training (base, up): a gain of 0 there is a tie" in table.note
    assert "100%" not in sharpening_table(analyse(write_sweep(tmp_path / "below", {"base": 0.0}, seeds=2))).note


def test_points_over_k_are_of_one_family_and_ordered():
    metrics = {"pass@16": 0.9, "avg@n": 0.3, "pass@2": 0.5, "pass^2": 0.1, "maj@2": 0.4, "cons@n": 0.6}
    assert points_over_k(metrics, "pass") == [(2, 0.5), (16, 0.9)]
    assert points_over_k(metrics, "maj") == [(2, 0.4)]
