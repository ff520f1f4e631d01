"""Core without its shelves: deleting every shelf leaves a bench that plans, runs and reports."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness import OUR_PACKAGES

ROOT = Path(__file__).parents[1]
PROGRAM = "from harness.cli import main; main()"


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project without shelves."""
    folder = tmp_path_factory.mktemp("core")
    for package in OUR_PACKAGES:
        ignored = shutil.ignore_patterns("shelves", "elsewhere", "__pycache__")
        shutil.copytree(ROOT / package, folder / package, ignore=ignored)
    return folder


def bench(core: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(core), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, cwd=core, env=environment
    )


def test_core_lists_plans_and_refuses_without_shelves(core: Path) -> None:
    assert json.loads(bench(core, "ls", "trainers", "--json").stdout)[0]["name"] == "bench"
    assert bench(core, "ls", "dialects").returncode == 0
    planned = bench(core, "plan", "std_norm", "--json")
    assert planned.returncode == 0, planned.stderr
    for what in ("trainer.type=trl", "task.train=programs", "reward.grader=judge.yaml"):
        asked_for_it = bench(core, "plan", "std_norm", "--set", what)
        assert asked_for_it.returncode == 2
        assert "Traceback" not in asked_for_it.stderr
    for part, option in (("reward_model", "steps=3"), ("pairwise", "tie=0.5")):
        weighed = bench(core, "plan", "std_norm", "--set", f"reward.parts.{part}=1", "--set", f"reward.{part}.{option}")
        assert weighed.returncode == 2
        assert f"unknown reward part '{part}'" in weighed.stderr
        assert "Traceback" not in weighed.stderr
    assert bench(core, "eval", "builtin:tiny", "--tasks", "arithmetic", "--memorisation").returncode == 2
    assert bench(core, "ui").returncode == 2
    (core / "results.csv").write_text("arm,seed,score\n", encoding="utf-8")
    assert bench(core, "compare", "results.csv", "results.csv").returncode == 2


@pytest.mark.slow
def test_core_runs_and_reports_std_norm_without_shelves(core: Path) -> None:
    small = ("--seeds", "1", "--set", "train.steps=2", "--set", "eval.samples=2")
    ran = bench(core, "run", "std_norm", *small, "--home", "runs")
    assert ran.returncode == 0, ran.stderr
    reported = bench(core, "report", "std_norm", "--home", "runs", "--json")
    assert reported.returncode == 0, reported.stderr
    assert (core / "runs" / "std_norm" / "report" / "index.html").is_file()
