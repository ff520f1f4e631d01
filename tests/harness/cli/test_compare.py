"""`bench compare`: paired where a seed means the same on both sides, otherwise unpaired or refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from harness.records import SweepRecord
from tests.frozen import frozen
from tests.harness.cli.conftest import Bench
from tests.harness.run.small import small_spec
from tests.reports.rewriting import rewrite_rows
from tests.reports.synthetic import write_sweep

pytestmark = pytest.mark.slow

Settings = dict[str, dict[str, Any]]


def write(home: Path, name: str, arms: dict[str, float], settings: Settings, **fields: Any) -> SweepRecord:
    """Synthetic records of a sweep, each arm with the small spec and its own settings on top."""
    sweep = write_sweep(home / name, arms, **fields)
    for cell in sweep.cells:
        spec = small_spec(settings.get(cell.arm), cell.seed).model_dump(mode="json")
        (cell.path / "spec.json").write_text(json.dumps(spec))
    return sweep


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def scores(sweep: SweepRecord, arm: str) -> list[float]:
    finals = (cell.read_scores()[-1] for cell in sweep.cells if cell.arm == arm)
    return [100 * (row["metrics"]["pass@1"] or 0.0) for row in finals]


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


def test_sweeps_pair_where_a_seed_means_the_same(bench: Bench, home: Path) -> None:
    one = write(home, "one", {"base": 0.0}, {})
    other = write(home, "other", {"up": 3.0, "down": -4.0}, {"down": {"train.learning_rate": 1e-3}}, seeds=5)
    row = bench("compare", "other/down", "one/base", "--json").document
    test = stats.ttest_rel(scores(other, "down"), scores(one, "base")[:5])
    assert row["p"] == pytest.approx(test.pvalue)
    assert (row["paired"], row["n_pairs"]) == (True, 5)
    assert row["missing"] == [{"seed": 5, "reason": "other/down absent"}]


@pytest.mark.parametrize("name", ["scores.jsonl", "steps.jsonl", "status.json", "spec.json"])
def test_a_damaged_cell_is_left_out_and_named(bench: Bench, home: Path, name: str) -> None:
    sweep = write(home, "one", {"base": 0.0, "up": 3.0}, {"up": {"objective.scale": "none"}})
    damaged = next(cell for cell in sweep.cells if (cell.arm, cell.seed) == ("up", 0))
    (damaged.path / name).write_text('{"st\n')
    result = bench("compare", "one/up", "one/base", "--json")
    assert result.code == 0, result.err
    path = f"{damaged.path.relative_to(home.parent)}/{name}"
    assert result.err.startswith(f"warning: up-s0 is damaged and left out: {path}")
    row = result.document
    assert (row["paired"], row["n_pairs"], [one["seed"] for one in row["missing"]]) == (True, 5, [0])
    alone = bench("compare", damaged.path, "one/base")
    assert (alone.code, alone.out) == (2, "") and path in alone.err


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
    frozen("cli/compare_unpaired", shown.out + shown.err)


def test_runs_without_a_common_seed_do_not_pair(bench: Bench, home: Path) -> None:
    sweep = write(home, "one", {"base": 0.0, "up": 3.0}, {}, seeds=3)
    cells = {(cell.arm, cell.seed): cell.path for cell in sweep.cells}
    row = bench("compare", cells["up", 1], cells["base", 0], "--json").document
    assert (row["paired"], bool(row["why_unpaired"]), row["verdict"]) == (False, True, "no_test")
    paired = bench("compare", cells["up", 1], cells["base", 1], "--json").document
    assert (paired["paired"], paired["n_pairs"], paired["verdict"]) == (True, 1, "no_test")


UP_AND_BASE = ["one/up", "one/base"]


def test_bad_input(bench: Bench, home: Path) -> None:
    write(home, "one", {"base": 0.0, "up": 3.0}, {}, seeds=3)
    write(home, "hot", {"base": 0.0}, {"base": {"eval.temperature": 0.5}}, seeds=3)
    failed = {("base", seed): {"state": "failed", "reason": "broke"} for seed in range(3)}
    write(home, "failed", {"base": 0.0}, {}, seeds=3, changes=failed)
    refused: list[tuple[list[str], str, dict[str, object]]] = [
        (["one/up", "one/bas"], "cli.no_arm_named", {"nearest": "; did you mean base?"}),
        (["one", "one/base"], "cli.no_arm_named", {"arms": "base, up"}),
        (["two/up", "one/base"], "bench.no_records_of_sweep", {}),
        (["one/up", "hot/base"], "cli.evaluations_differ", {"task": "arithmetic"}),
        (["one/up", "failed/base"], "cli.no_cell_of_arm_done", {"label": "failed/base"}),
        ([*UP_AND_BASE, "--metric", "eval.final.pass@3"], "reports.metric_not_comparable", {}),
        ([*UP_AND_BASE, "--metric", "pass@1"], "reports.metric_malformed", {}),
        ([*UP_AND_BASE, "--metric", "eval.final.gsm8k.pass@1"], "reports.metric_of_unknown_task", {}),
        ([*UP_AND_BASE, "--metric", "eval.final.mean_tokens"], "reports.metric_not_comparable", {}),
        ([*UP_AND_BASE, "--metric", "eval.final.arithmetic.truncated_frac"], "reports.metric_not_comparable", {}),
        ([*UP_AND_BASE, "--alpha", "5"], "cli.alpha_out_of_range", {"alpha": 5.0}),
        ([*UP_AND_BASE, "--margin-pp", "inf"], "cli.margin_not_finite", {}),
    ]
    for words, code, fields in refused:
        bench("compare", *words).refused(code, **fields)


@pytest.mark.parametrize("tasks", [["gsm8k"], ["gsm8k", "arithmetic"]])
def test_different_tasks_do_not_compare(bench: Bench, home: Path, tasks: list[str]) -> None:
    write(home, "one", {"up": 0.0}, {}, seeds=3)
    write(home, "other", {"up": 0.0}, {}, seeds=3, tasks=tasks)
    for metric in ([], ["--metric", "eval.final.pass@1"]):
        result = bench("compare", "one/up", "other/up", *metric)
        result.refused("cli.tasks_differ", treatment_task="arithmetic", baseline_task="gsm8k")
    if "arithmetic" in tasks:
        assert bench("compare", "one/up", "other/up", "--metric", "eval.final.arithmetic.pass@1").code == 0


def test_a_task_of_one_name_and_other_rows_does_not_compare(bench: Bench, home: Path) -> None:
    def data(digest: str) -> list[dict[str, str]]:
        splits = {"train": "sha256:same", "test": digest}
        return [{"task": "arithmetic", "split": s, "origin": f"{digest}.jsonl", "digest": d} for s, d in splits.items()]

    for name, digest in (("one", "sha256:1"), ("same", "sha256:1"), ("other", "sha256:2")):
        write(home, name, {"up": 0.0}, {}, seeds=3, data=data(digest))
    write(home, "older", {"up": 0.0}, {}, seeds=3)
    assert bench("compare", "one/up", "same/up").code == bench("compare", "one/up", "older/up").code == 0
    origins = {"treatment_origin": "sha256:1.jsonl", "baseline_origin": "sha256:2.jsonl"}
    bench("compare", "one/up", "other/up").refused("cli.task_rows_differ", **origins)


def test_flagged_cells_and_missing_pairs_are_told(bench: Bench, home: Path) -> None:
    changes: dict[tuple[str, int], dict[str, Any]]
    changes = {("up", 1): {"flags": ["nan"], "score": 0.1}, ("base", 3): {"state": "failed", "reason": "broke"}}
    write(home, "one", {"base": 0.0, "up": 3.0}, {}, seeds=5, changes=changes)
    row = bench("compare", "one/up", "one/base", "--json").document
    assert (row["n_pairs"], [one["seed"] for one in row["missing"]]) == (4, [3])
    frozen("cli/compare_flagged", bench("compare", "one/up", "one/base").out)


def test_unpaired_says_as_much(bench: Bench, home: Path) -> None:
    changes: dict[tuple[str, int], dict[str, Any]]
    changes = {("up", 1): {"flags": ["nan"], "score": 0.1}, ("up", 3): {"state": "failed", "reason": "broke"}}
    changes |= {("up", seed): {"generated_tokens": 400_000} | changes.get(("up", seed), {}) for seed in range(5)}
    one = write(home, "one", {"base": 0.0}, {}, changes={("base", s): {"generated_tokens": 200_000} for s in range(6)})
    other = write(home, "other", {"up": 5.0}, {"up": {"task.template": "boxed"}}, seeds=5, changes=changes)
    row = bench("compare", "other/up", "one/base", "--json").document
    assert (row["token_ratio"], row["equal_tokens"]) == (2.0, False)
    assert (row["flagged_treatment"], row["flagged_baseline"]) == ([1], [])
    assert row["missing"] == [{"arm": "other/up", "seed": 3, "reason": "failed (broke)"}]
    done = [cell for cell in other.cells if cell.seed not in (1, 3)]
    unflagged = [100 * (cell.read_scores()[-1]["metrics"]["pass@1"] or 0.0) for cell in done]
    test = stats.ttest_ind(unflagged, scores(one, "base"), equal_var=False)
    assert row["without_flagged"]["p"] == pytest.approx(test.pvalue)
    frozen("cli/compare_unpaired_flagged", bench("compare", "other/up", "one/base").out)


def test_unpaired_without_spread_or_without_a_side_is_no_verdict(bench: Bench, home: Path) -> None:
    for name, score, settings in (("one", 0.5, {}), ("other", 0.6, {"arm": {"task.template": "boxed"}})):
        write(home, name, {"arm": 0.0}, settings, seeds=3, changes={("arm", s): {"score": score} for s in range(3)})
    row = bench("compare", "other/arm", "one/arm", "--json").document
    assert row["verdict"] == "inconclusive" and row["difference_pp"] == pytest.approx(10.0)
    frozen("cli/compare_no_spread", bench("compare", "other/arm", "one/arm").out)
    flagged = {("up", seed): {"flags": ["nan"]} for seed in range(2)}
    write(home, "third", {"up": 5.0}, {"up": {"task.template": "boxed"}}, seeds=2, changes=flagged)
    frozen("cli/compare_all_flagged", bench("compare", "third/up", "one/arm").out)


def test_folders_that_are_no_cell_of_a_sweep_are_refused(bench: Bench, home: Path, tmp_path: Path) -> None:
    cell = write(home, "one", {"base": 0.0}, {}, seeds=1).cells[0].path
    for name, code in (("copy", "cli.not_a_cell_folder"), (cell.name, "cli.cell_without_sweep")):
        shutil.copytree(cell, tmp_path / "elsewhere" / name)
        bench("compare", tmp_path / "elsewhere" / name, "one/base").refused(code)


def test_a_metric_that_is_no_number_in_any_cell_is_refused(bench: Bench, home: Path) -> None:
    sweep = write(home, "one", {"base": 0.0, "up": 3.0}, {}, seeds=3)
    rewrite_rows(sweep, "scores.jsonl", lambda row: row | {"metrics": row["metrics"] | {"pass@2": None}}, arm="base")
    result = bench("compare", "one/up", "one/base", "--metric", "eval.final.pass@2")
    result.refused("cli.metric_not_finite", label="one/base", metric="eval.final.pass@2")


@pytest.mark.parametrize(
    "verb", [["report", "one"], ["compare", "one/up", "one/base"], ["power", "one", "--effect", "2pp"]]
)
def test_a_sweep_that_compares_by_what_should_be_low_is_refused(bench: Bench, home: Path, verb: list[str]) -> None:
    write(home, "one", {"base": 0.0, "up": 3.0}, {}, seeds=3, metric="eval.final.ece")
    bench(*verb).refused("reports.metric_not_comparable")


def test_an_alpha_that_is_no_level_ends_a_report(bench: Bench, home: Path) -> None:
    file = write(home, "one", {"base": 0.0, "up": 3.0}, {}, seeds=3).path / "sweep.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"alpha": 0}))
    bench("report", "one").refused("records.sweep_damaged")
