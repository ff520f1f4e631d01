from __future__ import annotations

import math
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from algorithms import Objective, advantages, preset, value_targets
from algorithms.critic import gae, value_losses, value_metrics
from tests.refusals import refuses

NAN = math.nan


def critic(**knobs: Any) -> Objective:
    """Without whitening of advantages, gamma 1 and lambda 1 unless told."""
    return Objective.model_validate(
        {"baseline": "critic", "aggregation": "token_mean", "critic": {"gamma": 1.0, "lam": 1.0, **knobs}}
    )


def tensor(values: object) -> Tensor:
    return torch.tensor(cast(list[float], values), dtype=torch.float64)


Tokens = list[list[tuple[float, float, bool]]]
"""Rows of tokens: reward, value, mask."""
finite = st.floats(-10, 10)
tokens = st.integers(0, 6).flatmap(
    lambda width: st.lists(
        st.lists(st.tuples(finite, finite, st.booleans()), min_size=width, max_size=width), min_size=1, max_size=4
    )
)


def columns(rows: Tokens) -> tuple[Tensor, Tensor, Tensor]:
    table = tensor(rows).view(len(rows), -1, 3)
    return table[..., 0], table[..., 1], table[..., 2].bool()


def slow_gae(rows: Tokens, gamma: float, lam: float) -> Tensor:
    """The sum of discounted temporal differences, over the tokens of the mask only."""
    result = []
    for row in rows:
        places = [t for t, (_, _, counted) in enumerate(row) if counted]
        rewards, values = [row[t][0] for t in places], [row[t][1] for t in places] + [0.0]
        deltas = [reward + gamma * values[i + 1] - values[i] for i, reward in enumerate(rewards)]
        line = [0.0] * len(row)
        for i, t in enumerate(places):
            line[t] = sum((gamma * lam) ** k * delta for k, delta in enumerate(deltas[i:]))
        result.append(line)
    return tensor(result)


@settings(max_examples=60, deadline=None)
@given(rows=tokens, gamma=st.floats(0.1, 1), lam=st.floats(0, 1))
def test_gae_agrees_with_its_definition(rows: Tokens, gamma: float, lam: float) -> None:
    rewards, values, mask = columns(rows)
    result, returns = gae(rewards, values, mask, gamma, lam)
    torch.testing.assert_close(result, slow_gae(rows, gamma, lam), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(returns, torch.where(mask, result + values, 0))


def test_gae_has_no_gradient_keeps_the_dtype_and_reads_no_garbage() -> None:
    for dtype in (torch.float32, torch.float64):
        values = torch.ones(2, 3, dtype=dtype, requires_grad=True)
        # Any value may stand behind the mask.
        rewards = torch.tensor([[1, NAN, 1], [1, 1, 1]], dtype=dtype)
        for result in gae(rewards, values, rewards.isfinite(), 0.9, 0.9):
            assert result.isfinite().all()
            assert result.dtype == dtype
            assert not result.requires_grad


# Advantages and targets of an objective


def test_the_reward_is_paid_at_the_last_token() -> None:
    values = tensor([[0.5, 0.2, 0.9], [0.1, 0.3, 0.4]])
    mask = tensor([[1, 1, 0], [1, 1, 1]])
    rewards, groups = tensor([1, 0]), torch.tensor([0, 0])
    token_rewards = tensor([[0.0, -0.1, 9.0], [-0.2, 0.0, 0.0]])
    result = advantages(critic(lam=0.0), rewards, groups, mask, values=values, token_rewards=token_rewards)
    expected = tensor([[0.2 - 0.5, 1 - 0.1 - 0.2, 0], [-0.2 + 0.3 - 0.1, 0.4 - 0.3, -0.4]])
    torch.testing.assert_close(result, expected)
    targets = value_targets(critic(gamma=0.5), rewards, mask, values, token_rewards)
    torch.testing.assert_close(targets, tensor([[0.45, 0.9, 0], [-0.2, 0, 0]]))


def test_what_could_not_be_scored_teaches_the_critic_nothing() -> None:
    values = tensor([[0.5, 0.2], [0.1, 0.3]])
    mask = tensor([[1, 0], [1, 1]])
    rewards, groups = tensor([NAN, 1]), torch.tensor([0, 0])
    assert advantages(critic(), rewards, groups, mask, values=values)[0].tolist() == [0, 0]
    torch.testing.assert_close(value_targets(critic(), rewards, mask, values), tensor([[0.5, 0], [1, 1]]))


@pytest.mark.parametrize("scale", ["none", "whiten_tokens"])
def test_whitening_centres_tokens_of_scored_completions(scale: str) -> None:
    objective = critic().model_copy(update={"scale": scale})
    values = torch.randn(3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mask = tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 0, 1, 1, 0]])
    result = advantages(objective, tensor([1, NAN, 0]), torch.tensor([0, 0, 1]), mask, values=values)
    counted = result[torch.tensor([0, 2])][mask[[0, 2]].bool()]
    assert (result[1] == 0).all()
    assert (counted.mean().abs() < 1e-12) == (scale == "whiten_tokens")
    assert (counted.std() - 1 < 1e-5) == (scale == "whiten_tokens")


def test_whitened_rewards_keep_their_mean() -> None:
    """Token rewards 0, 0, 2, 0, 1 of scored completions: mean 0.6, variance 0.8."""
    mask = tensor([[1, 1, 1], [1, 1, 0], [1, 1, 1]])
    rewards = tensor([2, 1, NAN])
    values = torch.zeros(3, 3, dtype=torch.float64)
    zero, two, one = (0.6 + (reward - 0.6) / math.sqrt(0.8) for reward in (0, 2, 1))
    expected = tensor([[2 * zero + two, zero + two, two], [zero + one, one, 0], [0, 0, 0]])
    objective = critic(whiten_rewards=True)
    torch.testing.assert_close(value_targets(objective, rewards, mask, values), expected, rtol=1e-6, atol=1e-6)
    result = advantages(objective, rewards, torch.zeros(3, dtype=torch.long), mask, values=values)
    torch.testing.assert_close(result, expected, rtol=1e-6, atol=1e-6)
    equal, ones = tensor([0.1, 0.1, 0.1]), torch.ones(3, 1)
    torch.testing.assert_close(value_targets(objective, equal, ones, values[:, :1]), equal[:, None], rtol=1e-12, atol=0)


@settings(max_examples=40, deadline=None)
@given(
    rows=tokens,
    data=st.data(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    whiten=st.booleans(),
    scale=st.sampled_from(["none", "whiten_tokens"]),
)
def test_no_nan_comes_out(rows: Tokens, data: st.DataObject, dtype: torch.dtype, whiten: bool, scale: str) -> None:
    token_rewards, values, mask = columns(rows)
    rewards = torch.tensor(data.draw(st.lists(finite | st.just(NAN), min_size=len(rows), max_size=len(rows))))
    objective = critic(whiten_rewards=whiten).model_copy(update={"scale": scale})
    groups = torch.zeros(len(rows), dtype=torch.long)
    arguments = rewards.to(dtype), mask, values.to(dtype), token_rewards.to(dtype)
    targets = value_targets(objective, *arguments)
    result = advantages(objective, arguments[0], groups, mask, arguments[2], arguments[3])
    for tensor in (targets, result):
        assert tensor.isfinite().all()
        assert (tensor[~mask] == 0).all()
        assert tensor.dtype == dtype


def test_values_must_be_given_and_fit() -> None:
    rewards, groups, mask = tensor([1.0]), torch.tensor([0]), torch.ones(1, 2)
    with refuses(ValueError, "algorithms.values_missing"):
        advantages(critic(), rewards, groups, mask)
    with refuses(ValueError, "algorithms.shape", name="values", shape=[1]):
        advantages(critic(), rewards, groups, mask, values=rewards)
    with refuses(ValueError, "algorithms.shape", name="values", shape=[1]):
        value_targets(critic(), rewards, mask, rewards)


# Value loss and its metrics


@pytest.mark.parametrize(
    ("value", "old", "target", "clip", "loss", "gradient"),
    [
        (1.0, 0.0, 3.0, None, 2.0, -2.0),
        (1.0, 0.9, 3.0, 0.2, 2.0, -2.0),  # within the clip
        (1.0, 0.0, 3.0, 0.2, 0.5 * 2.8**2, 0.0),  # moved too far towards the return
        (-1.0, 0.0, 3.0, 0.2, 8.0, -4.0),  # moved away from it: the clip does not help
        (1.0, 2.0, -3.0, 0.2, 0.5 * 4.8**2, 0.0),
    ],
)
def test_value_loss_of_a_token(
    value: float, old: float, target: float, clip: float | None, loss: float, gradient: float
) -> None:
    values, old_values, returns = (torch.tensor([[x]], requires_grad=True) for x in (value, old, target))
    losses = value_losses(values, old_values, returns, clip)
    assert losses.shape == (1, 1)
    assert losses.item() == pytest.approx(loss)
    gradients = torch.autograd.grad(losses.sum(), (values, old_values, returns), allow_unused=True)
    assert [given is None for given in gradients] == [False, True, True]
    assert gradients[0].item() == pytest.approx(gradient)


def test_value_metrics_by_hand() -> None:
    returns, old_values = tensor([0, 1, 1, 0]), tensor([0.5, 1, 1, 0.5])
    values = tensor([0.4, 1.5, 0.6, 0.1])
    metrics = value_metrics(values, old_values, returns, 0.2)
    assert metrics == pytest.approx(
        {
            "value/explained_variance": 1 - 0.25,  # errors -.5, 0, 0, -.5 against 0, 1, 1, 0
            "value/clip_frac": 0.25,  # only the last moved further than the clip towards its return
            "value/mean": 0.65,
            "value/return_mean": 0.5,
        }
    )
    assert value_metrics(values, old_values, returns, None)["value/clip_frac"] == 0


@pytest.mark.parametrize(
    ("old", "returns", "explained"),
    [
        ([0.0, 1.0], [0.0, 1.0], 1.0),
        ([5.0, 6.0], [0.0, 1.0], 1.0),  # off by a constant
        ([0.3, 0.3], [0.0, 1.0], 0.0),
        ([1.0, 0.0], [0.0, 1.0], -3.0),
        ([0.1, 0.1, 0.1], [0.7, 0.7, 0.7], 1.0),
        ([0.1, 0.2, 0.1], [0.7, 0.7, 0.7], 0.0),
        ([0.1, 0.2, 0.1], [0.7, 0.7 + 1e-7, 0.7], 0.0),  # equal but for rounding
        ([0.0], [0.0], 1.0),
    ],
)
def test_explained_variance(old: list[float], returns: list[float], explained: float) -> None:
    for dtype in (torch.float32, torch.float64):
        values = torch.tensor(old, dtype=dtype)
        metrics = value_metrics(values, values, torch.tensor(returns, dtype=dtype), None)
        assert metrics["value/explained_variance"] == pytest.approx(explained, abs=1e-6)


def test_no_token_has_no_metrics() -> None:
    empty = torch.zeros(0)
    assert value_metrics(empty, empty, empty, 0.2) == {}


def test_step_rewards_are_paid_where_they_end() -> None:
    """credit=steps with a critic: NaN marks tokens without a step; GAE sees the others, at their tokens."""
    objective = preset("ppo", Objective, **{"credit": "steps", "scale": "none", "critic.lam": 1.0, "kl.where": "none"})
    mask = torch.ones(1, 4)
    steps = torch.tensor([[torch.nan, 0.5, 0.0, torch.nan]])
    values = torch.tensor([[0.1, 0.2, 0.3, 0.4]])
    rewards, groups = torch.tensor([1.0]), torch.tensor([0])
    expected = torch.tensor([[1.5, 1.5, 1.0, 1.0]])
    torch.testing.assert_close(
        advantages(objective, rewards, groups, mask, values=values, token_rewards=steps), expected - values
    )
    torch.testing.assert_close(value_targets(objective, rewards, mask, values, steps), expected)
