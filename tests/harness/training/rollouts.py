"""Made-up rollout batches: training does not care where completions come from."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from evals.tasks.environment import Interjection
from harness.models.tiny import tiny_model
from harness.training.batch import Batch
from harness.training.sequences import Sequences

PAD = 0
GROUPS, SAMPLES, WIDTH = 4, 4, 9
REWARDS = [1.0, 0, 0, 1, 0, 0, 0, 0, 1, 1, 1, 0, 0, 1, 0, 0]
"""The second group has no advantage. Each half of the batch has a group with one."""


def model() -> PreTrainedModel:
    """Random weights, several times the usual size, so that distributions are far from uniform."""
    made = tiny_model(seed=3)
    with torch.no_grad():
        for weight in made.parameters():
            weight.mul_(3 if weight.ndim > 1 else 1)
    return made.eval()


def sequences(seed: int = 0, rows: int = GROUPS * SAMPLES, width: int = WIDTH) -> Sequences:
    """Random tokens; prompts of 1 to 6 tokens, the same within a group; completions of 1 to `width`."""
    generator = torch.Generator().manual_seed(seed)

    def integers(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=generator)

    prompts = [integers(3, 21, int(integers(1, 7, 1))).tolist() for _ in range((rows + SAMPLES - 1) // SAMPLES)]
    lengths = integers(1, width + 1, rows)
    completions = integers(3, 21, rows, width)
    completions[torch.arange(width) >= lengths[:, None]] = PAD
    longest = int(lengths.max())
    return Sequences([prompts[row // SAMPLES] for row in range(rows)], completions[:, :longest], lengths)


def interrupted(made: Sequences) -> Sequences:
    """Two of three completions of more than three tokens with an environment's words within, some of them twice."""
    said: list[list[Interjection]] = []
    for row, length in enumerate(made.lengths.tolist()):
        own = [Interjection(1 + row % 2, [5 + row % 9] * (1 + row % 4)), Interjection(3, [19, 4])] if length > 3 else []
        said.append(own[: row % 3])
    assert {len(own) for own in said} == {0, 1, 2}
    return replace(made, interjections=said)


def rollout(policy: PreTrainedModel, rewards: list[float] | None = None, seed: int = 0) -> Batch:
    """Sampler log-probs are the policy's own, row by row."""
    made = sequences(seed)
    logps = torch.zeros(made.completions.shape)
    with torch.inference_mode():
        for row in range(len(made.prompts)):
            logps[row, : int(made.lengths[row])] = completion_logps(policy, made, row)
    earned = torch.tensor(rewards or REWARDS)
    return Batch(
        sequences=made,
        sampler_logps=logps,
        rewards=earned,
        groups=torch.arange(GROUPS).repeat_interleave(SAMPLES),
        max_completion_tokens=WIDTH,
        truncated=torch.zeros(len(earned), dtype=torch.bool),
        loss_mask=made.mask,
        correct=earned == 1,
    )


def completion_logps(policy: PreTrainedModel, made: Sequences, row: int, temperature: float = 1.0) -> Tensor:
    """Log-probs [length] of one row's completion, by a forward pass without any padding."""
    prompt, length = list(made.prompts[row]), int(made.lengths[row])
    tokens = made.completions[row, :length]
    logits = policy(torch.tensor([prompt + tokens.tolist()])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits / temperature, -1).gather(1, tokens[:, None])[:, 0]


def twin(policy: PreTrainedModel) -> PreTrainedModel:
    return copy.deepcopy(policy)


def gradient(policy: PreTrainedModel) -> Tensor:
    """The whole gradient as one vector."""
    return torch.cat([weight.grad.flatten() for weight in policy.parameters() if weight.grad is not None])


def weights(policy: PreTrainedModel) -> Tensor:
    return torch.cat([weight.detach().flatten() for weight in policy.parameters()])
