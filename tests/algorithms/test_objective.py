from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from pydantic import ValidationError

from algorithms import Objective, active_knobs, acts_without_advantage, preset, presets
from algorithms.critic import Critic
from algorithms.entropy import Entropy
from harness.settings import Settings, knobs_of, unions_of
from tests.algorithms.points import POLICY_GRADIENT_KNOBS, VALUES, corners, points
from tests.refusals import refuses

PLAIN: dict[str, Any] = {
    "baseline": "group_mean",
    "scale": "group_std",
    "ratio": "token",
    "rule": {"type": "ppo_clip"},
    "aggregation": "token_mean",
}


def test_every_group_is_described() -> None:
    members = (member for union in unions_of(Objective).values() for member in union.members.values())
    groups: list[type[Settings]] = [Objective, Entropy, Critic, *members]
    assert [group.__name__ for group in groups if not group.__doc__] == []


def test_every_knob_is_described_and_every_number_says_where_its_default_comes_from() -> None:
    knobs = knobs_of(Objective)
    selectors = {f"{field}.{union.selector}" for field, union in unions_of(Objective).items()}
    fields = [(name, info) for name, knob in knobs.items() if name not in selectors for info in knob.fields]
    assert {name for name, info in fields if not info.description} == set()
    numbers = [(name, info) for name, info in fields if type(info.default) in (int, float) or name == "rule.dual_clip"]
    assert {"scale_ddof", "rule.clip_low", "kl.beta", "refill_max_rounds"} <= {name for name, _ in numbers}
    assert {name for name, info in numbers if "default" not in str(info.description).lower()} == set()


def test_every_knob_can_be_reached_with_another_value() -> None:
    """Also the values that the tests draw from are all there."""
    assert set(VALUES) == set(POLICY_GRADIENT_KNOBS)
    values: dict[str, set[Any]] = {knob: set() for knob in POLICY_GRADIENT_KNOBS}
    for objective in corners():
        for knob, value in active_knobs(objective).items():
            values[knob].add(value)
    assert {knob for knob, found in values.items() if not found} == set()


@pytest.mark.slow
@given(points())
def test_json_round_trip(objective: Objective) -> None:
    assert Objective.model_validate_json(objective.model_dump_json()) == objective


NO_EFFECT = "settings.no_effect"
RATIO, STEPS = "ratio_of_other_rules", "steps_not_standardised"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"rule": {"type": "cispo"}}, "missing"),
        ({"rule": {"type": "ppo_clip", "clip_low": 0.0}}, "greater_than"),
        ({"rule": {"type": "ppo_clip", "dual_clip": 1.0}}, "greater_than"),
        ({"rule": {"type": "ppo_clip", "clip_high": float("nan")}}, "finite_number"),
        ({"rule": {"type": "ppo_clip", "clip_high": "0.2"}}, "float_type"),
        ({"rule": {"type": "weighted", "clip_low": 0.2}}, "extra_forbidden"),
        ({"rule": {"type": "policy_gradient"}}, NO_EFFECT),
        ({"rule": {"clip_low": 0.1}}, "settings.kind_without_type"),
        ({"rule": {"type": "ppo_clop"}}, "bench.unknown_name"),
        ({"rule": "ppo_clip"}, "model_type"),
        ({"scale": "none", "scale_ddof": 0}, NO_EFFECT),
        ({"scale": "nonzero_frac", "scale_eps": 1e-4}, NO_EFFECT),
        ({"critic": {"lam": 0.9}}, NO_EFFECT),
        ({"zero_std": "drop", "refill_max_rounds": 2}, NO_EFFECT),
        ({"baseline": "batch_mean", "scale": "none", "pass_k": 2}, NO_EFFECT),
        ({"kl": {"where": "loss", "target_nats": 0.5}}, NO_EFFECT),
        ({"kl": {"where": "reward", "estimator": "k3_ratio"}}, "literal_error"),
        ({"kl": 0.1}, "model_attributes_type"),
        ({"overlong": {"type": "penalise", "penalty": 0.5}}, "less_than_equal"),
        ({"scale_ddof": 2}, "less_than_equal"),
    ],
)
def test_a_knob_that_cannot_have_its_value_is_refused(change: dict[str, Any], code: str) -> None:
    with refuses(ValidationError, code):
        Objective.model_validate(PLAIN | change)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"rule": {"type": "cispo", "weight_min": 2.0, "weight_max": 1.0}}, "weights_all_equal"),
        ({"rule": {"type": "cispo", "weight_max": None, "mask": "unified"}}, "mask_without_bounds"),
        ({"ratio": "none"}, RATIO),
        ({"rule": {"type": "gmpo"}}, RATIO),
        ({"rule": {"type": "sapo"}, "ratio": "sequence_product"}, RATIO),
        ({"baseline": "batch_mean"}, "group_std_without_groups"),
        ({"baseline": "none", "scale": "batch_std"}, "batch_std_uncentred"),
        ({"baseline": "none", "scale": "mini_batch_std"}, "batch_std_uncentred"),
        ({"baseline": "critic", "scale": "batch_std"}, "std_with_critic"),
        ({"baseline": "random_peer", "scale": "batch_std"}, "std_with_signs"),
        ({"pass_k": 2, "scale": "batch_std"}, "std_with_sets"),
        ({"pass_k": 2, "credit": "steps"}, "sets_of_steps"),
        ({"credit": "steps", "zero_std": "mask"}, "zero_std_with_steps"),
        ({"credit": "steps", "baseline": "leave_one_out"}, STEPS),
        ({"credit": "steps", "scale": "batch_std"}, STEPS),
        ({"credit": "steps", "kl": {"where": "reward"}}, "kl_as_steps"),
        ({"select": {"type": "clip_cov"}, "ratio": "sequence_mean"}, "selection_by_completions"),
        ({"select": {"type": "top_entropy"}, "ratio": "sequence_product"}, "selection_by_completions"),
        ({"select": {"type": "clip_cov", "cov_low": 5.0}}, "cov_high_not_above_low"),
        ({"kl": {"where": "reward", "reference": "iteration_start"}}, "kl_reward_is_zero"),
        ({"kl": {"where": "loss", "reference": "iteration_start", "control": "adaptive"}}, "kl_measured_is_zero"),
        ({"entropy": {"bonus": 0.5, "adaptive": {"type": "step_up_only", "coef_max": 0.1}}}, "bonus_outside_bounds"),
        (
            {"entropy": {"adaptive": {"type": "step_up_only", "coef_max": 0.1, "coef_min": 0.1}}},
            "coef_max_not_above_min",
        ),
        ({"sampler_correction": {"type": "token_band", "weight_min": 9.0}}, "band_is_empty"),
        ({"sampler_correction": {"type": "in_ratio"}, "rule": {"type": "supervised"}}, "in_ratio_without_ratio"),
        ({"sampler_correction": {"type": "in_ratio"}, "select": {"type": "kl_cov"}}, "in_ratio_with_selection"),
        ({"distill": {"where": "reward"}, "advantage_sign": "positive"}, "sign_with_teacher"),
        ({"distill": {"where": "reward"}, "rule": {"type": "supervised"}}, "teacher_unheard"),
    ],
)
def test_knobs_that_contradict_each_other_are_refused(change: dict[str, Any], code: str) -> None:
    with refuses(ValidationError, f"algorithms.{code}"):
        Objective.model_validate(PLAIN | change)


@pytest.mark.parametrize(
    "change",
    [
        {"select": {"type": "kl_cov"}, "ratio": "sequence_mean"},
        {"select": {"type": "clip_cov"}, "ratio": "sequence_mean", "rule": {"type": "cispo", "weight_max": 2.0}},
        {"kl": {"where": "loss", "reference": "iteration_start"}},
        {"rule": {"type": "cispo", "weight_max": None, "weight_min": 0.5, "mask": "unified"}},
        {"baseline": "critic", "scale": "whiten_tokens"},
        {"credit": "steps", "kl": {"where": "loss"}},
    ],
)
def test_what_makes_sense_is_not(change: dict[str, Any]) -> None:
    Objective.model_validate(PLAIN | change)


def test_every_problem_is_named_at_once() -> None:
    for code, fields in ((RATIO, {"ratio": "none"}), ("group_std_without_groups", {"baseline": "batch_mean"})):
        with refuses(ValidationError, f"algorithms.{code}", **fields):
            Objective.model_validate(PLAIN | {"ratio": "none", "baseline": "batch_mean"})


def test_aggregation_has_no_default() -> None:
    with refuses(ValidationError, "missing", path="aggregation"):
        Objective.model_validate({})


def test_what_acts_without_advantage() -> None:
    acting = {name for name in presets("policy_gradient") if acts_without_advantage(preset(name, Objective))}
    assert acting == {
        "reinforce_pp_baseline",  # KL in the loss
        "ppo",  # value loss
        "bnpo",  # rows decide what a micro-batch is
        "kimi_k1_5",  # squared log-ratio
        "clip_cov",
        "kl_cov",
        "skywork_or1",  # entropy
        "sft",  # whatever it earned
        "kd",  # a teacher in the loss
        "gkd",
    }
    assert acts_without_advantage(preset("grpo", Objective, **{"entropy.bonus": 0.1}))
    assert not acts_without_advantage(preset("grpo", Objective, **{"kl.where": "reward"}))
