"""The tiny model leaves reinforcement learning something to choose from, and arms room to differ; at full size."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.config.model_source import TINY
from harness.models.start import StartingPoint
from harness.plan import make_plan
from harness.records import read_sweep
from harness.records.files import read_json
from harness.run.worker import run_job
from tests.harness.run.stages_here import job_of

MAX_PACKAGE_BYTES = 2_000_000
MAX_FINAL = 0.9


def bench_run(sweep: str, home: Path, *options: str) -> dict[str, Any]:
    """report.json of `bench run` in a process of its own, with nothing left out."""
    program = "from harness.cli import main; main()"
    result = subprocess.run(
        [sys.executable, "-c", program, "run", sweep, "--home", str(home), "--json", *options],
        capture_output=True,
        text=True,
        env={name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"},
    )
    assert result.returncode == 0, result.stderr
    return dict(json.loads(result.stdout))


def test_the_model_is_small() -> None:
    assert sum(path.stat().st_size for path in TINY.rglob("*")) <= MAX_PACKAGE_BYTES


@pytest.mark.slow
def test_before_training_right_answers_are_neither_rare_nor_sure(tmp_path: Path) -> None:
    spec = make_plan("std_norm", "tiny").first_spec
    assert (spec.model.source, spec.eval.problems, spec.eval.samples) == ("builtin:tiny", 200, 16)
    path = tmp_path / "base.json"
    job = job_of("base", path, spec, tmp_path)
    assert run_job(job, tmp_path, StartingPoint(), lambda event: None) == ("done", None)
    (score,) = read_json(path)
    assert (score["n_problems"], score["n_samples"]) == (200, 16)
    assert 0.3 <= score["metrics"]["pass@1"] <= 0.6
    assert score["metrics"]["pass@8"] > 0.8


@pytest.mark.long
@pytest.mark.parametrize(
    ("sweep", "arm", "gain"),
    [("std_norm", "group_std", 0.15), ("dpo_vs_grpo", "dpo_online", 0.10), ("ppo", "step_rewards", 0.10)],
)
def test_training_gains_on_every_seed_and_leaves_headroom(sweep: str, arm: str, gain: float, tmp_path: Path) -> None:
    """PPO with rewards for steps: from outcomes alone its critic can foretell little (see sweeps/ppo.yaml)."""
    bench_run(sweep, tmp_path, "--arms", arm, "--seeds", "6")
    record = read_sweep(tmp_path / sweep)
    (base,) = (row["metrics"]["pass@1"] or 0.0 for row in record.base_scores_of())
    assert [cell.seed for cell in record.cells] == [0, 1, 2, 3, 4, 5]
    rollout = make_plan("std_norm", "tiny").first_spec.rollout
    a_step_tokens = rollout.prompts_per_step * rollout.samples_per_prompt * rollout.max_completion_tokens
    for cell in record.cells:
        (final,) = (row["metrics"]["pass@1"] or 0.0 for row in cell.read_scores() if row["final"])
        assert final - base >= gain, cell.path.name
        if sweep == "std_norm":
            assert record.budget_tokens is not None
            assert final < MAX_FINAL, cell.path.name
            assert (cell.generated_tokens or 0) < record.budget_tokens + a_step_tokens, cell.path.name
        if sweep == "ppo":
            explained = [step["value/explained_variance"] for step in cell.read_steps()[-5:]]
            assert sum(explained) / len(explained) > 0.3, cell.path.name


@pytest.mark.long
def test_a_reward_model_is_overoptimised(tmp_path: Path) -> None:
    """The proxy's reward goes on rising while the true one peaks and falls."""
    bench_run("overoptimisation", tmp_path, "--arms", "proxy", "--seeds", "2")
    for cell in read_sweep(tmp_path / "overoptimisation").cells:
        steps = cell.read_steps()
        truth = [step["reward/correct"] for step in steps]
        proxy = [step["reward/reward_model"] for step in steps]
        assert max(truth) > truth[0] + 0.05, cell.path.name
        assert truth[-1] < max(truth) - 0.2, cell.path.name
        assert proxy[-1] > proxy[truth.index(max(truth))], cell.path.name


@pytest.mark.long
def test_identical_arms_are_identical(tmp_path: Path) -> None:
    document = bench_run("aa", tmp_path)
    record = read_sweep(tmp_path / "aa")
    digests = {(cell.arm, cell.seed): cell.digest for cell in record.cells}
    one, other = record.arms
    assert record.seeds == [0, 1, 2]
    assert record.budget_tokens is not None
    assert all((cell.generated_tokens or 0) >= record.budget_tokens for cell in record.cells)
    for seed in record.seeds:
        assert digests[one, seed] is not None
        assert digests[one, seed] == digests[other, seed]
    assert len({digests[one, seed] for seed in record.seeds}) == 3
    (contrast,) = document["contrasts"]
    assert (contrast["verdict"], contrast["n_pairs"]) == ("identical", 3)
