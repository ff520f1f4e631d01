"""Identities between objectives: points of the knob space that have one gradient, and closed forms of the sources."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithms import Objective, preset, with_overrides
from algorithms.rules import RATIOS
from tests.algorithms.cases import EVERY_AGGREGATION, GRPO, RULES, gradients, random_batch, value_and_gradient

EVERYWHERE = pytest.mark.parametrize("aggregation", EVERY_AGGREGATION)
EVERY_RATIO = pytest.mark.parametrize("ratio", RATIOS)
seeds = st.integers(0, 2**31)


@pytest.mark.slow
@EVERY_RATIO
@EVERYWHERE
@settings(max_examples=5, deadline=None)
@given(seed=seeds)
def test_unbounded_cispo_has_the_weighted_gradient_by_token(ratio: str, aggregation: str, seed: int) -> None:
    """sg(r) A grad(log pi) = A grad(r) for token ratios; a ratio of the completion moves with each of its tokens."""
    batch = random_batch(seed)
    grpo = with_overrides(GRPO, {"ratio": ratio, "aggregation": aggregation})
    _, weighted = value_and_gradient(with_overrides(grpo, {"rule.type": "weighted"}), batch)
    _, cispo = value_and_gradient(with_overrides(grpo, {"rule.type": "cispo", "rule.weight_max": None}), batch)
    lengths = batch.mask.sum(1, keepdim=True)
    torch.testing.assert_close(weighted, cispo * lengths if ratio == "sequence_product" else cispo)


@EVERYWHERE
@settings(max_examples=10, deadline=None)
@given(seed=seeds, low=st.floats(0.05, 0.5), high=st.floats(0.05, 0.5))
def test_cispo_with_the_unified_mask_has_the_gradient_of_ppo_clip(
    aggregation: str, seed: int, low: float, high: float
) -> None:
    batch = random_batch(seed)
    grpo = with_overrides(GRPO, {"aggregation": aggregation, "rule.clip_low": low, "rule.clip_high": high})
    cispo = {"rule.type": "cispo", "rule.weight_min": 1 - low, "rule.weight_max": 1 + high, "rule.mask": "unified"}
    _, expected = value_and_gradient(grpo, batch)
    _, gradient = value_and_gradient(with_overrides(grpo, cispo), batch)
    torch.testing.assert_close(gradient, expected)


@EVERY_RATIO
@EVERYWHERE
def test_rules_agree_where_every_ratio_is_one(ratio: str, aggregation: str) -> None:
    """On-policy every rule has the gradient of policy_gradient; see `algorithms.noop` for the factor of products."""
    batch = random_batch(4)
    batch = replace(batch, old_logp=batch.logp.detach())
    grpo = with_overrides(GRPO, {"ratio": ratio, "aggregation": aggregation})
    _, expected = value_and_gradient(with_overrides(grpo, {"rule.type": "policy_gradient"}), batch)
    assert expected.abs().max() > 0.01
    rules = [*RULES, {"rule.type": "cispo", "rule.weight_max": 1.2, "rule.mask": "unified"}]
    rules += [{"rule.type": "sapo"}] if ratio != "sequence_product" else []
    rules += [{"rule.type": "gmpo"}] if ratio == "sequence_mean" else []
    for rule in rules:
        objective = with_overrides(grpo, rule)
        _, gradient = value_and_gradient(objective, batch)
        by_product = ratio == "sequence_product" and objective.rule.type in ("weighted", "ppo_clip")
        factor = batch.mask.sum(1, keepdim=True) if by_product else 1
        torch.testing.assert_close(gradient, expected * factor)


@settings(max_examples=10, deadline=None)
@given(seed=seeds)
def test_gspo_is_its_sequence_form_and_the_token_trick(seed: int) -> None:
    """2507.18071, eq. 5: one clipped term a completion; eq. 13: log s_t = log pi - sg(log pi) + sg(log s)."""
    batch = random_batch(seed, drift=0.1)
    objective = with_overrides(GRPO, {"ratio": "sequence_mean", "rule.clip_low": 0.02, "rule.clip_high": 0.04})
    value, gradient = value_and_gradient(objective, batch)

    def clipped(ratio: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor:
        return -torch.minimum(advantages * ratio, advantages * ratio.clamp(0.98, 1.04))

    lengths = batch.mask.sum(1).clamp(min=1)
    log_s = ((batch.logp - batch.old_logp) * batch.mask).sum(1) / lengths
    present = batch.mask.any(1)
    by_sequence = (clipped(log_s.exp(), batch.advantages) * present).mean()
    log_s_t = batch.logp - batch.logp.detach() + log_s.detach()[:, None]
    by_token = ((clipped(log_s_t.exp(), batch.advantages[:, None]) * batch.mask).sum(1) / lengths).mean()
    for expected in (by_sequence, by_token):
        torch.testing.assert_close(value, expected.detach())
        torch.testing.assert_close(gradient, gradients(expected, batch)[0])


@settings(max_examples=10, deadline=None)
@given(seed=seeds, tau=st.floats(0.01, 2.0))
def test_kimis_loss_in_closed_form(seed: int, tau: float) -> None:
    """2501.12599, section 2.3.2, over whole completions; divided by length it is OpenKimi's, up to a constant."""
    batch = random_batch(seed)
    kimi = preset("kimi_k1_5", Objective, sequence_penalty=tau)
    lengths = batch.mask.sum(1)
    log_prob = (batch.logp * batch.mask).sum(1)
    drift = log_prob - (batch.old_logp * batch.mask).sum(1)
    value, gradient = value_and_gradient(kimi, batch)
    paper = (-batch.advantages * log_prob + tau / 2 * drift**2).mean()
    torch.testing.assert_close(value, paper.detach())
    torch.testing.assert_close(gradient, gradients(paper, batch)[0])

    _, gradient = value_and_gradient(with_overrides(kimi, {"aggregation": "seq_mean_token_mean"}), batch)
    open_kimi = (tau / 2 * (batch.advantages / tau - drift) ** 2 / lengths.clamp(min=1)).mean()
    torch.testing.assert_close(gradient, gradients(open_kimi, batch)[0])
