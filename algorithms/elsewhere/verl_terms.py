"""verl's terms next to the policy loss: the KL penalty, the correction for the sampler, and the reward manager."""

from __future__ import annotations

from typing import Any

from algorithms.dialects import UNBOUNDED, Given, Knobs, unbounded
from harness.settings import KnobValue

ACTOR = "actor_rollout_ref.actor."
ROLLOUT = "algorithm.rollout_correction."
OVERLONG = "reward.reward_kwargs.overlong_buffer_cfg."
LIMIT = "data.max_response_length"

# A name with + has the estimator's value and the gradient of k2, so mse+ and k2+ are k2 itself.
KL_IN_LOSS = {
    "kl": "k1",
    "k1": "k1",
    "mse": "k2",
    "k2": "k2",
    "mse+": "k2",
    "k2+": "k2",
    "low_var_kl": "k3",
    "k3": "k3",
    "low_var_kl+": "k3_straight",
    "k3+": "k3_straight",
}
_NO_KL = {"abs": "|log-ratio|, which is no estimate of a KL", "kl+": "the value of k1 with the gradient of k2"}
_NO_KL |= {"k1+": _NO_KL["kl+"], "abs+": "|log-ratio| with the gradient of k2", "full": "not implemented in verl"}


def written_kl(knobs: Knobs) -> dict[str, Any]:
    if knobs["kl.where"] == "loss":
        # k3_ratio has no name there. Like k3_straight it has the value of k3 and k2's gradient where the ratio is 1.
        names = {"k1": "k1", "k2": "k2", "k3": "low_var_kl", "k3_straight": "low_var_kl+", "k3_ratio": "low_var_kl+"}
        kind = names.get(str(knobs["kl.estimator"]), "k1")
        return {
            f"{ACTOR}use_kl_loss": True,
            f"{ACTOR}kl_loss_coef": knobs["kl.beta"],
            f"{ACTOR}kl_loss_type": kind,
        }
    settings: dict[str, Any] = {f"{ACTOR}use_kl_loss": False, "algorithm.use_kl_in_reward": False}
    if knobs["kl.where"] == "reward":
        settings["algorithm.use_kl_in_reward"] = True
        settings["algorithm.kl_penalty"] = {"k2": "k2", "k3": "low_var_kl"}.get(str(knobs["kl.estimator"]), "kl")
        settings |= {"algorithm.kl_ctrl.type": knobs["kl.control"], "algorithm.kl_ctrl.kl_coef": knobs["kl.beta"]}
        if knobs["kl.control"] == "adaptive":
            settings["algorithm.kl_ctrl.target_kl"] = knobs["kl.target_nats"]
            settings["algorithm.kl_ctrl.horizon"] = knobs["kl.horizon_sequences"]
    return settings


def read_kl(given: Given, outside: dict[str, str], limits: list[str]) -> dict[str, KnobValue]:
    in_loss, in_reward = given.flag(f"{ACTOR}use_kl_loss"), given.flag("algorithm.use_kl_in_reward")
    if in_loss and in_reward:
        outside["algorithm.use_kl_in_reward"] = "a penalty in the reward beside that in the loss"
    setting = f"{ACTOR}kl_loss_type" if in_loss else "algorithm.kl_penalty"
    if not (in_loss or in_reward):
        return {"kl.where": "none"}
    name = given.one_of(setting, (*KL_IN_LOSS, *_NO_KL))
    # The names without an estimator of ours take the one with the same gradient, else k1, as the nearest.
    estimator = KL_IN_LOSS.get(name, "k2" if name in ("kl+", "k1+", "abs+") else "k1")
    if name in _NO_KL:
        outside[setting] = _NO_KL[name]
    if estimator in ("k3", "k3_straight"):
        limits.append("k3 is cut at 10: tokens that became e^2.6 times less likely have no gradient from it")
    beta = given.number(f"{ACTOR}kl_loss_coef" if in_loss else "algorithm.kl_ctrl.kl_coef")
    if not beta:
        return {"kl.where": "none"}
    knobs: dict[str, KnobValue] = {"kl.where": "loss" if in_loss else "reward", "kl.beta": beta}
    if in_loss:
        return {**knobs, "kl.estimator": estimator}
    knobs["kl.estimator"] = estimator.removesuffix("_straight")  # the reward has no gradient
    if given.one_of("algorithm.kl_ctrl.type", ("fixed", "adaptive")) == "adaptive":
        knobs |= {"kl.control": "adaptive", "kl.target_nats": given.number("algorithm.kl_ctrl.target_kl")}
        knobs["kl.horizon_sequences"] = int(given.number("algorithm.kl_ctrl.horizon"))
        limits.append("the controller's KL is a mean over completions of means over their tokens")
    return knobs


def written_correction(knobs: Knobs) -> dict[str, Any]:
    kind = str(knobs["sampler_correction.type"])
    most, least = knobs.get("sampler_correction.weight_max"), knobs.get("sampler_correction.weight_min")
    if kind == "in_ratio":
        return {f"{ROLLOUT}bypass_mode": True}
    if kind in ("none", "geometric_veto"):
        return {f"{ROLLOUT}rollout_is": None}
    # One number truncates weights at it. A string lower_upper is a band, in which 1e-30 stands for no lower bound.
    threshold: float | str = UNBOUNDED if most is None else float(most)
    if kind.endswith("_band"):
        threshold = f"{least or 1e-30:g}_{most:g}"
    return {f"{ROLLOUT}rollout_is": kind.partition("_")[0], f"{ROLLOUT}rollout_is_threshold": threshold}


def read_correction(given: Given, outside: dict[str, str]) -> dict[str, KnobValue]:
    if given[f"{ROLLOUT}rollout_rs"] is not None:
        outside[f"{ROLLOUT}rollout_rs"] = "rejected tokens or completions also leave the denominators"
    if given.flag(f"{ROLLOUT}rollout_is_batch_normalize"):
        outside[f"{ROLLOUT}rollout_is_batch_normalize"] = "weights are divided by their mean over the batch"
    # In bypass mode the old log-probs are the sampler's, so the ratio itself corrects.
    if given.flag(f"{ROLLOUT}bypass_mode"):
        if given.one_of(f"{ROLLOUT}loss_type", ("ppo_clip", "reinforce")) == "reinforce":
            outside[f"{ROLLOUT}loss_type"] = "-A log pi, weighted by the truncated ratio to the sampler"
        return {"sampler_correction.type": "in_ratio"}
    level = given[f"{ROLLOUT}rollout_is"]
    if level is None:
        return {"sampler_correction.type": "none"}
    level = given.one_of(f"{ROLLOUT}rollout_is", ("token", "sequence"))
    threshold = given[f"{ROLLOUT}rollout_is_threshold"]
    try:
        *least, most = map(float, str(threshold).split("_"))
    except ValueError:
        raise given.refused(f"{ROLLOUT}rollout_is_threshold", "a number or lower_upper") from None
    if least:
        kind: KnobValue = f"{level}_band"
        bounds: dict[str, KnobValue] = {"sampler_correction.weight_min": 0.0 if least[0] <= 1e-30 else least[0]}
        return {"sampler_correction.type": kind, **bounds, "sampler_correction.weight_max": most}
    if unbounded(most) is None and level == "token":
        return {"sampler_correction.type": "token_unbounded"}
    return {"sampler_correction.type": f"{level}_truncate", "sampler_correction.weight_max": most}


def written_overlong(knobs: Knobs) -> dict[str, str]:
    """Describe the settings of the reward manager, in which lengths are in tokens."""
    if knobs["overlong.type"] == "soft":
        return {
            "overlong": f"reward.reward_manager.name: dapo with {OVERLONG}enable: true, len: "
            f"{knobs['overlong.cache_frac']:g} L, penalty_factor: {knobs['overlong.factor']:g}, and "
            f"reward.reward_kwargs.max_resp_len: L, for L = {LIMIT}"
        }
    if knobs.get("overlong.penalty"):
        return {"overlong.penalty": "in the reward function: add it to the reward of a completion cut at the limit"}
    return {}


def read_overlong(given: Given) -> dict[str, KnobValue]:
    if not given.flag(f"{OVERLONG}enable"):
        return {}
    limit = given["reward.reward_kwargs.max_resp_len"]
    if isinstance(limit, bool) or not isinstance(limit, int | float) or limit <= 0:
        raise given.refused("reward.reward_kwargs.max_resp_len", "the limit of a completion in tokens")
    frac = given.number(f"{OVERLONG}len") / limit
    return {
        "overlong.type": "soft",
        "overlong.cache_frac": frac,
        "overlong.factor": given.number(f"{OVERLONG}penalty_factor"),
    }
