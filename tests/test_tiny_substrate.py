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
from harness.records import CellRecord, SweepRecord, read_sweep
from harness.records.files import read_json
from harness.run.worker import run_job
from tests.harness.run.stages_here import job_of

MAX_PACKAGE_BYTES = 2_000_000
MIN_GAIN = 0.15
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


def final_pass_at_1(cell: CellRecord) -> float:
    (score,) = [row for row in cell.read_scores() if row["final"]]
    return score["metrics"]["pass@1"] or 0.0


def base_pass_at_1(record: SweepRecord) -> float:
    (score,) = record.base_scores_of()
    return score["metrics"]["pass@1"] or 0.0


def test_the_model_is_small() -> None:
    assert sum(path.stat().st_size for path in TINY.rglob("*")) <= MAX_PACKAGE_BYTES


def test_before_training_right_answers_are_neither_rare_nor_sure(tmp_path: Path) -> None:
    spec = make_plan("std_norm", "tiny").first_spec
    assert (spec.model.source, spec.eval.problems, spec.eval.samples, spec.eval.temperature) == (
        "builtin:tiny",
        200,
        16,
        1.0,
    )
    path = tmp_path / "base.json"
    assert run_job(job_of("base", path, spec, tmp_path), tmp_path, StartingPoint(), lambda event: None) == (
        "done",
        None,
    )
    (score,) = read_json(path)
    assert (score["n_problems"], score["n_samples"]) == (200, 16)
    assert 0.3 <= score["metrics"]["pass@1"] <= 0.6
    assert score["metrics"]["pass@8"] > 0.8


@pytest.mark.long
def test_grpo_gains_on_every_seed_and_leaves_headroom(tmp_path: Path) -> None:
    bench_run("std_norm", tmp_path, "--arms", "group_std")
    record = read_sweep(tmp_path / "std_norm")
    assert record.budget_tokens is not None
    base = base_pass_at_1(record)
    spec = make_plan("std_norm", "tiny").first_spec
    a_step_tokens = spec.rollout.prompts_per_step * spec.rollout.samples_per_prompt * spec.rollout.max_completion_tokens
    assert [cell.seed for cell in record.cells] == [0, 1, 2, 3, 4, 5]
    for cell in record.cells:
        final = final_pass_at_1(cell)
        assert final - base >= MIN_GAIN, cell.path.name
        assert final < MAX_FINAL, cell.path.name
        assert (cell.generated_tokens or 0) < record.budget_tokens + a_step_tokens, cell.path.name


@pytest.mark.long
def test_online_dpo_gains_on_every_seed(tmp_path: Path) -> None:
    bench_run("dpo_vs_grpo", tmp_path, "--arms", "dpo_online")
    record = read_sweep(tmp_path / "dpo_vs_grpo")
    base = base_pass_at_1(record)
    assert [cell.seed for cell in record.cells] == [0, 1, 2, 3, 4, 5]
    for cell in record.cells:
        assert final_pass_at_1(cell) - base >= 0.10, cell.path.name


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


@pytest.mark.long
def test_ppo_gains_on_every_seed_and_its_critic_explains_returns(tmp_path: Path) -> None:
    """The arm with rewards for steps: from outcomes alone little can be foretold (see sweeps/ppo.yaml)."""
    bench_run("ppo", tmp_path, "--arms", "step_rewards", "--seeds", "6")
    record = read_sweep(tmp_path / "ppo")
    base = base_pass_at_1(record)
    assert [cell.seed for cell in record.cells] == [0, 1, 2, 3, 4, 5]
    for cell in record.cells:
        assert final_pass_at_1(cell) - base >= 0.10, cell.path.name
        explained = [step["value/explained_variance"] for step in cell.read_steps()[-5:]]
        assert sum(explained) / len(explained) > 0.3, cell.path.name
