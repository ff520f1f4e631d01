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
PROGRAM = """
import contextlib, io, json, sys, traceback
from harness.cli import main
for words in json.loads(sys.argv[1]):
    sys.argv, code = ["bench", *words], 0
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            main()
        except SystemExit as left:
            code = left.code or 0
        except BaseException:
            traceback.print_exc()
            code = -1
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project without shelves."""
    folder = tmp_path_factory.mktemp("core")
    for package in OUR_PACKAGES:
        ignored = shutil.ignore_patterns("shelves", "elsewhere", "__pycache__")
        shutil.copytree(ROOT / package, folder / package, ignore=ignored)
    return folder


def bench(core: Path, *commands: str) -> list[tuple[int, str, str]]:
    """Run the commands in one process; return exit code, stdout and stderr of each."""
    environment = os.environ | {"PYTHONPATH": str(core), "OMP_NUM_THREADS": "1"}
    argv = [sys.executable, "-c", PROGRAM, json.dumps([command.split() for command in commands])]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=core, env=environment)
    assert done.returncode == 0, done.stderr
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


WHAT_SHELVES_HAVE = (
    *("plan std_norm --set trainer.type=trl", "plan std_norm --set task.train=programs"),
    "plan std_norm --set reward.grader=judge.yaml",
    "plan std_norm --set reward.parts.reward_model=1 --set reward.reward_model.steps=3",
    "plan std_norm --set reward.parts.pairwise=1 --set reward.pairwise.tie=0.5",
    "eval builtin:tiny --tasks arithmetic --memorisation",
    "ui",
    "compare results.csv results.csv",
)


@pytest.mark.slow
def test_core_lists_plans_and_refuses_without_shelves(core: Path) -> None:
    (core / "results.csv").write_text("arm,seed,score\n", encoding="utf-8")
    trainers, dialects, planned, *refused = bench(
        core, "ls trainers --json", "ls dialects", "plan std_norm --json", *WHAT_SHELVES_HAVE
    )
    assert json.loads(trainers[1])[0]["name"] == "bench"
    assert (dialects[0], planned[0]) == (0, 0), planned
    assert json.loads(planned[1])["cells"]
    for command, (code, _, err) in zip(WHAT_SHELVES_HAVE, refused, strict=True):
        assert code == 2 and "Traceback" not in err, f"{command}: {err}"
    for part, (_, _, err) in zip(("reward_model", "pairwise"), refused[3:5], strict=True):
        assert f"'{part}'" in err


@pytest.mark.slow
def test_core_runs_and_reports_std_norm_without_shelves(core: Path) -> None:
    small = "--seeds 1 --set train.steps=2 --set eval.samples=2 --home runs"
    for code, _, err in bench(core, f"run std_norm {small}", "report std_norm --home runs --json"):
        assert code == 0, err
    assert (core / "runs" / "std_norm" / "report" / "index.html").is_file()
