"""Losses, gradients, advantages and metrics against those of verl 0.9.1 and trl 1.16.0 on one fixed input.

Every entry of the file is checked here, with the preference losses, or listed with the reason why the knob space cannot
express it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from algorithms import (
    Objective,
    TokenBatch,
    advantages,
    kl_estimate,
    policy_loss,
    preset,
    value_targets,
    with_overrides,
)
from algorithms.critic import value_losses
from algorithms.kl import LossEstimator
from algorithms.loss import aggregate
from algorithms.sampler_correction import NoCorrection, corrected
from tests.algorithms.cases import GRPO, value_and_gradient
from tests.algorithms.preference.test_golden import PREFERENCE_ENTRIES

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
    "gpg": {"scale": "nonzero_frac"},
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
    "klcov_r0.2_c1": {"rule.type": "weighted", "select.type": "kl_cov", "select.fraction": 0.2, "select.coef": 1.0},
    "sapo": {"rule.type": "sapo"},
    "gmpo_0.4": {"rule.type": "gmpo", "ratio": "sequence_mean"},
}
TRL_GRPO: dict[str, dict[str, object]] = {
    "grpo_0.2_0.28": {"rule.clip_high": 0.28},
    "bnpo_0.2_0.28": {"rule.clip_high": 0.28, "aggregation": "micro_token_mean"},
    "dapo_0.2_0.28": {"rule.clip_high": 0.28, "aggregation": "token_mean"},
    "dr_grpo_0.2_0.28": {"rule.clip_high": 0.28, "aggregation": "constant_length"},
    "grpo_delta4": {"rule.dual_clip": 4.0},
    "gspo_3e-4_4e-4": GSPO,
    "luspo_seq": GSPO | {"aggregation": "seq_mean_token_sum"},
    "cispo_default_0.2": cispo(0.2) | {"aggregation": "token_mean"},
    "cispo_5": cispo(5.0) | {"aggregation": "token_mean"},
    "sapo": {"rule.type": "sapo"},
    "dapo_entropy0.01": {"aggregation": "token_mean", "entropy.bonus": 0.01},
    "dapo_tis_trunc2": {
        "aggregation": "token_mean",
        "sampler_correction.type": "token_truncate",
        "sampler_correction.weight_max": 2.0,
    },
    **{
        f"{loss}_k3_beta0.04_{bias}": {
            "aggregation": aggregation,
            "kl.where": "loss",
            "kl.beta": 0.04,
            "kl.estimator": estimator,
        }
        for loss, aggregation in (
            ("grpo", "seq_mean_token_mean"),
            ("bnpo", "micro_token_mean"),
            ("dapo", "token_mean"),
            ("dr_grpo", "constant_length"),
        )
        for bias, estimator in (("bias", "k3_ratio"), ("nobias", "k3"))
    },
}
VERL_KL: dict[str, LossEstimator] = {"k1": "k1", "k2": "k2", "k3": "k3", "k3+": "k3_straight"}
VERL_WEIGHTS = {"tis_token": "token_truncate", "tis_sequence": "sequence_truncate"}

NOT_EXPRESSIBLE: dict[str, str] = {
    "verl/kl/abs": "|log-ratio| is not an estimate of a KL and not a knob",
    "verl/kl/k1+": "the value of k1 with the gradient of k2: in the loss the same gradient as k2",
    "verl/tis_signature": "no numbers",
    "versions": "no numbers",
    "inputs": "the inputs of the others",
    "crosschecks": "verdicts about pairs of the other entries",
}


def verl_objective(entry: str) -> Objective:
    setting, mode = entry.split("|")
    return with_overrides(GRPO, VERL_POLICY[setting] | {"aggregation": AGGREGATION_OF_VERL[mode]})


LOSSES: dict[str, Objective] = {
    **{
        f"verl/policy/{entry}": verl_objective(entry)
        for entry in GOLDEN["verl"]["policy"]
        if entry.split("|")[0] in VERL_POLICY
    },
    **{f"trl/grpo/{entry}": with_overrides(GRPO, overrides) for entry, overrides in TRL_GRPO.items()},
    # TRL clips the product ratio of the completion with 0.2 and averages over completions.
    "trl/rloo": preset("rloo", Objective, ratio="sequence_product", aggregation="seq_mean_token_mean"),
}
CHECKED = {
    *LOSSES,
    *(f"verl/adv/{entry}" for entry in VERL_ADVANTAGES),
    *(f"verl/agg/{mode}" for mode in AGGREGATION_OF_VERL),
    "verl/masked_whiten",
    *(f"verl/kl/{entry}" for entry in VERL_KL),
    *(f"verl/{entry}" for entry in VERL_WEIGHTS),
    "verl/gae",
    "verl/value_loss",
}


def given(name: str) -> Tensor:
    return torch.tensor(GOLDEN["inputs"][name], dtype=torch.float64)


def tensor(numbers: list[Any]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


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
        ref_logp=given("ref_logp"),
        sampler_logp=given("rollout_logp"),
        entropy=-given("old_logp"),
        max_completion_tokens=GOLDEN["inputs"]["max_completion_length"],
    )


def batch_of(entry: str) -> TokenBatch:
    return golden_batch("logp_wide" if "/wide_" in entry else "logp")


def test_every_entry_is_checked_or_listed_with_a_reason() -> None:
    nested = ("verl/adv", "verl/agg", "verl/kl", "verl/policy", "trl/grpo", "trl/dpo")
    entries = {
        *(path for path in ("versions", "inputs", "crosschecks") if path in GOLDEN),
        *(f"{package}/{key}" for package in ("verl", "trl") for key in GOLDEN[package]),
        *(f"{path}/{key}" for path in nested for key in lookup(path)),
    } - set(nested)
    assert set(GOLDEN) == {"versions", "inputs", "crosschecks", "verl", "trl"}
    assert CHECKED.isdisjoint(NOT_EXPRESSIBLE)
    assert entries == CHECKED | set(NOT_EXPRESSIBLE) | PREFERENCE_ENTRIES


@pytest.mark.parametrize("entry", LOSSES)
def test_loss_and_gradient(entry: str) -> None:
    value, gradient = value_and_gradient(LOSSES[entry], batch_of(entry))
    expected = lookup(entry)
    assert value.item() == pytest.approx(expected["loss"], abs=TOLERANCE)
    torch.testing.assert_close(gradient, tensor(expected["grad"]), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("entry", VERL_KL)
def test_kl_estimates(entry: str) -> None:
    logp, mask, expected = given("logp").requires_grad_(), given("mask"), lookup("verl/kl")[entry]
    estimates = kl_estimate(VERL_KL[entry], logp, given("ref_logp"), given("old_logp")) * mask
    torch.testing.assert_close(estimates.detach(), tensor(expected["value"]), rtol=0, atol=TOLERANCE)
    mean = estimates.sum() / mask.sum()
    assert mean.item() == pytest.approx(expected["token_mean"], abs=TOLERANCE)
    torch.testing.assert_close(torch.autograd.grad(mean, logp)[0], tensor(expected["grad"]), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("entry", VERL_WEIGHTS)
def test_sampler_weights(entry: str) -> None:
    correction = with_overrides(GRPO, {"sampler_correction.type": VERL_WEIGHTS[entry]}).sampler_correction
    mask = given("mask").bool()
    old_logp, sampler_logp = (torch.where(mask, given(name), 0) for name in ("old_logp", "rollout_logp"))
    assert not isinstance(correction, NoCorrection)
    found, _ = corrected(correction, old_logp, sampler_logp, mask)
    assert found is not None
    torch.testing.assert_close(mask * found.weights, tensor(lookup(f"verl/{entry}/w")), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("entry", VERL_ADVANTAGES)
def test_advantages(entry: str) -> None:
    groups = torch.tensor([ord(uid) for uid in GOLDEN["inputs"]["uid"]])
    mask = given("mask")
    result = advantages(preset("grpo", Objective, **VERL_ADVANTAGES[entry]), given("rewards"), groups, mask)
    expected = torch.tensor(lookup("verl/adv")[entry], dtype=torch.float64)
    torch.testing.assert_close(result, expected[:, None] * mask, rtol=0, atol=TOLERANCE)


def test_whitening_of_single_tokens() -> None:
    """With completions of one token each, whiten_tokens is verl's masked whitening of a list of values."""
    mask = given("mask").bool()
    values = given("values")[mask]
    objective = preset("grpo", Objective, **VERL_ADVANTAGES["reinforce_plus_plus"])
    result = advantages(objective, values, torch.arange(len(values)), torch.ones(len(values), 1))
    expected = torch.tensor(lookup("verl/masked_whiten"), dtype=torch.float64)[mask]
    torch.testing.assert_close(result[:, 0], expected, rtol=0, atol=TOLERANCE)


def test_gae() -> None:
    """verl whitens the advantages after it has made the returns from them."""
    golden = lookup("verl/gae")
    assert (golden["gamma"], golden["lam"]) == (1.0, 0.95)
    objective = preset("grpo", Objective, baseline="critic", **WHITENED)
    rewards, mask, values = given("rewards"), given("mask"), given("values")
    result = advantages(objective, rewards, torch.zeros(6, dtype=torch.long), mask, values=values)
    torch.testing.assert_close(result, torch.tensor(golden["advantages"], dtype=torch.float64), rtol=0, atol=TOLERANCE)
    returns = value_targets(objective, rewards, mask, values)
    torch.testing.assert_close(returns, torch.tensor(golden["returns"], dtype=torch.float64), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("mode", GOLDEN["verl"]["value_loss"])
def test_value_loss(mode: str) -> None:
    """Its new values are the old ones plus 0.3, clipped at 0.2, and its returns are those of verl/gae."""
    values, returns = given("values"), torch.tensor(lookup("verl/gae")["returns"], dtype=torch.float64)
    losses = value_losses(values + 0.3, values, returns, value_clip=0.2)
    value = aggregate(losses, AGGREGATION_OF_VERL[mode], golden_batch())
    assert value.item() == pytest.approx(lookup("verl/value_loss")[mode], abs=TOLERANCE)


@pytest.mark.parametrize("mode", AGGREGATION_OF_VERL)
def test_aggregation(mode: str) -> None:
    """With A = -1 policy_gradient's token losses are the log-probs that verl aggregated."""
    objective = with_overrides(preset("reinforce", Objective), {"aggregation": AGGREGATION_OF_VERL[mode]})
    value, _ = value_and_gradient(objective, golden_batch(advantages=torch.full((6,), -1.0, dtype=torch.float64)))
    assert value.item() == pytest.approx(lookup("verl/agg")[mode], abs=TOLERANCE)


WITHOUT_SHARED_METRIC = {
    *(f"verl/policy/klcov_r0.2_c1|{mode}" for mode in AGGREGATION_OF_VERL),
    *(f"trl/grpo/{entry}" for entry in ("gspo_3e-4_4e-4", "luspo_seq", "sapo")),
}


def metrics_in_their_names(objective: Objective, metrics: dict[str, float]) -> dict[str, float]:
    """Ours under the names of verl and TRL, as far as they mean the same."""
    ours = {"policy_loss": metrics["loss/policy"]}
    if objective.select.type == "none":  # With KL-Cov verl's is the mean of |log r|.
        ours["actor/ppo_kl"] = metrics["kl/k1_old"]
    if objective.kl.where == "loss" and objective.kl.estimator == "k3":  # Of k3_ratio TRL logs the biased estimate.
        ours["kl"] = metrics["kl/k3_ref"]
    if objective.rule.type == "cispo":  # verl counts every weight outside the bounds, TRL those that a bound acts on.
        ours["actor/pg_clipfrac"] = metrics["clip/low_frac_any_sign"] + metrics["clip/high_frac_any_sign"]
        ours["cispo_clip_ratio"] = metrics["clip/high_frac_sign_aware"]
    if objective.rule.type == "ppo_clip":
        low, high = metrics["clip/low_frac_sign_aware"], metrics["clip/high_frac_sign_aware"]
        ours["actor/pg_clipfrac"] = low + high
        ours["actor/pg_clipfrac_lower"] = metrics.get("clip/dual_frac", 0.0)
        if objective.ratio == "token":  # TRL counts completions instead of tokens for ratios of whole completions.
            ours |= {"clip_ratio/low_mean": low, "clip_ratio/high_mean": high}
    return ours


@pytest.mark.parametrize("entry", [entry for entry in LOSSES if lookup(entry).get("metrics")])
def test_metrics(entry: str) -> None:
    objective, expected = LOSSES[entry], lookup(entry)["metrics"]
    ours = metrics_in_their_names(objective, policy_loss(objective, batch_of(entry)).metrics)
    shared = ours.keys() & expected.keys()
    assert bool(shared) == (entry not in WITHOUT_SHARED_METRIC)
    assert {key: ours[key] for key in shared} == pytest.approx({key: expected[key] for key in shared}, abs=TOLERANCE)
