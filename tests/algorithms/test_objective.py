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


@given(points())
def test_json_round_trip(objective: Objective) -> None:
    assert Objective.model_validate_json(objective.model_dump_json()) == objective


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"rule": {"type": "cispo", "weight_min": 2.0, "weight_max": 1.0}}, "weight_max=1 is not above weight_min=2"),
        ({"rule": {"type": "cispo"}}, "weight_max"),
        (
            {"rule": {"type": "cispo", "weight_max": None, "mask": "unified"}},
            "mask=unified without bounds masks nothing",
        ),
        ({"rule": {"type": "ppo_clip", "clip_low": 0.0}}, "greater than 0"),
        ({"rule": {"type": "ppo_clip", "dual_clip": 1.0}}, "greater than 1"),
        ({"rule": {"type": "ppo_clip", "clip_high": float("nan")}}, "greater than 0|finite"),
        ({"rule": {"type": "ppo_clip", "clip_high": "0.2"}}, "valid number"),
        ({"rule": {"type": "weighted", "clip_low": 0.2}}, "Extra inputs"),
        ({"ratio": "none"}, "acts through the importance ratio; set ratio to token"),
        ({"rule": {"type": "policy_gradient"}}, "ratio=token has no effect while rule.type=policy_gradient"),
        ({"rule": {"type": "gmpo"}}, "ratio=token with rule.type=gmpo: this rule acts .*; set ratio to sequence_mean"),
        ({"rule": {"type": "sapo"}, "ratio": "sequence_product"}, "set ratio to token or sequence_mean"),
        ({"scale": "none", "scale_ddof": 0}, "scale_ddof=0 has no effect while scale=none"),
        ({"scale": "none", "scale_eps": 1e-4}, "scale_eps=0.0001 has no effect while scale=none"),
        ({"scale": "nonzero_frac", "scale_ddof": 0}, "scale_ddof=0 has no effect while scale=nonzero_frac"),
        ({"baseline": "batch_mean"}, "use a group baseline"),
        ({"baseline": "none", "scale": "batch_std"}, "scale=batch_std with baseline=none.*choose a baseline"),
        ({"baseline": "none", "scale": "mini_batch_std"}, "scale=mini_batch_std with baseline=none.*choose a baseline"),
        ({"baseline": "critic", "scale": "batch_std"}, "set scale to whiten_tokens or none"),
        ({"baseline": "random_peer", "scale": "batch_std"}, "its advantages are signs; set scale to none"),
        ({"credit": "steps", "baseline": "leave_one_out"}, "set baseline to group_mean"),
        ({"credit": "steps", "scale": "batch_std"}, "scale to group_std or none"),
        ({"credit": "steps", "kl": {"where": "reward"}}, "every token would be a step; set kl.where to loss or none"),
        ({"select": {"type": "clip_cov"}, "ratio": "sequence_mean"}, "select.type=clip_cov with ratio=sequence_mean"),
        (
            {"select": {"type": "top_entropy"}, "ratio": "sequence_product"},
            "set ratio to token, or select.type to none",
        ),
        ({"select": {"type": "clip_cov", "cov_low": 5.0}}, "cov_high=5 is not above cov_low=5"),
        ({"kl": {"where": "reward", "reference": "iteration_start"}}, "where this KL is 0; set kl.where to loss"),
        (
            {"kl": {"where": "loss", "reference": "iteration_start", "control": "adaptive"}},
            "measured at the start of the iteration, where it is 0; set kl.control to fixed",
        ),
        ({"kl": {"where": "loss", "target_nats": 0.5}}, "target_nats=0.5 has no effect while control=fixed"),
        ({"kl": {"where": "reward", "estimator": "k3_ratio"}}, "'k1', 'k1_clamped', 'k2' or 'k3'"),
        (
            {"entropy": {"bonus": 0.5, "adaptive": {"type": "step_up_only", "coef_max": 0.1}}},
            "entropy.bonus=0.5 is the first coefficient, outside entropy.adaptive.coef_min=0 and coef_max=0.1; set it",
        ),
        ({"entropy": {"adaptive": {"type": "step_up_only", "coef_max": 0.1, "coef_min": 0.1}}}, "could not move"),
        ({"critic": {"lam": 0.9}}, "critic.lam=0.9 has no effect while baseline=group_mean"),
        ({"zero_std": "drop", "refill_max_rounds": 2}, "refill_max_rounds=2 has no effect while zero_std=drop"),
        ({"overlong": {"type": "penalise", "penalty": 0.5}}, "less than or equal to 0"),
        ({"sampler_correction": {"type": "token_band", "weight_min": 9.0}}, "every weight would be 0"),
        ({"scale_ddof": 2}, "less than or equal to 1"),
        ({"kl": 0.1}, "valid dictionary"),
        ({"rule": "ppo_clip"}, "valid dictionary"),
        ({"rule": {"clip_low": 0.1}}, "a rule without its type: give `type` beside its knobs"),
        ({"rule": {"type": "ppo_clop"}}, "unknown rule 'ppo_clop'; did you mean ppo_clip. `bench ls rules` lists all"),
    ],
)
def test_what_makes_no_sense_is_refused(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
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
    with pytest.raises(ValidationError, match=r"(?s)ratio=none with.*\nscale=group_std with"):
        Objective.model_validate(PLAIN | {"ratio": "none", "baseline": "batch_mean"})


def test_aggregation_has_no_default() -> None:
    with pytest.raises(ValidationError, match="aggregation"):
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
