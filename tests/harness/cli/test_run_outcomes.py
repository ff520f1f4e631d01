"""What `bench run` says of runs that do not go well, and what the other verbs make of their records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.records import read_sweep
from tests.harness.cli.conftest import Bench
from tests.harness.run.stages_here import without_workers

pytestmark = pytest.mark.slow

SMALL = {
    "train.steps": 3,
    "rollout.prompts_per_step": 4,
    "rollout.samples_per_prompt": 4,
    "eval.problems": 8,
    "eval.samples": 2,
    "eval.every": 0,
    "budget.tokens": "null",
}


def words(settings: dict[str, Any]) -> list[str]:
    return [word for knob, value in (SMALL | settings).items() for word in ("--set", f"{knob}={value}")]


@pytest.fixture(autouse=True)
def _without_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    without_workers(monkeypatch)


def test_completions_that_cannot_fit_are_refused_before_any_cell(bench: Bench, tmp_path: Path) -> None:
    refused = bench("run", "aa", "--seeds", 1, *words({"rollout.max_completion_tokens": 400}))
    # A worker refused it, so only the sentence came back.
    assert refused.code == 2 and "Traceback" not in refused.err
    assert "max_completion_tokens=400" in refused.err and "128" in refused.err
    assert [cell.state for cell in read_sweep(tmp_path / "runs" / "aa").cells] == ["pending", "pending"]

    bench("report", "aa").refused("bench.no_cell_done")

    (tmp_path / "runs" / "aa" / "sweep.json").write_text('{"name": ')
    assert bench("status", "aa").code == 2


def test_a_diverged_arm_is_told_scored_and_kept(bench: Bench, tmp_path: Path) -> None:
    sweep = tmp_path / "wild.yaml"
    sweep.write_text(
        "name: wild\nquestion: Does a wild learning rate hurt?\nprofile: tiny\nablate: [train.learning_rate]\n"
        "base: {algorithm: grpo}\narms: {tame: {}, wild: {train.learning_rate: 1e15}}\nseeds: 1\n"
    )
    result = bench("run", sweep, *words({"train.checkpoint_every": 1, "train.warmup_steps": 0}))
    assert result.code == 0, result.err
    report = json.loads((tmp_path / "runs" / "wild" / "report" / "report.json").read_text())
    assert [arm["n"] for arm in report["arms"]] == [1, 1]
    assert {cell["arm"]: cell["flags"] for cell in report["cells"]} == {"tame": [], "wild": ["nan", "score_collapse"]}


def test_json_is_printed_though_every_cell_failed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.cli.run._unmeasured", lambda records: [record.path.name for record in records])
    result = bench("run", "aa", "--seeds", 1, "--json", *words({}))
    assert result.code == 1
    assert result.document["contrasts"] == []
    assert [cell["arm"] for cell in result.document["cells"]] == ["one", "other"]
