"""Against one plain backward pass for each objective."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from algorithms import Objective, TokenBatch, advantages, policy_loss, preset
from harness.shelves.probe import gradients as module
from harness.shelves.probe.gradients import TokenWeights, gradients, token_weights
from harness.training.batch import Batch
from harness.training.sequences import Scores, score_completions
from tests.harness.run.small import small_spec
from tests.harness.training.rollouts import PAD, SAMPLES, gradient, model, rollout

BATCH = 2 * SAMPLES
OBJECTIVES = [
    preset("reinforce", Objective, baseline="none"),
    preset("reinforce", Objective, baseline="leave_one_out"),
    preset("reinforce", Objective, baseline="group_mean"),
    preset("grpo", Objective),
    preset("lite_ppo", Objective, **{"entropy.bonus": 0.1}),
    preset("reinforce", Objective, baseline="leave_one_out", **{"entropy.bonus": 0.1}),
]


@pytest.fixture(scope="module")
def policy() -> PreTrainedModel:
    return model()


@pytest.fixture(scope="module")
def pool(policy: PreTrainedModel) -> Batch:
    made = rollout(policy)
    with torch.no_grad():
        logps, entropy = score_completions(policy, made.sequences, torch.arange(len(made.groups)), 1.0, PAD)
    return replace(made, scores=Scores(logps, entropy, torch.zeros(logps.shape)))


@pytest.fixture(scope="module")
def weights(pool: Batch) -> list[TokenWeights]:
    return [token_weights(objective, pool, BATCH, seed=0) for objective in OBJECTIVES]


def plain(policy: PreTrainedModel, pool: Batch, rows: Tensor, index: int) -> Tensor:
    objective = OBJECTIVES[index]
    logps, entropy = score_completions(policy, pool.sequences, rows, 1.0, PAD, entropy_grad=True)
    mask = pool.loss_mask[rows, : logps.shape[1]]
    batch = TokenBatch(
        logp=logps,
        old_logp=logps.detach(),
        mask=mask,
        advantages=advantages(objective, pool.rewards[rows], pool.groups[rows], mask),
        entropy=entropy,
        max_completion_tokens=pool.max_completion_tokens,
    )
    policy.zero_grad()
    policy_loss(objective, batch).value.backward()  # type: ignore[no-untyped-call]
    return gradient(policy)


@pytest.mark.slow
@pytest.mark.parametrize("start", [0, BATCH])
@pytest.mark.parametrize("micro_batch_tokens", [24, 4096])
def test_gradients_are_those_of_the_loss(
    start: int, micro_batch_tokens: int, policy: PreTrainedModel, pool: Batch, weights: list[TokenWeights]
) -> None:
    rows = torch.arange(start, start + BATCH)
    spec = small_spec({"train.micro_batch_tokens": micro_batch_tokens})
    found = gradients(policy, pool.sequences, rows, weights, spec, PAD)
    for index in range(len(OBJECTIVES)):
        expected = plain(policy, pool, rows, index)
        assert expected.norm() > 0
        assert (found[index] - expected).norm() < 1e-4 * expected.norm(), index


def test_multiples_are_differentiated_once(
    policy: PreTrainedModel, pool: Batch, weights: list[TokenWeights], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    grad = torch.autograd.grad

    def counted(*given: Any, **options: Any) -> Any:
        calls.append(given)
        return grad(*given, **options)

    monkeypatch.setattr(module.torch.autograd, "grad", counted)  # type: ignore[attr-defined]
    gradients(policy, pool.sequences, torch.arange(BATCH), weights, small_spec({"train.micro_batch_tokens": 4096}), PAD)
    # group_mean is a multiple of leave_one_out; with a bonus it is not.
    assert len(calls) == len(OBJECTIVES) - 1


def test_all_zero_weights_have_a_gradient_of_zero(policy: PreTrainedModel, pool: Batch) -> None:
    nothing = TokenWeights(*(torch.zeros(pool.loss_mask.shape) for _ in range(2)))
    found = gradients(policy, pool.sequences, torch.arange(BATCH), [nothing, nothing], small_spec(), PAD)
    assert found.shape == (2, sum(weight.numel() for weight in policy.parameters()))
    assert not found.any()
