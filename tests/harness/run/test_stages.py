from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from harness.config.run_spec import RunSpec
from harness.errors import RefusedError
from harness.models.start import StartingPoint
from harness.plan import make_plan
from harness.records import CellRecord, read_sweep
from harness.records.files import read_json
from harness.run.encoded_pairs import load_pairs
from harness.run.stages import (
    find_stage,
    input_remarks,
    inputs_of_cell,
    stages_of_cell,
)
from harness.run.sweep import missing_stage_jobs
from harness.run.worker import run_job
from tests.harness.plan.files import finish
from tests.harness.run import bench
from tests.harness.run.small import ignore_progress, new_cell, small_spec
from tests.harness.run.stages_here import job_of, run_here
from tests.refusals import refuses

FILTER = {"task.filter.type": "pass_rate", "task.filter.samples": 2, "task.filter.problems": 24}
PROXY: dict[str, Any] = {
    "reward.parts.correct": 0.0,
    "reward.parts.reward_model": 1.0,
    "reward.reward_model": {"prompts": 40, "samples_per_prompt": 4, "steps": 2, "batch_size": 4},
}
HOME = Path("home")
SHORT = {"train.steps": 2, "eval.problems": 2, "eval.every": 0}


def pairs_file(folder: Path, count: int = 8, name: str = "pairs.jsonl") -> dict[str, Any]:
    rows = [{"prompt": f"{a}+1=", "chosen": f"{a + 1}#{a + 1}", "rejected": f"{a}#{a}"} for a in range(1, count + 1)]
    (folder / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return {
        "algorithm": "dpo",
        "pairs": {"type": "dataset", "data": str(folder / name), "pairs_per_step": 4, "max_tokens": 40},
    }


def name(settings: dict[str, Any], stage: str, seed: int = 0) -> str:
    return inputs_of_cell(small_spec(settings, seed), HOME)[stage].name


def test_what_a_cell_reads(tmp_path: Path) -> None:
    assert inputs_of_cell(small_spec(), HOME) == {}
    read = inputs_of_cell(small_spec(FILTER | PROXY), HOME)
    assert list(read) == ["pass_rates", "reward_model"] and {path.parent for path in read.values()} == {HOME / "cache"}
    # On given pairs nothing is drawn, so there is nothing to filter and nothing to reward.
    assert list(inputs_of_cell(small_spec(FILTER | PROXY | pairs_file(tmp_path)), HOME)) == ["pairs"]


def test_a_reward_model_is_shared_by_seeds_and_by_what_is_learned_from_it() -> None:
    mine = name(PROXY, "reward_model")
    assert name(PROXY, "reward_model", seed=1) == mine
    for same in ({"algorithm": "dpo"}, {"train.learning_rate": 1.0}, {"reward.parts.correct": 1.0}):
        assert name({**PROXY, **same}, "reward_model") == mine
    for other in (
        {"reward.reward_model.label_noise_rate": 0.1},
        {"reward.reward_model.prompts": 41},
        {"reward.reward_model.seed": 1},
        {"rollout.temperature": 0.9},
        {"rollout.max_completion_tokens": 31},
    ):
        assert name({**PROXY, **other}, "reward_model") != mine


def test_best_of_n_is_of_a_reward_model_and_an_evaluation() -> None:
    def named(settings: dict[str, Any]) -> str:
        return find_stage("best_of_n").key(small_spec({**PROXY, **settings}))

    assert named({}) == named({"algorithm": "dpo"})
    assert len({named(s) for s in ({}, {"eval.samples": 8}, {"reward.reward_model.seed": 1})}) == 3


def test_encoded_pairs_are_shared_by_objectives_with_one_reference(tmp_path: Path) -> None:
    given = pairs_file(tmp_path)
    mine = name(given, "pairs")
    assert name({**given, "algorithm": "ipo"}, "pairs") == mine
    assert name({**given, "algorithm": "simpo"}, "pairs") != mine
    assert name({**given, "train.learning_rate": 1.0}, "pairs") == mine
    assert name(given, "pairs", seed=1) == mine
    sft = {"type": "sft", "data": "demonstrations:arithmetic"}
    for other in (
        {"pairs.max_tokens": 39},
        {"pairs.too_long": "truncate"},
        {"rollout.temperature": 0.9},
        {"model.cold_start": sft},
        {"model.source": "scratch:tiny"},
    ):
        assert name({**given, **other}, "pairs") != mine
    longer = {**given, "model.cold_start": {**sft, "steps": 7}}
    assert name(longer, "pairs") != name({**given, "model.cold_start": sft}, "pairs")
    assert name(pairs_file(tmp_path, name="copy.jsonl"), "pairs") == mine
    assert name(pairs_file(tmp_path, count=9, name="longer.jsonl"), "pairs") != mine


def make_stages(spec: RunSpec, home: Path) -> None:
    (home / "cache").mkdir(exist_ok=True)
    while jobs := missing_stage_jobs([(spec, stage) for stage in stages_of_cell(spec)], home):
        for job in jobs:
            assert run_job(job, home, StartingPoint(), lambda event: None) == ("done", None)


def test_a_sweep_on_given_pairs(tmp_path: Path) -> None:
    given, home = pairs_file(tmp_path), tmp_path / "home"
    arms = {"dpo": given, "ipo": {**given, "algorithm": "ipo"}, "simpo": {**given, "algorithm": "simpo"}}
    executor = run_here(make_plan(str(bench.write_sweep(tmp_path, arms, 1, SHORT))), home)
    with_reference, without = (home / job.path for job in executor.of_kind("pairs"))
    assert load_pairs(with_reference).ref_chosen_logps is not None
    assert load_pairs(without).ref_chosen_logps is None
    assert [inputs_of_cell(job.spec, home) for job in executor.of_kind("cell")] == [
        {"pairs": with_reference},
        {"pairs": with_reference},
        {"pairs": without},
    ]
    cell = executor.of_kind("cell")[0]
    assert run_job(cell, home, StartingPoint(), lambda event: None) == ("done", None)
    account = CellRecord.at(home / cell.path).provenance["pairs"]
    assert (account["rows"], account["kept"], account["side_too_long"]) == (8, 8, 0)


def test_what_became_of_the_inputs_is_told(tmp_path: Path) -> None:
    given = small_spec({**pairs_file(tmp_path), "pairs.max_tokens": 8})
    spec = small_spec({**PROXY, "reward.reward_model.label_noise_rate": 0.4})
    for each in (given, spec):
        make_stages(each, tmp_path)
    assert re.findall(r"\d+", next(input_remarks(given, tmp_path))) == ["8", "8"]
    report = read_json(inputs_of_cell(spec, tmp_path)["reward_model"] / "report.json")
    counts = re.findall(r"\d+", next(input_remarks(spec, tmp_path)))
    assert counts[:2] == [str(report["pairs"]), str(report["flipped_pairs"])]


@pytest.mark.slow
def test_a_sweep_on_a_learned_reward(tmp_path: Path) -> None:
    small = {**PROXY, "train.steps": 2, "eval.problems": 4}
    noisy = {**small, "reward.reward_model.label_noise_rate": 0.4}
    sweep = bench.write_sweep(tmp_path, {"grpo": {"eval.problems": 4}, "proxy": small, "noisy": noisy}, seeds=2)
    plan, home = make_plan(str(sweep)), tmp_path / "home"
    executor = run_here(plan, home)
    models = [home / job.path for job in executor.of_kind("reward_model")]
    assert len(models) == len(executor.of_kind("best_of_n")) == 2
    kinds = [job.kind for job in executor.jobs if job.kind != "cell"]
    assert kinds == ["load", "reward_model", "reward_model", "base", "best_of_n", "best_of_n"]
    inputs = [inputs_of_cell(job.spec, home) for job in executor.of_kind("cell")]
    assert {tuple(read.values()) for read in inputs} == {(), *((model,) for model in models)}
    yardsticks = read_sweep(home / "small").best_of_n
    assert list(yardsticks) == ["proxy", "noisy"]
    assert [row["n"] for row in yardsticks["proxy"]] == [1, 2, 4]
    cell = next(job for job, read in zip(executor.of_kind("cell"), inputs, strict=True) if read)
    assert run_job(cell, home, StartingPoint(), lambda event: None) == ("done", None)
    # Typed again, nothing but cells is left to do.
    assert {job.kind for job in run_here(plan, home).jobs} == {"load", "cell"}


def test_the_start_is_evaluated_once_whatever_is_learned_from(tmp_path: Path) -> None:
    key = find_stage("base").key
    given = key(small_spec(pairs_file(tmp_path)))
    assert given == key(small_spec()) == key(small_spec({"task.template": "boxed"}))
    assert key(small_spec({"eval.problems": 7})) != given
    assert key(small_spec({"train.device": "cuda"})) != given


@pytest.mark.slow
def test_what_a_finished_sweep_lacks_is_made_again(tmp_path: Path) -> None:
    """Also the reward model that only the yardstick still needs."""
    sweep = bench.write_sweep(tmp_path, {"grpo": {}, "proxy": PROXY}, 1, SHORT)
    plan, home = make_plan(str(sweep)), tmp_path / "home"
    for cell in plan.cells:
        finish(cell, plan.folder(home))
    executor = run_here(plan, home)
    assert [job.kind for job in executor.jobs] == ["load", "base", "reward_model", "best_of_n"]


def test_too_few_pairs_are_refused_also_when_they_are_in_the_cache(tmp_path: Path) -> None:
    arm = pairs_file(tmp_path)
    run_here(make_plan(str(bench.write_sweep(tmp_path, {"dpo": arm}, 1, SHORT))), tmp_path / "home")
    arm["pairs"]["pairs_per_step"] = 9
    with refuses(RefusedError, "run.few_pairs_left", pairs_per_step=9, n_pairs=8, n_left=8):
        run_here(make_plan(str(bench.write_sweep(tmp_path, {"dpo": arm}, 1, SHORT))), tmp_path / "home")


def test_a_damaged_reward_model_is_told(tmp_path: Path) -> None:
    spec = small_spec(PROXY)
    make_stages(spec, tmp_path)
    model = inputs_of_cell(spec, tmp_path)["reward_model"]
    weights = model / "reward_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    cell = new_cell(tmp_path / "cell-s0-0123456789")
    job = job_of("cell", cell.path, spec, tmp_path)
    state, reason = run_job(job, tmp_path, StartingPoint(), ignore_progress)
    assert state == "refused" and str(model) in str(reason)


def test_every_stage_comes_after_those_that_it_reads() -> None:
    made: list[str] = []
    cold = {"model.source": "scratch:tiny", "model.cold_start": {"type": "sft", "data": "demonstrations:arithmetic"}}
    for stage in stages_of_cell(small_spec(FILTER | PROXY | cold)):
        made.append(stage.name)
        assert {name for name in stage.reads if name in made or name == "start"} == set(stage.reads)
    assert made == ["start", "pass_rates", "reward_model"]
