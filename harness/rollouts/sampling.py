"""Drawing tokens: temperature, top-k, top-p, and noise that depends on a sample's key and nothing else.

Shapes: B rows, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

# splitmix64 (Steele, Lea and Flood 2014), in the wrapping signed arithmetic of torch.int64.
_GOLDEN = -0x61C8864680B583EB
_MIX_1 = -0x40A7B892E31B1A47
_MIX_2 = -0x6B2FB644ECCEEE15
_BELOW_ONE = 1 - 2.0**-24


def _shift_right(bits: Tensor, count: int) -> Tensor:
    """Logical shift; torch shifts signed integers arithmetically."""
    return (bits >> count) & ((1 << (64 - count)) - 1)


def _mix(bits: Tensor) -> Tensor:
    bits = (bits ^ _shift_right(bits, 30)) * _MIX_1
    bits = (bits ^ _shift_right(bits, 27)) * _MIX_2
    return bits ^ _shift_right(bits, 31)


def exponential_noise(keys: Tensor, position: int, vocab_size: int) -> Tensor:
    """Standard exponential draws [B, V] for the token at `position` of the samples with these keys [B] (int64).

    A row's noise does not depend on which other rows are there. Unit exponentials E make argmax(p / E) a draw from p.
    """
    tokens = torch.arange(1, vocab_size + 1, device=keys.device)
    counter = torch.full_like(keys, position + 1)
    stream = _mix(keys + counter * _GOLDEN)
    bits = _mix(stream[:, None] + tokens * _GOLDEN)
    # 40 bits keep small draws, which are the ones that win, accurate in float32.
    uniform = (_shift_right(bits, 24).to(torch.float32) + 0.5) * 2.0**-40
    # Float32 rounds the largest up to 1: an infinite draw, with which even a token of probability 1 would lose.
    return -torch.log1p(-uniform.clamp_max(_BELOW_ONE))


def sampling_logps(logits: Tensor, temperature: float, top_p: float = 1.0, top_k: int = 0) -> Tensor:
    """Log-probabilities [B, V] (float32) of the distribution that is sampled from; -inf for excluded tokens.

    temperature 0 puts all mass on the likeliest token. top_k keeps the k likeliest, then top_p the smallest set of
    likeliest tokens that holds at least that mass (Holtzman et al. 1904.09751); what is kept is renormalised.
    """
    logits = logits.float()
    if temperature == 0:
        point_mass = torch.full_like(logits, -torch.inf)
        return point_mass.scatter_(1, logits.argmax(-1, keepdim=True), 0.0)
    logps = torch.log_softmax(logits / temperature, dim=-1)
    if top_k and top_k < logps.shape[-1]:
        kth = logps.topk(top_k, dim=-1).values[:, -1:]
        logps = torch.log_softmax(logps.masked_fill(logps < kth, -torch.inf), dim=-1)
    if top_p < 1:
        ordered, order = logps.sort(dim=-1, descending=True, stable=True)
        mass_before = ordered.exp().cumsum(-1) - ordered.exp()
        excluded = torch.zeros_like(mass_before, dtype=torch.bool).scatter_(1, order, mass_before >= top_p)
        logps = torch.log_softmax(logps.masked_fill(excluded, -torch.inf), dim=-1)
    return logps


def draw(logps: Tensor, keys: Tensor, position: int) -> Tensor:
    """Tokens [B] drawn from log-probabilities [B, V] with the noise of keys [B] at this position."""
    noise = exponential_noise(keys, position, logps.shape[-1])
    return (logps - noise.log()).argmax(dim=-1)
