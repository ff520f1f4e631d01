"""Llama-style decoder layers on a CPU, computed one block of tokens at a time.

transformers applies each operation to all tokens before the next operation, so every operation reads its input from
main memory. Here all operations except attention run on one block of tokens while the block is in the core's cache.
Attention runs on a few sequences at a time. Backward passes are written by hand, and recompute values that are cheaper
to compute than to keep. Results equal those of transformers' layers up to rounding.

Shapes: M tokens in all, m tokens in a block, D hidden size, F width of the feed-forward layer, H query heads and K key
heads of size d.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

if TYPE_CHECKING:
    from transformers.modeling_layers import GradientCheckpointingLayer

BLOCK_TOKENS = 512
"""Tokens per thread in a block. Few enough that a small model's widest tensors (0.5 MB) fit a core's cache (2 MB), and
enough for fast matrix products.
"""

Attend = Callable[[nn.Module, Tensor, Tensor, Tensor], Tensor]
"""(attention module of transformers, queries [M, H, d], keys and values [M, K, d]) -> [M, H, d]."""


@dataclass(frozen=True)
class BlockedLayer:
    """Runs one decoder layer of transformers in blocks, with that layer's own weights."""

    layer: GradientCheckpointingLayer

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        """Apply the layer to hidden states [M, D] and return the new hidden states [M, D].

        cos, sin [M, d]: the rotary embedding of the tokens' positions. If the layer is marked for activation
        checkpointing, the backward pass recomputes it.
        """
        if torch.is_grad_enabled() and getattr(self.layer, "gradient_checkpointing", False):
            again: Tensor = checkpoint(self._forward, hidden, cos, sin, attend, use_reentrant=False)
            return again
        return self._forward(hidden, cos, sin, attend)

    def _forward(self, hidden: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        layer, attention = self.layer, self.layer.self_attn
        linear = (attention.q_proj, attention.k_proj, attention.v_proj)
        norm = layer.input_layernorm
        projected = _differentiable(
            _Projection,
            hidden,
            norm.weight,
            *(one.weight for one in linear),
            *(one.bias for one in linear),
            cos,
            sin,
            norm.variance_epsilon,
        )
        queries, keys, values = (one.view(len(hidden), -1, cos.shape[1]) for one in projected)
        attended = attend(attention, queries, keys, values).flatten(1)
        norm, mlp = layer.post_attention_layernorm, layer.mlp
        weights = (attention.o_proj.weight, norm.weight, mlp.gate_proj.weight, mlp.up_proj.weight, mlp.down_proj.weight)
        result: Tensor = _differentiable(_FeedForward, attended, hidden, *weights, norm.variance_epsilon)
        return result


def blocked_layers(decoder: PreTrainedModel) -> list[BlockedLayer] | None:
    """Return the decoder's layers, or None if they cannot run in blocks.

    They cannot on a GPU, in half precision, with unknown parts, or with hooks, which must see transformers' own calls.
    A decoder may do more than its parts show, such as scaling a residual. So callers must compare the results with
    transformers' own once.
    """
    layers: Sequence[GradientCheckpointingLayer] | None = getattr(decoder, "layers", None)
    if layers is None or decoder.device.type != "cpu" or decoder.dtype not in (torch.float32, torch.float64):
        return None
    known = (
        _has_parts(decoder, "embed_tokens", "layers", "norm", "rotary_emb")
        and type(decoder.embed_tokens) is nn.Embedding
        and all(map(_is_known, layers))
        and decoder.rotary_emb.inv_freq.numel() * 2 == layers[0].self_attn.head_dim
    )
    if not known or any(map(_is_watched, (decoder, *decoder.layers.modules()))):
        return None
    return [BlockedLayer(layer) for layer in layers]


def angles(decoder: PreTrainedModel, hidden: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return cos and sin [M, d] of tokens with hidden states [M, D] at positions [M]."""
    cos, sin = decoder.rotary_emb(hidden[None], positions[None])
    return cos[0], sin[0]


def window_of(attention: nn.Module) -> int | None:
    """Return how many positions, including its own, a token sees in this attention module, or None for all."""
    # Some architectures store the window on the module, others only in the config.
    window: int | None = getattr(attention, "sliding_window", getattr(attention.config, "sliding_window", None))
    return window


@dataclass(frozen=True)
class AttentionBlock:
    """b sequences that go through attention together, each with w queries and S keys.

    The queries of a sequence are adjacent in the packed batch. Several sequences may share keys.
    """

    rows: slice
    """The queries' positions in the packed batch of M tokens."""
    padded: Tensor
    """The queries' indices among the b * w positions of the padded block."""
    width: int
    attended: Tensor
    """[b, S] int64: the keys' positions in the packed batch; arbitrary in padding."""
    mask: Tensor | None
    """Additive mask [b or 1, 1, w, S]; None if attention is causal."""

    def spaced(self, line: Tensor) -> Tensor:
        """Return the queries' rows [b, H, w, d] of a packed tensor [M, H, d], 0 in padding."""
        rows, count = line[self.rows], len(self.attended) * self.width
        # If there is no padding, the rows are a view and nothing is copied.
        if len(rows) < count:
            rows = rows.new_zeros((count, *rows.shape[1:])).index_copy_(0, self.padded, rows)
        return rows.view(-1, self.width, *rows.shape[1:]).transpose(1, 2)

    def write(self, spaced: Tensor, line: Tensor) -> None:
        """Write [b, H, w, d] into the queries' rows of a packed tensor. This is the inverse of `spaced`."""
        rows = spaced.transpose(1, 2).flatten(0, 1)
        line[self.rows] = rows if len(self.padded) == len(rows) else rows.index_select(0, self.padded)

    def seen(self, line: Tensor, heads: int) -> Tensor:
        """Return the keys' rows [b, heads, S, d] of a packed tensor [M, K, d], one copy per query head."""
        rows = line.index_select(0, self.attended.flatten()).view(*self.attended.shape, *line.shape[1:]).transpose(1, 2)
        return rows if rows.shape[1] == heads else rows.repeat_interleave(heads // rows.shape[1], 1)

    def add_seen(self, grad: Tensor, line: Tensor) -> None:
        """Add the gradient [b, heads, S, d] of the rows of `seen` to the packed gradient `line`, in a fixed order."""
        shared = grad.view(len(grad), line.shape[1], -1, *grad.shape[2:])
        # The gradient of a repeated key head is the sum over the query heads that share it.
        rows = shared[:, :, 0] if shared.shape[2] == 1 else shared.sum(2)
        line.index_add_(0, self.attended.flatten(), rows.transpose(1, 2).flatten(0, 1))


def attend_in_blocks(
    queries: Tensor, keys: Tensor, values: Tensor, blocks: list[AttentionBlock], scale: float
) -> Tensor:
    """Compute attention of queries [M, H, d] to keys and values [M, K, d] with torch's CPU kernel: [M, H, d].

    Each token must be a query in exactly one block.
    """
    result: Tensor = _differentiable(_Attention, queries, keys, values, blocks, scale)
    return result


class _Context(Protocol):
    """torch's context, in which a forward pass saves what the backward pass needs."""

    saved_tensors: tuple[Tensor, ...]
    blocks: list[AttentionBlock]
    """Set only by attention, like `scale`."""
    scale: float
    epsilon: float
    """The constant that RMSNorm adds to the mean square. Set only by the two other functions."""

    def save_for_backward(self, *tensors: Tensor | None) -> None: ...


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _Context | None,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        blocks: list[AttentionBlock],
        scale: float,
    ) -> Tensor:
        result, heads = torch.empty_like(queries), queries.shape[1]
        sums = []
        for block in blocks:
            attended, logsumexp = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                block.spaced(queries),
                block.seen(keys, heads),
                block.seen(values, heads),
                is_causal=block.mask is None,
                attn_mask=block.mask,
                scale=scale,
            )
            block.write(attended, result)
            sums.append(logsumexp)
        if ctx is not None:
            ctx.blocks, ctx.scale = blocks, scale
            ctx.save_for_backward(queries, keys, values, result, *sums)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, grad: Tensor) -> tuple[Tensor | None, ...]:
        queries, keys, values, result, *sums = ctx.saved_tensors
        # Each token is a query in exactly one block, so query gradients are written. Keys are shared, so theirs add up.
        grads = torch.empty_like(queries), torch.zeros_like(keys), torch.zeros_like(values)
        heads = queries.shape[1]
        for block, logsumexp in zip(ctx.blocks, sums, strict=True):
            to_queries, *to_seen = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                block.spaced(grad),
                block.spaced(queries),
                block.seen(keys, heads),
                block.seen(values, heads),
                block.spaced(result),
                logsumexp,
                0.0,
                block.mask is None,
                attn_mask=block.mask,
                scale=ctx.scale,
            )
            block.write(to_queries, grads[0])
            for to_line, to_rows in zip(grads[1:], to_seen, strict=True):
                block.add_seen(to_rows, to_line)
        return *grads, None, None


def _has_parts(module: nn.Module, *names: str) -> bool:
    return sorted(name for name, _ in module.named_children()) == sorted(names)


def _is_known(layer: GradientCheckpointingLayer) -> bool:
    return (
        _has_parts(layer, "self_attn", "mlp", "input_layernorm", "post_attention_layernorm")
        and _has_parts(layer.self_attn, "q_proj", "k_proj", "v_proj", "o_proj")
        and _has_parts(layer.mlp, "gate_proj", "up_proj", "down_proj", "act_fn")
        and all(type(one) is nn.Linear for one in chain(layer.self_attn.children(), list(layer.mlp.children())[:-1]))
        and all(one.bias is None for one in (layer.self_attn.o_proj, *list(layer.mlp.children())[:-1]))
        and layer.self_attn.config.hidden_act == "silu"
        and all(hasattr(one, "variance_epsilon") for one in (layer.input_layernorm, layer.post_attention_layernorm))
    )


def _is_watched(module: nn.Module) -> bool:
    return any((module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks))


def _differentiable(function: type[torch.autograd.Function], *given: object) -> Any:
    """Apply the function. If gradients are off, call its `forward` directly, with None as the context.

    This saves memory and makes the call cheaper.
    """
    if torch.is_grad_enabled():
        return function.apply(*given)  # type: ignore[no-untyped-call]
    return function.forward(None, *given)


def _blocks(tokens: int) -> Iterator[slice]:
    step = _block_tokens()
    return (slice(start, start + step) for start in range(0, tokens, step))


def _block_tokens() -> int:
    return BLOCK_TOKENS * torch.get_num_threads()


@dataclass(frozen=True)
class _Normed:
    """A block after RMSNorm (1910.07467): values [m, D] = unit * weight, with unit = hidden * scale."""

    unit: Tensor
    scale: Tensor
    weight: Tensor
    values: Tensor

    @classmethod
    def of(cls, hidden: Tensor, weight: Tensor, epsilon: float) -> _Normed:
        scale = (hidden * hidden).mean(1, keepdim=True).add_(epsilon).rsqrt_()
        unit = hidden * scale
        return cls(unit, scale, weight, unit * weight)

    def backward(self, grad: Tensor, grad_weight: Tensor) -> Tensor:
        """Return the gradient [m, D] of the hidden states from the gradient `grad` of `values`.

        `grad` is overwritten, and the gradient of the weight is added to `grad_weight`.
        """
        along = grad * self.unit
        grad_weight += along.sum(0)
        # With u = unit, w = weight and s = scale: dL/dx = s (g w - u mean(g w u)).
        shrunk = torch.mv(along, self.weight).div_(grad.shape[1])[:, None]
        return grad.mul_(self.weight).addcmul_(self.unit, shrunk, value=-1.0).mul_(self.scale)


def _rotate(heads: Tensor, cos: Tensor, sin: Tensor, into: Tensor, inverse: bool = False) -> None:
    """Apply rotary position embedding (Su et al. 2104.09864) to `heads` [m, H, d] and write the result into `into`.

    cos, sin [m, d]. As in transformers, each element of a head's first half is paired with one of its second half.
    """
    half = heads.shape[2] // 2
    first, second = heads[..., :half], heads[..., half:]
    sin_first, sin_second = sin[:, None, :half], sin[:, None, half:]
    torch.mul(heads, cos[:, None], out=into)
    # The inverse of a rotation is its transpose, so it also maps the output's gradient to the input's.
    if inverse:
        into[..., :half].addcmul_(second, sin_second)
        into[..., half:].addcmul_(first, sin_first, value=-1.0)
    else:
        into[..., :half].addcmul_(second, sin_first, value=-1.0)
        into[..., half:].addcmul_(first, sin_second)


class _Projection(torch.autograd.Function):
    """RMSNorm, then queries [M, H d], keys and values [M, K d], with queries and keys rotated."""

    @staticmethod
    def forward(
        ctx: _Context | None,
        hidden: Tensor,
        norm: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        q_bias: Tensor | None,
        k_bias: Tensor | None,
        v_bias: Tensor | None,
        cos: Tensor,
        sin: Tensor,
        epsilon: float,
    ) -> tuple[Tensor, ...]:
        outputs = tuple(hidden.new_empty(len(hidden), len(weight)) for weight in (q, k, v))
        for rows in _blocks(len(hidden)):
            values = _Normed.of(hidden[rows], norm, epsilon).values
            for output, weight, bias in zip(outputs[:2], (q, k), (q_bias, k_bias), strict=True):
                heads, into = functional.linear(values, weight, bias), output[rows]
                shape = (len(heads), -1, cos.shape[1])
                _rotate(heads.view(shape), cos[rows], sin[rows], into.view(shape))
            if v_bias is None:
                torch.mm(values, v.T, out=outputs[2][rows])
            else:
                torch.addmm(v_bias, values, v.T, out=outputs[2][rows])
        if ctx is not None:
            ctx.epsilon = epsilon
            ctx.save_for_backward(hidden, norm, q, k, v, q_bias, k_bias, v_bias, cos, sin)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden, norm, *rest = ctx.saved_tensors
        weights, biases, (cos, sin) = rest[:3], rest[3:6], rest[6:]
        grad_hidden = torch.empty_like(hidden)
        grad_norm, *grad_weights = (torch.zeros_like(weight) for weight in (norm, *weights))
        grad_biases = [None if bias is None else torch.zeros_like(bias) for bias in biases]
        for rows in _blocks(len(hidden)):
            # Recomputed, because that costs less than keeping another [M, D] for the backward pass.
            normed = _Normed.of(hidden[rows], norm, ctx.epsilon)
            grad_values = None
            for index, (grad, weight, bias) in enumerate(zip(grads, weights, grad_biases, strict=True)):
                grad = grad[rows]
                if index < 2:
                    shape = (len(grad), -1, cos.shape[1])
                    turned = torch.empty_like(grad)
                    _rotate(grad.view(shape), cos[rows], sin[rows], turned.view(shape), inverse=True)
                    grad = turned
                grad_values = grad @ weight if grad_values is None else grad_values.addmm_(grad, weight)
                grad_weights[index].addmm_(grad.T, normed.values)
                if bias is not None:
                    bias += grad.sum(0)
            assert grad_values is not None
            grad_hidden[rows] = normed.backward(grad_values, grad_norm)
        return grad_hidden, grad_norm, *grad_weights, *grad_biases, None, None, None


class _FeedForward(torch.autograd.Function):
    """The rest of a layer after attention: output projection, RMSNorm and SwiGLU (Shazeer 2002.05202).

    The projection and the SwiGLU part each have a residual connection.
    """

    @staticmethod
    def forward(
        ctx: _Context | None,
        attended: Tensor,
        hidden: Tensor,
        o: Tensor,
        norm: Tensor,
        gate: Tensor,
        up: Tensor,
        down: Tensor,
        epsilon: float,
    ) -> Tensor:
        result = torch.empty_like(hidden)
        # The backward pass needs the intermediate values of all tokens. If there is none, a block's values are scratch
        # memory, which the next block overwrites.
        tokens = len(hidden) if ctx is not None else min(_block_tokens(), len(hidden))
        middle, gates, ups = (hidden.new_empty(tokens, size) for size in (hidden.shape[1], len(gate), len(up)))
        for rows in _blocks(len(hidden)):
            own = rows if ctx is not None else slice(len(hidden[rows]))
            torch.addmm(hidden[rows], attended[rows], o.T, out=middle[own])
            values = _Normed.of(middle[own], norm, epsilon).values
            torch.mm(values, gate.T, out=gates[own])
            torch.mm(values, up.T, out=ups[own])
            inner = functional.silu(gates[own]).mul_(ups[own])
            torch.addmm(middle[own], inner, down.T, out=result[rows])
        if ctx is not None:
            ctx.epsilon = epsilon
            ctx.save_for_backward(attended, o, norm, gate, up, down, middle, gates, ups)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, grad: Tensor) -> tuple[Tensor | None, ...]:
        attended, o, norm, gate, up, down, middle, gates, ups = ctx.saved_tensors
        grad_attended, grad_hidden = torch.empty_like(attended), torch.empty_like(middle)
        weights = (o, norm, gate, up, down)
        grad_o, grad_norm, grad_gate, grad_up, grad_down = (torch.zeros_like(weight) for weight in weights)
        for rows in _blocks(len(middle)):
            normed = _Normed.of(middle[rows], norm, ctx.epsilon)
            activated = functional.silu(gates[rows])
            grad_inner = grad[rows] @ down
            grad_down.addmm_(grad[rows].T, activated * ups[rows])
            # In place, so the order matters: `activated` was last read above, and `grad_inner` is overwritten below.
            grad_ups = activated.mul_(grad_inner)
            grad_gates = torch.ops.aten.silu_backward(grad_inner.mul_(ups[rows]), gates[rows])
            grad_gate.addmm_(grad_gates.T, normed.values)
            grad_up.addmm_(grad_ups.T, normed.values)
            grad_values = (grad_gates @ gate).addmm_(grad_ups, up)
            grad_middle = normed.backward(grad_values, grad_norm).add_(grad[rows])
            grad_hidden[rows] = grad_middle
            grad_o.addmm_(grad_middle.T, attended[rows])
            torch.mm(grad_middle, o, out=grad_attended[rows])
        return grad_attended, grad_hidden, grad_o, grad_norm, grad_gate, grad_up, grad_down, None
