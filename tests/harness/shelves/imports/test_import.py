"""`bench import` and `bench compare` on results of other tools: verdicts, what stays unknown, and the gate."""

from __future__ import annotations

import json
import random
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from harness.records import read_sweep
from reports.measure import analyse
from reports.page.document import verdict_document
from reports.report import Report
from tests.harness.cli.conftest import Bench, Result, bench
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


def test_the_page_says_what_is_unknown_and_verifies(bench: Bench, tmp_path: Path) -> None:
    bench("import", "mine", write_table(tmp_path / "results.csv", {"base": 0.3, "tuned": 0.7}, problems=5))
    for verb in ("report", "verify", "status"):
        assert bench(verb, "mine").code == 0
    assert bench("clean").code == 0
    page = (tmp_path / "runs/mine/report/report.md").read_text()
    for row in ("Settings", "Tokens"):
        assert re.search(rf"^\| {row} ⚠ \| unknown", page, re.MULTILINE)
    assert [row for row in ("| Truncated", "### Cost") if row in page] == []


def test_models_without_seeds_are_compared_over_problems(bench: Bench) -> None:
    assert bench("import", "logs", f"{MADE}/inspect_ai/{{arm}}/...", "--json").document["unit"] == "problem"
    (imported,) = contrasts_of("logs")
    compared = bench("compare", MADE / "inspect_ai/tuned", MADE / "inspect_ai/base", "--json").document
    for key in ("unit", "difference_pp", "low_pp", "high_pp", "p", "n_pairs", "verdict"):
        assert imported[key] == compared[key], key
    assert (imported["unit"], imported["n_pairs"]) == ("problem", 4)
    for verb in ("report", "status", "verdict"):
        assert bench(verb, "logs").code == 0


def test_an_evaluation_that_was_done_otherwise_is_named(bench: Bench, tmp_path: Path) -> None:
    shutil.copytree(MADE / "lm_eval", tmp_path / "out")
    for seed in (1, 0, 2):
        (path,) = (tmp_path / f"out/tuned/seed{seed}").glob("results_*.json")
        document = json.loads(path.read_text())
        document["configs"]["sums"]["num_fewshot"] = 5
        path.write_text(json.dumps(document))
        declared = ("--ablate", "eval.sums.num_fewshot", "--co-change", "eval.sums.num_fewshot=why")
        result = bench("import", "few", "out/{arm}/seed{seed}/...", *declared)
        assert result.code == 3, "what is measured differently is no knob"
        values = re.search(r"^  eval\.sums\.num_fewshot: (.*)$", result.err, re.MULTILINE)
        assert values is not None and values[1].endswith("tuned = 5") == (seed == 2)
    assert not (tmp_path / "runs/few").exists()
    compared = bench("compare", "out/tuned/seed1", f"{MADE}/lm_eval/base/seed1")
    assert compared.code == 2 and "eval.sums.num_fewshot" in compared.err
    assert bench("import", "few", LM_EVAL).code == 0


def test_settings_that_differ_must_be_declared(bench: Bench, tmp_path: Path) -> None:
    for arm, rate in (("base", 0.1), ("tuned", 0.2)):
        write_table(tmp_path / f"{arm}.csv", {arm: 0.5}, extra=f"config.optimizer.lr={rate}")
        (tmp_path / f"{arm}.yaml").write_text(f"{{batch: {{size: {8 if arm == 'base' else 16}}}, seed: 1}}")
    refused = bench("import", "mine", "base.csv", "tuned.csv")
    assert refused.code == 3 and "  optimizer.lr: " in refused.err
    declared = ("import", "mine", "base.csv", "tuned.csv", "--ablate", "optimizer")
    assert bench(*declared, "--json").document["gate"] == {"ok": True, "differs": ["optimizer.lr"]}
    hidden = bench(*declared, "--configs", "{arm}.yaml")
    assert hidden.code == 3 and "  batch.size: " in hidden.err
    reason = bench(*declared, "--configs", "{arm}.yaml", "--co-change", "batch.size=memory", "--json")
    assert reason.document["gate"] == {"ok": True, "differs": ["optimizer.lr", "batch.size"]}
    assert read_sweep(tmp_path / "runs/mine").varied["tuned"] == {"optimizer.lr": "0.2", "batch.size": 16}
    row = bench("compare", "tuned.csv", "base.csv", "--json").document
    assert row["differs"] == [{"knob": "optimizer.lr", "treatment": "0.2", "baseline": "0.1"}]
    assert (row["paired"], row["n_pairs"]) == (True, 6)

    # Between the seeds of an arm nothing may differ, declared or not.
    for seed in (0, 1):
        lines = write_table(tmp_path / f"{seed}.csv", {"a": 0.5, "b": 0.5}, seeds=1, extra=f"config.lr={seed}")
        lines.write_text(lines.read_text().replace(",0,p", f",{seed},p"))
    assert bench("import", "mine", "0.csv", "1.csv", "--ablate", "lr").code == 3


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
    assert code_of(bench("import", "theirs", path)) == "shelves.imports.folder_taken"
    bench("import", "std_norm", path)
    bench("import", "mine", path)
    for verb, asked in (("run", "mine"), ("plan", "mine"), ("run", "runs/mine")):
        assert code_of(bench(verb, asked)) == "plan.results_were_imported"
    assert code_of(bench("run", "std_norm", "--profile", "tiny")) == "run.folder_of_imports"
    cell = next((tmp_path / "runs/std_norm/cells").iterdir())
    assert bench("eval", cell).code == 2


def code_of(refused: Result) -> str:
    assert refused.code == 2 and refused.error is not None
    return refused.error.code


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("mine nowhere.csv", "source_missing"),
        ("mine {arm}/x.csv", "pattern_matches_nothing"),
        ("mine {run}.csv", "not_a_pattern"),
        ("mine notes.txt", "unknown_format"),
        ("mine empty", "folder_without_sources"),
        ("a/b r.csv", "not_a_folder_name"),
        ("mine r.csv --baseline bas", "unknown_baseline"),
        ("mine r.csv --metric eval.final.results.pass@4", "no_such_metric"),
        ("mine r.csv --runs {arm}-{seed}", "name_does_not_match"),
        ("mine r.csv --co-change lr", "co_change_without_reason"),
        ("mine r.csv --format tables", "bench.unknown_name"),
        ("mine loss.csv", "metric_not_clear"),
        ("mine percent.csv", "metric_not_a_fraction"),
        ("mine columns.csv", "no_column"),
    ],
)
def test_what_cannot_be_imported_is_refused(bench: Bench, tmp_path: Path, words: str, code: str) -> None:
    write_table(tmp_path / "r.csv", {"base": 0.3, "tuned": 0.7}, seeds=1, problems=2)
    (tmp_path / "loss.csv").write_text("arm,seed,metric,value\na,0,loss,3.5\n")
    (tmp_path / "percent.csv").write_text("arm,seed,metric,value\na,0,accuracy,41.2\n")
    (tmp_path / "columns.csv").write_text("Arm,right\na,1\n")
    (tmp_path / "notes.txt").write_text("nothing")
    (tmp_path / "empty").mkdir()
    assert code_of(bench("import", *words.split())) == (code if "." in code else f"shelves.imports.{code}")
    assert not (tmp_path / "runs/mine").exists()


def test_two_files_on_different_problems_or_of_several_arms_do_not_compare(bench: Bench, tmp_path: Path) -> None:
    write_table(tmp_path / "few.csv", {"a": 0.5}, problems=4)
    write_table(tmp_path / "many.csv", {"b": 0.5}, problems=6)
    write_table(tmp_path / "both.csv", {"a": 0.5, "b": 0.5})
    fewer = bench("compare", "few.csv", "many.csv")
    assert code_of(fewer) == "cli.problem_not_sampled"
    assert fewer.error is not None and (fewer.error.fields["problem"], fewer.error.fields["n_problems"]) == ("p4", 2)
    assert code_of(bench("compare", "both.csv", "many.csv")) == "cli.several_arms_imported"


def test_runs_that_end_at_different_steps_are_said_to(bench: Bench, tmp_path: Path) -> None:
    rows = "arm,seed,metric,value,step\na,0,acc,0.5,10\na,0,acc,0.9,100\nb,0,acc,0.5,10\nb,0,acc,0.7,{}\n"
    for last in (60, 100):
        (tmp_path / "r.csv").write_text(rows.format(last))
        result = bench("import", "mine", "r.csv")
        assert result.code == 0
        assert bool(re.search(r"\bstep 60\b.*\bstep 100\b", result.err)) == (last == 60)


def test_a_seed_that_one_arm_lacks_is_named(bench: Bench, tmp_path: Path) -> None:
    text = write_table(tmp_path / "whole.csv", {"a": 0.5, "b": 0.5}, seeds=3, problems=2).read_text()
    (tmp_path / "partial.csv").write_text("".join(row for row in text.splitlines(True) if not row.startswith("b,2,")))
    for name in ("whole", "partial"):
        result = bench("import", name, f"{name}.csv")
        assert result.code == 0
        assert ("seed 2" in " ".join(result.err.split())) == (name == "partial")
    (tmp_path / "one.csv").write_text("arm,metric,value\na,acc,0.5\nb,acc,0.9\n")
    assert bench("import", "one", "one.csv").code == 0
    assert document_of("one").contrasts[0].verdict == "no_test"
