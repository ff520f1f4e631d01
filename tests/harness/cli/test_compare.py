"""`bench compare`: paired where a seed means the same on both sides, otherwise unpaired or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from harness.records import SweepRecord
from harness.run.stages import spec_as_json
from tests.harness.cli.conftest import Bench
from tests.harness.run.small import small_spec
from tests.reports.synthetic import write_sweep

Settings = dict[str, dict[str, Any]]


def write(home: Path, name: str, arms: dict[str, float], settings: Settings, **fields: Any) -> SweepRecord:
    """Synthetic records of a sweep, each arm with the small spec and its own settings on top."""
    sweep = write_sweep(home / name, arms, **fields)
    for cell in sweep.cells:
        spec = spec_as_json(small_spec(settings.get(cell.arm), cell.seed))
        (cell.path / "spec.json").write_text(json.dumps(spec))
    return sweep


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def scores(sweep: SweepRecord, arm: str) -> list[float]:
    finals = (cell.read_scores()[-1] for cell in sweep.cells if cell.arm == arm)
    return [100 * row["metrics"]["pass@1"] for row in finals]


def test_arms_of_one_sweep_compare_as_in_its_report(bench: Bench, home: Path) -> None:
    settings: Settings = {"up": {"objective.scale": "none"}}
    write(home, "one", {"base": 0.0, "up": 3.0}, settings)
    result = bench("compare", "one/up", "one/base", "--json")
    assert result.code == 0, result.err
    row = result.document
    (expected,) = bench("report", "one", "--json").document["contrasts"]
    for key in ("difference_pp", "low_pp", "high_pp", "p", "p_holm", "verdict", "n_pairs", "correlation"):
        assert row[key] == expected[key], key
    assert row["paired"] is True
    assert row["differs"][0] == {"knob": "objective.scale", "treatment": "none", "baseline": "group_std"}
    assert {one["knob"] for one in row["differs"][1:]} == {"objective.scale_eps", "objective.scale_ddof"}
    shown = bench("compare", "one/up", "one/base")
    assert "put down to one of them" not in shown.err
    text = shown.out
    assert text.splitlines()[-1].startswith("one/up is better than one/base: +")


def test_sweeps_pair_where_a_seed_means_the_same(bench: Bench, home: Path) -> None:
    one = write(home, "one", {"base": 0.0}, {})
    other = write(home, "other", {"up": 3.0, "down": -4.0}, {"down": {"train.learning_rate": 1e-3}}, seeds=5)
    row = bench("compare", "other/down", "one/base", "--json").document
    test = stats.ttest_rel(scores(other, "down"), scores(one, "base")[:5])
    assert row["p"] == pytest.approx(test.pvalue)
    assert (row["paired"], row["n_pairs"]) == (True, 5)
    assert row["missing"] == [{"seed": 5, "reason": "no score on one side"}]


def test_other_data_is_compared_unpaired_and_it_says_why(bench: Bench, home: Path) -> None:
    one = write(home, "one", {"base": 0.0}, {})
    other = write(home, "other", {"up": 5.0}, {"up": {"task.template": "boxed", "train.learning_rate": 1e-3}}, seeds=4)
    result = bench("compare", "other/up", "one/base", "--json")
    assert result.code == 0, result.err
    row = result.document
    test = stats.ttest_ind(scores(other, "up"), scores(one, "base"), equal_var=False)
    assert row["p"] == pytest.approx(test.pvalue)
    assert (row["paired"], row["n_pairs"], row["n_treatment"], row["n_baseline"]) == (False, None, 4, 6)
    shown = bench("compare", "other/up", "one/base")
    assert "unpaired: task.template differ, so that a seed means other draws in each" in shown.out
    assert "4 and 6 runs, unpaired because" in shown.out.splitlines()[-1]
    assert "2 knobs differ, so the difference cannot be put down to one of them" in shown.err


def test_runs_without_a_common_seed_do_not_pair(bench: Bench, home: Path) -> None:
    sweep = write(home, "one", {"base": 0.0, "up": 3.0}, {}, seeds=3)
    cells = {(cell.arm, cell.seed): cell.path for cell in sweep.cells}
    row = bench("compare", cells["up", 1], cells["base", 0], "--json").document
    assert (row["paired"], row["why_unpaired"], row["verdict"]) == (False, "no seed is in both", "no_test")
    paired = bench("compare", cells["up", 1], cells["base", 1], "--json").document
    assert (paired["paired"], paired["n_pairs"], paired["verdict"]) == (True, 1, "no_test")
    assert "no test below 3 runs on a side" in bench("compare", cells["up", 1], cells["base", 0]).out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["one/up", "one/bas"], "'one/bas' names no arm; did you mean base?"),
        (["one", "one/base"], "'one' names no arm. Give SWEEP/ARM or a cell's folder; the arms of one are base, up"),
        (["two/up", "one/base"], "sweep 'two': nothing of it"),
        (["one/up", "hot/base"], "evaluated differently on arithmetic: eval.temperature"),
        (["one/up", "failed/base"], "failed/base: no cell is done (failed)"),
        (["one/up", "one/base", "--metric", "eval.final.pass@3"], "has eval.final.pass@3; did you mean"),
        (["one/up", "one/base", "--metric", "pass@1"], "metric is 'pass@1': give eval.final."),
        (["one/up", "one/base", "--metric", "eval.final.gsm8k.pass@1"], "names the task 'gsm8k': evaluated were"),
        (["one/up", "one/base", "--metric", "eval.final.mean_tokens"], "must be a fraction in [0, 1]"),
        (["one/up", "one/base", "--alpha", "5"], "--alpha is 5, but must lie between 0 and 1"),
    ],
)
def test_bad_input(bench: Bench, home: Path, words: list[str], says: str) -> None:
    write(home, "one", {"base": 0.0, "up": 3.0}, {}, seeds=3)
    write(home, "hot", {"base": 0.0}, {"base": {"eval.temperature": 0.5}}, seeds=3)
    failed = {("base", seed): {"state": "failed", "reason": "broke"} for seed in range(3)}
    write(home, "failed", {"base": 0.0}, {}, seeds=3, changes=failed)
    result = bench("compare", *words)
    assert (result.code, result.out) == (2, "")
    assert says in result.err and "Traceback" not in result.err
