"""How a causal language model turns hidden states into logits, apart from the rest of the model.

Knowing the head, its logits can be made a few positions at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakSet

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from harness.errors import RefusedError

PROBE_TOKENS = 4
PROBE_TOLERANCE = 0.02  # of the largest logit: above the rounding of bfloat16, below what a missed factor does

_probed: WeakSet[PreTrainedModel] = WeakSet()


@dataclass(frozen=True)
class OutputHead:
    """logits = cap(multiplier * (weight @ hidden + bias)) with cap(x) = softcap * tanh(x / softcap), or x without one.

    weight [V, D], bias [V]; shared with the model, so that gradients of them are the model's.
    """

    weight: Tensor
    bias: Tensor | None = None
    multiplier: float = 1.0
    softcap: float | None = None

    def logits(self, hidden: Tensor, temperature: float = 1.0) -> Tensor:
        """Logits / temperature [..., V] of hidden states [..., D]: float32, or float64 where the hidden states are.

        The factors of the matrix product are in the model's dtype, as in its own forward pass; see `unrounded_product`.
        """
        if takes_unrounded(hidden):
            logits = unrounded_product(hidden.flatten(0, -2), self.weight.T).view(*hidden.shape[:-1], -1)
            logits = logits if self.bias is None else logits.add_(self.bias)
        else:
            logits = functional.linear(hidden, self.weight, self.bias)
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if self.softcap is not None:
            return logits.mul_(self.multiplier / self.softcap).tanh_().mul_(self.softcap / temperature)
        scale = self.multiplier / temperature
        return logits if scale == 1.0 else logits.mul_(scale)

    def product_gradient(self, gradient: Tensor, logits: Tensor, temperature: float) -> Tensor:
        """Turn the gradient of `logits(hidden, temperature)` into that of the matrix product within, in place."""
        if self.softcap is not None:
            tanh = logits * (temperature / self.softcap)
            gradient.addcmul_(gradient, tanh.square_(), value=-1.0)
        scale = self.multiplier / temperature
        return gradient if scale == 1.0 else gradient.mul_(scale)


def takes_unrounded(factor: Tensor) -> bool:
    """Whether torch can give the float32 sums of this factor's products: on CUDA, in half precision."""
    return factor.is_cuda and factor.dtype in (torch.bfloat16, torch.float16)


def unrounded_product(one: Tensor, other: Tensor) -> Tensor:
    """one @ other as float32: where `takes_unrounded` without rounding to their dtype first. [m, k] and [k, n]."""
    if takes_unrounded(one):
        return torch.mm(one, other, out_dtype=torch.float32)
    return (one @ other).float()


def output_head(model: PreTrainedModel) -> OutputHead:
    """The model's output head. RefusedError where its logits are made in a way that is not known here."""
    head = _configured(model)
    if model not in _probed:
        _probe(model, head)
        _probed.add(model)
    return head


def _configured(model: PreTrainedModel) -> OutputHead:
    linear = model.get_output_embeddings()
    # A subclass (quantised, adapted) multiplies by something else than its `weight`.
    if type(linear) is not torch.nn.Linear:
        raise RefusedError(
            f"{type(model).__name__}: its output head is {type(linear).__name__}, and log-probs are computed from a "
            "plain linear layer. Use a causal language model whose head is neither quantised nor adapted."
        )
    config = model.config.get_text_config()
    multiplier = 1.0
    for name in ("logit_scale", "lm_head_multiplier"):  # Cohere; Falcon-H1
        multiplier *= getattr(config, name, None) or 1.0
    multiplier /= getattr(config, "logits_scaling", None) or 1.0  # Granite
    return OutputHead(linear.weight, linear.bias, multiplier, getattr(config, "final_logit_softcapping", None))


@torch.no_grad()
def _probe(model: PreTrainedModel, head: OutputHead) -> None:
    """Compare with the model's own logits: an architecture may treat them in a way that its config does not tell."""
    hidden: list[Tensor] = []
    hook = model.get_decoder().register_forward_hook(lambda *call: hidden.append(call[-1][0]))
    try:
        tokens = torch.arange(PROBE_TOKENS, device=model.device)[None] % head.weight.shape[0]
        logits = model(input_ids=tokens, attention_mask=torch.ones_like(tokens), use_cache=False).logits
    finally:
        hook.remove()
    if len(hidden) == 1 and hidden[0].shape[-1] == head.weight.shape[1]:
        error = float((head.logits(hidden[0]) - logits).abs().max() / logits.abs().max())
        if not error > PROBE_TOLERANCE:  # NaN, a diverged model, is another matter
            return
    fields = model.config.get_text_config().to_dict()
    suspects = [
        f"{name}={value!r}"
        for name, value in fields.items()
        if ("logit" in name or "multiplier" in name or "softcap" in name) and value not in (None, 1.0)
    ]
    raise RefusedError(
        f"{type(model).__name__}: its logits are not its output head applied to its last hidden states"
        + (f" (config: {', '.join(suspects)})" if suspects else "")
        + ", so that log-probs computed from the head would be wrong. Use a model of another architecture."
    )
