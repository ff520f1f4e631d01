from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithms import Objective, TokenBatch, combine_metrics, policy_loss, preset
from tests.algorithms.cases import identify, objectives, random_batch, take

CLIP_KEYS = {f"clip/{side}_frac_{which}" for side in ("low", "high") for which in ("sign_aware", "any_sign")}
KEYS = {"ratio/mean", "ratio/p99", "ratio/max", "kl/k1_old", "kl/k3_old"}


def batch_of(ratios: list[float], advantages: list[float]) -> TokenBatch:
    """One completion a ratio, of one token; a second position is masked."""
    logp = torch.tensor([[math.log(ratio) - 1, 5.0] for ratio in ratios], dtype=torch.float64)
    return TokenBatch(
        logp=logp,
        old_logp=torch.full_like(logp, -1),
        mask=torch.tensor([[1, 0]] * len(ratios)),
        advantages=torch.tensor(advantages, dtype=torch.float64),
    )


def test_by_hand() -> None:
    ratios, advantages = [0.5, 0.5, 0.7, 1.1, 1.5, 1.5, 1.5, 4.0], [-1.0, 1.0, -1.0, 1.0, 1.0, -1.0, 0.0, -1.0]
    objective = preset("grpo", **{"rule.clip_high": 0.3, "rule.dual_clip": 3.0})
    assert policy_loss(objective, batch_of(ratios, advantages)).metrics == pytest.approx(
        {
            "ratio/mean": sum(ratios) / 8,
            "ratio/p99": 4.0,
            "ratio/max": 4.0,
            "kl/k1_old": -sum(math.log(ratio) for ratio in ratios) / 8,
            "kl/k3_old": sum(ratio - 1 - math.log(ratio) for ratio in ratios) / 8,
            "clip/low_frac_sign_aware": 2 / 8,
            "clip/high_frac_sign_aware": 1 / 8,
            "clip/low_frac_any_sign": 3 / 8,
            "clip/high_frac_any_sign": 4 / 8,
            "clip/dual_frac": 1 / 8,
        }
    )


def test_p99_is_the_nearest_rank() -> None:
    ratios = [1 + i / 1000 for i in range(1, 201)]
    metrics = policy_loss(preset("grpo"), batch_of(ratios, [1.0] * 200)).metrics
    assert metrics["ratio/p99"] == pytest.approx(ratios[197])


def test_ratios_are_of_tokens_and_clip_fractions_of_what_the_rule_clips() -> None:
    """One completion whose token ratios 4 and 1/4 have the geometric mean 1."""
    logp = torch.tensor([[math.log(4.0), -math.log(4.0)]], dtype=torch.float64)
    batch = TokenBatch(logp, torch.zeros_like(logp), torch.ones(1, 2), torch.ones(1, dtype=torch.float64))
    for ratio, fraction in (("token", 0.5), ("sequence_mean", 0.0)):
        metrics = policy_loss(preset("grpo", ratio=ratio), batch).metrics
        assert metrics["ratio/max"] == pytest.approx(4)
        assert metrics["clip/high_frac_any_sign"] == metrics["clip/low_frac_any_sign"] == fraction


def test_cispo_bounds_are_absolute() -> None:
    objective = preset("grpo", **{"rule.type": "cispo", "rule.weight_min": 0.6, "rule.weight_max": 2.0})
    metrics = policy_loss(objective, batch_of([0.5, 0.7, 1.9, 2.1], [-1.0, -1.0, 1.0, 1.0])).metrics
    assert metrics["clip/low_frac_any_sign"] == metrics["clip/high_frac_any_sign"] == 0.25
    unbounded = preset("grpo", **{"rule.type": "cispo", "rule.weight_max": None})
    assert policy_loss(unbounded, batch_of([1e6], [1.0])).metrics["clip/high_frac_any_sign"] == 0


@pytest.mark.parametrize(
    ("overrides", "keys"),
    [
        ({"rule.type": "policy_gradient"}, KEYS),
        ({"rule.type": "weighted"}, KEYS),
        ({"rule.type": "cispo", "rule.weight_max": 2.0}, KEYS | CLIP_KEYS),
        ({}, KEYS | CLIP_KEYS),
        ({"rule.dual_clip": 3.0}, KEYS | CLIP_KEYS | {"clip/dual_frac"}),
    ],
)
def test_only_metrics_that_exist_are_there(overrides: dict[str, object], keys: set[str]) -> None:
    assert set(policy_loss(preset("grpo", **overrides), random_batch(0)).metrics) == keys


@pytest.mark.parametrize("objective", objectives(), ids=identify)
@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 2**31), cut=st.integers(1, 7))
def test_micro_batches_combine_to_the_metrics_of_the_step(objective: Objective, seed: int, cut: int) -> None:
    batch = random_batch(seed)
    parts = [take(batch, torch.arange(cut)), take(batch, torch.arange(cut, 8))]
    combined = combine_metrics([policy_loss(objective, part) for part in parts])
    assert combined == pytest.approx(policy_loss(objective, batch).metrics)


def test_no_token_no_metric() -> None:
    batch = random_batch(1)
    empty = policy_loss(preset("grpo"), replace(batch, mask=torch.zeros_like(batch.mask)))
    full = policy_loss(preset("grpo"), batch)
    assert empty.metrics == combine_metrics([]) == {}
    assert combine_metrics([empty, full]) == full.metrics


def test_metrics_are_plain_numbers() -> None:
    for dtype in (torch.float32, torch.float64):
        batch = random_batch(2)
        batch = replace(
            batch, logp=batch.logp.to(dtype), old_logp=batch.old_logp.to(dtype), advantages=batch.advantages.to(dtype)
        )
        metrics = policy_loss(preset("grpo", **{"rule.dual_clip": 3.0}), batch).metrics
        assert all(type(value) is float for value in metrics.values())
