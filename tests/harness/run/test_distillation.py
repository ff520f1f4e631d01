"""Teachers in cells: who writes completions, what is refused before anything trains, and what of it is kept."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from evals.errors import EvalError
from evals.prompts import get_template
from evals.tasks import get_task
from evals.tasks.base import Problem
from harness.config.hashing import training_hash
from harness.config.model_source import TINY
from harness.engines.base import make_engine
from harness.errors import RefusedError
from harness.models.language_model import LanguageModel, load_model
from harness.plan.memory import estimate_memory
from harness.plan.plan import make_plan
from harness.run.learning.base import Examples
from harness.run.learning.rollouts import Rollouts
from harness.run.stages import find_stage, result_path, stages_of_cell
from harness.run.sweep import SweepRun
from harness.training.batch import Batch
from tests.harness.run.small import SETTINGS, small_spec, trained
from tests.harness.run.stages_here import AllHere, Quiet, load
from tests.refusals import refuses

PROBLEMS = list(get_task("arithmetic").split("train").load()[:6])
MIXED = {"algorithm": "gkd", "rollout.sampler": "teacher", "rollout.policy_frac": 0.5, "rollout.prompts_per_step": 6}
GIVEN = {"algorithm": "sft", "rollout.sampler": "given", "rollout.samples_per_prompt": 1}
RECIPE = {"type": "sft", "data": "solutions:arithmetic", "steps": 3, "batch_size": 4}


@pytest.fixture(scope="module")
def tiny() -> LanguageModel:
    return load_model("builtin:tiny")


def drawn(settings: dict[str, Any], tiny: LanguageModel, problems: list[Problem] = PROBLEMS, step: int = 1) -> Batch:
    spec = small_spec(settings)
    other = load_model("scratch:tiny").model.requires_grad_(False) if spec.rollout.sampler == "teacher" else None
    return Rollouts(spec, tiny, make_engine(spec.rollout, tiny), Examples(teacher=other)).writer.draw(
        problems, step, 32
    )


def written(batch: Batch, row: int) -> list[int]:
    return batch.sequences.completions[row, : int(batch.sequences.lengths[row])].tolist()


@pytest.mark.slow
def test_a_mixture_holds_the_policys_own_completions_and_others(tiny: LanguageModel) -> None:
    """They are those of an arm in which the policy writes all, at the places that the seed has drawn."""
    mixed, alone = drawn(MIXED, tiny), drawn({"rollout.prompts_per_step": 6}, tiny)
    by_prompt = [mixed.origins[4 * prompt : 4 * prompt + 4] for prompt in range(6)]
    assert sorted(origins[0] for origins in by_prompt) == ["policy"] * 3 + ["teacher"] * 3
    assert all(len(set(origins)) == 1 for origins in by_prompt)
    same = [written(mixed, row) == written(alone, row) for row in range(24)]
    assert all(same[row] for row, origin in enumerate(mixed.origins) if origin == "policy")
    assert not any(same[row] for row, origin in enumerate(mixed.origins) if origin == "teacher")
    assert mixed.sequences.prompts == alone.sequences.prompts
    assert alone.origins == () and mixed.generated_tokens == int(mixed.sequences.lengths.sum())
    assert drawn(MIXED, tiny).origins == mixed.origins != drawn(MIXED, tiny, step=2).origins


def test_given_solutions_are_learned_as_they_are_and_cost_nothing(tiny: LanguageModel) -> None:
    batch = drawn(GIVEN, tiny)
    assert [tiny.decode(written(batch, row)) for row in range(6)] == [problem.solution for problem in PROBLEMS]
    assert all(written(batch, row)[-1] == tiny.tokenizer.eos_token_id for row in range(6))
    assert batch.generated_tokens == 0 and not batch.truncated.any()
    assert not batch.drawn.any(), "nobody drew them, so that no sampler can disagree with the trainer"
    rewarded = Rollouts(small_spec(GIVEN), tiny, make_engine(small_spec(GIVEN).rollout, tiny)).reward(batch, step=1)
    assert rewarded.rewards.tolist() == [1.0] * 6
    half = drawn(GIVEN | {"rollout.policy_frac": 0.5}, tiny)
    assert half.generated_tokens == int(half.sequences.lengths[half.drawn].sum()) > 0
    with refuses(EvalError, "evals.problem_without_solution"):
        drawn(GIVEN, tiny, [replace(PROBLEMS[0], solution=None)])


def test_a_teacher_sees_the_solution_and_the_student_does_not(tiny: LanguageModel) -> None:
    batch = drawn({"algorithm": "gkd", "teacher.template": "solution_shown"}, tiny, PROBLEMS[:2])
    own, taught = batch.sequences.prompts, batch.for_teacher.prompts
    assert [tiny.decode(own[row]) for row in (0, 4)] == [problem.problem for problem in PROBLEMS[:2]]
    shown = [f"{problem.problem}{problem.solution},wait," for problem in PROBLEMS[:2]]
    assert [tiny.decode(taught[row]) for row in (0, 4)] == shown
    assert torch.equal(batch.for_teacher.completions, batch.sequences.completions)
    template = get_template("solution_shown")
    assert template.render("{solution}=", solution="1#1") == "{solution}=1#1,wait,", "what is filled in stays as it is"


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"algorithm": "gkd", "teacher.type": "none"}, "objective.distill.where=loss without"),
        ({"algorithm": "sft", "rollout.sampler": "teacher"}, "rollout.sampler=teacher without"),
        ({"teacher.type": "model"}, "uses the teacher"),
        ({"algorithm": "opd", "teacher.template": None}, "under the same prompt"),
        ({"budget.teacher_tokens": 7}, "budget.teacher_tokens=7"),
        ({"algorithm": "opd", "rollout.sampler": "initial"}, "the policy's own tokens"),
        (GIVEN | {"rollout.samples_per_prompt": 4}, "samples_per_prompt to 1"),
        ({"task.template": "solution_shown"}, "task.template=solution_shown"),
        ({"eval.template": "solution_shown"}, "eval.template=solution_shown"),
        ({"rollout.policy_frac": 0.5}, "policy_frac=0.5"),
        ({"algorithm": "gkd", "teacher.source": "tiny"}, "teacher.source takes"),
        ({"algorithm": "gkd", "teacher.cold_start": RECIPE | {"data": "solutions:arithmetc"}}, "mean arithmetic"),
        ({"algorithm": "gkd", "teacher.template": "soluton_shown"}, "mean solution_shown"),
    ],
)
def test_what_makes_no_sense_is_refused(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(RefusedError, match=re.escape(complaint)):
        training_hash(small_spec(settings))


@pytest.mark.slow
def test_a_teacher_with_other_tokens_is_refused_before_training(tmp_path: Path) -> None:
    folder = tmp_path / "other"
    shutil.copytree(TINY, folder)
    tokens = (folder / "tokenizer.json").read_text(encoding="utf-8")
    (folder / "tokenizer.json").write_text(tokens.replace('"#"', '"x"'), encoding="utf-8")
    spec = small_spec({"algorithm": "gkd", "teacher.source": f"path:{folder}"})
    with refuses(
        RefusedError, "models.teacher_vocabulary_differs", n_teacher=21, n_student=21, token="#", teacher_id="none"
    ):
        load(spec, tmp_path)
    load(small_spec({"algorithm": "gkd", "teacher.source": "scratch:tiny"}), tmp_path)


@pytest.mark.slow
def test_a_teachers_prompt_must_leave_room(tmp_path: Path) -> None:
    long = tmp_path / "long.yaml"
    long.write_text(f"text: '{'1' * 90}{{problem}}{{solution}}'")
    with pytest.raises(RefusedError, match="context"):
        load(small_spec({"algorithm": "gkd", "teacher.template": str(long)}), tmp_path)


def test_one_teacher_serves_all_seeds_and_all_ways_to_listen() -> None:
    def name(settings: dict[str, Any], seed: int = 0) -> str:
        return find_stage("teacher").key(small_spec({"teacher.source": "builtin:tiny"} | settings, seed))

    made = {"algorithm": "gkd", "teacher.cold_start": RECIPE}
    same = [name(made, seed=1), name(made | {"algorithm": "opd"}), name(made | {"train.learning_rate": 1.0})]
    assert set(same) == {name(made)}
    others: list[dict[str, Any]] = [{"steps": 4}, {"data": "demonstrations:arithmetic"}, {"template": "boxed"}]
    names = [name(made | {"teacher.cold_start": RECIPE | other}) for other in others]
    assert len({name(made), name(made | {"teacher.source": "scratch:tiny"}), *names}) == 5
    assert name(made | {"teacher.template": "plain"}) == name(made), "how it is asked is no part of it"
    of_start = made | {"teacher.source": None}
    start = {"model.cold_start": {"type": "sft", "data": "demonstrations:arithmetic", "steps": 5}}
    assert len({name(one) for one in (made, of_start, of_start | start)}) == 3
    assert [stage.name for stage in stages_of_cell(small_spec(made))] == ["teacher"]
    assert stages_of_cell(small_spec({"algorithm": "gkd"})) == [], "the start itself has to be made by nobody"


def test_plans_count_the_teacher() -> None:
    settings: dict[str, Any] = {"algorithm": "gkd", "teacher.source": "builtin:tiny"}
    alone, taught = (estimate_memory(small_spec(one), cuda=False) for one in ({}, settings))
    assert alone is not None and taught is not None
    assert taught.held_bytes["teacher"] == taught.held_bytes["weights"] == alone.held_bytes["weights"]
    assert taught.phases_bytes["training"]["teacher_pass"] > 0
    itself = estimate_memory(small_spec({"algorithm": "gkd", "train.reference_rows": 0}), cuda=False)
    assert itself is not None and "teacher" not in itself.held_bytes
    assert itself.held_bytes["copies"] == 2 * alone.held_bytes["weights"], "the start as it was, and as it teaches"
    assert estimate_memory(small_spec(settings | {"teacher.source": "hf:nobody/none"}), cuda=False) is None
    cost = make_plan("distillation", seeds=1, arms=["rl", "opd", "kd_given"]).cost()
    a_step = 32 * 8 * 40
    assert cost.generated_tokens_at_most == 2 * (120_000 + a_step)
    assert cost.teacher_tokens_at_most == 2 * (120_000 + a_step)


@pytest.mark.slow
def test_a_cell_ends_with_its_budget_of_scored_tokens_and_keeps_no_teacher(tmp_path: Path) -> None:
    settings = {"algorithm": "opd", "teacher.source": "scratch:tiny", "budget.teacher_tokens": 300, "train.steps": 9}
    cell = trained(tmp_path, settings | {"eval.every": 0, "eval.problems": 2, "eval.samples": 1})
    rows = cell.read_steps()
    assert 300 <= rows[-1]["teacher_tokens"] == rows[-1]["generated_tokens"]
    assert rows[-2]["teacher_tokens"] < 300 and len(rows) < 9
    names = set(load_file(next(cell.checkpoints.glob(f"step-{len(rows):06d}/weights.safetensors"))))
    assert names == set(load_model("builtin:tiny").model.state_dict())
    assert {row["teacher/log_ratio"] > 0 for row in rows} == {True}


@pytest.mark.slow
def test_a_sweep_makes_its_teacher_once(tmp_path: Path) -> None:
    """Three ways to listen to one teacher, and reinforcement learning beside them, from the sweep file to scores."""
    small = {knob: value for knob, value in SETTINGS.items() if knob not in ("algorithm", "task.train", "model.source")}
    small |= {"train.steps": 2, "eval.every": 0, "eval.problems": 4, "eval.samples": 2, "rollout.prompts_per_step": 4}
    settings = [f"{knob}={value}" for knob, value in small.items() if not knob.startswith("rollout.samples")]
    settings += ["teacher.cold_start.steps=3", "teacher.cold_start.batch_size=4"]
    arms = ["opd", "gkd_mixed", "sft_teacher_right", "kd_given"]
    plan = make_plan("distillation", settings=settings, seeds=1, arms=arms)
    executor = AllHere(tmp_path)
    SweepRun(plan, tmp_path, "bench run", 1, lambda slots: executor).run(Quiet())
    assert len(executor.of_kind("teacher")) == 1
    records = {cell.arm: cell for cell in plan.records(tmp_path)}
    assert {cell.state for cell in records.values()} == {"done"}
    assert records["kd_given"].generated_tokens == 0
    tokens = {arm: cell.read_steps()[-1]["teacher_tokens"] for arm, cell in records.items()}
    assert tokens["sft_teacher_right"] == 0 < min(tokens[arm] for arm in arms if arm != "sft_teacher_right")
    spec = plan.arms["opd"]
    assert [stage.name for stage in stages_of_cell(spec)] == ["teacher"]
    assert result_path(find_stage("teacher"), spec, tmp_path).is_dir()
