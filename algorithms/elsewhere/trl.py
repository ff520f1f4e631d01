"""TRL: GRPOTrainer, RLOOTrainer, the experimental GMPOTrainer, and the trainers on pairs (`trl_pairs`).

Formulas are those of each trainer's `_compute_loss`, and of `_generate_and_score_completions` for advantages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from algorithms.dialects import UNBOUNDED, Config, Dialect, Given, Knobs, Point, Written, names_of, unbounded
from algorithms.elsewhere.trl_pairs import OPTIMISER, PAIR_CONFIGS, REFERENCE
from harness.settings import KnobValue

STD_EPS = 1e-4
"""The constant that TRL adds to every std; it is no setting there."""

AGGREGATION_OF_LOSS = {
    "grpo": "seq_mean_token_mean",
    "bnpo": "micro_token_mean",
    "dr_grpo": "constant_length",
    "dapo": "token_mean",
    "luspo": "seq_mean_token_sum",
    "cispo": "token_mean",
    "sapo": "seq_mean_token_mean",
    "vespo": "token_mean",
}
# Only the losses that differ from GRPO's in the aggregation alone: cispo, sapo and vespo also change the rule.
_LOSS_OF_AGGREGATION = {AGGREGATION_OF_LOSS[loss]: loss for loss in ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")}

_CORRECTIONS = {
    "token_truncate": "token_truncate",
    "sequence_truncate": "sequence_truncate",
    "token_band": "token_mask",
    "sequence_band": "sequence_mask",
}
"""Ours -> TRL's `vllm_importance_sampling_mode`."""

_PLAIN = {
    "num_generations": "rollout.samples_per_prompt",
    "max_completion_length": "rollout.max_completion_tokens",
    "temperature": "rollout.temperature",
    "top_p": "rollout.top_p",
    "top_k": "rollout.top_k",
    "num_iterations": "train.epochs",
    **OPTIMISER,
}

_SOFT_OVERLONG = (
    "a reward function beside the others: trl.rewards.get_soft_overlong_punishment(max_completion_len=L, "
    "soft_punish_cache={cache:g} L), with L = max_completion_length and the weight {factor:g}"
)
_PENALTY = "in the reward function: add it to the reward of a completion without an end-of-sequence token"


def _write_grpo(knobs: Knobs) -> Written:
    rule = knobs["rule.type"]
    # loss_type sets rule and aggregation at once. If TRL lacks the aggregation its default is written, and reading that
    # back shows the difference.
    loss = {"cispo": "cispo", "sapo": "sapo"}.get(str(rule))
    settings: dict[str, Any] = {
        "loss_type": loss or _LOSS_OF_AGGREGATION.get(str(knobs["aggregation"]), "dapo"),
        "scale_rewards": _scale(knobs),
        "importance_sampling_level": "sequence" if knobs.get("ratio") == "sequence_mean" else "token",
        **_written_clip(knobs),
        **_written_kl(knobs),
        "mask_truncated_completions": knobs["overlong.type"] == "mask_after",
        "entropy_coef": knobs["entropy.bonus"],
        **_written_correction(knobs),
    }
    if rule == "sapo":
        settings["sapo_temperature_pos"] = knobs["rule.temperature_positive"]
        settings["sapo_temperature_neg"] = knobs["rule.temperature_negative"]
    if knobs["entropy.adaptive.type"] != "none":
        settings["use_adaptive_entropy"] = True
        for setting, knob in _ADAPTIVE.items():
            settings[setting] = knobs[knob]
    if knobs["select.type"] == "top_entropy":
        settings["top_entropy_quantile"] = knobs["select.fraction"]
    return Written(settings, _overlong_beside(knobs))


_ADAPTIVE = {
    "entropy_target": "entropy.adaptive.target_nats",
    "entropy_coef_delta": "entropy.adaptive.delta",
    "entropy_coef_min": "entropy.adaptive.coef_min",
    "entropy_coef_max": "entropy.adaptive.coef_max",
}


def _scale(knobs: Knobs) -> str:
    return {"group_std": "group", "batch_std": "batch", "mini_batch_std": "batch"}.get(str(knobs["scale"]), "none")


def _written_clip(knobs: Knobs) -> dict[str, Any]:
    match knobs["rule.type"]:
        case "ppo_clip":
            clip = {"epsilon": knobs["rule.clip_low"], "epsilon_high": knobs["rule.clip_high"]}
            return clip if knobs["rule.dual_clip"] is None else {**clip, "delta": knobs["rule.dual_clip"]}
        case "cispo":
            # For cispo, TRL takes epsilon_high as the absolute bound of the weight, not as 1 + epsilon.
            return {"epsilon_high": knobs["rule.weight_max"] or UNBOUNDED}
        case "gmpo":
            return {"epsilon": knobs["rule.log_ratio_low"], "epsilon_high": knobs["rule.log_ratio_high"]}
        case "sapo":
            return {}
        case _:
            return {"epsilon": UNBOUNDED, "epsilon_high": UNBOUNDED}


def _written_kl(knobs: Knobs) -> dict[str, Any]:
    if knobs["kl.where"] == "none":
        return {"beta": 0.0}
    written: dict[str, Any] = {"beta": knobs["kl.beta"]}
    if knobs["kl.where"] == "loss":
        # TRL has k3 and k3 times the ratio only. Any other estimator is written as the latter.
        written["use_bias_correction_kl"] = knobs["kl.estimator"] != "k3"
    if knobs["kl.reference"] == "refreshed":
        # A share of 1 replaces the reference by the policy; TRL's default mixes the two.
        written |= {"sync_ref_model": True, "ref_model_mixup_alpha": 1.0}
        written["ref_model_sync_steps"] = knobs["kl.refresh_every_steps"]
    return written


def _written_correction(knobs: Knobs) -> dict[str, Any]:
    kind = str(knobs["sampler_correction.type"])
    if kind == "token_unbounded":
        # A mask without bounds rejects no token and leaves the weights as they are.
        return {
            "use_vllm": True,
            "vllm_importance_sampling_mode": "token_mask",
            "vllm_importance_sampling_clip_max": None,
        }
    if kind not in _CORRECTIONS:
        return {"vllm_importance_sampling_correction": False}
    return {
        "use_vllm": True,
        "vllm_importance_sampling_mode": _CORRECTIONS[kind],
        "vllm_importance_sampling_clip_min": knobs.get("sampler_correction.weight_min"),
        "vllm_importance_sampling_clip_max": knobs["sampler_correction.weight_max"],
    }


def _overlong_beside(knobs: Knobs) -> Mapping[str, str]:
    if knobs["overlong.type"] == "soft":
        text = _SOFT_OVERLONG.format(cache=knobs["overlong.cache_frac"], factor=knobs["overlong.factor"])
        return {"overlong": text}
    return {"overlong.penalty": _PENALTY} if knobs.get("overlong.penalty") else {}


def _read_grpo(given: Given) -> Point:
    outside: dict[str, str] = {}
    limits: list[str] = []
    loss = given.one_of("loss_type", tuple(AGGREGATION_OF_LOSS))
    sequence = given.one_of("importance_sampling_level", ("token", "sequence")) == "sequence"
    knobs: dict[str, KnobValue] = {
        **_read_group(given, outside),
        "baseline": "group_mean",
        "aggregation": AGGREGATION_OF_LOSS[loss],
        "ratio": "sequence_mean" if sequence else "token",
        **_read_rule(given, loss, outside),
        **_read_kl(given, outside, limits),
        **_read_correction(given, outside),
    }
    # Our k3_ratio multiplies by the token's ratio; TRL takes the ratio that the objective uses.
    if knobs["kl.where"] == "loss" and knobs["kl.estimator"] == "k3_ratio" and sequence:
        outside["use_bias_correction_kl"] = "k3 is multiplied by the ratio of the whole completion, not the token's"
    bonus = given.number("entropy_coef")
    knobs["entropy.bonus"] = bonus
    if given.flag("use_adaptive_entropy"):
        knobs["entropy.adaptive.type"] = "step_both_ways"
        knobs |= {knob: given.number(setting) for setting, knob in _ADAPTIVE.items()}
        outside["use_adaptive_entropy"] = (
            "the coefficient follows the entropy of the optimiser step before, not this one"
        )
    if bonus > 0 or given.flag("use_adaptive_entropy"):
        limits.append("the entropy bonus is a mean over each micro-batch's tokens, then over micro-batches")
    fraction = given.number("top_entropy_quantile")
    if fraction < 1:
        knobs |= {"select.type": "top_entropy", "select.fraction": fraction}
        outside["top_entropy_quantile"] = "tokens are chosen within each micro-batch, by an interpolated quantile"
    if given["off_policy_mask_threshold"] is not None:
        outside["off_policy_mask_threshold"] = "completions with A < 0 far from the sampler are left out of the loss"
    return Point(knobs, outside, tuple(limits))


def _read_group(given: Given, outside: dict[str, str]) -> dict[str, KnobValue]:
    """Read GRPOTrainer's own way from rewards to advantages."""
    scale = given["scale_rewards"]
    if isinstance(scale, bool):
        scale = "group" if scale else "none"
    else:
        scale = given.one_of("scale_rewards", ("group", "batch", "none"))
    if given["multi_objective_aggregation"] != "sum_then_normalize":
        outside["multi_objective_aggregation"] = "each reward function is standardised by itself before they are summed"
    knobs: dict[str, KnobValue] = {"scale": {"group": "group_std", "batch": "batch_std", "none": "none"}[scale]}
    if scale != "none":
        knobs |= {"scale_ddof": 1, "scale_eps": STD_EPS}
    knobs["overlong.type"] = "mask_after" if given.flag("mask_truncated_completions") else "penalise"
    return knobs


def _read_rule(given: Given, loss: str, outside: dict[str, str]) -> dict[str, KnobValue]:
    low = given.number("epsilon")
    high = low if given["epsilon_high"] is None else given.number("epsilon_high")
    if loss == "cispo":
        return {"rule.type": "cispo", "rule.weight_max": unbounded(high)}
    if loss == "sapo":
        return {
            "rule.type": "sapo",
            "rule.temperature_positive": given.number("sapo_temperature_pos"),
            "rule.temperature_negative": given.number("sapo_temperature_neg"),
        }
    if loss == "vespo":
        outside["loss_type"] = "vespo weighs completions by a gamma function of their product ratio"
        return {"rule.type": "weighted"}
    # delta bounds r inside the minimum. At 1 + epsilon_high or more it acts only where A < 0, as a dual clip.
    dual = unbounded(given.optional("delta"))
    if dual is not None and dual < 1 + high:
        outside["delta"] = f"below 1 + epsilon_high it also bounds r where A > 0, at {dual:g}"
        dual = None
    # Ratios are positive, so a low of 1 or more clips nothing from below: no bound is left.
    if low >= 1 and unbounded(high) is None and dual is None:
        return {"rule.type": "weighted"}
    return {"rule.type": "ppo_clip", "rule.clip_low": low, "rule.clip_high": high, "rule.dual_clip": dual}


def _read_kl(given: Given, outside: dict[str, str], limits: list[str], where: str = "loss") -> dict[str, KnobValue]:
    beta = given.number("beta")
    if beta == 0:
        return {"kl.where": "none"}
    # RLOOTrainer, which has its KL in the reward, uses k1.
    knobs: dict[str, KnobValue] = {"kl.where": where, "kl.beta": beta, "kl.estimator": "k1"}
    if where == "loss":
        knobs["kl.estimator"] = "k3_ratio" if given.flag("use_bias_correction_kl") else "k3"
    if given.flag("sync_ref_model"):
        knobs |= {"kl.reference": "refreshed", "kl.refresh_every_steps": int(given.number("ref_model_sync_steps"))}
        limits.append("ref_model_sync_steps counts optimiser steps, kl.refresh_every_steps rollout batches")
        if given.number("ref_model_mixup_alpha") != 1:
            outside["ref_model_mixup_alpha"] = "the reference moves towards the policy by this share only"
    return knobs


def _read_correction(given: Given, outside: dict[str, str]) -> dict[str, KnobValue]:
    if not (given.flag("use_vllm") and given.flag("vllm_importance_sampling_correction")):
        return {"sampler_correction.type": "none"}
    mode = given.one_of("vllm_importance_sampling_mode", tuple(_CORRECTIONS.values()))
    kind = next(ours for ours, theirs in _CORRECTIONS.items() if theirs == mode)
    # A truncation has no lower bound here; in TRL a lower bound raises the weights below it.
    least = given.optional("vllm_importance_sampling_clip_min")
    if least is not None and kind.endswith("_truncate"):
        outside["vllm_importance_sampling_clip_min"] = "weights are raised to it"
    most = given.optional("vllm_importance_sampling_clip_max")
    if given["vllm_importance_sampling_cap"] is not None:  # its name in earlier versions
        most = given.number("vllm_importance_sampling_cap")
    if mode == "token_mask" and least is None and most is None:
        return {"sampler_correction.type": "token_unbounded"}
    knobs: dict[str, KnobValue] = {
        "sampler_correction.type": kind,
        "sampler_correction.weight_max": UNBOUNDED if most is None else most,
    }
    return knobs | ({"sampler_correction.weight_min": least or 0.0} if kind.endswith("_band") else {})


GRPO = Config(
    name="GRPOConfig",
    family="policy_gradient",
    defaults={
        "loss_type": "dapo",
        "scale_rewards": "group",
        "importance_sampling_level": "token",
        "epsilon": 0.2,
        "epsilon_high": None,
        "delta": None,
        "beta": 0.0,
        "use_bias_correction_kl": True,
        **REFERENCE,
        "mask_truncated_completions": False,
        "entropy_coef": 0.0,
        "use_adaptive_entropy": False,
        "entropy_target": 0.2,
        "entropy_coef_delta": 0.005,
        "entropy_coef_min": 0.0,
        "entropy_coef_max": 1.0,
        "top_entropy_quantile": 1.0,
        "sapo_temperature_pos": 1.0,
        "sapo_temperature_neg": 1.05,
        "multi_objective_aggregation": "sum_then_normalize",
        "off_policy_mask_threshold": None,
        "use_vllm": False,
        "vllm_importance_sampling_correction": True,
        "vllm_importance_sampling_mode": "sequence_mask",
        "vllm_importance_sampling_clip_min": None,
        "vllm_importance_sampling_clip_max": 3.0,
        "vllm_importance_sampling_cap": None,
    },
    write=_write_grpo,
    read=_read_grpo,
    promise="grpo",
    promises={
        **{("loss_type", name): name for name in ("grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo")},
        ("importance_sampling_level", "sequence"): "gspo",
    },
    plain=_PLAIN,
    others=names_of("trl", "every", "script", "GRPOConfig"),
)


def _write_rloo(knobs: Knobs) -> Written:
    return _written_beside({"normalize_advantages": knobs["scale"] in ("mini_batch_std", "batch_std")}, knobs)


def _written_beside(settings: dict[str, Any], knobs: Knobs) -> Written:
    """Add the settings that GRPOConfig's relatives share with it."""
    # They have neither a dual clip nor a choice of the KL's estimator.
    written = _written_clip(knobs) | _written_kl(knobs)
    shared = {setting: written[setting] for setting in written if setting not in ("delta", "use_bias_correction_kl")}
    truncated = {"mask_truncated_completions": knobs["overlong.type"] == "mask_after"}
    return Written(settings | shared | truncated, _overlong_beside(knobs))


def _read_rloo(given: Given) -> Point:
    """Read RLOOConfig.

    The ratio is that of the whole completion, clipped once. The KL is subtracted from the reward before the baseline.
    """
    outside: dict[str, str] = {}
    limits: list[str] = []
    low = given.number("epsilon")
    high = low if given["epsilon_high"] is None else given.number("epsilon_high")
    # As in `_read_rule`: bounds that no ratio reaches are none.
    free = low >= 1 and unbounded(high) is None
    knobs: dict[str, KnobValue] = {
        "baseline": "leave_one_out",
        "ratio": "sequence_product",
        "aggregation": "seq_mean_token_mean",
        "rule.type": "weighted" if free else "ppo_clip",
        **({} if free else {"rule.clip_low": low, "rule.clip_high": high}),
        **_read_kl(given, outside, limits, where="reward"),
        "overlong.type": "mask_after" if given.flag("mask_truncated_completions") else "penalise",
    }
    if given.flag("normalize_advantages"):
        knobs |= {"scale": "mini_batch_std", "scale_ddof": 1, "scale_eps": STD_EPS}
        limits.append("normalize_advantages takes the std over the rollout batch, not over the optimiser step")
    if given["reward_clip_range"] is not None:
        outside["reward_clip_range"] = "rewards are clipped before the baseline"
    return Point(knobs, outside, tuple(limits))


RLOO = Config(
    name="RLOOConfig",
    family="policy_gradient",
    defaults={
        "normalize_advantages": False,
        "epsilon": 0.2,
        "epsilon_high": None,
        "beta": 0.05,
        **REFERENCE,
        "mask_truncated_completions": False,
        "reward_clip_range": None,
    },
    write=_write_rloo,
    read=_read_rloo,
    promise="rloo",
    plain=_PLAIN,
    others=names_of("trl", "every", "script", "RLOOConfig"),
)


def _read_gmpo(given: Given) -> Point:
    outside: dict[str, str] = {}
    limits: list[str] = []
    low = given.number("epsilon")
    knobs: dict[str, KnobValue] = {
        **_read_group(given, outside),
        "baseline": "group_mean",
        "ratio": "sequence_mean",
        "aggregation": "seq_mean_token_mean",
        "rule.type": "gmpo",
        "rule.log_ratio_low": low,
        "rule.log_ratio_high": low if given["epsilon_high"] is None else given.number("epsilon_high"),
        **_read_kl(given, outside, limits),
    }
    if given.number("top_entropy_quantile") < 1:
        outside["top_entropy_quantile"] = "only tokens of high entropy enter the geometric mean"
    return Point(knobs, outside, tuple(limits))


GMPO = Config(
    name="GMPOConfig",
    family="policy_gradient",
    defaults={
        "scale_rewards": "group",
        "epsilon": 0.4,
        "epsilon_high": None,
        "beta": 0.0,
        "use_bias_correction_kl": False,  # GMPOTrainer does not look at it
        **REFERENCE,
        "mask_truncated_completions": False,
        "top_entropy_quantile": 1.0,
        "multi_objective_aggregation": "sum_then_normalize",
    },
    write=lambda knobs: _written_beside({"scale_rewards": _scale(knobs)}, knobs),
    read=_read_gmpo,
    promise="gmpo",
    plain=_PLAIN,
    others=names_of("trl", "every", "script", "GMPOConfig"),
)

TRL = Dialect(
    name="trl",
    title="TRL 1.16.0",
    summary="Hugging Face's trainers: GRPOTrainer, RLOOTrainer, DPOTrainer, KTOTrainer, and experimental ones",
    checked="loss and gradient of TRL's own _compute_loss with the written settings equal ours to 1e-6",
    configs=(GRPO, RLOO, GMPO, *PAIR_CONFIGS),
)
