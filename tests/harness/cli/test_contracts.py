"""What programs rely on: the keys of --json documents, one document on stdout, --json and --home after every verb."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer

from algorithms import describe, presets
from harness.cli.app import app
from harness.plan import make_plan
from harness.plan.sweep_file import SHIPPED, load_sweep, shipped
from harness.records.files import append_jsonl
from tests.frozen import frozen
from tests.harness.cli.conftest import Bench
from tests.harness.plan.files import finish, write_sweep_file
from tests.reports.synthetic import write_sweep

VERBS = {"run", "plan", "status", "report", "compare", "power", "replay", "eval", "ls", "show", "diff", "cp", "probe"}
VERBS |= {"coldstart", "sync", "doctor", "selftest", "tune", "freeze", "verify", "verdict", "ui", "clean", "worker"}
VERBS |= {"import", "export"}


def options(verb: str) -> set[str]:
    command: Any = typer.main.get_command(app)
    return {name for parameter in command.commands[verb].params for name in parameter.opts}


def test_the_verbs() -> None:
    command: Any = typer.main.get_command(app)
    assert set(command.commands) == VERBS


def test_help_lists_every_verb_in_a_group_on_a_line_of_its_own(bench: Bench) -> None:
    out = bench("--help").out
    lines = [line.split()[0] for line in out[out.index("Ask:") :].splitlines() if line.startswith("  ")]
    assert sorted(lines) == sorted(VERBS), "nothing is wrapped, and each verb is in one group"
    frozen("cli/help", out)


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_help_of_a_verb_fits_a_terminal_and_has_an_example(bench: Bench, verb: str) -> None:
    out = bench(verb, "--help").out
    assert max(map(len, out.splitlines())) <= 80
    assert f"Example: bench {verb} " in " ".join(out.split()) or f"Example: bench {verb}\n" in out
    assert {"--json", "--home"} <= options(verb)
    if verb in ("run", "worker", "plan", "freeze"):
        assert {"--profile", "--set", "--seeds", "--arms"} <= options(verb)


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_the_words_of_a_report_are_an_option(bench: Bench, tmp_path: Path) -> None:
    write_sweep(tmp_path / "runs" / "made", {"base": 0.0}, seeds=1)
    document = bench("report", "made", "--reflection-words", "wait, sum of", "--json").document
    assert [row["word"] for row in document["reflection"]][1:] == ["wait", "sum of"]
    assert [row["word"] for row in bench("report", "made", "--json").document["reflection"]][1:] == ["Wait"]
    bench("report", "made", "--reflection-words", ",").refused("cli.not_a_name_list", option="--reflection-words")


def test_plan(bench: Bench, tmp_path: Path) -> None:
    result = bench("plan", "std_norm", "--seeds", "2", "--json")
    assert (result.code, result.err) == (0, "")
    document = result.document
    assert set(document) == {
        "sweep", "profile", "cells", "searches", "gate", "noops", "warnings", "cost", "time", "screening",
        "leave_one_out", "detectable_pp", "checkpoint", "changes"
    }  # fmt: skip
    assert (document["sweep"], document["profile"]) == ("std_norm", "tiny")
    cells = make_plan("std_norm", seeds=2).cells
    assert document["cells"] == [
        {"arm": cell.arm, "seed": cell.seed, "hash": cell.hash, "state": "pending", "lacks": "training"}
        | {"evaluation": cell.evaluation}
        for cell in cells
    ]
    assert document["gate"]["ok"] is True
    assert "objective.scale" in document["gate"]["differs"]
    assert document["gate"]["violations"] == []
    assert len(document["warnings"]) == 1
    bounds = {"generated_tokens_at_most", "scored_tokens_at_most", "teacher_tokens_at_most", "eval_samples_at_most"}
    assert set(document["cost"]) == {"cells", "memory", *bounds}
    assert document["time"] is None
    assert {"value", "from"} <= set(document["detectable_pp"])
    assert list(tmp_path.iterdir()) == []


def test_plan_counts_what_is_there(bench: Bench, tmp_path: Path) -> None:
    """Finished cells are known by their hash, and their spread replaces the assumed one."""
    sweep = write_sweep_file(tmp_path)
    planned = make_plan(str(sweep))
    finals = {"with": [0.50, 0.52, 0.51], "without": [0.53, 0.56, 0.57]}
    for cell in planned.cells:
        if cell.seed < 3:
            record = finish(cell, planned.folder(tmp_path / "home"))
            score = finals[cell.arm][cell.seed]
            final = {"step": 1, "final": True, "task": "arithmetic", "generated_tokens": 1}
            final |= {"metrics": {"pass@1": score}}
            others = [final | {"final": False, "metrics": {"pass@1": 0.1}}, final | {"task": "gsm8k"}]
            append_jsonl(record.path / "scores.jsonl", [final, *others])
    assumed = bench("plan", sweep, "--json").document["detectable_pp"]
    assert (assumed["from"], assumed["sd_pp"]) == ("profile tiny", 0.8)
    document = bench("plan", sweep, "--home", "home", "--json").document
    assert [cell["state"] for cell in document["cells"]] == (["done"] * 3 + ["pending"] * 9) * 2
    known = document["detectable_pp"]
    assert known["from"] == "finished cells"
    # Differences of 3, 4 and 6 points.
    assert known["sd_pp"] == pytest.approx((7 / 3) ** 0.5)
    assert known["value"] == pytest.approx(assumed["value"] * known["sd_pp"] / 0.8)


def test_plan_for_people(bench: Bench) -> None:
    out = bench("plan", "std_norm", "--seeds", "2", "--set", "eval.problems=null").out
    assert max(len(line) for line in out.splitlines() if line.startswith("warning")) > 80, "never wrapped"
    lines = [line for line in out.splitlines() if not line.startswith("memory: ")]
    frozen("cli/plan", re.sub(r"\b[0-9a-f]{10}\b", "HASH......", "\n".join(lines)))


def test_a_plan_across_families_is_readable(bench: Bench) -> None:
    (gate,) = [line for line in bench("plan", "dpo_vs_grpo").out.splitlines() if line.startswith("gate: ")]
    differs = bench("plan", "dpo_vs_grpo", "--json").document["gate"]["differs"]
    assert f" objective ({sum('objective.' in knob for knob in differs)} knobs" in gate and "rollout.sampler" in gate


def test_status(bench: Bench, tmp_path: Path) -> None:
    failed = {("other", 1): {"state": "failed", "reason": "why", "digest": None, "step": 7}}
    sweep = write_sweep(tmp_path / "home" / "mine", {"one": 0.0, "other": 1.0}, seeds=2, changes=failed)
    result = bench("status", "mine", "--home", "home", "--json")
    assert (result.code, result.err) == (0, "")
    document = result.document
    assert {"sweep", "cells", "other_cells", "searches"} == set(document)
    keys = {"arm", "seed", "hash", "state", "lacks", "step", "steps", "digest", "path", "reason", "flags"}
    assert all(set(cell) == keys for cell in document["cells"])
    done, broken = document["cells"][0], document["cells"][3]
    assert done["digest"] == sweep.cells[0].digest
    assert done["state"] == "done"
    assert Path(done["path"]) == Path("home/mine/cells") / sweep.cells[0].path.name
    # How far a cell is that has not finished, its steps tell.
    assert (broken["arm"], broken["seed"], broken["state"], broken["reason"]) == ("other", 1, "failed", "why")
    assert broken["step"] == len(sweep.cells[3].read_steps())
    frozen("cli/status", bench("status", "mine", "--home", "home").out)


@pytest.mark.parametrize("tokens", [1000, 999])
def test_status_names_a_budget_that_was_reached(bench: Bench, tmp_path: Path, tokens: int) -> None:
    """Where the budget is not used up, something else did, such as divergence."""
    write_sweep(tmp_path / "home" / "mine", {"one": 0.0}, seeds=1)
    (cell,) = (tmp_path / "home" / "mine" / "cells").iterdir()
    for file, changes in {
        tmp_path / "home" / "mine" / "sweep.json": {"budget_tokens": 1000},
        cell / "status.json": {"step": 31, "steps": 120, "generated_tokens": tokens},
    }.items():
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    out = bench("status", "mine", "--home", "home").out
    assert ("31/120" in out) == (tokens == 999)
    assert ("budget" in out) == (tokens == 1000)


def test_status_of_a_sweep_file_and_of_bench_home(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_sweep(tmp_path / "elsewhere" / "mine", {"one": 0.0}, seeds=1)
    monkeypatch.setenv("BENCH_HOME", "elsewhere")
    path = write_sweep_file(tmp_path)
    assert bench("status", path, "--json").document == bench("status", "mine", "--json").document
    bench("status", "mnie").refused("bench.no_records_of_sweep")


def test_status_lists_cells_of_other_questions_apart(bench: Bench, tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "runs" / "mine", {"one": 0.0}, seeds=1).path
    (folder / "cells" / "older-s4-0123456789").mkdir()
    (folder / "cells" / ".DS_Store").touch()
    document = bench("status", "mine", "--json").document
    assert [cell["arm"] for cell in document["cells"]] == ["one"]
    assert [cell["arm"] for cell in document["other_cells"]] == ["older"]


@pytest.mark.parametrize("what", ["sweeps", "profiles", "algorithms", "tasks", "knobs", "figures"])
def test_ls(bench: Bench, what: str) -> None:
    result = bench("ls", what, "--json")
    assert (result.code, result.err) == (0, "")
    more = {"type", "default", "range"} if what == "knobs" else set()
    assert all(set(row) == {"name", "description", "from"} | more for row in result.document)
    names = [row["name"] for row in result.document]
    known = {"sweeps": "std_norm", "profiles": "tiny", "algorithms": "grpo", "tasks": "gsm8k", "knobs": "train.steps"}
    known |= {"figures": "forest"}
    assert known[what] in names
    listed = bench("ls", what).out
    assert all(name in listed for name in names)


def test_ls_lists_sweeps_unless_told_otherwise(bench: Bench) -> None:
    assert bench("ls", "--json").document == bench("ls", "sweeps", "--json").document
    assert {row["name"]: row["description"] for row in bench("ls", "--json").document} == {
        name: load_sweep(name)[0].question for name in shipped(SHIPPED)
    }


def test_ls_algorithms_and_knobs_say_what_they_are(bench: Bench) -> None:
    listed = bench("ls", "algorithms", "--json").document
    assert [row["name"] for row in listed] == list(presets())
    assert all(row["description"].endswith(describe(row["name"]).summary) for row in listed)
    of_pairs = [row["name"] for row in listed if row["description"].startswith("from pairs: ")]
    assert of_pairs == list(presets("preference"))
    knobs = {row["name"]: row["description"] for row in bench("ls", "knobs", "--json").document}
    assert all(text for knob, text in knobs.items() if knob.startswith("objective."))
    assert "1 + clip_high" in knobs["objective.rule.clip_high"]


def test_ls_runs(bench: Bench, tmp_path: Path) -> None:
    empty = bench("ls", "runs")
    assert (empty.code, empty.out) == (0, "") and empty.err
    assert bench("ls", "runs", "--json").document == []
    failed = {("one", 1): {"state": "failed"}}
    write_sweep(tmp_path / "runs" / "mine", {"one": 0.0}, seeds=2, changes=failed)
    (row,) = bench("ls", "runs", "--json").document
    assert row["name"] == "mine"
    assert row["description"].startswith("1/2 ")


def test_show_a_sweep_and_a_profile(bench: Bench, tmp_path: Path) -> None:
    sweep = bench("show", "std_norm", "--json").document
    assert {"name", "question", "profile", "ablate", "arms", "seeds", "compare"} <= set(sweep)
    assert sweep["compare"]["alpha"] == 0.05
    assert bench("show", write_sweep_file(tmp_path), "--json").document["name"] == "mine"
    profile = bench("show", "tiny", "--json").document
    assert profile["profile"] == "tiny"
    assert profile["model"] == {"source": "builtin:tiny"}


def test_cp(bench: Bench, tmp_path: Path) -> None:
    original = shipped(SHIPPED)["std_norm"].read_bytes()
    result = bench("cp", "std_norm", "mine.yaml", "--json", "--home", "anywhere")
    assert (result.code, result.document) == (0, {"path": "mine.yaml"})
    assert (tmp_path / "mine.yaml").read_bytes() == original
    told = [bench("cp", "std_norm").out, bench("cp", "tiny", ".").out, bench("cp", "tune_grpo").out]
    assert (tmp_path / "std_norm.yaml").read_bytes() == original
    frozen("cli/cp", "".join(told))
    # What was copied is the same question.
    assert bench("plan", "mine.yaml", "--json").document == bench("plan", "std_norm", "--json").document


@pytest.mark.usefixtures("no_figures")
def test_report(bench: Bench, tmp_path: Path) -> None:
    write_sweep(tmp_path / "runs" / "mine", {"one": 0.0, "other": 3.0}, seeds=4)
    result = bench("report", "mine", "--json")
    assert result.code == 0
    assert {"contrasts", "arms", "cells"} <= set(result.document)
    (contrast,) = result.document["contrasts"]
    keys = {"arm", "baseline", "metric", "difference_pp", "low_pp", "high_pp", "p", "p_holm", "p_sign_flip", "verdict"}
    assert keys | {"n_pairs", "correlation", "detectable_pp"} <= set(contrast)
    for page in ("index.html", "samples.html"):
        assert (tmp_path / "runs" / "mine" / "report" / page).is_file()
