from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithms import Objective, active_knobs, formula, preset, presets, with_overrides
from tests.algorithms.points import POLICY_GRADIENT_KNOBS, VALUES, corners, moved, points

GRPO = preset("grpo", Objective)


def of(**overrides: object) -> dict[str, str]:
    return formula(with_overrides(GRPO, overrides))


@pytest.mark.parametrize("name", presets("policy_gradient"))
def test_every_preset_has_the_parts_that_all_have(name: str) -> None:
    parts = formula(preset(name, Objective))
    assert {"advantage", "ratio", "token loss", "loss", "aggregation", "rows"} <= set(parts)
    assert all(parts.values())
    assert "denominator" in parts["aggregation"]


def test_grpo() -> None:
    assert formula(GRPO) == {
        "advantage": "A_i = (R_i - mean of R over the group) / (std of R over the group + 1e-06); "
        "std with divisor n - 1 (ddof 1)",
        "ratio": "r = pi / pi_old of the token",
        "token loss": "l = -min(A r, A clip(r, 0.8, 1.2))",
        "loss": "aggregation of [l], minimised",
        "aggregation": "1/B sum_i 1/n_i sum_t; denominators B = completions of the step, n_i = their tokens",
        "rows": "groups of equal rewards take part",
    }


@pytest.mark.parametrize(
    ("overrides", "part", "says"),
    [
        (
            {"pass_k": 4, "scale_ddof": 0},
            "advantage",
            "A_i = (mean over the sets of 4 of the group with completion i of the best R in the set - mean over the "
            "group's sets) / (std of the best R over all sets + 1e-06)",
        ),
        (
            {"pass_k": 2, "baseline": "leave_one_out"},
            "advantage",
            "- mean over the group's sets without the completion",
        ),
        ({"rule.type": "cispo", "rule.weight_max": 5}, "token loss", "clip(r, 0, 5)) log pi; absolute bounds"),
        ({"rule.type": "cispo", "rule.weight_max": 5}, "token loss", "eps_low none, eps_high 4"),
        (
            {"rule.type": "cispo", "rule.weight_max": 1.2, "rule.weight_min": 0.8},
            "token loss",
            "eps_low 0.2, eps_high 0.2",
        ),
        ({"rule.type": "cispo", "rule.weight_max": None}, "token loss", "clip(r, 0, infinity)"),
        (
            {"rule.type": "cispo", "rule.weight_max": 1.2, "rule.weight_min": 0.8, "rule.mask": "unified"},
            "token loss",
            "0 where A > 0 and r > 1.2, or A < 0 and r < 0.8",
        ),
        ({"scale_ddof": 0}, "advantage", "std with divisor n (ddof 0)"),
        ({"scale_eps": 1e-4}, "advantage", "+ 0.0001)"),
        ({"scale": "batch_std"}, "advantage", "std of R over the rollout batch"),
        ({"scale": "mini_batch_std"}, "advantage", "std of the centred R over the optimiser step"),
        ({"scale": "whiten_tokens"}, "advantage", "sqrt(variance + 1e-06), both over all tokens of the rollout batch"),
        ({"credit": "steps"}, "advantage", "steps that end at t or later"),
        ({"baseline": "none", "scale": "none", "kl.where": "reward"}, "advantage", "rewards of tokens from t on"),
        ({"baseline": "none", "scale": "none", "kl.where": "reward"}, "reward", "kept by token"),
        (
            {"kl.where": "reward", "kl.beta": 0.05},
            "reward",
            "-0.05 KL at every token, summed over the completion into R",
        ),
        ({"kl.where": "loss"}, "KL", "k3 = exp(-d) - 1 + d (not multiplied by r)"),
        ({"kl.where": "loss", "kl.estimator": "k3_ratio"}, "KL", "(k3 multiplied by the token's ratio r)"),
        ({"kl.where": "loss"}, "loss", "[l + k]"),
        ({"kl.where": "loss", "kl.control": "adaptive"}, "KL", "steered to 0.1 nats per token over 10000 completions"),
        ({"aggregation": "constant_length"}, "aggregation", "completions of the step x rollout.max_completion_tokens"),
        ({"aggregation": "token_mean"}, "aggregation", "N = tokens in the optimiser step's loss"),
        ({"aggregation": "group_token_mean"}, "aggregation", "P = prompts of the step, N_g = group's tokens"),
        ({"select.type": "kl_cov", "sampler_correction.type": "token_band"}, "loss", "[w (l + q)]"),
        ({"select.type": "top_entropy"}, "loss", "[s l]"),
        ({"entropy.bonus": 0.01}, "loss", "] - entropy bonus, minimised"),
        ({"baseline": "critic", "scale": "none"}, "loss", "] + value loss, minimised"),
        ({"baseline": "critic", "scale": "none", "critic.lam": 0.9}, "advantage", "(1 x 0.9)^k"),
        ({"overlong.type": "soft"}, "reward", "from 0 at 0.8 of the limit to 1 at the limit"),
        ({"overlong.penalty": -0.5}, "reward", "-0.5 is added where a completion was cut"),
        ({"zero_std": "refill"}, "rows", "replaced by new prompts, in at most 8 rounds"),
    ],
)
def test_what_a_formula_says(overrides: dict[str, object], part: str, says: str) -> None:
    assert says in of(**overrides)[part]


def test_parts_that_are_off_are_left_out() -> None:
    optional = {"reward", "sampler weight", "selection", "KL", "sequence penalty", "entropy", "critic"}
    assert optional.isdisjoint(formula(GRPO))
    everything = of(
        **{
            "baseline": "critic",
            "scale": "none",
            "overlong.type": "soft",
            "sampler_correction.type": "sequence_truncate",
            "select.type": "kl_cov",
            "kl.where": "loss",
            "sequence_penalty": 0.1,
            "entropy.bonus": 0.1,
        }
    )
    assert optional <= set(everything)


def test_every_knob_changes_the_formula() -> None:
    """Nothing that an objective does goes unsaid."""
    said = set()
    for start in corners():
        for knob in active_knobs(start):
            for value in VALUES[knob]:
                other = moved(start, knob, value)
                if other is not None and other != start:
                    assert formula(other) != formula(start), f"{knob}={value} from {active_knobs(start)}"
                    said.add(knob)
    assert said == set(POLICY_GRADIENT_KNOBS)


@settings(max_examples=50, deadline=None)
@given(points(), st.sampled_from(POLICY_GRADIENT_KNOBS), st.data())
def test_different_objectives_have_different_formulas(start: Objective, knob: str, data: st.DataObject) -> None:
    value: Any = data.draw(st.sampled_from(VALUES[knob]))
    other = moved(start, knob, value)
    if other is not None:
        assert (formula(other) == formula(start)) == (other == start)
