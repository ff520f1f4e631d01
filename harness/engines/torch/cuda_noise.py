"""Token sampling on CUDA, in one kernel that reads each probability once.

`exponential_noise` makes about twenty passes over 64-bit integers [B, V]. For a vocabulary of 150,000 that takes longer
than a small model's forward pass. The kernel computes the same hash, with the same float32 operations in the same
order.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Triton's language has no types that mypy knows.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

TOKENS_A_BLOCK = 1024
"""Number of tokens of a row that one kernel program compares."""

# The constants of `decoding` as unsigned integers, whose right shift is logical.
_GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
_MIX_1 = tl.constexpr(0xBF58476D1CE4E5B9)
_MIX_2 = tl.constexpr(0x94D049BB133111EB)
_UNIT = tl.constexpr(-(2.0**-40))
_LARGEST = tl.constexpr(-(1 - 2.0**-24))


def first_arrivals(probabilities: Tensor, keys: Tensor, position: int | Tensor) -> Tensor:
    """Sample tokens [B] from float32 probabilities [B, V] with int64 keys [B].

    The result equals `(exponential_noise(keys, position, V) / probabilities).argmin(-1)`.
    """
    rows, vocab_size = probabilities.shape
    blocks = triton.cdiv(vocab_size, TOKENS_A_BLOCK)
    least = torch.empty((rows, blocks), dtype=torch.float32, device=keys.device)
    tokens = torch.empty((rows, blocks), dtype=torch.int64, device=keys.device)
    positions = torch.as_tensor(position, dtype=torch.int64, device=keys.device)
    _first_of_block[(rows, blocks)](
        probabilities.contiguous(), keys.contiguous(), positions, least, tokens, vocab_size, blocks, TOKENS_A_BLOCK
    )
    # The kernel stores one candidate per block. The earliest of a row's candidates is its token.
    return tokens.gather(1, least.argmin(1, keepdim=True))[:, 0]


@triton.jit
def _mix(bits):
    bits = (bits ^ (bits >> 30)) * _MIX_1
    bits = (bits ^ (bits >> 27)) * _MIX_2
    return bits ^ (bits >> 31)


@triton.jit
def _first_of_block(probabilities, keys, positions, least, tokens, vocab_size, blocks, BLOCK: tl.constexpr):
    """Store the earliest arrival, and its token, of one block of one row."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    numbers = block * BLOCK + tl.arange(0, BLOCK)
    inside = numbers < vocab_size
    # Bit casts, not conversions, so that keys and counters have the same 64 bits as in torch's signed arithmetic.
    counter = (tl.load(positions) + 1).to(tl.uint64, bitcast=True)
    stream = _mix(tl.load(keys + row).to(tl.uint64, bitcast=True) + counter * _GOLDEN)
    bits = _mix(stream + (numbers + 1).to(tl.uint64) * _GOLDEN)
    below_one = ((bits >> 24).to(tl.float32) + 0.5) * _UNIT
    noise = -libdevice.log1p(tl.maximum(below_one, _LARGEST))
    # Rounded to nearest, as in torch. A faster approximate division could change which token wins.
    arrivals = tl.div_rn(noise, tl.load(probabilities + row * vocab_size + numbers, mask=inside, other=1.0))
    arrivals = tl.where(inside, arrivals, float("inf"))
    # As in torch's argmin, NaN comes first, then the lowest index.
    arrivals = tl.where(arrivals == arrivals, arrivals, float("-inf"))
    first, place = tl.min(arrivals, 0, return_indices=True, return_indices_tie_break_left=True)
    tl.store(least + row * blocks + block, first)
    tl.store(tokens + row * blocks + block, block.to(tl.int64) * BLOCK + place)
