from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from harness.spec.sections.train import TrainSpec
from harness.training.optimizer import ClippedAdamW, DivergedError


def weights(*values: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor(values))


def train(**settings: object) -> TrainSpec:
    return TrainSpec.model_validate({"steps": 4, "learning_rate": 0.1, "max_grad_norm": 1.0} | settings)


def test_groups_have_their_own_learning_rates_and_norms() -> None:
    """Adam's first step is the learning rate, in the direction of the gradient's sign."""
    policy, critic = weights(0.0, 0.0), weights(0.0)
    optimizer = ClippedAdamW(train(warmup_steps=2), {"policy": [policy], "critic": [critic]})
    assert optimizer.begin(1, critic=10.0) == {"policy": 0.05, "critic": 0.5}
    assert policy.grad is not None and critic.grad is not None
    policy.grad.copy_(torch.tensor([3.0, -4.0]))
    critic.grad.fill_(0.5)
    loss, norms = optimizer.step(2.0)
    assert (loss, norms) == (2.0, {"policy": 5.0, "critic": 0.5})
    torch.testing.assert_close(policy.grad, torch.tensor([0.6, -0.8]))
    torch.testing.assert_close(critic.grad, torch.tensor([0.5]))
    torch.testing.assert_close(policy.detach(), torch.tensor([-0.05, 0.05]))
    torch.testing.assert_close(critic.detach(), torch.tensor([-0.5]))


def test_frozen_weights_are_left_out() -> None:
    trained, frozen = weights(1.0), weights(1.0)
    frozen.requires_grad_(False)
    optimizer = ClippedAdamW(train(weight_decay=0.5), {"policy": [frozen, trained]})
    optimizer.step(0.0)
    assert float(frozen) == 1.0
    assert frozen.grad is None
    assert float(trained.detach()) < 1.0


@pytest.mark.parametrize(("loss", "gradient"), [(math.nan, 1.0), (math.inf, 1.0), (1.0, math.nan), (1.0, math.inf)])
@pytest.mark.parametrize("broken", ["policy", "critic"])
def test_nothing_moves_once_something_is_not_finite(broken: str, loss: float, gradient: float) -> None:
    groups = {"policy": [weights(1.0)], "critic": [weights(1.0)]}
    optimizer = ClippedAdamW(train(), groups)
    groups[broken][0].grad = torch.tensor([gradient])
    with pytest.raises(DivergedError, match="the loss is" if loss != 1 else f"norm of the {broken}'s gradient"):
        optimizer.step(loss)
    assert float(groups["policy"][0].detach()) == float(groups["critic"][0].detach()) == 1.0


@pytest.mark.parametrize(("reset", "steps"), [("never", 2), ("per_rollout", 1)])
def test_momentum_lives_as_long_as_asked(reset: str, steps: int) -> None:
    optimizer = ClippedAdamW(train(optimizer_reset=reset), {"policy": [weights(1.0)]})
    for step in (1, 2):
        optimizer.begin(step)
        optimizer.step(0.0)
    assert [int(state["step"]) for state in optimizer.state_dict()["state"].values()] == [steps]


def test_momentum_moves_weights_without_a_new_gradient() -> None:
    """They would stay if their gradient were None instead of 0."""
    policy = weights(1.0)
    optimizer = ClippedAdamW(train(), {"policy": [policy]})
    policy.grad = torch.tensor([1.0])
    optimizer.step(0.0)
    before = float(policy.detach())
    optimizer.zero_grad()
    optimizer.step(0.0)
    assert float(policy.detach()) < before
