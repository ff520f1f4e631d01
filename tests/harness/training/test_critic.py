from __future__ import annotations

import pytest
import torch

from harness.training.policy_update import CriticModel
from harness.training.sequences import BatchPart, Sequences
from tests.harness.training import rollouts

ROWS = torch.tensor([3, 0, 8])


def values_of(critic: CriticModel, policy, sequences: Sequences | None = None) -> torch.Tensor:
    part = BatchPart.of(critic.models(policy), sequences or rollouts.sequences(), ROWS, rollouts.PAD)
    return critic.values(part, part.hidden(policy))


@pytest.mark.parametrize("trunk", ["own", "shared"])
def test_values_start_at_zero_and_stay_zero_in_padding(trunk: str) -> None:
    policy = rollouts.model()
    critic = CriticModel(policy, trunk)
    assert values_of(critic, policy).abs().max() == 0
    with torch.no_grad():
        critic.head.bias.fill_(1.0)
    mask = rollouts.sequences().mask[ROWS][:, : values_of(critic, policy).shape[1]]
    assert torch.equal(values_of(critic, policy) == 1, mask)
    assert torch.equal(values_of(critic, policy) == 0, ~mask)


def gradients(trunk: str) -> tuple[bool, bool]:
    """Whether the value loss moves the policy, and the critic's own weights."""
    policy = rollouts.model()
    critic = CriticModel(policy, trunk)
    with torch.no_grad():
        critic.head.weight.fill_(0.1)
    (values_of(critic, policy) - 1).square().sum().backward()  # type: ignore[no-untyped-call]

    def moved(weights) -> bool:
        return any(weight.grad is not None and bool(weight.grad.abs().max() > 0) for weight in weights)

    return moved(policy.parameters()), moved(critic.parameters())


def test_an_own_trunk_leaves_the_policy_alone() -> None:
    assert gradients("own") == (False, True)


def test_a_shared_trunk_moves_with_the_value_loss() -> None:
    assert gradients("shared") == (True, True)


def test_a_value_does_not_see_its_token() -> None:
    """V of a state must not depend on what is drawn in it, or advantages would be biased."""
    policy = rollouts.model()
    critic = CriticModel(policy, "own")
    with torch.no_grad():
        torch.nn.init.normal_(critic.head.weight, generator=torch.Generator().manual_seed(0))
    sequences = rollouts.sequences()
    before = values_of(critic, policy, sequences)
    row, position = 0, 1
    length = int(sequences.lengths[ROWS[row]])
    assert length > position + 1
    sequences.completions[ROWS[row], position] = 3 + (int(sequences.completions[ROWS[row], position]) - 2) % 18
    after = values_of(critic, policy, sequences)
    torch.testing.assert_close(after[row, : position + 1], before[row, : position + 1])
    assert not torch.allclose(after[row, position + 1 : length], before[row, position + 1 : length])


def test_trained_weights() -> None:
    policy = rollouts.model()
    own = sum(weight.numel() for weight in CriticModel(policy, "own").parameters())
    shared = sum(weight.numel() for weight in CriticModel(policy, "shared").parameters())
    assert shared == policy.config.hidden_size + 1
    assert own == shared + sum(weight.numel() for weight in policy.parameters())
