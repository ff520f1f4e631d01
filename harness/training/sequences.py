"""Padded batches of prompt + completion, and the log-probs a model gives to the completions.

Shapes: N rows, W longest prompt, T longest completion, V vocabulary. Prompts are padded on the left and completions on
the right, as in generation, so that every completion starts in the same column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel


@dataclass(frozen=True)
class Sequences:
    """N prompts with their completions.

    prompts: N lists of token ids; completions [N, T] int64, right-padded; lengths [N] int64, tokens in each completion.
    """

    prompts: Sequence[Sequence[int]]
    completions: Tensor
    lengths: Tensor

    @property
    def mask(self) -> Tensor:
        """Bool [N, T], true at completion tokens."""
        return torch.arange(self.completions.shape[1]) < self.lengths[:, None]

    def micro_batches(self, rows: Tensor, budget_tokens: int) -> list[Tensor]:
        """Split rows (int64 indices) so that no padded batch exceeds the budget, a single row excepted.

        Rows are sorted by length first: padding is wasted work.
        """
        lengths = self.lengths.tolist()
        batches: list[list[int]] = []
        width = 0
        for row in sorted(rows.tolist(), key=lambda row: (lengths[row], len(self.prompts[row]))):
            widest = max(width, len(self.prompts[row]))
            if batches and (len(batches[-1]) + 1) * (widest + lengths[row]) <= budget_tokens:
                batches[-1].append(row)
                width = widest
            else:
                batches.append([row])
                width = len(self.prompts[row])
        return [torch.tensor(batch) for batch in batches]


def score_completions(
    model: PreTrainedModel, sequences: Sequences, rows: Tensor, temperature: float, pad_token_id: int
) -> tuple[Tensor, Tensor]:
    """Log-prob of every completion token and entropy of the distribution that it was drawn from, in nats.

    Both [len(rows), T'] float32 with T' the longest completion among the rows, at temperature-scaled logits; 0 in
    padding. The entropy (full softmax) carries no gradient.
    """
    device = model.device
    longest = int(sequences.lengths[rows].max())
    width = max(len(sequences.prompts[row]) for row in rows.tolist())
    prompts = torch.full((len(rows), width), pad_token_id)
    prompt_mask = torch.zeros_like(prompts, dtype=torch.bool)
    for index, row in enumerate(rows.tolist()):
        prompt = sequences.prompts[row]
        prompts[index, width - len(prompt) :] = torch.tensor(prompt)
        prompt_mask[index, width - len(prompt) :] = True
    completions = sequences.completions[rows, :longest]
    mask = sequences.mask[rows, :longest]

    # The last completion token predicts nothing that is scored, so it is not fed.
    inputs = torch.cat([prompts, completions[:, :-1]], dim=1).to(device)
    attention = torch.cat([prompt_mask, mask[:, :-1]], dim=1).to(device)
    positions = (attention.cumsum(1) - 1).clamp_min(0)
    logits = model(
        input_ids=inputs,
        attention_mask=attention.long(),
        position_ids=positions,
        logits_to_keep=longest,
        use_cache=False,
    ).logits
    logps = torch.log_softmax(logits.float() / temperature, dim=-1)
    mask, completions = mask.to(device), completions.to(device)
    token_logps = logps.gather(2, completions[:, :, None])[:, :, 0]
    with torch.no_grad():
        entropy = -(logps.exp() * logps).sum(-1)
    return token_logps.where(mask, 0.0), entropy.where(mask, 0.0)
