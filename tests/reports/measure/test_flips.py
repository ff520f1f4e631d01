from __future__ import annotations

import numpy as np
import pytest

from reports.measure import analyse, flips
from reports.measure.flips import biggest_movers, find_flips, ranges_of, ranges_rows
from reports.measure.problems import ProblemScores
from reports.page.tables import chance_sentence, problem_table
from reports.report import Report
from tests.reports.synthetic import write_sweep


def test_the_biggest_movers_either_way_and_none_that_did_not_move():
    by_arm = {"base": {0: np.array([0.5, 0.5, 0.5, 0.0])}, "arm": {0: np.array([0.6, 0.0, 0.5, 1.0])}}
    scores = ProblemScores(["a", "b", "c", "d"], by_arm)
    found = [biggest_movers(scores, "arm", "base"), biggest_movers(scores, "arm", "base", n=1)]
    assert [*found, biggest_movers(scores, "base", "base")] == [[3, 1, 0], [3], []]


def test_a_flip_says_how_often_both_arms_solve_the_problem(tmp_path):
    (flip,) = find_flips(analyse(write_sweep(tmp_path / "better", {"base": 0.0, "odd": 1.0}, seeds=2)))
    assert (flip.arm, flip.baseline, flip.problem_id, flip.n_seeds) == ("odd", "base", "p1", 2)
    assert (flip.baseline_frac, flip.arm_frac, flip.difference_pp) == (0, 0.5, 50)
    (flip,) = find_flips(analyse(write_sweep(tmp_path / "worse", {"base": 0.0, "odd": 1.0}, seeds=1, baseline="odd")))
    assert (flip.arm, flip.difference_pp) == ("base", -50)


def test_seeds_that_do_not_pair_and_cells_without_samples_give_none(tmp_path):
    apart = {("base", 0): {"state": "failed"}, ("odd", 1): {"state": "failed"}}
    assert find_flips(analyse(write_sweep(tmp_path / "apart", {"base": 0.0, "odd": 1.0}, seeds=2, changes=apart))) == []
    sweep = write_sweep(tmp_path / "without", {"base": 0.0, "odd": 1.0}, seeds=1)
    for cell in sweep.cells:
        (cell.path / "evals.parquet").unlink()
    assert find_flips(analyse(sweep)) == []


def cells_of_equal_arms(n_arms: int, n_seeds: int, rng: np.random.Generator) -> dict[str, dict[int, np.ndarray]]:
    """Shares of 50 problems of unequal difficulty, 4 samples each; noise is shared within a seed."""
    difficulty, shared = rng.beta(0.7, 0.7, 50), rng.normal(0, 0.1, (n_seeds, 50))
    rates = np.clip(difficulty + shared, 0, 1)
    return {f"arm {arm}": {seed: rng.binomial(4, rates[seed]) / 4 for seed in range(n_seeds)} for arm in range(n_arms)}


@pytest.mark.slow
@pytest.mark.parametrize(("n_arms", "n_seeds"), [(2, 6), (3, 3), (3, 12)])
def test_the_widest_range_of_equal_arms_is_beyond_chance_as_often_as_its_level_says(n_arms, n_seeds, monkeypatch):
    monkeypatch.setattr(flips, "DRAWS", 199)
    rng = np.random.default_rng(0)
    found = [ranges_of(cells_of_equal_arms(n_arms, n_seeds, rng)) for _ in range(400)]
    ps = np.array([1.0 if one is None else one.p for one in found])
    for level in (0.05, 0.2):
        assert np.mean(ps <= level) <= level + 3 * np.sqrt(level * (1 - level) / 400)
    # What stands beside the table is what the ranges are.
    widest, permuted = (
        np.mean([getattr(one, name)[0] for one in found if one]) for name in ("ranges_pp", "permuted_pp")
    )
    assert widest == pytest.approx(permuted, rel=0.04)


def test_a_problem_that_divides_the_arms_is_beyond_chance():
    by_arm = cells_of_equal_arms(3, 6, np.random.default_rng(0))
    for shares in by_arm["arm 1"].values():
        shares[7] = 1.0
    for shares in by_arm["arm 0"].values():
        shares[7] = 0.0
    found = ranges_of(by_arm)
    assert found is not None and found.p < 0.05
    assert (found.problems[0], found.ranges_pp[0]) == (7, 100)
    assert found.permuted_pp[0] < 70


def test_few_seeds_show_nothing_and_equal_arms_have_no_ranges():
    """With two arms and three seeds a quarter of all arrangements give the range that was seen."""
    wide = ranges_of({"a": dict.fromkeys(range(3), np.zeros(2)), "b": dict.fromkeys(range(3), np.ones(2))})
    assert wide is not None and wide.p == pytest.approx(0.25, abs=0.04)
    assert ranges_of({"a": {0: np.ones(2)}, "b": {0: np.ones(2)}}) is None
    assert ranges_of({"a": {0: np.array([np.nan, 1.0])}, "b": {0: np.array([0.0, np.nan])}}) is None


def test_the_page_has_a_table_only_beyond_chance(tmp_path):
    six = analyse(write_sweep(tmp_path / "six", {"base": 0.0, "odd": 1.0}, seeds=6))
    (ranges,) = ranges_rows(six)
    assert ranges.p < 0.05 and ranges.beyond_chance is True
    table = problem_table(six, Report(problem_ranges=[ranges]))
    assert table is not None and table.rows == [["p1", "50.0", "16.0", "0%", "50%"]]
    assert chance_sentence(Report(problem_ranges=[ranges])) == ""
    three = analyse(write_sweep(tmp_path / "three", {"base": 0.0, "odd": 1.0}, seeds=3))
    report = Report(problem_ranges=ranges_rows(three))
    assert problem_table(three, report) is None
    assert "50.0 pp" in chance_sentence(report)
