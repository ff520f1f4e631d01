"""Every shipped question can be asked on every shipped substrate, and stays the question it was."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from algorithms import preset, presets
from harness.cli.plan import _detectable
from harness.errors import RefusedError
from harness.plan import make_plan
from harness.plan.profile import find_profile, profile_layer
from harness.plan.search_plan import make_search_plan
from harness.plan.sweep_file import SHIPPED, shipped
from tests.sweeps.freeze import FROZEN, NEEDS_STEPS, hashes

FROZEN_HASHES = json.loads(FROZEN.read_text(encoding="utf-8"))
CHANGED = """A hash that changes renames the cell: all that was run of it is run again. If that is meant (other weights,
other data, another default, NUMERICS_VERSION raised), write the new ones: python -m tests.sweeps.freeze"""
SEARCHES = {name: path for name, path in shipped(SHIPPED).items() if name.startswith("tune_")}
SWEEPS = {name: path for name, path in shipped(SHIPPED).items() if name not in SEARCHES}
PROFILES = shipped(SHIPPED / "profiles")


def test_the_sweeps_and_profiles_are_there() -> None:
    assert set(SWEEPS) == set(FROZEN_HASHES)
    assert {"tiny-easy", "tiny-hard", "tiny-mixed", "tiny-short-context", "tiny-weak-start"} <= set(PROFILES)
    assert {"tiny", "smollm2-gsm8k", "qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-math-1.5b"} <= set(PROFILES)


@pytest.mark.parametrize("profile", sorted(name for name in PROFILES if name.startswith("qwen")))
def test_a_profile_of_a_real_model_plans_without_data_gpu_or_network(
    profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BENCH_DATA", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    plan = make_plan("std_norm", profile)
    spec = plan.first_spec
    assert re.fullmatch(r"hf:Qwen/[\w.-]+@[0-9a-f]{40}", spec.model.source), "pinned to a commit"
    assert (spec.rollout.engine, spec.train.device, spec.model.dtype) == ("vllm", "cuda", "bfloat16")
    # What its file says comes from a recipe, with the source.
    text = PROFILES[profile].read_text(encoding="utf-8")
    assert re.search(r"\((?:verl-project/verl|eric-haibin-lin/verl-data|sail-sg/understand-r1-zero),", text)
    memory = plan.cost().memory
    assert memory is not None and memory.device == "cuda"
    advised_gb = int(re.search(r"one GPU of (\d+) GB", text)[1])  # type: ignore[index]
    assert memory.total_bytes / 1e9 + memory.engine_frac * advised_gb <= advised_gb, (
        "it fits what its description asks for"
    )


def test_the_maths_model_is_asked_as_it_was_made_for() -> None:
    spec = make_plan("std_norm", "qwen2.5-math-1.5b").first_spec
    assert (spec.task.template, spec.eval.template) == ("qwen_math", "qwen_math")
    assert (spec.eval.temperature, spec.eval.samples) == (0, 1)


@pytest.mark.parametrize(
    ("sweep", "profile"), [*((sweep, "tiny") for sweep in SWEEPS), *(("std_norm", profile) for profile in PROFILES)]
)
def test_a_sweep_plans_clean_on_a_profile(sweep: str, profile: str) -> None:
    """Each sweep on one profile, each profile under one sweep: it can be answered, and trains the cells it did."""
    plan = make_plan(str(SWEEPS[sweep]), profile, on_gpu=lambda: False)
    plan.require_answerable()
    assert plan.sweep.name == sweep
    assert not any(noop.refused for noop in plan.noops)
    # Few seeds may be warned about (aa needs no more), an arm that cannot act may not.
    assert not [warning for warning in plan.warnings if "cannot" in warning and "sign-flip" not in warning]
    cost = plan.cost()
    assert cost.cells == len(plan.arms) * len(plan.sweep.seed_list)
    assert (cost.generated_tokens_at_most > 0) == (plan.request.checkpoint is None)
    assert (cost.eval_samples_at_most or 0) > 0
    for declared in plan.sweep.ablate:
        entry = "objective" if declared == "algorithm" else declared
        assert any(f"{knob}.".startswith(f"{entry}.") for knob in plan.gate.differs), f"no arm varies {entry}"
    first = {cell.arm: f"{cell.hash} {cell.evaluation}" for cell in plan.cells if cell.seed == 0}
    assert first == FROZEN_HASHES[sweep][profile], CHANGED
    if sweep != "aa":
        assert len({*first.values()}) == len(plan.arms)
    # With the spread that was measured on the profile; of another task it is assumed, and larger. Questions of many
    # arms confirm their best ones instead.
    if plan.sweep.profile == profile:
        detectable = _detectable(plan, [])
        known = "profile tiny" if plan.first_spec.task.train == "arithmetic" else "assumed sd"
        trains = plan.request.checkpoint is None
        assert detectable.origin == (known if trains else "the largest possible sampling noise")
        assert detectable.pp is not None and detectable.pp <= 2.0
        assert (plan.sweep.screening is not None) == (len(plan.arms) > 12)


@pytest.mark.slow
def test_the_hashes_are_frozen_on_every_profile() -> None:
    assert hashes() == FROZEN_HASHES, CHANGED


def test_a_sweep_that_needs_steps_is_refused_where_there_are_none() -> None:
    for sweep in NEEDS_STEPS:
        with pytest.raises(RefusedError) as refused:
            make_plan(str(SWEEPS[sweep]), "smollm2-gsm8k")
        assert "reward.parts.process" in str(refused.value)


def test_a_search_plans() -> None:
    assert set(SEARCHES) == {"tune_grpo"}
    plan = make_search_plan("tune_grpo")
    assert plan.default_values() is not None, "the default is the trial that others are compared with"
    assert plan.search.budget.trials == 20


def test_a_sweep_says_what_is_claimed_and_by_whom() -> None:
    for sweep in (*SWEEPS, *SEARCHES):
        lines = shipped(SHIPPED)[sweep].read_text(encoding="utf-8").splitlines()
        assert [line for line in lines[: lines.index(f"name: {sweep}")] if line.startswith("# ")]
        assert all(len(line) <= 120 for line in lines)


def test_all_presets_are_compared() -> None:
    # Rejection-sampling fine-tuning is compared with iterative DPO and offline learning instead, distillation with RL.
    taught = {"sft", "kd", "gkd", "opd"}
    in_distillation = {spec.objective for spec in make_plan("distillation", seeds=1).arms.values()}
    assert {
        preset("sft"),
        preset("kd"),
        preset("gkd"),
        preset("opd", **{"rule.type": "policy_gradient"}),
    } <= in_distillation
    assert set(make_plan("algorithms", seeds=1).arms) == {*presets("policy_gradient")} - taught - {"rft"}
    assert {"rft_online", "rft_iterative", "rft_offline"} <= set(make_plan("dpo_vs_grpo", seeds=1).arms)
    assert set(make_plan("preference", seeds=1).arms) >= set(presets("preference"))


def test_prompts_and_samples_make_equally_many_completions() -> None:
    rollouts = [spec.rollout for spec in make_plan("prompts_vs_samples", seeds=1).arms.values()]
    assert {rollout.prompts_per_step * rollout.samples_per_prompt for rollout in rollouts} == {256}


def test_the_arms_of_aa_are_the_same_cells() -> None:
    plan = make_plan("aa")
    one, other = plan.arms
    by_arm = {arm: [cell.hash for cell in plan.cells if cell.arm == arm] for arm in plan.arms}
    assert by_arm[one] == by_arm[other]
    assert plan.gate.differs == []


def test_a_profile_describes_itself() -> None:
    for profile, path in PROFILES.items():
        assert yaml.safe_load(path.read_text(encoding="utf-8"))["description"]
        assert find_profile(profile, beside=SWEEPS["std_norm"]) == path
        assert {"description", "extends", "paired_sd_pp", "sampling_sd_pp"}.isdisjoint(profile_layer(path).settings)
