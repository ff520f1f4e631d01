"""Inputs that the tests of this package share."""

from __future__ import annotations

import itertools
from dataclasses import replace

import torch
from torch import Tensor

from algorithms import Objective, TokenBatch, active_knobs, policy_loss, preset, presets, with_overrides

AGGREGATIONS = ("token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "constant_length")
RULES: tuple[dict[str, object], ...] = (
    {"rule.type": "policy_gradient"},
    {"rule.type": "weighted"},
    {"rule.type": "ppo_clip", "rule.clip_low": 0.1, "rule.clip_high": 0.3},
    {"rule.type": "ppo_clip", "rule.dual_clip": 1.5},
    {"rule.type": "cispo", "rule.weight_min": 0.8, "rule.weight_max": 1.2},
)
RATIOS = ("token", "sequence_mean", "sequence_product")


def objectives() -> list[Objective]:
    """Every preset under every aggregation, and every rule with every ratio under every aggregation."""
    named = [preset(name, aggregation=aggregation) for name in presets() for aggregation in AGGREGATIONS]
    grpo = preset("grpo")
    composed = [
        with_overrides(
            grpo, rule | {"aggregation": aggregation} | ({} if "policy_gradient" in rule.values() else ratio)
        )
        for rule, aggregation, ratio in itertools.product(RULES, AGGREGATIONS, [{"ratio": kind} for kind in RATIOS])
    ]
    return list(dict.fromkeys([*named, *composed]))


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
    return TokenBatch(
        logp=(old_logp + drift * normal(rows, width)).requires_grad_(),
        old_logp=old_logp,
        mask=mask,
        advantages=normal(rows),
        groups=torch.arange(rows) // 4,
        max_completion_tokens=width,
    )


def take(batch: TokenBatch, rows: Tensor) -> TokenBatch:
    """Some rows of a batch that was the whole optimiser step, with the step's denominators."""
    return replace(
        batch,
        logp=batch.logp[rows],
        old_logp=batch.old_logp[rows],
        mask=batch.mask[rows],
        advantages=batch.advantages[rows],
        groups=None if batch.groups is None else batch.groups[rows],
        step_sequences=batch.logp.shape[0],
        step_tokens=max(1, int(batch.mask.sum())),
    )


def value_and_gradient(objective: Objective, batch: TokenBatch) -> tuple[Tensor, Tensor]:
    """Loss and its gradient by `batch.logp` [B, T]."""
    value = policy_loss(objective, batch).value
    (gradient,) = torch.autograd.grad(value, batch.logp)
    return value.detach(), gradient
