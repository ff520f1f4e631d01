"""Other precisions than the model's own: an output head that multiplies in float32, and a copy in another dtype.

Shapes: D hidden size, V vocabulary.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.models.language_model import weight_version

if TYPE_CHECKING:
    from transformers import PreTrainedModel

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Float32Head(nn.Linear):
    """An output head with weights in the model's dtype that computes its logits in float32.

    MiniMax-M1 (2506.13585, section 3.2) and ScaleRL (2510.13786) use such a head. They find that rounding logits to
    bfloat16 causes most of the disagreement between sampler and trainer.
    """

    def forward(self, hidden: Tensor) -> Tensor:
        """Return float32 logits [..., V] for hidden states [..., D]."""
        return float32_linear(hidden, self.weight, self.bias)


def set_head_dtype(model: PreTrainedModel, head_dtype: Literal["model", "float32"]) -> None:
    """Make the output head compute in the dtype that `model.head_dtype` names, in place. Its weights do not change.

    A head that is not a plain linear layer is left as it is. `harness.training.token_scores` refuses such a head.
    """
    head, wanted = model.get_output_embeddings(), Float32Head if head_dtype == "float32" else nn.Linear
    if type(head) not in (nn.Linear, Float32Head) or type(head) is wanted:
        return
    # Created on the meta device, so that no memory is allocated for weights that are replaced at once.
    other = wanted(head.in_features, head.out_features, bias=head.bias is not None, device="meta")
    other.weight, other.bias = head.weight, head.bias
    model.set_output_embeddings(other.train(head.training))


def float32_linear(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Apply a linear layer in float32: hidden [..., D], weight [V, D] -> [..., V]."""
    return functional.linear(hidden.float(), weight.float(), None if bias is None else bias.float())


class RoundedWeights:
    """A copy of a model in another dtype, which `refresh` brings up to date with the model's weights.

    Buffers keep their dtype, because the angles of rotary embeddings are computed in float32 whatever the weights are.
    """

    def __init__(self, source: PreTrainedModel, dtype: torch.dtype) -> None:
        self._source = nn.ParameterList(source.parameters())
        rounded = {id(weight): nn.Parameter(weight.detach().to(dtype), requires_grad=False) for weight in self._source}
        # deepcopy's memo maps each weight to its rounded copy, so no weight is copied at full precision.
        self.model: PreTrainedModel = copy.deepcopy(source, dict(rounded))
        self._copies: list[Tensor] = [rounded[id(weight)] for weight in self._source]
        self._version = weight_version(self._source)

    @torch.no_grad()
    def refresh(self) -> None:
        """Round the weights again if any has changed since the last call."""
        version = weight_version(self._source)
        if version == self._version:
            return
        torch._foreach_copy_(self._copies, [weight.detach() for weight in self._source])
        self._version = version
