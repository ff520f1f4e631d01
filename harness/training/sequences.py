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

from harness.training.micro_batches import micro_batches
from harness.training.output_head import output_head
from harness.training.token_scores import LOGITS_CHUNK_TOKENS, token_kl, token_scores


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

    def rows(self, chosen: Tensor) -> Sequences:
        """Those of the rows (int64 indices), in that order."""
        return Sequences([self.prompts[row] for row in chosen.tolist()], self.completions[chosen], self.lengths[chosen])

    def micro_batches(self, rows: Tensor, budget_tokens: int) -> list[Tensor]:
        """Rows (int64 indices) of similar length together, within the budget of padded tokens; see `micro_batches`."""
        return micro_batches(rows, list(map(len, self.prompts)), self.lengths.tolist(), budget_tokens)


def score_completions(
    model: PreTrainedModel,
    sequences: Sequences,
    rows: Tensor,
    temperature: float,
    pad_token_id: int,
    chunk_tokens: int = LOGITS_CHUNK_TOKENS,
    entropy_grad: bool = False,
) -> tuple[Tensor, Tensor]:
    """Log-prob of every completion token and entropy of the distribution that it was drawn from, in nats.

    Both [len(rows), T'] float32 with T' the longest completion among the rows, at temperature-scaled logits; 0 in
    padding. No more than chunk_tokens positions' logits are held at once. The entropy (full softmax) carries a gradient
    only with entropy_grad. RefusedError for a model whose logits are made in an unknown way.
    """
    hidden, completions, mask = completion_hidden(model, sequences, rows, pad_token_id)
    return score_hidden(model, hidden, completions, mask, temperature, chunk_tokens, entropy_grad)


def completion_hidden(
    model: PreTrainedModel, sequences: Sequences, rows: Tensor, pad_token_id: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The last hidden states that the rows' completion tokens are predicted from, and those tokens with their mask.

    hidden [len(rows), T', D] with its gradient, completions [len(rows), T'] int64, mask [len(rows), T'] bool, on the
    model's device; T' is the longest completion among the rows. Hidden states in padding are meaningless, but finite.
    ValueError for no rows, and for an empty prompt: nothing predicts its completion's first token.
    """
    device = model.device
    prompts = [sequences.prompts[row] for row in rows.tolist()]
    if not prompts or not all(prompts):
        raise ValueError("no rows, or a row with an empty prompt: there is nothing to predict its completion from")
    longest = int(sequences.lengths[rows].max())
    width = max(map(len, prompts))
    padded = torch.full((len(prompts), width), pad_token_id)
    prompt_mask = torch.zeros_like(padded, dtype=torch.bool)
    for index, prompt in enumerate(prompts):
        padded[index, width - len(prompt) :] = torch.tensor(prompt)
        prompt_mask[index, width - len(prompt) :] = True
    completions = sequences.completions[rows, :longest]
    mask = sequences.mask[rows, :longest]

    # The last completion token predicts nothing that is scored, so it is not fed.
    inputs = torch.cat([padded, completions[:, :-1]], dim=1).to(device)
    attention = torch.cat([prompt_mask, mask[:, :-1]], dim=1).to(device)
    positions = (attention.cumsum(1) - 1).clamp_min(0)
    hidden = model.get_decoder()(
        input_ids=inputs, attention_mask=attention.long(), position_ids=positions, use_cache=False
    ).last_hidden_state[:, width - 1 : width - 1 + longest]
    return hidden, completions.to(device), mask.to(device)


def score_hidden(
    model: PreTrainedModel,
    hidden: Tensor,
    completions: Tensor,
    mask: Tensor,
    temperature: float,
    chunk_tokens: int = LOGITS_CHUNK_TOKENS,
    entropy_grad: bool = False,
) -> tuple[Tensor, Tensor]:
    """The second half of `score_completions`, of the three tensors that `completion_hidden` returns."""
    logps, entropy = token_scores(
        hidden[mask], output_head(model), completions[mask], temperature, chunk_tokens, entropy_grad
    )
    return _unpacked(logps, mask), _unpacked(entropy, mask)


@torch.no_grad()
def exact_kl(
    model: PreTrainedModel,
    reference: PreTrainedModel,
    sequences: Sequences,
    rows: Tensor,
    temperature: float,
    pad_token_id: int,
    chunk_tokens: int = LOGITS_CHUNK_TOKENS,
) -> Tensor:
    """KL(model || reference) of the distributions that every completion token is drawn from, in nats.

    [len(rows), T'] float32 over the whole vocabulary, at temperature-scaled logits; 0 in padding; no gradient.
    """
    hidden, _, mask = completion_hidden(model, sequences, rows, pad_token_id)
    reference_hidden, _, _ = completion_hidden(reference, sequences, rows, pad_token_id)
    kl = token_kl(
        hidden[mask], output_head(model), reference_hidden[mask], output_head(reference), temperature, chunk_tokens
    )
    return _unpacked(kl, mask)


def _unpacked(values: Tensor, mask: Tensor) -> Tensor:
    """Values [M] of the true positions of mask [n, T'], put there; 0 elsewhere."""
    return values.new_zeros(mask.shape).masked_scatter(mask, values)
