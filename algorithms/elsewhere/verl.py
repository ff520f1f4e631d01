"""verl: the trainer of `verl.trainer.main_ppo`, in the names of its Hydra configuration.

Formulas are those of `trainer/ppo/core_algos.py`, and of `workers/utils/losses.py` for the terms added to the policy's.
"""

from __future__ import annotations

import shlex
from typing import Any

from algorithms.dialects import (
    UNBOUNDED,
    Config,
    Dialect,
    Given,
    Knobs,
    Point,
    Written,
    names_of,
    unbounded,
    yaml_scalar,
)
from algorithms.elsewhere.verl_terms import (
    ACTOR,
    LIMIT,
    OVERLONG,
    ROLLOUT,
    read_correction,
    read_kl,
    read_overlong,
    written_correction,
    written_kl,
    written_overlong,
)
from harness.settings import KnobValue

LOSS = f"{ACTOR}policy_loss."
FILTER = "algorithm.filter_groups."

AGGREGATIONS = {
    "token-mean": "token_mean",
    "seq-mean-token-mean": "seq_mean_token_mean",
    "seq-mean-token-sum": "seq_mean_token_sum",
    "seq-mean-token-sum-norm": "constant_length",
}
_AGGREGATIONS_BACK = {ours: theirs for theirs, ours in AGGREGATIONS.items()}

_WHITENED: dict[str, KnobValue] = {"scale": "whiten_tokens", "scale_ddof": 1, "scale_eps": 1e-8}
ESTIMATORS: dict[str, dict[str, KnobValue]] = {
    "grpo": {"baseline": "group_mean", "scale": "group_std", "scale_ddof": 1, "scale_eps": 1e-6},
    "grpo_vectorized": {"baseline": "group_mean", "scale": "group_std", "scale_ddof": 1, "scale_eps": 1e-6},
    "rloo": {"baseline": "leave_one_out", "scale": "none"},
    "rloo_vectorized": {"baseline": "leave_one_out", "scale": "none"},
    "opo": {"baseline": "length_weighted", "scale": "none"},
    "gpg": {"baseline": "group_mean", "scale": "nonzero_frac"},
    "reinforce_plus_plus": {"baseline": "none", **_WHITENED},
    "reinforce_plus_plus_baseline": {"baseline": "group_mean", **_WHITENED},
    "gae": {"baseline": "critic", **_WHITENED},
}
_NO_ESTIMATOR = {
    "remax": "the baseline is the reward of a greedy completion",
    "gdpo": "each dimension of the reward is standardised by itself",
    "grpo_passk": "only the best completion of a group has an advantage: its lead over the second",
    "optimal_token_baseline": "the baseline is a weighted mean for each token",
    "tir_optimal_token_baseline": "the baseline is a weighted mean for each token",
}

_RULES = {"vanilla": "ppo_clip", "gspo": "ppo_clip", "clip_cov": "ppo_clip", "kl_cov": "weighted"}
_RULES |= {"cispo": "cispo", "sapo": "sapo", "gpg": "policy_gradient", "geo_mean": "gmpo"}
_NO_RULE = {
    "dppo_tv": "tokens whose probability has moved too far are left out",
    "dppo_kl": "tokens whose binary KL is too large are left out",
    "dro": "the square of each token's log-ratio is added",
    "bypass_mode": "the loss of algorithm.rollout_correction.loss_type",
}


def _write(knobs: Knobs) -> Written:
    aggregation = _AGGREGATIONS_BACK.get(str(knobs["aggregation"]), "token-mean")
    settings: dict[str, Any] = {
        "algorithm.adv_estimator": _estimator(knobs),
        **({"algorithm.norm_adv_by_std_in_grpo": knobs["scale"] != "none"} if _estimator(knobs) == "grpo" else {}),
        **_written_rule(knobs),
        f"{ACTOR}loss_agg_mode": aggregation,
        f"{ACTOR}entropy_coeff": knobs["entropy.bonus"],
        **written_kl(knobs),
        **written_correction(knobs),
        f"{FILTER}enable": knobs["zero_std"] == "refill",
    }
    if aggregation == "seq-mean-token-sum-norm":
        # Without it verl divides by the width to which a micro-batch is padded. The value is a Hydra interpolation.
        settings[f"{ACTOR}loss_scale_factor"] = f"${{{LIMIT}}}"
    if knobs["baseline"] == "critic":
        settings |= {"algorithm.gamma": knobs["critic.gamma"], "algorithm.lam": knobs["critic.lam"]}
        settings["critic.cliprange_value"] = knobs["critic.value_clip"] or UNBOUNDED
    return Written(settings, written_overlong(knobs))


def _estimator(knobs: Knobs) -> str:
    """Return the estimator that agrees in baseline and scale, else in the baseline, else grpo."""
    wanted = (knobs["baseline"], knobs["scale"])
    # grpo without the std, by norm_adv_by_std_in_grpo=False.
    if wanted == ("group_mean", "none"):
        return "grpo"
    exact = [name for name, one in ESTIMATORS.items() if (one["baseline"], one["scale"]) == wanted]
    near = [name for name, one in ESTIMATORS.items() if one["baseline"] == wanted[0]]
    return (exact or near or ["grpo"])[0]


def _written_rule(knobs: Knobs) -> dict[str, Any]:
    low, high, dual = f"{ACTOR}clip_ratio_low", f"{ACTOR}clip_ratio_high", f"{ACTOR}clip_ratio_c"
    mode = f"{LOSS}loss_mode"
    match knobs["rule.type"]:
        case "ppo_clip" if knobs["select.type"] == "clip_cov":
            return {
                mode: "clip_cov",
                low: knobs["rule.clip_low"],
                high: knobs["rule.clip_high"],
                f"{LOSS}clip_cov_ratio": knobs["select.fraction"],
                f"{LOSS}clip_cov_lb": knobs["select.cov_low"],
                f"{LOSS}clip_cov_ub": knobs["select.cov_high"],
            }
        case "ppo_clip":
            written = {low: knobs["rule.clip_low"], high: knobs["rule.clip_high"]}
            if knobs["ratio"] == "sequence_mean":
                return {mode: "gspo", **written}
            # verl's vanilla loss always has a dual clip, 3 by default: to turn it off takes a bound that no r reaches.
            return {mode: "vanilla", **written, dual: knobs["rule.dual_clip"] or UNBOUNDED}
        case "weighted" if knobs["select.type"] == "kl_cov":
            coef = knobs["select.coef"]
            return {mode: "kl_cov", f"{LOSS}kl_cov_ratio": knobs["select.fraction"], f"{LOSS}ppo_kl_coef": coef}
        case "weighted":
            return {mode: "vanilla", low: UNBOUNDED, high: UNBOUNDED, dual: UNBOUNDED}
        case "cispo":
            # verl has 1 - low and 1 + high, ours are the bounds themselves.
            least, most = float(knobs["rule.weight_min"] or 0), knobs["rule.weight_max"]
            return {mode: "cispo", low: 1 - least, high: UNBOUNDED if most is None else float(most) - 1}
        case "sapo":
            tau = {"tau_pos": "rule.temperature_positive", "tau_neg": "rule.temperature_negative"}
            return {mode: "sapo", **{f"{ACTOR}{setting}": knobs[knob] for setting, knob in tau.items()}}
        case "gmpo":
            return {mode: "geo_mean", low: knobs["rule.log_ratio_low"], high: knobs["rule.log_ratio_high"]}
        case _:
            return {mode: "gpg"}


def _read(given: Given) -> Point:
    outside: dict[str, str] = {}
    limits: list[str] = []
    aggregation = _read_aggregation(given, outside)
    knobs: dict[str, KnobValue] = {
        **_read_advantage(given, outside, limits),
        **_read_rule(given, outside, limits),
        "aggregation": aggregation,
        **read_kl(given, outside, limits),
        **read_correction(given, outside),
        **read_overlong(given),
    }
    if given[f"{LOSS}loss_mode"] in ("sapo", "geo_mean"):
        knobs["aggregation"] = "seq_mean_token_mean"  # whatever loss_agg_mode is
    bonus = given.number(f"{ACTOR}entropy_coeff")
    knobs["entropy.bonus"] = bonus
    if bonus and aggregation != "token_mean":
        outside[f"{ACTOR}entropy_coeff"] = "the bonus is aggregated by loss_agg_mode, here always over tokens"
    if given.flag("distillation.enabled"):
        outside["distillation.enabled"] = "a teacher's divergence is added to the loss or the reward"
    if given.flag(f"{FILTER}enable"):
        # Stands for no end: our knob always has a number of rounds.
        knobs |= {"zero_std": "refill", "refill_max_rounds": 1_000_000}
        limits.append("refilling has no end: max_num_gen_batches is ignored")
        limits.append(f"groups are judged by {FILTER}metric, {given[f'{FILTER}metric']}")
    return Point(knobs, outside, tuple(limits))


def _read_advantage(given: Given, outside: dict[str, str], limits: list[str]) -> dict[str, KnobValue]:
    name = given.one_of("algorithm.adv_estimator", (*ESTIMATORS, *_NO_ESTIMATOR))
    if name in _NO_ESTIMATOR:
        outside["algorithm.adv_estimator"] = _NO_ESTIMATOR[name]
        return ESTIMATORS["grpo"]
    knobs = dict(ESTIMATORS[name])
    # grpo_vectorized does not look at the flag and always divides by the std.
    if name == "grpo" and not given.flag("algorithm.norm_adv_by_std_in_grpo"):
        return {"baseline": "group_mean", "scale": "none"}
    if name == "gae":
        clip = unbounded(given.optional("critic.cliprange_value"))
        knobs |= {"critic.gamma": given.number("algorithm.gamma"), "critic.lam": given.number("algorithm.lam")}
        knobs |= {"critic.value_clip": clip, "critic.trunk": "own"}
        limits.append("the critic has an optimiser of its own, so that critic.coef does not exist")
        if given.flag("algorithm.use_pf_ppo"):
            outside["algorithm.use_pf_ppo"] = "completions are drawn anew by their reward"
    return knobs


def _read_rule(given: Given, outside: dict[str, str], limits: list[str]) -> dict[str, KnobValue]:
    mode = given.one_of(f"{LOSS}loss_mode", (*_RULES, *_NO_RULE))
    both = given.number(f"{ACTOR}clip_ratio")
    low, high = (given.optional(f"{ACTOR}clip_ratio_{side}") for side in ("low", "high"))
    # A side that is null takes clip_ratio.
    low, high = both if low is None else low, both if high is None else high
    if mode in _NO_RULE:
        outside[f"{LOSS}loss_mode"] = _NO_RULE[mode]
        return {"rule.type": "weighted", "ratio": "token"}
    kind = _RULES[mode]
    knobs: dict[str, KnobValue] = {"rule.type": kind}
    if kind != "policy_gradient":
        knobs["ratio"] = "sequence_mean" if mode in ("gspo", "geo_mean") else "token"
    # Only the vanilla loss reads clip_ratio_c.
    if mode == "vanilla":
        dual = unbounded(given.number(f"{ACTOR}clip_ratio_c"))
        if low >= 1 and unbounded(high) is None and dual is None:
            return {"rule.type": "weighted", "ratio": "token"}
        knobs["rule.dual_clip"] = dual
    if kind == "ppo_clip":
        knobs |= {"rule.clip_low": low, "rule.clip_high": high}
    if mode == "gspo":
        limits.append("the ratio of a completion is bounded at e^10")
    if mode == "cispo":
        knobs |= {"rule.weight_min": max(0.0, 1 - low), "rule.weight_max": unbounded(1 + high)}
    if mode == "sapo":
        knobs["rule.temperature_positive"] = given.number(f"{ACTOR}tau_pos")
        knobs["rule.temperature_negative"] = given.number(f"{ACTOR}tau_neg")
    if mode == "geo_mean":
        knobs |= {"rule.log_ratio_low": low, "rule.log_ratio_high": high}
        # It averages over the micro-batch, and nothing divides the sum of the micro-batches by their number.
        outside[f"{LOSS}loss_mode"] = "the gradient is too large by the number of micro-batches"
    if mode == "clip_cov":
        knobs |= {"select.type": "clip_cov", "select.fraction": given.number(f"{LOSS}clip_cov_ratio")}
        knobs["select.cov_low"] = given.number(f"{LOSS}clip_cov_lb")
        knobs["select.cov_high"] = given.number(f"{LOSS}clip_cov_ub")
    if mode == "kl_cov":
        knobs |= {"select.type": "kl_cov", "select.fraction": given.number(f"{LOSS}kl_cov_ratio")}
        knobs["select.coef"] = given.number(f"{LOSS}ppo_kl_coef")
    if mode.endswith("_cov"):
        outside[f"{LOSS}loss_mode"] = "tokens are chosen within each micro-batch"
    return knobs


def _read_aggregation(given: Given, outside: dict[str, str]) -> str:
    mode = given.one_of(f"{ACTOR}loss_agg_mode", (*AGGREGATIONS, "token-sum"))
    if mode == "token-sum":
        outside[f"{ACTOR}loss_agg_mode"] = "the sum over all tokens, which no count divides"
        return "seq_mean_token_sum"
    # Both the interpolation and its value make the divisor the limit of a completion.
    divisor = given[f"{ACTOR}loss_scale_factor"]
    if mode == "seq-mean-token-sum-norm" and divisor not in (f"${{{LIMIT}}}", given[LIMIT]):
        outside[f"{ACTOR}loss_scale_factor"] = (
            "the divisor is the width to which a micro-batch is padded"
            if divisor is None
            else f"the divisor is {divisor}, not the limit of a completion"
        )
    return AGGREGATIONS[mode]


PPO_TRAINER = Config(
    name="ppo_trainer",
    family="policy_gradient",
    defaults={
        "algorithm.adv_estimator": "gae",
        "algorithm.norm_adv_by_std_in_grpo": True,
        "algorithm.gamma": 1.0,
        "algorithm.lam": 1.0,
        "critic.cliprange_value": 0.5,
        f"{LOSS}loss_mode": "vanilla",
        f"{ACTOR}clip_ratio": 0.2,
        f"{ACTOR}clip_ratio_low": 0.2,
        f"{ACTOR}clip_ratio_high": 0.2,
        f"{ACTOR}clip_ratio_c": 3.0,
        f"{ACTOR}tau_pos": 1.0,
        f"{ACTOR}tau_neg": 1.05,
        f"{LOSS}clip_cov_ratio": 0.0002,
        f"{LOSS}clip_cov_lb": 1.0,
        f"{LOSS}clip_cov_ub": 5.0,
        f"{LOSS}kl_cov_ratio": 0.0002,
        f"{LOSS}ppo_kl_coef": 0.1,
        f"{LOSS}dro_beta": None,
        f"{ACTOR}loss_agg_mode": "token-mean",
        f"{ACTOR}loss_scale_factor": None,
        f"{ACTOR}entropy_coeff": 0,
        f"{ACTOR}use_kl_loss": False,
        f"{ACTOR}kl_loss_coef": 0.001,
        f"{ACTOR}kl_loss_type": "low_var_kl",
        "algorithm.use_kl_in_reward": False,
        "algorithm.kl_penalty": "kl",
        "algorithm.kl_ctrl.type": "fixed",
        "algorithm.kl_ctrl.kl_coef": 0.001,
        "algorithm.kl_ctrl.target_kl": 0.1,
        "algorithm.kl_ctrl.horizon": 10000,
        f"{FILTER}enable": False,
        f"{FILTER}metric": "reward",
        "algorithm.use_pf_ppo": False,
        "distillation.enabled": False,
        f"{ROLLOUT}rollout_is": None,
        f"{ROLLOUT}rollout_is_threshold": 2.0,
        f"{ROLLOUT}rollout_is_batch_normalize": False,
        f"{ROLLOUT}rollout_rs": None,
        f"{ROLLOUT}rollout_rs_threshold": None,
        f"{ROLLOUT}bypass_mode": False,
        f"{ROLLOUT}loss_type": "ppo_clip",
        f"{OVERLONG}enable": False,
        f"{OVERLONG}len": None,
        f"{OVERLONG}penalty_factor": 1.0,
        "reward.reward_kwargs.max_resp_len": None,
        LIMIT: 512,
    },
    write=_write,
    read=_read,
    promise="ppo",
    promises={
        ("algorithm.adv_estimator", "gae"): "ppo",
        ("algorithm.adv_estimator", "grpo"): "grpo",
        ("algorithm.adv_estimator", "rloo"): "rloo",
        ("algorithm.adv_estimator", "opo"): "opo",
        ("algorithm.adv_estimator", "reinforce_plus_plus"): "reinforce_pp",
        ("algorithm.adv_estimator", "reinforce_plus_plus_baseline"): "reinforce_pp_baseline",
        **{(f"{LOSS}loss_mode", name): name for name in ("gspo", "sapo", "gpg", "clip_cov", "kl_cov", "cispo")},
        (f"{LOSS}loss_mode", "geo_mean"): "gmpo",
        (f"{FILTER}enable", True): "dapo",
    },
    plain={
        "actor_rollout_ref.rollout.n": "rollout.samples_per_prompt",
        "actor_rollout_ref.rollout.temperature": "rollout.temperature",
        "actor_rollout_ref.rollout.top_p": "rollout.top_p",
        LIMIT: "rollout.max_completion_tokens",
        "data.train_batch_size": "rollout.prompts_per_step",
        f"{ACTOR}ppo_epochs": "train.epochs",
        f"{ACTOR}optim.lr": "train.learning_rate",
        f"{ACTOR}optim.weight_decay": "train.weight_decay",
        f"{ACTOR}optim.clip_grad": "train.max_grad_norm",
    },
    others=names_of("verl", "ppo_trainer"),
)

VERL = Dialect(
    name="verl",
    title="verl 0.9.1",
    summary="verl's PPO trainer with its estimators and policy losses, as its Hydra configuration says it",
    checked="our loss and gradient at the point that settings are read as equal golden numbers of verl's functions",
    line=lambda setting, value: shlex.quote(f"{setting}={yaml_scalar(value)}"),
    configs=(PPO_TRAINER,),
)
