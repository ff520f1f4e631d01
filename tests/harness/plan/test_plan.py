from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.errors import GateError, RefusedError
from harness.plan import Plan, make_plan
from harness.plan.designs import leave_one_out_faults
from harness.plan.gate import check_gate
from tests.harness.config.cases import spec
from tests.harness.plan.files import write_sweep_file
from tests.refusals import codes_of, refuses


@pytest.fixture
def plan(tmp_path: Path) -> Any:
    """Plans QUESTION with changes; `settings`, `count` and `only` are --set, --seeds and --arms; without a GPU, unless
    `on_gpu` says otherwise."""

    def make(
        settings: Sequence[str] = (),
        count: int | None = None,
        only: Sequence[str] = (),
        on_gpu: Callable[[], bool] = lambda: False,
        **changes: Any,
    ) -> Plan:
        return make_plan(str(write_sweep_file(tmp_path, **changes)), None, settings, count, only, on_gpu)

    return make


def test_layers_from_profile_to_set(plan: Any) -> None:
    layers: dict[str, Any] = {"ablate": ["train.steps", "objective.scale"]}
    in_profile = plan(**layers).arms["with"].train.steps
    layers["base"] = {"algorithm": "grpo", "train.steps": 11}
    assert plan(**layers).arms["with"].train.steps == 11 != in_profile
    layers["arms"] = {"with": {"train.steps": 12}, "without": {"objective.scale": "none"}}
    assert [spec.train.steps for spec in plan(**layers).arms.values()] == [12, 11]
    assert [spec.train.steps for spec in plan(["train.steps=13"], **layers).arms.values()] == [13, 13]
    assert plan(["train.steps=13", "train.steps=14"], **layers).arms["with"].train.steps == 14


def test_a_cell_for_every_arm_and_seed(plan: Any) -> None:
    cells = plan(seeds=[3, 5]).cells
    assert [(cell.arm, cell.seed, cell.spec.seed) for cell in cells] == [
        ("with", 3, 3), ("with", 5, 5), ("without", 3, 3), ("without", 5, 5)
    ]  # fmt: skip
    assert len({cell.hash for cell in cells}) == 4
    assert [[cell.seed for cell in plan(count=n, seeds=[3, 5]).cells][:n] for n in (1, 4)] == [[3], [3, 5, 6, 7]]
    assert cells[0].directory == f"with-s3-{cells[0].hash[:10]}"


def test_the_same_setting_under_another_name_is_the_same_numbers(plan: Any) -> None:
    same = plan(ablate=[], arms={"one": {}, "other": {"objective.scale": "group_std"}}, seeds=2).cells
    assert [cell.hash for cell in same[:2]] == [cell.hash for cell in same[2:]]
    assert len({cell.directory for cell in same}) == 4


def test_seeds_and_arms_can_be_chosen(plan: Any) -> None:
    chosen = plan(count=2, only=["without"])
    assert [(cell.arm, cell.seed) for cell in chosen.cells] == [("without", 0), ("without", 1)]
    assert chosen.baseline == "without"
    kept = plan(count=2, only=["without", "with"])
    assert list(kept.arms) == ["with", "without"], "in the order of the file"
    with pytest.raises(RefusedError):
        plan(count=0)
    with pytest.raises(RefusedError, match="wihtout"):
        plan(only=["wihtout"])


def test_a_set_value_is_yaml(plan: Any) -> None:
    spec = plan(["rollout.stop=[a, 'b=c']", "train.learning_rate=1e-4", "eval={problems: 7}"]).arms["with"]
    assert spec.rollout.stop == ("a", "b=c")
    assert spec.train.learning_rate == 1e-4
    assert spec.eval.problems == 7


def test_the_metric_is_written_out(plan: Any) -> None:
    assert plan().metric == "eval.final.arithmetic.pass@1"
    full = plan(compare={"metric": "eval.final.arithmetic.avg@n"})
    assert (full.metric, full.metric_task, full.metric_name) == ("eval.final.arithmetic.avg@n", "arithmetic", "avg@n")
    assert full.margin_pp == 1.0
    for name in ("pass^2", "maj@2", "cons@n"):
        assert plan(compare={"metric": f"eval.final.{name}"}).metric_name == name
    assert plan(compare={"margin_pp": 2.5}).margin_pp == 2.5


def test_a_task_of_ones_own_goes_by_the_name_in_its_file(plan: Any, tmp_path: Path) -> None:
    rows = [{"problem": f"{i}+1=", "answer": str(i + 1)} for i in range(4)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = tmp_path / "sums.v2.yaml"
    task.write_text("name: sums\nmargin_pp: 3\nsplits: {train: {file: rows.jsonl}, test: {file: rows.jsonl}}\n")
    made = plan([f"task.train={task}"])
    assert made.metric == "eval.final.sums.pass@1"
    assert made.margin_pp == 3
    assert plan([f"task.train={task}"], compare={"metric": "eval.final.sums.avg@n"}).metric_name == "avg@n"


def test_cost_is_an_upper_bound_over_all_cells(plan: Any) -> None:
    small = ["rollout.prompts_per_step=4", "rollout.samples_per_prompt=3", "rollout.max_completion_tokens=10",
             "train.steps=10", "eval.problems=5", "eval.samples=2", "eval.curve_samples=1", "eval.every=4"]  # fmt: skip
    a_step = 4 * 3 * 10
    unbounded = plan([*small, "budget.tokens=null"], seeds=3).cost()
    assert unbounded.as_json() | {"memory": None} == {
        "cells": 6,
        "generated_tokens_at_most": 6 * 10 * a_step,
        "scored_tokens_at_most": 0,
        "teacher_tokens_at_most": 0,
        "eval_samples_at_most": 6 * 5 * (2 + 2 * 1),
        "memory": None,
    }
    # A cell ends at the first step boundary at or after the budget.
    assert plan([*small, "budget.tokens=500"], seeds=3).cost().generated_tokens_at_most == 6 * (500 + a_step)
    assert plan([*small, "budget.tokens=5000"], seeds=3).cost().generated_tokens_at_most == 6 * 10 * a_step
    read = plan([*small, "budget.tokens=500", "reward.parts.vr_cli=1", "reward.parts.jepo=1"], seeds=3).cost()
    assert read.scored_tokens_at_most == 3 * 6 * (500 + a_step), "for both rewards and for the supervised term"
    assert plan([*small, "eval.every=0"], seeds=3).cost().eval_samples_at_most == 6 * 5 * 2
    assert plan([*small, "eval.problems=null"], seeds=3).cost().eval_samples_at_most is None


def test_the_memory_is_that_of_the_arm_that_takes_most(plan: Any) -> None:
    arms = {
        "with": {},
        "without": {"train.reference_rows": 0},
        "ppo": {"algorithm": "ppo", "objective.credit": "completion"},
    }
    memory = plan(arms=arms, ablate=["objective", "train"], seeds=1).cost().as_json()["memory"]
    assert (memory["arm"], memory["parameters"]) == ("ppo", 232_896)
    assert memory["gb"] == pytest.approx(sum(memory["parts_gb"].values()))
    assert memory["parts_gb"]["weights"] == pytest.approx(2 * 4 * 232_896 / 1e9)
    assert plan(["model.source=hf:nobody/nothing"]).cost().memory is None


def test_what_is_left_to_the_machine_is_settled_by_the_slots(plan: Any) -> None:
    def engines(on_gpu: bool) -> set[str]:
        return {cell.spec.rollout.engine for cell in plan(["train.device=auto"], on_gpu=lambda: on_gpu).cells}

    assert (engines(True), engines(False)) == ({"vllm"}, {"torch"})


def test_stop_strings_and_templates_are_set_in_the_file(plan: Any, tmp_path: Path) -> None:
    (tmp_path / "curt.yaml").write_text('text: "{problem}\\nAnswer:"\nstop: ["###"]\n')
    stop = ["\n\n", "Question:"]
    base = {"algorithm": "grpo", "task.template": "curt.yaml", "rollout": {"stop": stop}}
    planned = plan(base=base, arms={"curt": {}, "plain": {"task.template": "plain"}}, ablate=["task.template"])
    assert planned.gate.differs == ["task.template"]
    assert [spec.task.template for spec in planned.arms.values()] == ["curt.yaml", "plain"]
    assert planned.first_spec.rollout.stop == tuple(stop)


def test_faults_of_a_template_stand_in_one_line(plan: Any, tmp_path: Path) -> None:
    (tmp_path / "curt.yaml").write_text("txet: '{problem}'\n")
    with pytest.raises(RefusedError) as refused:
        plan(base={"algorithm": "grpo", "task.template": "curt.yaml"})
    (line,) = str(refused.value).splitlines()
    assert all(name in line for name in ("mine.yaml: base: task.template:", "curt.yaml", "text", "txet"))


LEFT_OUT = {
    "base": {"algorithm": "scalerl", "task.retire_at": 0.9, "train.updates_per_rollout": 2},
    "arms": None,
    "ablate": None,
}


def test_each_arm_of_a_leave_one_out_differs_from_the_recipe_in_one_knob(plan: Any) -> None:
    ordinary = {"objective.rule.type": "ppo_clip", "objective.scale": "group_std", "task.retire_at": None}
    planned = plan(leave_one_out=ordinary, **LEFT_OUT)
    planned.require_answerable()
    assert planned.baseline == "base"
    recipe = planned.arms["base"]
    assert recipe.task.retire_at == 0.9 and recipe.objective.rule.type == "cispo"
    for arm, knob in zip(["rule=ppo_clip", "scale=group_std", "retire_at=null"], ordinary, strict=True):
        assert check_gate({"base": recipe, arm: planned.arms[arm]}, [knob], {}).ok
        assert planned.arms[arm] != recipe
    assert plan(only=["scale=group_std"], leave_one_out=ordinary, **LEFT_OUT).baseline == "scale=group_std"


def test_an_arm_that_leaves_out_two_knobs_is_refused(plan: Any) -> None:
    """As a task does, which brings a template and a grader along."""
    recipe = plan(leave_one_out={"objective.scale": "group_std"}, **LEFT_OUT).arms["base"]
    both = spec({"algorithm": "scalerl", "objective.scale": "group_std", "train.steps": recipe.train.steps + 1})
    one = spec({"algorithm": "scalerl", "train.steps": recipe.train.steps})

    def faults(co_changes: dict[str, str]) -> list[str]:
        arms, ordinary = {"base": one, "scale=group_std": both}, {"objective.scale": "group_std"}
        return list(leave_one_out_faults(arms, ordinary, co_changes))

    (fault,) = faults({})
    assert "train.steps" in fault
    assert faults({"train.steps": "a reason"}) == []


def test_knobs_of_a_grid_are_under_test_without_being_repeated(plan: Any) -> None:
    grid = {"objective.scale": ["none", "group_std"], "train.learning_rate": [1e-4, 1e-3]}
    silent = plan(arms=None, grid=grid, ablate=None)
    repeated = plan(arms=None, grid=grid, ablate=list(grid))
    assert silent.gate == repeated.gate
    assert silent.gate.ok
    assert [cell.hash for cell in silent.cells] == [cell.hash for cell in repeated.cells]
    assert plan(arms=None, grid=grid, ablate=["objective"]).sweep.under_test == ["objective", "train.learning_rate"]


@pytest.mark.parametrize(
    ("settings", "code", "fields"),
    [
        (["train.steps"], "plan.setting_without_value", {"setting": "'train.steps'"}),
        (["=3"], "plan.setting_without_value", {"setting": "'=3'"}),
        (["train.steps=[1"], "plan.setting_not_yaml", {"setting": "'train.steps=[1'"}),
        (["train.stpes=3"], "unknown", {"path": "train.stpes"}),
        (["train.steps="], "value", {"path": "train.steps"}),
        (["train.steps=08x"], "value", {"path": "train.steps"}),
    ],
)
def test_a_faulty_set_is_refused(plan: Any, settings: list[str], code: str, fields: dict[str, str]) -> None:
    with refuses(RefusedError, code, **fields) as caught:
        plan(settings)
    assert len(str(caught.value).splitlines()) == 1


def test_faults_of_all_arms_are_told_once_each(plan: Any) -> None:
    arms = {"a": {"train.steps": "x"}, "b": {"eval.samples": "y"}}
    with pytest.raises(RefusedError) as caught:
        plan(["rollout.top_k=-1"], arms=arms)
    assert {("value", path) for path in ("train.steps", "eval.samples", "rollout.top_k")} == {
        (code, fields["path"]) for code, fields in codes_of(caught.value) if "path" in fields
    }
    assert len(str(caught.value).splitlines()) == 3


def test_the_gate_refuses_an_undeclared_difference(plan: Any) -> None:
    made = plan(arms={"with": {}, "without": {"objective.scale": "none", "train.steps": 3}})
    assert made.gate.violations == {"train.steps": {"with": 120, "without": 3}}
    with pytest.raises(GateError):
        made.require_answerable()


CLIP_ONLY: dict[str, Any] = {
    "ablate": ["objective.rule.clip_high"],
    "arms": {"low": {}, "high": {"objective.rule.clip_high": 0.28}},
}


def test_the_guard_refuses_what_cannot_act(plan: Any) -> None:
    made = plan(**CLIP_ONLY)
    assert made.gate.ok
    with pytest.raises(GateError):
        made.require_answerable()
    assert made.warnings == [], "a refusal is not repeated as a warning"
    both = {"low": {}, "high": {"objective.rule.clip_high": 0.28, "objective.scale": "none"}}
    for passed, n_warnings in (
        (plan(["train.updates_per_rollout=2"], **CLIP_ONLY), 0),
        (plan(**CLIP_ONLY, allow_noop=True), 1),
        (plan(ablate=["objective"], arms=both), 1),
    ):
        passed.require_answerable()
        assert len(passed.warnings) == n_warnings


@pytest.mark.parametrize("seeds", [1, 2, 5, 6])
def test_few_seeds_are_a_warning(plan: Any, seeds: int) -> None:
    assert len(plan(seeds=seeds).warnings) == (seeds < 6)


def test_more_problems_than_there_are_are_a_warning_and_are_not_counted(plan: Any) -> None:
    asked, all_ = (plan([f"eval.problems={n}"]) for n in (1000, 256))
    (more,) = {*asked.warnings} - {*all_.warnings}
    assert "1000" in more and "256" in more
    assert asked.cost() == all_.cost()


@pytest.mark.parametrize(
    ("metric", "named"),
    [
        ("pass@1", "compare.metric"),
        ("eval.final.pass@3", "pass@3"),
        ("eval.final.mean_tokens", "mean_tokens"),
        ("eval.final.gsm8k.pass@1", "gsm8k"),
    ],
)
def test_a_metric_that_will_not_exist_is_refused(plan: Any, metric: str, named: str) -> None:
    with pytest.raises(RefusedError) as caught:
        plan(compare={"metric": metric})
    assert named in str(caught.value)


def test_evaluation_tasks_of_one_name_are_refused(plan: Any, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({"problem": "1+1=", "answer": "2"}) + "\n")
    task = tmp_path / "sums.yaml"
    task.write_text("name: arithmetic\nsplits: {test: {file: rows.jsonl}}\n")
    with pytest.raises(RefusedError) as refused:
        plan([f"eval.tasks=[arithmetic, {task}]"])
    assert "eval.tasks" in str(refused.value)


RATES: dict[str, Any] = {"ablate": ["train.learning_rate"], "arms": {"a": {}, "b": {"train.learning_rate": 1e-5}}}
CORRECTED = "objective.sampler_correction.type=token_truncate"
LORA = "model.lora.type=lora"


@pytest.mark.parametrize(
    ("settings", "n_warnings"),
    [
        ([], 0),
        # vLLM rounds in another way.
        (["rollout.engine=vllm"], 1),
        (["train.device=cuda"], 1),
        (["train.device=auto"], 0),
        (["train.device=cuda", "rollout.engine=torch"], 0),
        (["rollout.engine=vllm", CORRECTED], 0),
        (["rollout.engine=vllm", "algorithm=dpo", "pairs.type=policy"], 0),
        # Adapters are merged into bfloat16.
        ([LORA, "model.dtype=bfloat16"], 1),
        ([LORA, "model.dtype=float32"], 0),
        ([LORA, "model.dtype=bfloat16", CORRECTED], 0),
        # A model on the hub is not pinned to a commit.
        (["model.source=hf:own/model"], 1),
        (["model.source=hf:own/model@main"], 1),
        ([f"model.source=hf:own/model@{'0a' * 20}"], 0),
    ],
)
def test_what_may_bend_the_result_is_a_warning(plan: Any, settings: list[str], n_warnings: int) -> None:
    assert len(plan(settings, **RATES).warnings) == n_warnings


@pytest.mark.parametrize(("knob", "value"), [("objective.scale", "mini_batch_std"), ("objective.rule.weight_max", 5.0)])
def test_what_a_leave_one_out_cannot_leave_out_is_refused(plan: Any, knob: str, value: object) -> None:
    with pytest.raises(RefusedError) as refused:
        plan(leave_one_out={knob: value}, **LEFT_OUT)
    assert f"leave_one_out: {knob}" in str(refused.value)
