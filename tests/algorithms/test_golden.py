"""Losses, gradients, advantages and metrics against those of verl 0.9.1 and trl 1.16.0 on one fixed input.

Every entry of the file is either checked here or listed with the reason why the knob space cannot express it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from algorithms import Objective, TokenBatch, advantages, policy_loss, preset, with_overrides
from tests.algorithms.cases import value_and_gradient

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parents[1] / "golden" / "golden.json").read_text())
TOLERANCE = 1e-6

AGGREGATION_OF_VERL = {
    "token-mean": "token_mean",
    "seq-mean-token-mean": "seq_mean_token_mean",
    "seq-mean-token-sum": "seq_mean_token_sum",
    "seq-mean-token-sum-norm": "constant_length",
}
WHITENED: dict[str, object] = {"scale": "whiten_tokens", "scale_eps": 1e-8}
GSPO: dict[str, object] = {"ratio": "sequence_mean", "rule.clip_low": 3e-4, "rule.clip_high": 4e-4}


def cispo(weight_max: float, weight_min: float = 0.0) -> dict[str, object]:
    return {"rule.type": "cispo", "rule.weight_min": weight_min, "rule.weight_max": weight_max}


VERL_ADVANTAGES: dict[str, dict[str, object]] = {
    "grpo": {},
    "grpo_vectorized": {},
    "grpo_nostd": {"scale": "none"},
    "rloo": {"scale": "none", "baseline": "leave_one_out"},
    "rloo_vectorized": {"scale": "none", "baseline": "leave_one_out"},
    "opo": {"scale": "none", "baseline": "length_weighted"},
    "reinforce_plus_plus": {"baseline": "none", **WHITENED},
    "reinforce_plus_plus_baseline": {"baseline": "group_mean", **WHITENED},
}
# Entry before `|aggregation` -> overrides of grpo. `wide_` entries use logp_wide.
VERL_POLICY: dict[str, dict[str, object]] = {
    "ppo_0.2_0.28_c3": {"rule.clip_high": 0.28, "rule.dual_clip": 3.0},
    "ppo_0.2_0.28_c1e9": {"rule.clip_high": 0.28},
    "cispo_lo10_hi0.2": cispo(1.2),
    "gpg": {"rule.type": "policy_gradient"},
    "gspo_3e-4_4e-4": GSPO,
    "wide_ppo_0.2_0.2_c3": {"rule.dual_clip": 3.0},
    "wide_ppo_0.2_0.2_c1e9": {},
    "wide_cispo_lo10_hi4": cispo(5.0),
}
TRL_GRPO: dict[str, dict[str, object]] = {
    "grpo_0.2_0.28": {"rule.clip_high": 0.28},
    "bnpo_0.2_0.28": {"rule.clip_high": 0.28, "aggregation": "token_mean"},
    "dapo_0.2_0.28": {"rule.clip_high": 0.28, "aggregation": "token_mean"},
    "dr_grpo_0.2_0.28": {"rule.clip_high": 0.28, "aggregation": "constant_length"},
    "grpo_delta4": {"rule.dual_clip": 4.0},
    "gspo_3e-4_4e-4": GSPO,
    "luspo_seq": GSPO | {"aggregation": "seq_mean_token_sum"},
    "cispo_default_0.2": cispo(0.2) | {"aggregation": "token_mean"},
    "cispo_5": cispo(5.0) | {"aggregation": "token_mean"},
}

NO_GPG_SCALE = "rescales by B / number of non-zero scores, which no knob does"
NO_CRITIC = "needs a critic"
NO_KL = "needs a KL term"
NOT_EXPRESSIBLE: dict[str, str] = {
    "verl/adv/gpg": NO_GPG_SCALE,
    "verl/gae": NO_CRITIC,
    "verl/value_loss": NO_CRITIC,
    "verl/kl": NO_KL,
    **{f"verl/policy/klcov_r0.2_c1|{mode}": "needs selection of tokens by covariance" for mode in AGGREGATION_OF_VERL},
    "verl/policy/sapo|seq-mean-token-mean": "needs the sapo rule",
    "verl/policy/gmpo_0.4|seq-mean-token-mean": "needs the gmpo rule",
    **{f"verl/{name}": "needs sampler correction" for name in ("tis_signature", "tis_token", "tis_sequence")},
    **{
        f"trl/grpo/{loss}_k3_beta0.04_{bias}": NO_KL
        for loss in ("grpo", "bnpo", "dapo", "dr_grpo")
        for bias in ("bias", "nobias")
    },
    "trl/grpo/sapo": "needs the sapo rule",
    "trl/grpo/dapo_entropy0.01": "needs an entropy bonus",
    "trl/grpo/dapo_tis_trunc2": "needs sampler correction",
    "trl/dpo": "preference loss",
    "trl/simpo_b2_g1": "preference loss",
    "trl/orpo_or_term_b0.1": "preference loss",
    "versions": "no numbers",
    "inputs": "the inputs of the others",
    "crosschecks": "verdicts about pairs of the other entries",
}


def verl_objective(entry: str) -> Objective:
    setting, mode = entry.split("|")
    return preset("grpo", **VERL_POLICY[setting], aggregation=AGGREGATION_OF_VERL[mode])


LOSSES: dict[str, Objective] = {
    **{
        f"verl/policy/{entry}": verl_objective(entry)
        for entry in GOLDEN["verl"]["policy"]
        if entry.split("|")[0] in VERL_POLICY
    },
    **{f"trl/grpo/{entry}": preset("grpo", **overrides) for entry, overrides in TRL_GRPO.items()},
    # TRL clips the product ratio of the completion with 0.2 and averages over completions.
    "trl/rloo": preset("rloo", ratio="sequence_product", aggregation="seq_mean_token_mean"),
}
CHECKED = {
    *LOSSES,
    *(f"verl/adv/{entry}" for entry in VERL_ADVANTAGES),
    *(f"verl/agg/{mode}" for mode in AGGREGATION_OF_VERL),
    "verl/masked_whiten",
}


def given(name: str) -> Tensor:
    return torch.tensor(GOLDEN["inputs"][name], dtype=torch.float64)


def lookup(path: str) -> Any:
    entry: Any = GOLDEN
    for part in path.split("/"):
        entry = entry[part]
    return entry


def golden_batch(logp: str = "logp", advantages: Tensor | None = None) -> TokenBatch:
    return TokenBatch(
        logp=given(logp).requires_grad_(),
        old_logp=given("old_logp"),
        mask=given("mask"),
        advantages=given("adv") if advantages is None else advantages,
        max_completion_tokens=GOLDEN["inputs"]["max_completion_length"],
    )


def batch_of(entry: str) -> TokenBatch:
    return golden_batch("logp_wide" if "/wide_" in entry else "logp")


def test_every_entry_is_checked_or_listed_with_a_reason() -> None:
    nested = ("verl/adv", "verl/agg", "verl/policy", "trl/grpo")
    entries = {
        *(path for path in ("versions", "inputs", "crosschecks") if path in GOLDEN),
        *(f"{package}/{key}" for package in ("verl", "trl") for key in GOLDEN[package]),
        *(f"{path}/{key}" for path in nested for key in lookup(path)),
    } - set(nested)
    assert set(GOLDEN) == {"versions", "inputs", "crosschecks", "verl", "trl"}
    assert CHECKED.isdisjoint(NOT_EXPRESSIBLE)
    assert entries == CHECKED | set(NOT_EXPRESSIBLE)


@pytest.mark.parametrize("entry", LOSSES)
def test_loss_and_gradient(entry: str) -> None:
    value, gradient = value_and_gradient(LOSSES[entry], batch_of(entry))
    expected = lookup(entry)
    assert value.item() == pytest.approx(expected["loss"], abs=TOLERANCE)
    torch.testing.assert_close(gradient, torch.tensor(expected["grad"], dtype=torch.float64), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("entry", VERL_ADVANTAGES)
def test_advantages(entry: str) -> None:
    groups = torch.tensor([ord(uid) for uid in GOLDEN["inputs"]["uid"]])
    mask = given("mask")
    result = advantages(preset("grpo", **VERL_ADVANTAGES[entry]), given("rewards"), groups, mask)
    expected = torch.tensor(lookup("verl/adv")[entry], dtype=torch.float64)
    torch.testing.assert_close(result, expected[:, None] * mask, rtol=0, atol=TOLERANCE)


def test_whitening_of_single_tokens() -> None:
    """With completions of one token each, whiten_tokens is verl's masked whitening of a list of values."""
    mask = given("mask").bool()
    values = given("values")[mask]
    objective = preset("grpo", **VERL_ADVANTAGES["reinforce_plus_plus"])
    result = advantages(objective, values, torch.arange(len(values)), torch.ones(len(values), 1))
    expected = torch.tensor(lookup("verl/masked_whiten"), dtype=torch.float64)[mask]
    torch.testing.assert_close(result[:, 0], expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("mode", AGGREGATION_OF_VERL)
def test_aggregation(mode: str) -> None:
    """With A = -1 policy_gradient's token losses are the log-probs that verl aggregated."""
    objective = with_overrides(preset("reinforce"), {"aggregation": AGGREGATION_OF_VERL[mode]})
    value, _ = value_and_gradient(objective, golden_batch(advantages=torch.full((6,), -1.0, dtype=torch.float64)))
    assert value.item() == pytest.approx(lookup("verl/agg")[mode], abs=TOLERANCE)


@pytest.mark.parametrize("entry", [entry for entry in LOSSES if lookup(entry).get("metrics")])
def test_metrics(entry: str) -> None:
    objective, expected = LOSSES[entry], lookup(entry)["metrics"]
    metrics = policy_loss(objective, batch_of(entry)).metrics
    low, high = metrics["clip/low_frac_sign_aware"], metrics["clip/high_frac_sign_aware"]
    ours = {
        "actor/ppo_kl": metrics["kl/k1_old"],
        # verl counts for cispo every weight outside the bounds, for ppo those that a bound acts on.
        "actor/pg_clipfrac": (
            metrics["clip/low_frac_any_sign"] + metrics["clip/high_frac_any_sign"]
            if objective.rule.type == "cispo"
            else low + high
        ),
        "actor/pg_clipfrac_lower": metrics.get("clip/dual_frac", 0.0),
        "cispo_clip_ratio": high,
    }
    if objective.ratio == "token":  # TRL counts completions instead of tokens for ratios of whole completions.
        ours |= {"clip_ratio/low_mean": low, "clip_ratio/high_mean": high}
    shared = ours.keys() & expected.keys()
    assert shared or objective.ratio == "sequence_mean"
    assert {key: ours[key] for key in shared} == pytest.approx({key: expected[key] for key in shared}, abs=TOLERANCE)
