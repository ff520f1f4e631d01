"""Whether a change of weights is seen."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from harness.models.language_model import weight_version


def optimise(model: nn.Module, foreach: bool) -> None:
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    torch.optim.AdamW(model.parameters(), foreach=foreach).step()


@torch.no_grad()
def write_one(model: nn.Module) -> None:
    next(model.parameters())[0].add_(1.0)


@torch.no_grad()
def copy_all(model: nn.Module) -> None:
    weights: list[torch.Tensor] = list(model.parameters())
    torch._foreach_copy_(weights, [weight + 1 for weight in weights])


CHANGES: dict[str, Callable[[nn.Module], object]] = {
    "AdamW": lambda model: optimise(model, foreach=False),
    "AdamW, foreach": lambda model: optimise(model, foreach=True),
    "load_state_dict": lambda model: model.load_state_dict(model.state_dict()),
    "by hand": write_one,
    "foreach": copy_all,
    "buffer": lambda model: model.get_buffer("running_mean").add_(1.0),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_way_of_writing_is_seen(change: str) -> None:
    model = nn.BatchNorm1d(3)
    before = weight_version(model)
    CHANGES[change](model)
    assert weight_version(model) > before


def test_using_the_weights_is_no_change() -> None:
    model = nn.Linear(3, 2)
    before = weight_version(model)
    with torch.inference_mode():
        model(torch.ones(1, 3))
    model(torch.ones(1, 3)).sum().backward()
    assert weight_version(model) == before
