"""OpenRLHF: `train_ppo_ray` and `train_dpo`, by the names of their options.

Formulas are those of `models/loss.py`, `models/utils.py`, `trainer/ray/ppo_actor.py` and
`trainer/ppo_utils/experience_maker.py`.
"""

from __future__ import annotations

from typing import Any

from algorithms.dialects import UNBOUNDED, Config, Dialect, Given, Knobs, Point, Written, names_of, unbounded
from harness.settings import KnobValue

ADVANTAGE = "algo.advantage."
KL = "algo.kl."

_WHITENED: dict[str, KnobValue] = {"scale": "whiten_tokens", "scale_ddof": 0, "scale_eps": 1e-8}
ESTIMATORS: dict[str, dict[str, KnobValue]] = {
    "gae": {"baseline": "critic", **_WHITENED},
    "reinforce": {"baseline": "none", **_WHITENED},
    "reinforce_baseline": {"baseline": "group_mean", **_WHITENED},
    "rloo": {"baseline": "leave_one_out", "scale": "none"},
    "group_norm": {"baseline": "group_mean", "scale": "group_std", "scale_ddof": 1, "scale_eps": 1e-9},
    "dr_grpo": {"baseline": "group_mean", "scale": "none"},
    "flash_reinforce": {"baseline": "batch_mean", "scale": "none"},
}
_KL_ESTIMATORS = ("k1", "k2", "k3")
_AGGREGATIONS = {"token-mean": "token_mean", "seq-mean-token-mean": "seq_mean_token_mean"}


def _write(knobs: Knobs) -> Written:
    aggregation = "seq-mean-token-mean" if knobs["aggregation"] == "seq_mean_token_mean" else "token-mean"
    settings: dict[str, Any] = {
        f"{ADVANTAGE}estimator": _estimator(knobs),
        "actor.policy_loss_type": "gspo" if knobs.get("ratio") == "sequence_mean" else "ppo",
        "actor.loss_agg_mode": aggregation,
        **_written_clip(knobs),
        **_written_kl(knobs),
        **({"actor.entropy_coef": knobs["entropy.bonus"]} if knobs["entropy.bonus"] else {}),
        **_written_correction(knobs),
        "algo.dynamic_filtering_enable": knobs["zero_std"] == "refill",
    }
    if knobs["baseline"] == "critic":
        settings |= {f"{ADVANTAGE}gamma": knobs["critic.gamma"], f"{ADVANTAGE}lambd": knobs["critic.lam"]}
        settings["critic.value_clip"] = knobs["critic.value_clip"] or UNBOUNDED
    beside = {}
    if knobs["overlong.type"] == "soft":
        beside["overlong"] = (
            f"--reward.overlong_buffer_len {knobs['overlong.cache_frac']:g} L --reward.overlong_penalty_factor "
            f"{knobs['overlong.factor']:g}, for L = rollout.max_new_tokens"
        )
    elif knobs.get("overlong.penalty"):
        beside["overlong.penalty"] = "in the reward function: add it to the reward of a completion cut at the limit"
    return Written(settings, beside)


def _estimator(knobs: Knobs) -> str:
    wanted = (knobs["baseline"], knobs["scale"])
    exact = [name for name, one in ESTIMATORS.items() if (one["baseline"], one["scale"]) == wanted]
    # dr_grpo comes first: of the estimators with the group's mean it is the one that divides by nothing.
    near = [name for name in ("dr_grpo", *ESTIMATORS) if ESTIMATORS[name]["baseline"] == wanted[0]]
    return (exact or near or ["dr_grpo"])[0]


def _written_clip(knobs: Knobs) -> dict[str, Any]:
    if knobs["rule.type"] != "ppo_clip":
        return {"actor.eps_clip_low_high": [UNBOUNDED, UNBOUNDED]}
    written = {"actor.eps_clip_low_high": [knobs["rule.clip_low"], knobs["rule.clip_high"]]}
    return written | ({} if knobs["rule.dual_clip"] is None else {"actor.dual_clip": knobs["rule.dual_clip"]})


def _written_kl(knobs: Knobs) -> dict[str, Any]:
    if knobs["kl.where"] == "none":
        return {f"{KL}init_coef": 0.0}
    # The first letters of ours name the nearest that it has.
    estimator = str(knobs["kl.estimator"])
    nearest = next((name for name in _KL_ESTIMATORS if estimator.startswith(name)), "k3")
    written: dict[str, Any] = {
        f"{KL}use_loss": knobs["kl.where"] == "loss",
        f"{KL}init_coef": knobs["kl.beta"],
        f"{KL}estimator": nearest,
    }
    if knobs["kl.control"] == "adaptive":
        written |= {f"{KL}target": knobs["kl.target_nats"], f"{KL}horizon": knobs["kl.horizon_sequences"]}
    return written


def _written_correction(knobs: Knobs) -> dict[str, Any]:
    most, least = knobs.get("sampler_correction.weight_max"), knobs.get("sampler_correction.weight_min")
    match knobs["sampler_correction.type"]:
        case "in_ratio" if knobs.get("ratio") == "sequence_mean":  # gspo takes no weights, but the sampler's log-probs
            return {f"{ADVANTAGE}is_correction_level": "token"}
        case "token_truncate":
            mode, bounds = "clip", [0.0, most]
        case "token_band":
            mode, bounds = "mask", [least, most]
        case "token_unbounded":
            # A mask that rejects nothing leaves the weights as they are.
            mode, bounds = "mask", [0.0, UNBOUNDED]
        case _:
            return {f"{ADVANTAGE}is_correction_level": "off"}
    written: dict[str, Any] = {f"{ADVANTAGE}is_correction_level": "token", f"{ADVANTAGE}is_correction_mode": mode}
    return {**written, f"{ADVANTAGE}is_correction_threshold": bounds}


def _read(given: Given) -> Point:
    outside: dict[str, str] = {}
    limits: list[str] = []
    gspo = given.one_of("actor.policy_loss_type", ("ppo", "gspo")) == "gspo"
    mode = given.one_of("actor.loss_agg_mode", tuple(_AGGREGATIONS))
    # gspo takes the mean over completions, whatever the setting.
    aggregation = "seq_mean_token_mean" if gspo else _AGGREGATIONS[mode]
    knobs: dict[str, KnobValue] = {
        **_read_advantage(given, outside, limits),
        "ratio": "sequence_mean" if gspo else "token",
        **_read_clip(given),
        "aggregation": aggregation,
        **_read_kl(given, aggregation, outside, limits),
        "entropy.bonus": given.optional("actor.entropy_coef") or 0.0,
        **_read_correction(given, gspo, outside),
    }
    if given.flag("algo.dynamic_filtering_enable"):
        low, high = given.numbers("algo.dynamic_filtering_range", 2)
        # Stands for no end: our knob always has a number of rounds.
        knobs |= {"zero_std": "refill", "refill_max_rounds": 1_000_000}
        limits.append(f"groups are kept whose mean score is above {low:g} and below {high:g}, and refilling has no end")
    if given["reward.overlong_buffer_len"] is not None:
        limit = given["rollout.max_new_tokens"]
        if limit is None:
            raise given.refused("rollout.max_new_tokens", "the limit that reward.overlong_buffer_len is a part of")
        frac = given.number("reward.overlong_buffer_len") / given.number("rollout.max_new_tokens")
        knobs |= {"overlong.type": "soft", "overlong.cache_frac": frac}
        knobs["overlong.factor"] = given.number("reward.overlong_penalty_factor")
    if given["reward.stop_properly_penalty_coef"] is not None:
        outside["reward.stop_properly_penalty_coef"] = "the reward of a truncated completion is scaled or replaced"
    if given.flag("reward.normalize_enable"):
        outside["reward.normalize_enable"] = "rewards are standardised by their running mean and std"
    if given["reward.clip_range"]:
        low, high = given.numbers("reward.clip_range", 2)
        limits.append(f"rewards are clipped to [{low:g}, {high:g}]")
    return Point(knobs, outside, tuple(limits))


def _read_advantage(given: Given, outside: dict[str, str], limits: list[str]) -> dict[str, KnobValue]:
    name = given.one_of(f"{ADVANTAGE}estimator", tuple(ESTIMATORS))
    knobs = dict(ESTIMATORS[name])
    if name == "gae":
        clip = unbounded(given.optional("critic.value_clip"))
        knobs |= {"critic.gamma": given.number(f"{ADVANTAGE}gamma"), "critic.lam": given.number(f"{ADVANTAGE}lambd")}
        knobs |= {"critic.value_clip": clip, "critic.trunk": "own"}
        limits.append("the critic has an optimiser of its own, so that critic.coef does not exist")
    elif name == "reinforce" and given.number(f"{ADVANTAGE}gamma") != 1:
        outside[f"{ADVANTAGE}gamma"] = "later rewards are discounted"
    if knobs["scale"] == "whiten_tokens":
        limits.append("the variance over tokens is at least 1e-8, which is not added to it")
        if given.flag(f"{ADVANTAGE}no_std_norm"):
            outside[f"{ADVANTAGE}no_std_norm"] = "the mean over all tokens is subtracted, without the division"
    return knobs


def _read_clip(given: Given) -> dict[str, KnobValue]:
    both = given.number("actor.eps_clip")
    low, high = both, both
    if given["actor.eps_clip_low_high"] is not None:
        low, high = given.numbers("actor.eps_clip_low_high", 2)
    dual = unbounded(given.optional("actor.dual_clip"))
    # Ratios are positive, so a low of 1 or more clips nothing from below: no bound is left.
    if low >= 1 and unbounded(high) is None and dual is None:
        return {"rule.type": "weighted"}
    return {"rule.type": "ppo_clip", "rule.clip_low": low, "rule.clip_high": high, "rule.dual_clip": dual}


def _read_kl(given: Given, aggregation: str, outside: dict[str, str], limits: list[str]) -> dict[str, KnobValue]:
    beta = given.number(f"{KL}init_coef")
    if beta <= 0:
        return {"kl.where": "none"}
    in_loss = given.flag(f"{KL}use_loss")
    estimator = given.one_of(f"{KL}estimator", _KL_ESTIMATORS)
    where = "loss" if in_loss else "reward"
    knobs: dict[str, KnobValue] = {"kl.where": where, "kl.beta": beta, "kl.estimator": estimator}
    limits.append("estimates of the KL are cut at -10 and 10, beyond which they have no gradient")
    if in_loss and aggregation != "token_mean":
        outside[f"{KL}use_loss"] = "the KL is a mean over tokens whatever loss_agg_mode is"
    if in_loss and given.flag(f"{KL}unbiased_gradient"):
        outside[f"{KL}unbiased_gradient"] = "the gradient is k2's times the importance ratio, bounded and detached"
    # gae and reinforce subtract no baseline from completions. The others do so before the KL is added, we do so after.
    grouped = given[f"{ADVANTAGE}estimator"] not in ("gae", "reinforce")
    if not in_loss and grouped:
        outside[f"{KL}use_loss"] = "the KL enters after the baseline, at each token for the tokens from it on"
    if given[f"{KL}target"] is not None:
        knobs |= {"kl.control": "adaptive", "kl.target_nats": given.number(f"{KL}target")}
        knobs["kl.horizon_sequences"] = int(given.number(f"{KL}horizon"))
    return knobs


def _read_correction(given: Given, gspo: bool, outside: dict[str, str]) -> dict[str, KnobValue]:
    level = given.one_of(f"{ADVANTAGE}is_correction_level", ("off", "token", "seq"))
    if level == "off":
        return {"sampler_correction.type": "none"}
    # gspo takes the sampler's log-probs as the old ones, instead of weights.
    if gspo:
        return {"sampler_correction.type": "in_ratio"}
    mode = given.one_of(f"{ADVANTAGE}is_correction_mode", ("mask", "clip"))
    gating = given.one_of(f"{ADVANTAGE}is_correction_gating", ("ratio", "binary_kl", "tv"))
    threshold = given[f"{ADVANTAGE}is_correction_threshold"]
    # A single number is the upper bound.
    one = not isinstance(threshold, list) or len(threshold) == 1
    low, high = (0.0, threshold[0] if isinstance(threshold, list) else threshold) if one else threshold
    if gating != "ratio":
        outside[f"{ADVANTAGE}is_correction_gating"] = "tokens are judged by a divergence from the sampler"
    if level == "seq":
        outside[f"{ADVANTAGE}is_correction_level"] = (
            "completions are rejected as a whole, and tokens keep their weights"
        )
    if mode == "clip":
        if low > 0:
            outside[f"{ADVANTAGE}is_correction_threshold"] = "weights are raised to the lower bound"
        return {"sampler_correction.type": "token_truncate", "sampler_correction.weight_max": high}
    if low == 0 and unbounded(high) is None:
        return {"sampler_correction.type": "token_unbounded"}
    bounds: dict[str, KnobValue] = {"sampler_correction.weight_min": low, "sampler_correction.weight_max": high}
    return {"sampler_correction.type": "token_band", **bounds}


PPO_RAY = Config(
    name="train_ppo_ray",
    family="policy_gradient",
    defaults={
        f"{ADVANTAGE}estimator": "gae",
        f"{ADVANTAGE}no_std_norm": False,
        f"{ADVANTAGE}gamma": 1,
        f"{ADVANTAGE}lambd": 1,
        "critic.value_clip": 0.5,
        "actor.policy_loss_type": "ppo",
        "actor.loss_agg_mode": "token-mean",
        "actor.eps_clip": 0.2,
        "actor.eps_clip_low_high": None,
        "actor.dual_clip": None,
        f"{KL}use_loss": False,
        f"{KL}init_coef": 0.01,
        f"{KL}estimator": "k1",
        f"{KL}unbiased_gradient": False,
        f"{KL}target": None,
        f"{KL}horizon": 10000,
        "actor.entropy_coef": None,
        f"{ADVANTAGE}is_correction_level": "off",
        f"{ADVANTAGE}is_correction_mode": "mask",
        f"{ADVANTAGE}is_correction_gating": "ratio",
        f"{ADVANTAGE}is_correction_threshold": [0.5, 5.0],
        "algo.dynamic_filtering_enable": False,
        "algo.dynamic_filtering_range": [0, 1],
        "reward.overlong_buffer_len": None,
        "reward.overlong_penalty_factor": 1,
        "reward.stop_properly_penalty_coef": None,
        "reward.normalize_enable": False,
        "reward.clip_range": [-10, 10],
        "rollout.max_new_tokens": None,
    },
    write=_write,
    read=_read,
    promise="ppo",
    promises={
        (f"{ADVANTAGE}estimator", "gae"): "ppo",
        (f"{ADVANTAGE}estimator", "reinforce"): "reinforce_pp",
        (f"{ADVANTAGE}estimator", "reinforce_baseline"): "reinforce_pp_baseline",
        (f"{ADVANTAGE}estimator", "rloo"): "rloo",
        (f"{ADVANTAGE}estimator", "group_norm"): "grpo",
        (f"{ADVANTAGE}estimator", "dr_grpo"): "dr_grpo",
        ("actor.policy_loss_type", "gspo"): "gspo",
        ("algo.dynamic_filtering_enable", True): "dapo",
    },
    plain={
        "rollout.n_samples_per_prompt": "rollout.samples_per_prompt",
        "rollout.batch_size": "rollout.prompts_per_step",
        "rollout.max_new_tokens": "rollout.max_completion_tokens",
        "rollout.temperature": "rollout.temperature",
        "rollout.top_p": "rollout.top_p",
        "train.max_epochs": "train.epochs",
        "actor.adam.lr": "train.learning_rate",
        "actor.adam.weight_decay": "train.weight_decay",
        "actor.adam.eps": "train.optimizer.eps",
        "actor.max_norm": "train.max_grad_norm",
        "critic.freezing_steps": "critic.warmup_steps",
    },
    others=names_of("openrlhf", "every", "train_ppo_ray"),
)


def _write_dpo(knobs: Knobs) -> Written:
    settings: dict[str, Any] = {"model.beta": knobs["beta"]}
    if knobs["link"] == "square":
        settings["model.ipo_enable"] = True
    if knobs.get("label_smoothing"):
        settings["model.label_smoothing"] = knobs["label_smoothing"]
    if knobs["nll_coef"]:
        settings["model.nll_loss_coef"] = knobs["nll_coef"]
    return Written(settings)


def _read_dpo(given: Given) -> Point:
    nll, smoothing = given.number("model.nll_loss_coef"), given.number("model.label_smoothing")
    knobs: dict[str, KnobValue] = {"reference": "initial", "beta": given.number("model.beta"), "nll_coef": nll}
    limits: tuple[str, ...] = ()
    if given.flag("model.ipo_enable"):
        knobs["link"] = "square"
        limits = ("model.label_smoothing is ignored with model.ipo_enable",) if smoothing else ()
    else:
        knobs |= {"link": "logistic", "label_smoothing": smoothing}
    return Point(knobs, {"model.nll_loss_coef": "a mean over completions, not tokens"} if nll else {}, limits)


TRAIN_DPO = Config(
    name="train_dpo",
    family="preference",
    defaults={
        "model.beta": 0.1,
        "model.ipo_enable": False,
        "model.label_smoothing": 0.0,
        "model.nll_loss_coef": 0,
    },
    write=_write_dpo,
    read=_read_dpo,
    promise="dpo",
    promises={("model.ipo_enable", True): "ipo"},
    plain={
        "adam.lr": "train.learning_rate",
        "adam.weight_decay": "train.weight_decay",
        "adam.eps": "train.optimizer.eps",
        "max_norm": "train.max_grad_norm",
    },
    others=names_of("openrlhf", "every", "train_dpo"),
)


def _option(setting: str, value: Any) -> str:
    # A flag can only be set. For false the line is a shell comment that says to leave it out.
    if isinstance(value, bool):
        return f"--{setting}" if value else f"# without --{setting}"
    return f"--{setting} {' '.join(map(str, value)) if isinstance(value, list) else value}"


OPENRLHF = Dialect(
    name="openrlhf",
    title="OpenRLHF 0.11.2",
    summary="OpenRLHF's train_ppo_ray and train_dpo, by the names of their options",
    checked="our loss and gradient at the point that settings are read as equal golden numbers of OpenRLHF's classes",
    line=_option,
    configs=(PPO_RAY, TRAIN_DPO),
)
