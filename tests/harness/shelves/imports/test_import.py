"""`bench import` and `bench compare` on results of other tools: verdicts, what stays unknown, and the gate."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from harness.records import read_sweep
from reports.measure import analyse
from reports.page.document import verdict_document
from reports.report import Report
from tests.harness.cli.conftest import Bench, bench
from tests.harness.shelves.imports.test_formats import MADE

__all__ = ["bench"]
pytestmark = pytest.mark.slow

LM_EVAL = f"{MADE}/lm_eval/{{arm}}/seed{{seed}}/..."


def write_table(path: Path, right: dict[str, float], seeds: int = 6, problems: int = 30, extra: str = "") -> Path:
    """Each arm right with a chance; extra: columns and values, `config.lr=.1`, for all rows."""
    rng = random.Random(0)
    column, _, value = extra.partition("=")
    lines = [f"arm,seed,problem,correct{f',{column}' if extra else ''}"]
    for arm, chance in right.items():
        for seed in range(seeds):
            for problem in range(problems):
                lines.append(f"{arm},{seed},p{problem},{int(rng.random() < chance)}{f',{value}' if extra else ''}")
    path.write_text("\n".join(lines) + "\n")
    return path


def document_of(name: str) -> Report:
    return verdict_document(analyse(read_sweep(Path("runs") / name)))


def contrasts_of(name: str) -> list[dict[str, Any]]:
    """The contrasts as report.json holds them."""
    contrasts: list[dict[str, Any]] = json.loads(json.dumps(document_of(name).as_json()))["contrasts"]
    return contrasts


def test_seeds_of_a_table_give_the_verdict_of_a_paired_t_test(bench: Bench, tmp_path: Path) -> None:
    path = write_table(tmp_path / "results.csv", {"base": 0.3, "tuned": 0.7})
    result = bench("import", "mine", path, "--json")
    assert result.code == 0, result.err
    assert result.document["unit"] == "seed" and result.document["gate"] == {"ok": None, "differs": []}
    document = document_of("mine")
    (row,), cells = document.contrasts, document.cells
    scores = {arm: [cell.score_pp for cell in cells if cell.arm == arm] for arm in ("base", "tuned")}
    assert (row.verdict, row.n_pairs) == ("better", 6)
    assert row.p == pytest.approx(stats.ttest_rel(scores["tuned"], scores["base"]).pvalue)
    assert row.token_ratio is None and row.tokens_known is False
    assert {cell.generated_tokens for cell in cells} == {None}
    shown = bench("verdict", "mine")
    assert "tokens not compared: their number is unknown" in shown.out


def test_the_page_says_what_is_unknown_and_verifies(bench: Bench, tmp_path: Path) -> None:
    said = bench("import", "mine", write_table(tmp_path / "results.csv", {"base": 0.3, "tuned": 0.7}, problems=5))
    assert said.err.startswith("warning: no settings are known of any run: ")
    assert bench("report", "mine").code == 0
    page = (tmp_path / "runs/mine/report/report.md").read_text()
    assert "| Gate ⚠ | unknown: not all settings of these runs are known |" in page
    assert "| Tokens ⚠ | unknown: how many each arm generated in training was not recorded |" in page
    assert "These runs were made elsewhere." in page
    for unknown in ("| Truncated", "Knobs that differ", "### Cost"):
        assert unknown not in page
    assert "side by side on the same noise" not in (tmp_path / "runs/mine/report/index.html").read_text()
    assert bench("verify", "mine").code == 0
    assert bench("status", "mine").code == 0
    assert bench("clean").code == 0


def test_logs_of_training_give_curves_and_the_entropy_law(bench: Bench, tmp_path: Path) -> None:
    if "BENCH_EXTERNAL" not in os.environ:
        pytest.skip("BENCH_EXTERNAL names no folder with verl_logs")
    logs = Path(os.environ["BENCH_EXTERNAL"]) / "verl_logs"
    refused = bench("import", "verl", logs)
    assert refused.code == 3 and "  data.max_response_length: " in refused.err
    assert bench("import", "verl", logs, "--ablate", "data,actor_rollout_ref,critic").code == 0
    document = bench("report", "verl", "--json").document
    laws = [row for row in document["laws"] if row["target"] == "training reward" and row["seed"] is None]
    assert len(laws) == 3 and all(row["refused"] is None and row["a"] > 0 for row in laws)
    assert {row["verdict"] for row in document["contrasts"]} == {"no_test"}
    figures = {path.stem for path in (tmp_path / "runs/verl/report/figures").glob("*.svg")}
    assert {"learning", "reward", "entropy", "length", "entropy_law"} <= figures


def test_models_without_seeds_are_compared_over_problems(bench: Bench) -> None:
    logs = f"{MADE}/inspect_ai/{{arm}}/..."
    assert bench("import", "logs", logs, "--json").document["unit"] == "problem"
    (imported,) = contrasts_of("logs")
    compared = bench("compare", MADE / "inspect_ai/tuned", MADE / "inspect_ai/base", "--json").document
    assert imported["unit"] == compared["unit"] == "problem"
    for key in ("difference_pp", "low_pp", "high_pp", "p", "n_pairs", "verdict"):
        assert imported[key] == compared[key], key
    assert imported["n_pairs"] == 4
    shown = bench("report", "logs").out
    assert shown.startswith("pass@1 of arithmetic\n") and ", 4 problems, 4.0 tokens" in shown
    assert "unknown" in bench("status", "logs").out
    sentence = bench("verdict", "logs").out
    assert "over new problems of this kind and new samples" in sentence and "4.0 tokens per answer in both" in sentence


def test_an_evaluation_that_was_done_otherwise_is_named(bench: Bench, tmp_path: Path) -> None:
    shutil.copytree(MADE / "lm_eval", tmp_path / "out")
    for seed in (1, 0, 2):
        (path,) = (tmp_path / f"out/tuned/seed{seed}").glob("results_*.json")
        document = json.loads(path.read_text())
        document["configs"]["sums"]["num_fewshot"] = 5
        path.write_text(json.dumps(document))
        declared = ("--ablate", "eval.sums.num_fewshot", "--co-change", "eval.sums.num_fewshot=why")
        result = bench("import", "few", "out/{arm}/seed{seed}/...", *declared)
        assert result.code == 3
        assert "runs were measured differently" in result.err
        assert ("tuned seed 0 = 1, tuned seed 1 = 5" in result.err) == (seed == 1)
    assert "  eval.sums.num_fewshot: base = 1, tuned = 5\n" in result.err
    assert not (tmp_path / "runs/few").exists()
    compared = bench("compare", "out/tuned/seed1", f"{MADE}/lm_eval/base/seed1")
    assert compared.code == 2 and "eval.sums.num_fewshot (5 against 1)" in compared.err
    assert bench("import", "few", LM_EVAL).code == 0


def test_settings_that_differ_must_be_declared(bench: Bench, tmp_path: Path) -> None:
    for arm, rate in (("base", 0.1), ("tuned", 0.2)):
        write_table(tmp_path / f"{arm}.csv", {arm: 0.5}, extra=f"config.optimizer.lr={rate}")
        (tmp_path / f"{arm}.yaml").write_text(f"{{batch: {{size: {8 if arm == 'base' else 16}}}, seed: 1}}")
    refused = bench("import", "mine", "base.csv", "tuned.csv")
    assert refused.code == 3
    assert "  optimizer.lr: base = '0.1', tuned = '0.2'" in refused.err and "--ablate KNOB" in refused.err
    declared = ("import", "mine", "base.csv", "tuned.csv", "--ablate", "optimizer")
    assert bench(*declared, "--json").document["gate"] == {"ok": True, "differs": ["optimizer.lr"]}
    hidden = bench(*declared, "--configs", "{arm}.yaml")
    assert hidden.code == 3 and "  batch.size: base = 8, tuned = 16" in hidden.err
    reason = bench(*declared, "--configs", "{arm}.yaml", "--co-change", "batch.size=memory", "--json")
    assert reason.document["gate"] == {"ok": True, "differs": ["optimizer.lr", "batch.size"]}
    assert read_sweep(tmp_path / "runs/mine").varied["tuned"] == {"optimizer.lr": "0.2", "batch.size": 16}
    row = bench("compare", "tuned.csv", "base.csv", "--json").document
    assert row["differs"] == [{"knob": "optimizer.lr", "treatment": "0.2", "baseline": "0.1"}]
    assert (row["paired"], row["n_pairs"]) == (True, 6)


def test_a_setting_that_differs_between_seeds_of_an_arm_is_refused(bench: Bench, tmp_path: Path) -> None:
    write_table(tmp_path / "0.csv", {"a": 0.5, "b": 0.5}, seeds=1, extra="config.lr=1")
    lines = write_table(tmp_path / "1.csv", {"a": 0.5, "b": 0.5}, seeds=1, extra="config.lr=2").read_text()
    (tmp_path / "1.csv").write_text(lines.replace("a,0,", "a,1,").replace("b,0,", "b,1,"))
    result = bench("import", "mine", "0.csv", "1.csv", "--ablate", "lr")
    assert result.code == 3 and "lr: a seed 0 = '1', b seed 0 = '1', a seed 1 = '2', b seed 1 = '2'" in result.err


def test_importing_again_replaces_the_records_and_counts_as_a_look(bench: Bench, tmp_path: Path) -> None:
    path = write_table(tmp_path / "results.csv", {"base": 0.3, "tuned": 0.7}, seeds=4)
    bench("import", "mine", path)
    first = document_of("mine").contrasts[0]
    bench("verdict", "mine")
    write_table(path, {"base": 0.3, "tuned": 0.7}, seeds=6)
    assert bench("import", "mine", path).code == 0
    assert len([*(tmp_path / "runs/mine/cells").iterdir()]) == 12
    second = document_of("mine").contrasts[0]
    assert first.look is None and second.look is not None and second.look.seeds == [4, 6]


def test_records_of_runs_and_imports_do_not_replace_each_other(bench: Bench, tmp_path: Path) -> None:
    path = write_table(tmp_path / "results.csv", {"base": 0.3, "tuned": 0.7})
    (tmp_path / "runs/theirs").mkdir(parents=True)
    taken = bench("import", "theirs", path)
    assert taken.code == 2 and "was not made by `bench import`" in taken.err
    bench("import", "std_norm", path)
    bench("import", "mine", path)
    for verb, asked in (("run", "mine"), ("plan", "mine"), ("run", "runs/mine")):
        refused = bench(verb, asked)
        assert refused.code == 2 and "`bench import` made records of, which cannot be run" in refused.err
    run = bench("run", "std_norm", "--profile", "tiny")
    assert run.code == 2 and "`bench import` made records of" in run.err
    cell = next((tmp_path / "runs/std_norm/cells").iterdir())
    evaluated = bench("eval", cell)
    assert evaluated.code == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("mine", "nowhere.csv"), "nowhere.csv: is not there"),
        (("mine", "{arm}/x.csv"), "matches no file"),
        (("mine", "{run}.csv"), "is no pattern"),
        (("mine", "notes.txt"), "is of no format"),
        (("mine", "empty"), "holds no file of a format"),
        (("a/b", "r.csv"), "is no name of a folder"),
        (("mine", "r.csv", "--baseline", "bas"), "--baseline is 'bas', which no run is of; did you mean base?"),
        (("mine", "r.csv", "--metric", "eval.final.results.pass@4"), "has no eval.final.results.pass@4"),
        (("mine", "r.csv", "--runs", "{arm}-{seed}"), "the run 'r' does not match --runs {arm}-{seed}"),
        (("mine", "r.csv", "--co-change", "lr"), "must be KNOB=WHY"),
        (("mine", "r.csv", "--format", "tables"), "unknown format 'tables'; did you mean table?"),
        (("mine", "loss.csv"), "which metric compares the arms is not clear"),
        (("mine", "percent.csv"), "accuracy is 41.2, but arms are compared by a fraction in [0, 1] of which more"),
        (("mine", "columns.csv"), "columns.csv: has no column metric. It has Arm, right."),
    ],
)
def test_what_cannot_be_imported_is_refused_in_a_sentence(
    bench: Bench, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    write_table(tmp_path / "r.csv", {"base": 0.3, "tuned": 0.7}, seeds=1, problems=2)
    (tmp_path / "loss.csv").write_text("arm,seed,metric,value\na,0,loss,3.5\n")
    (tmp_path / "percent.csv").write_text("arm,seed,metric,value\na,0,accuracy,41.2\n")
    (tmp_path / "columns.csv").write_text("Arm,right\na,1\n")
    (tmp_path / "notes.txt").write_text("nothing")
    (tmp_path / "empty").mkdir()
    result = bench("import", *words)
    assert result.code == 2 and message in result.err
    assert not (tmp_path / "runs/mine").exists()


def test_two_files_on_different_problems_or_of_several_arms_do_not_compare(bench: Bench, tmp_path: Path) -> None:
    write_table(tmp_path / "few.csv", {"a": 0.5}, problems=4)
    write_table(tmp_path / "many.csv", {"b": 0.5}, problems=6)
    fewer = bench("compare", "few.csv", "many.csv")
    assert fewer.code == 2 and "few.csv: has no sample of problem p4 (2 such problems)" in fewer.err
    write_table(tmp_path / "both.csv", {"a": 0.5, "b": 0.5})
    both = bench("compare", "both.csv", "many.csv")
    assert both.code == 2 and "holds the arms a, b" in both.err


def test_runs_that_end_at_different_steps_are_said_to(bench: Bench, tmp_path: Path) -> None:
    rows = "arm,seed,metric,value,step\na,0,acc,0.5,10\na,0,acc,0.9,100\nb,0,acc,0.5,10\nb,0,acc,0.7,{}\n"
    for last, is_said in ((60, True), (100, False)):
        (tmp_path / "r.csv").write_text(rows.format(last))
        result = bench("import", "mine", "r.csv")
        assert result.code == 0
        assert ("b seed 0 was last evaluated after step 60, a seed 0 after step 100" in result.err) == is_said


def test_a_seed_that_one_arm_lacks_is_named(bench: Bench, tmp_path: Path) -> None:
    text = write_table(tmp_path / "whole.csv", {"a": 0.5, "b": 0.5}, seeds=3, problems=2).read_text()
    (tmp_path / "partial.csv").write_text("".join(row for row in text.splitlines(True) if not row.startswith("b,2,")))
    whole, partial = (bench("import", name, f"{name}.csv") for name in ("whole", "partial"))
    assert (whole.code, partial.code) == (0, 0)
    assert "b has no seed 2: arms are paired over the seeds that both have" in " ".join(partial.err.split())
    assert "has no seed" not in whole.err
    (tmp_path / "one.csv").write_text("arm,metric,value\na,acc,0.5\nb,acc,0.9\n")
    untested = bench("import", "one", "one.csv")
    assert "2 cells, arms a, b; one run per arm, so no difference can be tested" in untested.out
