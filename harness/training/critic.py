"""The critic of PPO: a value for every token of a completion, before it is drawn."""

from __future__ import annotations

import copy
from collections.abc import Iterator

from torch import Tensor, nn
from transformers import PreTrainedModel

from harness.training.sequences import Sequences, completion_hidden


class Critic(nn.Module):
    """A value head on hidden states: of a trunk of its own, a copy of the starting policy, or of the policy's.

    The head starts at 0, so that all values do.
    """

    def __init__(self, policy: PreTrainedModel, trunk: str) -> None:
        """trunk: `own` or `shared`; the policy must hold its starting weights."""
        super().__init__()
        self.trunk = copy.deepcopy(policy) if trunk == "own" else None
        self.head = nn.Linear(policy.config.get_text_config().hidden_size, 1, device=policy.device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        # The output embedding of a trunk predicts nothing here.
        if self.trunk is not None and not policy.config.get_text_config().tie_word_embeddings:
            self.trunk.get_output_embeddings().requires_grad_(False)

    def values(self, sequences: Sequences, rows: Tensor, policy_hidden: Tensor, pad_token_id: int) -> Tensor:
        """[len(rows), T'] the value of each completion token's state, before it is drawn; 0 in padding.

        policy_hidden [len(rows), T', D]: the policy's hidden states at these rows, used where the trunk is shared.
        """
        hidden = policy_hidden
        if self.trunk is not None:
            hidden, _, _ = completion_hidden(self.trunk, sequences, rows, pad_token_id)
        values: Tensor = self.head(hidden.to(self.head.weight.dtype))[:, :, 0]
        mask = sequences.mask[rows, : values.shape[1]].to(values.device)
        return values.float().where(mask, 0.0)

    def trained(self) -> Iterator[nn.Parameter]:
        return (weight for weight in self.parameters() if weight.requires_grad)
