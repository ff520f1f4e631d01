from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.errors import RefusedError
from harness.plan.sweep_file import shipped_probes
from harness.shelves.probe.design import ProbePoint, load_probe, make_design
from tests.harness.shelves.probe.files import write_probe_file


def refusal(tmp_path: Path, settings: tuple[str, ...] = (), **changes: Any) -> str:
    with pytest.raises(RefusedError) as caught:
        make_design(str(write_probe_file(tmp_path, **changes)), settings=settings)
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


def test_the_reference_is_the_gradient_of_the_expected_reward(tmp_path: Path) -> None:
    reference = make_design(str(write_probe_file(tmp_path))).reference
    chosen = reference.policy_gradient
    assert (chosen.baseline, chosen.scale, chosen.aggregation) == ("leave_one_out", "none", "seq_mean_token_sum")
    assert (reference.rollout.prompts_per_step, reference.rollout.samples_per_prompt) == (64, 4)


def test_the_baseline_is_the_first_unless_it_is_named(tmp_path: Path) -> None:
    assert make_design(str(write_probe_file(tmp_path))).baseline == "leave_one_out"
    assert make_design(str(write_probe_file(tmp_path, baseline="no_baseline"))).baseline == "no_baseline"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"objectives": {}}, "objectives"),
        ({"baseline": "grop"}, "baseline is 'grop', but the objectives are leave_one_out, group_mean, no_baseline"),
        ({"group_sizes": [], "batch_sizes": []}, "neither group_sizes nor batch_sizes given"),
        ({"group_sizes": [0]}, "group_sizes.0 is 0"),
        ({"group_size": [2]}, "group_size is not a key here; did you mean group_sizes?"),
        ({"reference": {"prompts": 20}}, "reference.prompts is 20: input should be a multiple of 16"),
        ({"objectives": {"a": {"algorithm": "grpo", "train.steps": 3}}}, "objectives.a sets train.steps"),
        ({"base": {"objective": {"scale": "none"}}}, "base sets objective: put what is of an objective under"),
        ({"group_sizes": [3]}, "a batch of 16 completions with groups of 3: it must hold whole groups"),
        ({"batch_sizes": [48]}, "completions is 256 with a batch of 48: it must be a multiple of every batch"),
        (
            {"batch_sizes": [128]},
            "completions is 256 with a batch of 128: it must be a multiple of every",
        ),
        ({"group_sizes": [1]}, "rollout.samples_per_prompt=1 with objective.baseline=leave_one_out"),
        (objective(scael=1), "objectives.one: unknown key objective.scael; did you mean objective.scale"),
        (
            objective(baseline="critic", scale="none"),
            "one: objective.baseline=critic: a probe has no critic",
        ),
        (objective(**{"kl.where": "loss"}), "objective.kl.where=loss: a probe has no reference policy"),
        ({"objectives": {"one": {"algorithm": "dpo"}}}, "objective.link=logistic is of a preference algorithm"),
        (objective(zero_std="refill"), "objective.zero_std=refill: an estimate would hold more completions"),
        (objective(aggregation="micro_token_mean"), "it depends on how a step is split into micro-batches"),
        (
            objective(**{"entropy.adaptive.type": "step_up_only"}),
            "objective.entropy.adaptive.type=step_up_only: its coefficient is found in training",
        ),
        ({"base": {"rollout.sampler": "round"}}, "rollout.sampler=round: a probe has one policy"),
        ({"base": {"rollout.staleness_steps": 1}}, "rollout.staleness_steps=1: a probe has one policy"),
        (
            {"base": {"rollout.partial": {"type": "slices", "slice_tokens": 8}}},
            "rollout.partial.type=slices: a probe has one step",
        ),
        (
            {"base": {"reward.parts.reward_model": 1.0}},
            "reward.parts.reward_model: a probe has no use for a reward model",
        ),
        ({"base": {"task.filter.type": "pass_rate"}}, "task.filter.type is pass_rate: a probe measures no pass rates"),
        (
            {"base": {"model.cold_start": {"type": "sft", "data": "demonstrations:arithmetic"}}},
            "model.cold_start.type is sft: a probe takes a model as it is",
        ),
    ],
)
def test_what_cannot_be_measured_is_refused(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    message = refusal(tmp_path, **changes)
    assert says in message
    assert all(line.startswith(f"{tmp_path / 'mine.yaml'}: ") for line in message.splitlines())


def test_set_holds_no_knob_of_an_objective(tmp_path: Path) -> None:
    assert refusal(tmp_path, settings=("objective.scale=none",)).startswith("--set objective.scale: a probe compares")


def test_all_objectives_that_cannot_be_measured_are_named_at_once(tmp_path: Path) -> None:
    message = refusal(tmp_path, objectives={name: {"algorithm": name} for name in ("grpo", "ppo", "dapo", "bnpo")})
    named = [line.split("objectives.")[1].split(":")[0] for line in message.splitlines()]
    assert named == ["ppo", "ppo", "dapo", "bnpo"]


def test_an_unknown_probe_is_refused() -> None:
    with pytest.raises(RefusedError, match=r"no shipped probe of that name; did you mean probe\? Shipped: probe"):
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
