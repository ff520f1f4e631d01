"""Log-probs, entropies and teacher divergences of tokens, from hidden states, with one chunk of logits in memory.

`output_head` describes how a causal language model turns hidden states into logits, separately from the rest of the
model. With it, the logits can be computed a few positions at a time. The backward pass recomputes the logits of each
chunk instead of keeping them. This needs memory for one chunk, and one more matrix product with the head.

Shapes: M token positions, C positions in a chunk, D hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakSet

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional
from transformers import PreTrainedModel

from algorithms.distillation import DistillInLoss, divergence, divergence_gradient
from harness.errors import RefusedError
from harness.models.precision import Float32Head, float32_linear

LOGITS_CHUNK_TOKENS = 512
"""Default number of positions whose logits are in memory at once; `train.logits_chunk_tokens` overrides it."""


def token_scores(
    hidden: Tensor,
    head: OutputHead,
    targets: Tensor,
    temperature: float,
    chunk_tokens: int = LOGITS_CHUNK_TOKENS,
    entropy_grad: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the log-prob of each target and the entropy over the vocabulary, in nats, at logits / temperature.

    hidden [M, D], targets [M] int64. Both results are float32 [M] whatever the model's dtype, or float64 if the hidden
    states are. The log-probs have gradients to the hidden states and to the head. The entropies have gradients only
    with entropy_grad.
    """
    logps, entropy = _TokenScores.apply(  # type: ignore[no-untyped-call]
        hidden, head.weight, head.bias, targets, head, temperature, chunk_tokens, entropy_grad
    )
    return logps, entropy


@torch.no_grad()
def token_kl(
    hidden: Tensor,
    head: OutputHead,
    reference_hidden: Tensor,
    reference_head: OutputHead,
    temperature: float,
    chunk_tokens: int = LOGITS_CHUNK_TOKENS,
) -> Tensor:
    """Return KL(policy || reference) [M] in nats over the complete vocabulary, both at logits / temperature.

    hidden [M, D], reference_hidden [M, D']. The result is float32, or float64 if the hidden states are, and has no
    gradient.
    """
    kl = hidden.new_empty(len(hidden), dtype=torch.promote_types(hidden.dtype, torch.float32))
    for chunk in _chunks(len(hidden), chunk_tokens):
        logps = head.logits(hidden[chunk], temperature).log_softmax(1)
        reference_logps = reference_head.logits(reference_hidden[chunk], temperature).log_softmax(1)
        # -sum p (log q - log p) is computed in place, so that difference and probabilities need no further [C, V].
        kl[chunk] = reference_logps.sub_(logps).mul_(logps.exp_()).sum(1).neg_()
    return kl


def token_divergence(
    hidden: Tensor,
    head: OutputHead,
    teacher_hidden: Tensor,
    teacher_head: OutputHead,
    distill: DistillInLoss,
    chunk_tokens: int = LOGITS_CHUNK_TOKENS,
) -> Tensor:
    """Return the divergence [M] between teacher and student in nats, with gradients to the student's states and head.

    hidden [M, D], teacher_hidden [M, D']. The result is float32, or float64 if the hidden states are. If one model has
    more embeddings, which pad the shared vocabulary, the surplus is left out of both distributions.
    """
    found: Tensor = _TokenDivergence.apply(  # type: ignore[no-untyped-call]
        hidden, head.weight, head.bias, teacher_hidden, head, teacher_head, distill, chunk_tokens
    )
    return found


def _chunks(tokens: int, chunk_tokens: int) -> list[slice]:
    return [slice(start, start + chunk_tokens) for start in range(0, tokens, chunk_tokens)]


class _Context(Protocol):
    """torch's function context, with the attributes that the two functions below save for the backward pass."""

    head: OutputHead
    temperature: float
    teacher_head: OutputHead
    distill: DistillInLoss
    chunk_tokens: int
    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]

    def save_for_backward(self, *tensors: Tensor | None) -> None: ...
    def set_materialize_grads(self, value: bool) -> None: ...
    def mark_non_differentiable(self, *tensors: Tensor) -> None: ...


class _TokenScores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _Context,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        head: OutputHead,
        temperature: float,
        chunk_tokens: int,
        entropy_grad: bool,
    ) -> tuple[Tensor, Tensor]:
        token_logps = hidden.new_empty(len(hidden), dtype=torch.promote_types(hidden.dtype, torch.float32))
        entropy = torch.empty_like(token_logps)
        for chunk in _chunks(len(hidden), chunk_tokens):
            logps = head.logits(hidden[chunk], temperature).log_softmax(1)
            token_logps[chunk] = logps.gather(1, targets[chunk, None])[:, 0]
            entropy[chunk] = logps.exp().mul_(logps).sum(1).neg_()
            # Free this chunk before the next is computed, so that only one chunk is in memory.
            del logps
        # Logits are recomputed from `head`, but its weight and bias are saved too, so that autograd raises an error if
        # they are changed before the backward pass.
        ctx.save_for_backward(hidden, targets, entropy, weight, bias)
        ctx.head, ctx.temperature, ctx.chunk_tokens = head, temperature, chunk_tokens
        # If gradients were materialised, a loss without an entropy term would still compute the entropy's gradient.
        ctx.set_materialize_grads(False)
        if not entropy_grad:
            ctx.mark_non_differentiable(entropy)
        return token_logps, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, grad_logps: Tensor | None, grad_entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, targets, entropy, weight, bias = ctx.saved_tensors
        grad_logps = torch.zeros_like(entropy) if grad_logps is None else grad_logps

        def grad_product(chunk: slice) -> Tensor:
            return _grad_product(
                ctx.head,
                hidden[chunk],
                entropy[chunk, None],
                targets[chunk, None],
                ctx.temperature,
                grad_logps[chunk, None],
                None if grad_entropy is None else grad_entropy[chunk, None],
            )

        return *_through_head(ctx, hidden, weight, bias, grad_product), None, None, None, None, None


class _TokenDivergence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _Context,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        teacher_hidden: Tensor,
        head: OutputHead,
        teacher_head: OutputHead,
        distill: DistillInLoss,
        chunk_tokens: int,
    ) -> Tensor:
        found = hidden.new_empty(len(hidden), dtype=torch.promote_types(hidden.dtype, torch.float32))
        ctx.head, ctx.teacher_head, ctx.distill, ctx.chunk_tokens = head, teacher_head, distill, chunk_tokens
        for chunk in _chunks(len(hidden), chunk_tokens):
            _, logps, teacher_logps = _both_logps(ctx, hidden[chunk], teacher_hidden[chunk])
            found[chunk] = divergence(distill, logps, teacher_logps)
        ctx.save_for_backward(hidden, teacher_hidden, weight, bias)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, teacher_hidden, weight, bias = ctx.saved_tensors

        def grad_product(chunk: slice) -> Tensor:
            # Only the shared tokens enter the divergence, so the logits after them have gradient 0.
            logits, logps, teacher_logps = _both_logps(ctx, hidden[chunk], teacher_hidden[chunk])
            grad_logits, by_logits = torch.zeros_like(logits), divergence_gradient(ctx.distill, logps, teacher_logps)
            grad_logits[:, : logps.shape[1]] = grad[chunk, None] * by_logits
            by_product = ctx.head.product_gradient(grad_logits, logits, ctx.distill.temperature)
            found: Tensor = by_product.to(ctx.head.product_dtype(hidden.dtype))
            return found

        return *_through_head(ctx, hidden, weight, bias, grad_product), None, None, None, None, None


def _both_logps(ctx: _Context, hidden: Tensor, teacher_hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the student's logits [C, V], and log-probs of student and teacher over their shared tokens."""
    logits = ctx.head.logits(hidden, ctx.distill.temperature)
    of_teacher = ctx.teacher_head.logits(teacher_hidden, ctx.distill.temperature)
    shared = min(logits.shape[1], of_teacher.shape[1])
    return logits, logits[:, :shared].log_softmax(1), of_teacher[:, :shared].log_softmax(1)


def _through_head(
    ctx: _Context, hidden: Tensor, weight: Tensor, bias: Tensor | None, grad_product: Callable[[slice], Tensor]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of hidden states, weight and bias, which are the first three inputs of both functions.

    grad_product: returns, for one chunk of tokens, the gradient [C, V] of the head's matrix product in the dtype of the
    product's factors.
    """
    grad_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
    # Half-precision products are summed in float32. Autograd rounds the sums to the dtype of the weights' gradients.
    grad_dtype = torch.promote_types(weight.dtype, torch.float32)
    grad_weight = torch.zeros_like(weight, dtype=grad_dtype) if ctx.needs_input_grad[1] else None
    grad_bias = None
    if bias is not None and ctx.needs_input_grad[2]:
        grad_bias = torch.zeros_like(bias, dtype=grad_dtype)
    factor_dtype = ctx.head.product_dtype(weight.dtype)
    factor = weight.to(factor_dtype)
    for chunk in _chunks(len(hidden), ctx.chunk_tokens):
        of_product = grad_product(chunk)
        if grad_hidden is not None and factor_dtype == hidden.dtype:
            torch.mm(of_product, factor, out=grad_hidden[chunk])
        elif grad_hidden is not None:
            grad_hidden[chunk] = of_product @ factor
        if grad_weight is not None and grad_dtype == factor_dtype:
            grad_weight.addmm_(of_product.T, hidden[chunk].to(factor_dtype))
        elif grad_weight is not None:
            grad_weight += unrounded_product(of_product.T, hidden[chunk])
        if grad_bias is not None:
            grad_bias += of_product.sum(0, dtype=grad_dtype)
        # Free this chunk before the next chunk's logits are computed.
        del of_product
    return grad_hidden, grad_weight, grad_bias


def _grad_product(
    head: OutputHead,
    hidden: Tensor,
    entropy: Tensor,
    targets: Tensor,
    temperature: float,
    grad_logps: Tensor,
    grad_entropy: Tensor | None,
) -> Tensor:
    """Return the gradient [C, V] of the head's matrix product, in its factors' dtype.

    hidden [C, D]; the other tensors [C, 1]. With p the distribution over the logits z, y the target and H the entropy:
    d log p_y / dz_v = 1[v = y] - p_v, and dH / dz_v = -p_v (log p_v + H).
    """
    logits = head.logits(hidden, temperature)
    logps = logits.log_softmax(1)
    # The terms with p_v are computed first, in place. The indicator 1[v = y], one element per row, comes last.
    if grad_entropy is None:
        grad_logits = logps.exp_().mul_(-grad_logps)
    else:
        probabilities = logps.exp()
        grad_logits = logps.add_(entropy).mul_(grad_entropy).add_(grad_logps).mul_(probabilities).neg_()
    grad_logits.scatter_add_(1, targets, grad_logps)
    return head.product_gradient(grad_logits, logits, temperature).to(head.product_dtype(hidden.dtype))


PROBE_TOKENS = 4
"""Length of the sequence on which the head is compared with the model's own logits."""
PROBE_TOLERANCE = 0.02
"""A fraction of the largest logit: above the rounding of bfloat16, and below the effect of a missing factor."""

_probed: WeakSet[PreTrainedModel] = WeakSet()


@dataclass(frozen=True)
class OutputHead:
    """logits = cap(multiplier * (weight @ hidden + bias)), with cap(x) = softcap * tanh(x / softcap).

    If softcap is None, cap(x) = x. weight [V, D] and bias [V] are the model's own tensors, so the model gets their
    gradients.
    """

    weight: Tensor
    bias: Tensor | None = None
    multiplier: float = 1.0
    softcap: float | None = None
    in_float32: bool = False
    """True if the factors of the matrix product, and so its gradient, are float32; see `Float32Head`."""

    def logits(self, hidden: Tensor, temperature: float = 1.0) -> Tensor:
        """Return logits / temperature [..., V] for hidden states [..., D], in float32 or the hidden states' float64.

        The factors of the matrix product have the model's dtype, as in its own forward pass, or float32 if
        `in_float32`. On CUDA the product of half-precision factors is not rounded; see `unrounded_product`.
        """
        if takes_unrounded(hidden):
            logits = unrounded_product(hidden.flatten(0, -2), self.weight.T).view(*hidden.shape[:-1], -1)
            logits = logits if self.bias is None else logits.add_(self.bias)
        elif self.in_float32:
            logits = float32_linear(hidden, self.weight, self.bias)
        else:
            logits = functional.linear(hidden, self.weight, self.bias)
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if self.softcap is not None:
            # In place, because logits are the largest tensor of a pass.
            return logits.mul_(self.multiplier / self.softcap).tanh_().mul_(self.softcap / temperature)
        scale = self.multiplier / temperature
        return logits if scale == 1.0 else logits.mul_(scale)

    def product_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Return the dtype of the matrix product's factors, for hidden states of this dtype."""
        return torch.promote_types(dtype, torch.float32) if self.in_float32 else dtype

    def product_gradient(self, gradient: Tensor, logits: Tensor, temperature: float) -> Tensor:
        """Turn, in place, the gradient of `logits(hidden, temperature)` into the gradient of its matrix product."""
        if self.softcap is not None:
            # d softcap tanh(x / softcap) / dx = 1 - tanh^2, with tanh recovered from the capped logits.
            tanh = logits * (temperature / self.softcap)
            gradient.addcmul_(gradient, tanh.square_(), value=-1.0)
        scale = self.multiplier / temperature
        return gradient if scale == 1.0 else gradient.mul_(scale)


def takes_unrounded(factor: Tensor) -> bool:
    """Return whether torch.mm can return this tensor's products as unrounded float32 (CUDA, half precision)."""
    return factor.is_cuda and factor.dtype in (torch.bfloat16, torch.float16)


def unrounded_product(one: Tensor, other: Tensor) -> Tensor:
    """Return one @ other [m, n] in float32. If `takes_unrounded(one)`, the product is not rounded to its dtype first.

    one [m, k], other [k, n].
    """
    if takes_unrounded(one):
        return torch.mm(one, other, out_dtype=torch.float32)
    return (one @ other).float()


def output_head(model: PreTrainedModel) -> OutputHead:
    """Return the model's output head. It is compared once with the model's own logits.

    Raises RefusedError if the model computes its logits in an unknown way.
    """
    head = _configured(model)
    if model not in _probed:
        _probe(model, head)
        _probed.add(model)
    return head


def _configured(model: PreTrainedModel) -> OutputHead:
    linear = model.get_output_embeddings()
    # A subclass (quantised, adapted) does not simply multiply by its `weight`.
    if type(linear) not in (torch.nn.Linear, Float32Head):
        raise RefusedError("training.head_not_linear", model=type(model).__name__, head=type(linear).__name__)
    config = model.config.get_text_config()
    multiplier = 1.0
    for name in ("logit_scale", "lm_head_multiplier"):  # Cohere; Falcon-H1
        multiplier *= getattr(config, name, None) or 1.0
    multiplier /= getattr(config, "logits_scaling", None) or 1.0  # Granite
    softcap = getattr(config, "final_logit_softcapping", None)
    return OutputHead(linear.weight, linear.bias, multiplier, softcap, type(linear) is Float32Head)


@torch.no_grad()
def _probe(model: PreTrainedModel, head: OutputHead) -> None:
    """Compare the head with the model's own logits, because an architecture may do more than its config says.

    Raises RefusedError if they differ by more than PROBE_TOLERANCE.
    """
    hidden: list[Tensor] = []
    # The hook records the hidden states of the same pass whose logits are compared.
    hook = model.get_decoder().register_forward_hook(lambda *call: hidden.append(call[-1][0]))
    try:
        tokens = torch.arange(PROBE_TOKENS, device=model.device)[None] % head.weight.shape[0]
        logits = model(input_ids=tokens, attention_mask=torch.ones_like(tokens), use_cache=False).logits
    finally:
        hook.remove()
    if len(hidden) == 1 and hidden[0].shape[-1] == head.weight.shape[1]:
        error = float((head.logits(hidden[0]) - logits).abs().max() / logits.abs().max())
        # `not >` instead of `<=`, so that NaN passes: a diverged model says nothing about its architecture.
        if not error > PROBE_TOLERANCE:
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
