from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithms import Objective, TokenBatch, policy_loss, preset, with_overrides
from tests.algorithms.cases import (
    AGGREGATIONS,
    RATIOS,
    RULES,
    identify,
    objectives,
    random_batch,
    take,
    value_and_gradient,
)

EVERY_OBJECTIVE = pytest.mark.parametrize("objective", objectives(), ids=identify)
EVERY_AGGREGATION = pytest.mark.parametrize("aggregation", AGGREGATIONS)
EVERY_RATIO = pytest.mark.parametrize("ratio", RATIOS)
seeds = st.integers(0, 2**31)


@EVERY_OBJECTIVE
@settings(max_examples=5, deadline=None)
@given(seed=seeds, data=st.data())
def test_micro_batches_sum_to_the_step(objective: Objective, seed: int, data: st.DataObject) -> None:
    batch = random_batch(seed)
    rows = batch.logp.shape[0]
    micro_batch = torch.tensor(data.draw(st.lists(st.integers(0, 3), min_size=rows, max_size=rows)))
    value, gradient = value_and_gradient(objective, batch)
    shares = [
        policy_loss(objective, take(batch, (micro_batch == index).nonzero().flatten())).value for index in range(4)
    ]
    total = torch.stack(shares).sum()
    torch.testing.assert_close(total.detach(), value, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(torch.autograd.grad(total, batch.logp)[0], gradient, rtol=1e-9, atol=1e-9)


@EVERY_OBJECTIVE
@settings(max_examples=5, deadline=None)
@given(seed=seeds, data=st.data())
def test_rows_may_come_in_any_order(objective: Objective, seed: int, data: st.DataObject) -> None:
    batch = random_batch(seed)
    order = torch.tensor(data.draw(st.permutations(range(batch.logp.shape[0]))))
    value, gradient = value_and_gradient(objective, batch)
    shuffled = replace(take(batch, order), step_sequences=None, step_tokens=None)
    shuffled_value = policy_loss(objective, shuffled).value
    torch.testing.assert_close(shuffled_value, value, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(torch.autograd.grad(shuffled_value, batch.logp)[0], gradient, rtol=1e-9, atol=1e-9)


@EVERY_OBJECTIVE
@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, 1e30])
def test_padding_never_leaks(objective: Objective, garbage: float) -> None:
    batch = random_batch(1)
    soiled = replace(
        batch,
        logp=torch.where(batch.mask, batch.logp, garbage).detach().requires_grad_(),
        old_logp=torch.where(batch.mask, batch.old_logp, garbage),
        advantages=torch.where(batch.mask, batch.advantages[:, None], garbage),
    )
    clean_value, clean_gradient = value_and_gradient(objective, batch)
    value, gradient = value_and_gradient(objective, soiled)
    assert value == clean_value
    assert (gradient == clean_gradient).all()
    assert (gradient[~batch.mask] == 0).all()
    assert policy_loss(objective, soiled).metrics == policy_loss(objective, batch).metrics


@EVERY_OBJECTIVE
def test_a_fully_masked_batch_adds_nothing(objective: Objective) -> None:
    batch = random_batch(2)
    with torch.autograd.set_detect_anomaly(True):  # A NaN inside the backward pass is an error here.
        value, gradient = value_and_gradient(objective, replace(batch, mask=torch.zeros_like(batch.mask)))
    assert value == 0
    assert (gradient == 0).all()


@EVERY_AGGREGATION
def test_a_fully_masked_completion_stays_in_the_denominator_over_completions(aggregation: str) -> None:
    batch = random_batch(3, rows=4)
    batch = replace(batch, mask=torch.tensor([[1] * 6, [1] * 6, [1] * 6, [0] * 6]))
    objective = preset("reinforce", aggregation=aggregation)
    with_it, _ = value_and_gradient(objective, batch)
    without, _ = value_and_gradient(objective, replace(take(batch, torch.arange(3)), step_sequences=3))
    torch.testing.assert_close(with_it, without * (1 if aggregation == "token_mean" else 3 / 4))


@EVERY_RATIO
@EVERY_AGGREGATION
@settings(max_examples=5, deadline=None)
@given(seed=seeds)
def test_unbounded_cispo_has_the_weighted_gradient_by_token(ratio: str, aggregation: str, seed: int) -> None:
    """sg(r) A grad(log pi) = A grad(r) for token ratios; a ratio of the completion moves with each of its tokens."""
    batch = random_batch(seed)
    grpo = preset("grpo", ratio=ratio, aggregation=aggregation)
    _, weighted = value_and_gradient(with_overrides(grpo, {"rule.type": "weighted"}), batch)
    _, cispo = value_and_gradient(with_overrides(grpo, {"rule.type": "cispo", "rule.weight_max": None}), batch)
    lengths = batch.mask.sum(1, keepdim=True)
    torch.testing.assert_close(weighted, cispo * lengths if ratio == "sequence_product" else cispo)


@EVERY_RATIO
@EVERY_AGGREGATION
def test_rules_agree_where_every_ratio_is_one(ratio: str, aggregation: str) -> None:
    """On-policy every rule has the gradient of policy_gradient; see `algorithms.noop` for the factor of products."""
    batch = random_batch(4)
    batch = replace(batch, old_logp=batch.logp.detach())
    grpo = preset("grpo", ratio=ratio, aggregation=aggregation)
    _, expected = value_and_gradient(with_overrides(grpo, {"rule.type": "policy_gradient"}), batch)
    assert expected.abs().max() > 0.01
    for rule in RULES:
        objective = with_overrides(grpo, rule)
        _, gradient = value_and_gradient(objective, batch)
        by_product = ratio == "sequence_product" and objective.rule.type in ("weighted", "ppo_clip")
        factor = batch.mask.sum(1, keepdim=True) if by_product else 1
        torch.testing.assert_close(gradient, expected * factor)


@EVERY_RATIO
def test_log_ratios_are_clamped_before_the_exponential(ratio: str) -> None:
    """Beyond exp(+-20) nothing overflows and no gradient passes through the ratio."""
    low, high = torch.full((1, 2), -800.0, dtype=torch.float64), torch.full((1, 2), -1.0, dtype=torch.float64)
    batch = TokenBatch(
        logp=torch.cat([high, low]).requires_grad_(),
        old_logp=torch.cat([low, high]),
        mask=torch.ones(2, 2),
        advantages=torch.ones(2, dtype=torch.float64),
    )
    objective = preset("grpo", ratio=ratio, **{"rule.type": "weighted"})
    value, gradient = value_and_gradient(objective, batch)
    metrics = policy_loss(objective, batch).metrics
    assert metrics["ratio/max"] == pytest.approx(math.exp(20), rel=1e-12)
    assert metrics["kl/k1_old"] == 0
    assert value.item() == pytest.approx(-(math.exp(20) + math.exp(-20)) / 2, rel=1e-12)
    assert (gradient == 0).all()


def test_a_nan_inside_the_mask_is_not_hidden() -> None:
    batch = random_batch(5)
    logp = batch.logp.detach().clone()
    row, column = batch.mask.nonzero()[0]
    logp[row, column] = math.nan
    for objective in objectives():
        assert policy_loss(objective, replace(batch, logp=logp)).value.isnan(), identify(objective)


def test_advantages_by_completion_or_by_token() -> None:
    batch = random_batch(6)
    by_token = replace(batch, advantages=batch.advantages[:, None].expand_as(batch.logp))
    for objective in objectives():
        assert policy_loss(objective, batch).value == policy_loss(objective, by_token).value


def test_no_gradient_flows_into_advantages_or_old_log_probs() -> None:
    batch = random_batch(7)
    batch = replace(batch, old_logp=batch.old_logp.requires_grad_(), advantages=batch.advantages.requires_grad_())
    policy_loss(preset("grpo"), batch).value.backward()  # type: ignore[no-untyped-call]
    assert batch.logp.grad is not None
    assert batch.old_logp.grad is None
    assert batch.advantages.grad is None


def test_constant_length_needs_a_length() -> None:
    batch = replace(random_batch(8), max_completion_tokens=None)
    with pytest.raises(ValueError, match=r"aggregation=constant_length .* set TokenBatch.max_completion_tokens"):
        policy_loss(preset("dr_grpo"), batch)
