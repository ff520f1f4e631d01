"""prime-rl: `rl.toml`. Formulas are those of `trainer/rl/loss.py` and of the orchestrator's `algo/`.

Ratios and the square of the log-ratio are taken to the engine that sampled: log-probs are not recomputed.
"""

from __future__ import annotations

import json
from typing import Any

from algorithms.dialects import Config, Dialect, Given, Knobs, Point, Written, names_of
from harness.settings import KnobValue

ALGORITHM = "orchestrator.algo."
LOSS = "trainer.loss."
FILTER = "orchestrator.train.filter_zero_advantages"

_NO_ADVANTAGE = {
    "max_rl": "rewards minus the group's mean are divided by that mean",
    "rae": "the baseline is a running mean of each agent's rewards",
    "echo": "tokens of the environment add a cross entropy",
    "hierarchical_grpo": "groups are nested",
    "opsd": "the teacher is the policy itself, shown a demonstration",
}
_NEVER = 1.0
"""A bound that masks no token, as no probability moves by more."""


def _write(knobs: Knobs) -> Written:
    if knobs["rule.type"] == "supervised":
        return Written({f"{ALGORITHM}type": "sft"})
    if knobs["distill.where"] == "reward":
        return Written({f"{ALGORITHM}type": "opd"})
    # The default loss masks tokens by how far their probability has moved. Rules without bounds turn that off; for the
    # others it is the nearest to a clip.
    unmasked = knobs["rule.type"] in ("weighted", "policy_gradient")
    settings: dict[str, Any] = {
        f"{ALGORITHM}type": "grpo",
        f"{LOSS}type": "default",
        **({f"{LOSS}dppo_mask_low": _NEVER, f"{LOSS}dppo_mask_high": _NEVER} if unmasked else {}),
        f"{LOSS}kl_tau": 0.0,
        FILTER: knobs["zero_std"] == "drop",
    }
    penalty = "a penalty in the reward function, added to the reward of a completion that is too long"
    return Written(settings, {} if knobs["overlong.type"] == "penalise" else {"overlong": penalty})


def _read(given: Given) -> Point:
    kind = given.one_of(f"{ALGORITHM}type", ("grpo", "sft", "opd", *_NO_ADVANTAGE))
    outside: dict[str, str] = {}
    if kind == "sft":
        return Point({"rule.type": "supervised", "aggregation": "token_mean"})
    knobs: dict[str, KnobValue] = {
        "baseline": "group_mean",
        "scale": "none",
        "ratio": "token",
        "rule.type": "weighted",
        "aggregation": "token_mean",
        "sampler_correction.type": "in_ratio",
    }
    # Distillation has a trust region of its own, which the settings of the loss do not change.
    if kind in ("opd", "opsd"):
        outside["trust region"] = (
            "tokens whose probability fell by more than 0.2 are left out, and 1e-3 of the square of "
        )
        outside["trust region"] += "each log-ratio to the sampler is added"
        knobs |= {"baseline": "none", "distill.where": "reward", "distill.verifier_coef": 0.0}
    else:
        limits = _read_loss(given, knobs, outside)
        if limits:
            return Point(knobs, outside | _without(kind), limits)
    return Point(knobs, outside | _without(kind))


def _without(kind: str) -> dict[str, str]:
    return {f"{ALGORITHM}type": _NO_ADVANTAGE[kind]} if kind in _NO_ADVANTAGE else {}


def _read_loss(given: Given, knobs: dict[str, KnobValue], outside: dict[str, str]) -> tuple[str, ...]:
    loss = given.one_of(f"{LOSS}type", ("default", "ipo", "custom"))
    if loss == "custom":
        outside[f"{LOSS}type"] = "a loss of the user's own"
        return ()
    masks = [f"{LOSS}dppo_mask_low", f"{LOSS}dppo_mask_high"] if loss == "default" else [f"{LOSS}ipo_threshold"]
    for mask in masks:
        if given.number(mask) < _NEVER:
            outside[mask] = f"tokens whose probability has moved by more than {given.number(mask):g} are left out"
    if given.number(f"{LOSS}adv_tau") != 1:
        outside[f"{LOSS}adv_tau"] = "advantages are multiplied by it"
    if given.number(f"{LOSS}kl_tau") != 0:
        outside[f"{LOSS}kl_tau"] = "a multiple of the square of each token's log-ratio to the sampler is added"
    if given.has(f"{ALGORITHM}length_penalty"):
        outside[f"{ALGORITHM}length_penalty"] = "rewards fall with the length, by the group's mean reward"
    if not given.flag(FILTER):
        return ()
    knobs["zero_std"] = "drop"
    return ("completions of advantage 0 are left out, also in groups whose rewards differ",)


RL = Config(
    name="rl",
    family="policy_gradient",
    defaults={
        f"{ALGORITHM}type": "grpo",
        f"{ALGORITHM}length_penalty": None,
        f"{LOSS}type": "default",
        f"{LOSS}dppo_mask_low": 0.2,
        f"{LOSS}dppo_mask_high": 0.2,
        f"{LOSS}ipo_threshold": 0.1,
        f"{LOSS}adv_tau": 1.0,
        f"{LOSS}kl_tau": 1e-3,
        FILTER: True,
    },
    write=_write,
    read=_read,
    promise="grpo",
    promises={(f"{ALGORITHM}type", name): name for name in ("grpo", "sft", "opd")},
    plain={
        "orchestrator.group_size": "rollout.samples_per_prompt",
        "orchestrator.max_off_policy_steps": "rollout.staleness_steps",
        "orchestrator.train.sampling.temperature": "rollout.temperature",
        "orchestrator.train.sampling.max_completion_tokens": "rollout.max_completion_tokens",
        "trainer.optim.lr": "train.learning_rate",
        "trainer.optim.weight_decay": "train.weight_decay",
        "trainer.optim.max_norm": "train.max_grad_norm",
        "max_steps": "train.steps",
    },
    others=names_of("prime_rl", "rl"),
)

PRIME_RL = Dialect(
    name="prime-rl",
    title="prime-rl 0.8.0",
    summary="Prime Intellect's asynchronous trainer, as rl.toml says it",
    checked="our loss and gradient at the point that settings are read as equal golden numbers of prime-rl's functions",
    line=lambda setting, value: f"{setting} = {json.dumps(value)}",
    configs=(RL,),
)
