"""Inputs that the tests of this package share."""

from __future__ import annotations

import itertools
from dataclasses import fields, replace
from typing import Any, get_args

import torch
from torch import Tensor

from algorithms import (
    Objective,
    StepSize,
    TokenBatch,
    active_knobs,
    policy_loss,
    preset,
    select_tokens,
    with_overrides,
)
from algorithms.aggregation import Aggregation

GRPO = with_overrides(preset("grpo", Objective), {"kl.where": "none"})
EVERY_AGGREGATION: tuple[Aggregation, ...] = get_args(Aggregation)
RULES: tuple[dict[str, object], ...] = (
    {"rule.type": "policy_gradient"},
    {"rule.type": "weighted"},
    {"rule.type": "ppo_clip", "rule.clip_low": 0.1, "rule.clip_high": 0.3},
    {"rule.type": "ppo_clip", "rule.dual_clip": 1.5},
    {"rule.type": "cispo", "rule.weight_min": 0.8, "rule.weight_max": 1.2},
)

# Every term of the loss in every form, as overrides of GRPO. All are non-zero on a random batch.
TERMS: tuple[dict[str, object], ...] = (
    *RULES,
    {"ratio": "token", "rule.clip_high": 0.1},
    {"ratio": "sequence_mean", "rule.clip_high": 0.1},
    {"ratio": "sequence_product", "rule.clip_high": 0.1},
    {"rule.type": "cispo", "rule.weight_min": 0.8, "rule.weight_max": 1.2, "rule.mask": "unified"},
    {"rule.type": "sapo"},
    {"rule.type": "gmpo", "ratio": "sequence_mean", "rule.log_ratio_low": 0.2, "rule.log_ratio_high": 0.1},
    {"kl.where": "loss", "kl.estimator": "k1", "kl.beta": 0.3},
    {"kl.where": "loss", "kl.estimator": "k1_clamped", "kl.beta": 0.3},
    {"kl.where": "loss", "kl.estimator": "k2", "kl.beta": 0.3},
    {"kl.where": "loss", "kl.estimator": "k3", "kl.beta": 0.3},
    {"kl.where": "loss", "kl.estimator": "k3_ratio", "kl.beta": 0.3},
    {"kl.where": "loss", "kl.estimator": "k3_straight", "kl.beta": 0.3},
    {"kl.where": "loss", "kl.reference": "iteration_start", "kl.beta": 0.3},
    {"select.type": "clip_cov", "select.fraction": 0.2, "select.cov_low": -0.2, "select.cov_high": 10.0},
    {"select.type": "kl_cov", "select.fraction": 0.2, "rule.type": "weighted"},
    {"select.type": "top_entropy", "select.fraction": 0.3},
    {"sampler_correction.type": "token_truncate", "sampler_correction.weight_max": 1.1},
    {"sampler_correction.type": "sequence_truncate", "sampler_correction.weight_max": 1.1},
    {"sampler_correction.type": "token_band", "sampler_correction.weight_max": 1.3},
    {"sampler_correction.type": "sequence_band", "sampler_correction.weight_max": 1.3},
    {"sampler_correction.type": "in_ratio"},
    {"sampler_correction.type": "token_unbounded"},
    {
        "sampler_correction.type": "geometric_veto",
        "sampler_correction.mean_min": 0.7,
        "sampler_correction.mean_max": 1.3,
    },
    {"sequence_penalty": 0.7},
    {"entropy.bonus": 0.4},
    {"baseline": "critic", "scale": "none", "critic.value_clip": 0.3},
    {"rule.type": "supervised"},
    {"distill.where": "loss", "distill.coef": 0.3},
    {
        "kl.where": "loss",
        "sequence_penalty": 0.7,
        "entropy.bonus": 0.4,
        "sampler_correction.type": "token_truncate",
        "select.type": "kl_cov",
        "select.fraction": 0.2,
    },
)


def objectives(*aggregations: Aggregation) -> list[Objective]:
    """Every term under each of the aggregations."""
    return [with_overrides(GRPO, term | {"aggregation": aggregation}) for aggregation in aggregations for term in TERMS]


def every_term() -> list[Objective]:
    """Every term once, under one aggregation after the other."""
    return [
        with_overrides(GRPO, term | {"aggregation": aggregation})
        for term, aggregation in zip(TERMS, itertools.cycle(EVERY_AGGREGATION), strict=False)
    ]


def identify(objective: Objective) -> str:
    return ",".join(str(value) for value in active_knobs(objective).values())


def random_batch(seed: int, rows: int = 8, width: int = 6, drift: float = 0.4) -> TokenBatch:
    """A whole step in float64: random lengths from 0 to `width`, ratios about exp(+-drift)."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    lengths = torch.randint(0, width + 1, (rows,), generator=generator)
    mask = torch.arange(width) < lengths[:, None]
    old_logp = -normal(rows, width).abs()
    logp = (old_logp + drift * normal(rows, width)).requires_grad_()
    advantages = normal(rows)
    old_values = normal(rows, width)
    return TokenBatch(
        logp=logp,
        old_logp=old_logp,
        mask=mask,
        advantages=advantages,
        ref_logp=old_logp + drift * normal(rows, width),
        sampler_logp=old_logp + drift * normal(rows, width),
        entropy=normal(rows, width).abs().requires_grad_(),
        values=(old_values + drift * normal(rows, width)).requires_grad_(),
        old_values=old_values,
        returns=normal(rows, width),
        divergence=normal(rows, width).abs().requires_grad_(),
        groups=torch.arange(rows) // 4,
        max_completion_tokens=width,
    )


def with_selection(objective: Objective, batch: TokenBatch) -> TokenBatch:
    """A whole step with what the objective selects of it."""
    selected = select_tokens(objective, batch.logp, batch.old_logp, batch.advantages, batch.mask, batch.entropy)
    return replace(batch, selected=selected)


def take(batch: TokenBatch, rows: Tensor, micro_batches: int = 1) -> TokenBatch:
    """Some rows of a batch that was the whole optimiser step, with the step's denominators."""
    assert batch.groups is not None
    lengths = batch.mask.sum(1)
    whole: dict[str, Any] = {field.name: getattr(batch, field.name) for field in fields(batch)}
    whole["group_tokens"] = (lengths * (batch.groups == batch.groups[:, None])).sum(1)
    part: dict[str, Any] = {name: value[rows] if isinstance(value, Tensor) else value for name, value in whole.items()}
    tokens, groups = max(1, int(batch.mask.sum())), len(torch.unique(batch.groups))
    return replace(TokenBatch(**part), step=StepSize(len(batch.logp), tokens, groups, micro_batches))


def gradients(value: Tensor, batch: TokenBatch) -> list[Tensor]:
    """[B, T] by each tensor that takes gradients, log-probs first; zeros where the value does not depend on it."""
    inputs = [one for one in (batch.logp, batch.entropy, batch.values, batch.divergence) if one is not None]
    inputs = [tensor for tensor in inputs if tensor.requires_grad]
    found = torch.autograd.grad(value, inputs, allow_unused=True, retain_graph=True)
    return [torch.zeros_like(of) if grad is None else grad for of, grad in zip(inputs, found, strict=True)]


def value_and_gradient(objective: Objective, batch: TokenBatch) -> tuple[Tensor, Tensor]:
    """Loss and its gradient by `batch.logp` [B, T]."""
    value = policy_loss(objective, batch).value
    return value.detach(), gradients(value, batch)[0]
