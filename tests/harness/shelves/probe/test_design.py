from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.errors import RefusedError
from harness.plan.sweep_file import shipped_probes
from harness.shelves.probe.design import ProbePoint, load_probe, make_design
from tests.harness.shelves.probe.files import write_probe_file
from tests.refusals import refuses


def refusal(tmp_path: Path, **changes: Any) -> str:
    with pytest.raises(RefusedError) as caught:
        make_design(str(write_probe_file(tmp_path, **changes)))
    return str(caught.value)


def objective(**knobs: Any) -> dict[str, Any]:
    return {"objectives": {"one": {"algorithm": "grpo", **{f"objective.{key}": value for key, value in knobs.items()}}}}


def test_points_cross_where_the_settings_have_their_rollout(tmp_path: Path) -> None:
    design = make_design(str(write_probe_file(tmp_path, group_sizes=[2, 4, 8])))
    assert list(design.points) == [ProbePoint(2, 16), ProbePoint(4, 16), ProbePoint(8, 16), ProbePoint(4, 64)]
    assert [design.estimates(point) for point in design.points] == [16, 16, 16, 4]
    for point, specs in design.points.items():
        assert list(specs) == ["leave_one_out", "group_mean", "no_baseline"]
        for spec in specs.values():
            rollout = spec.rollout
            assert (rollout.samples_per_prompt, rollout.prompts_per_step) == (
                point.group_size,
                point.batch_size // point.group_size,
            )
            assert spec.optimizer_steps_per_rollout == 1


def test_settings_move_the_crossing_and_the_substrate(tmp_path: Path) -> None:
    path = str(write_probe_file(tmp_path))
    design = make_design(path, settings=["rollout.prompts_per_step=8", "rollout.temperature=0.7"])
    assert list(design.points) == [ProbePoint(2, 32), ProbePoint(4, 16), ProbePoint(4, 64)]
    assert {spec.rollout.temperature for specs in design.points.values() for spec in specs.values()} == {0.7}
    assert design.reference.rollout.temperature == 0.7
    assert make_design(path, profile="smollm2-gsm8k").reference.task.train == "gsm8k"


def test_the_reference_is_the_gradient_of_the_expected_reward_and_the_baseline_the_first(tmp_path: Path) -> None:
    design = make_design(str(write_probe_file(tmp_path)))
    reference = design.reference
    chosen = reference.policy_gradient
    assert (chosen.baseline, chosen.scale, chosen.aggregation) == ("leave_one_out", "none", "seq_mean_token_sum")
    assert (reference.rollout.prompts_per_step, reference.rollout.samples_per_prompt) == (64, 4)
    assert design.baseline == "leave_one_out"
    assert make_design(str(write_probe_file(tmp_path, baseline="no_baseline"))).baseline == "no_baseline"


GROUPED = {"rollout.prompts_per_step": 4, "rollout.samples_per_prompt": 4}
SLICES = {"type": "slices", "slice_tokens": 8}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"objectives": {}}, "objectives is {}"),
        ({"baseline": "grop"}, "baseline is 'grop'"),
        ({"group_sizes": [], "batch_sizes": []}, "neither group_sizes nor batch_sizes"),
        ({"group_sizes": [0]}, "group_sizes.0 is 0"),
        ({"group_size": [2]}, "did you mean group_sizes?"),
        ({"reference": {"prompts": 20}}, "reference.prompts is 20"),
        ({"objectives": {"a": {"algorithm": "grpo", "train.steps": 3}}}, "objectives.a sets train.steps"),
        ({"base": {"objective": {"scale": "none"}}}, "base sets objective"),
        ({"group_sizes": [3]}, "a batch of 16 completions with groups of 3"),
        ({"batch_sizes": [48]}, "completions is 256 with a batch of 48"),
        ({"batch_sizes": [128]}, "completions is 256 with a batch of 128"),
        ({"group_sizes": [1]}, "rollout.samples_per_prompt=1"),
        (objective(scael=1), "did you mean objective.scale"),
        (objective(baseline="critic", scale="none"), "objective.baseline=critic"),
        (objective(**{"kl.where": "loss"}), "objective.kl.where=loss"),
        ({"objectives": {"one": {"algorithm": "dpo"}}}, "objective.link=logistic"),
        (objective(zero_std="refill"), "objective.zero_std=refill"),
        (objective(aggregation="micro_token_mean"), "objective.aggregation=micro_token_mean"),
        (objective(**{"entropy.adaptive.type": "step_up_only"}), "objective.entropy.adaptive.type=step_up_only"),
        ({"base": GROUPED | {"rollout.sampler": "round"}}, "rollout.sampler=round"),
        ({"base": GROUPED | {"rollout.staleness_steps": 1}}, "rollout.staleness_steps=1"),
        ({"base": GROUPED | {"rollout.partial": SLICES}}, "rollout.partial.type=slices"),
        ({"base": GROUPED | {"reward.parts.reward_model": 1.0}}, "reward.parts.reward_model"),
        ({"base": GROUPED | {"task.filter.type": "pass_rate"}}, "task.filter.type is pass_rate"),
        (
            {"base": GROUPED | {"model.cold_start": {"type": "sft", "data": "demonstrations:arithmetic"}}},
            "model.cold_start.type is sft",
        ),
    ],
)
def test_what_cannot_be_measured_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    message = refusal(tmp_path, **changes)
    assert named in message
    assert all(line.startswith(f"{tmp_path / 'mine.yaml'}: ") for line in message.splitlines())


def test_all_objectives_that_cannot_be_measured_are_named_at_once(tmp_path: Path) -> None:
    message = refusal(tmp_path, objectives={name: {"algorithm": name} for name in ("grpo", "ppo", "dapo", "bnpo")})
    named = [line.split("objectives.")[1].split(":")[0] for line in message.splitlines()]
    assert named == ["ppo", "ppo", "dapo", "bnpo"]


def test_set_holds_no_knob_of_an_objective_and_a_probe_has_a_file(tmp_path: Path) -> None:
    with refuses(RefusedError, "shelves.probe.objective_setting", setting="objective.scale"):
        make_design(str(write_probe_file(tmp_path)), settings=["objective.scale=none"])
    with refuses(RefusedError, "plan.no_such_file", what="probe", hint="; did you mean probe?"):
        load_probe("prob")


@pytest.mark.parametrize("name", shipped_probes())
def test_shipped_probes_can_be_measured_and_bear_the_name_of_their_file(name: str) -> None:
    design = make_design(name)
    assert design.file.name == name
    assert len(design.points) > 1


def test_the_shipped_probe_measures_the_claims() -> None:
    design = make_design("probe")
    objectives = [spec.policy_gradient for spec in next(iter(design.points.values())).values()]
    assert {chosen.baseline for chosen in objectives} == {"none", "batch_mean", "group_mean", "leave_one_out"}
    assert {chosen.scale for chosen in objectives} == {"none", "group_std", "batch_std"}
    assert {chosen.aggregation for chosen in objectives} == {
        "seq_mean_token_sum", "seq_mean_token_mean", "token_mean", "constant_length"
    }  # fmt: skip
    assert len({point.group_size for point in design.points}) >= 3
    assert len({point.batch_size for point in design.points}) >= 3
