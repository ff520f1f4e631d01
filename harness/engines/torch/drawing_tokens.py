"""Drawing tokens: temperature, top-k, top-p, and noise that depends on a sample's key and nothing else.

Shapes: B samples, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

# splitmix64 (Steele, Lea and Flood 2014), in the wrapping signed arithmetic of torch.int64.
_GOLDEN = -0x61C8864680B583EB
_MIX_1 = -0x40A7B892E31B1A47
_MIX_2 = -0x6B2FB644ECCEEE15
_BELOW_ONE = 1 - 2.0**-24

# Noise is made for so many tokens at a time: about twenty passes are made over them, which stay in a cache meanwhile.
CACHED_ELEMENTS = 2**16


def _xor_shifted(bits: Tensor, count: int) -> Tensor:
    """bits ^= bits >> count, in place. The shift is logical; torch shifts signed integers arithmetically."""
    return bits.bitwise_xor_((bits >> count).bitwise_and_((1 << (64 - count)) - 1))


def _mix(bits: Tensor) -> Tensor:
    """Overwrites `bits` with its hash."""
    _xor_shifted(bits, 30).mul_(_MIX_1)
    _xor_shifted(bits, 27).mul_(_MIX_2)
    return _xor_shifted(bits, 31)


def exponential_noise(keys: Tensor, position: int | Tensor, vocab_size: int) -> Tensor:
    """Standard exponential draws [B, V] for the token at `position` of the samples with these keys [B] (int64).

    A row's noise does not depend on which other rows are there. Unit exponentials E make argmax(p / E) a draw from p.
    """
    counter = torch.as_tensor(position, device=keys.device) + 1
    stream = _mix(keys + counter * _GOLDEN)
    tokens = torch.arange(1, vocab_size + 1, device=keys.device).mul_(_GOLDEN)
    noise = torch.empty((len(keys), vocab_size), device=keys.device)
    rows = max(1, CACHED_ELEMENTS // vocab_size)
    for start in range(0, len(noise), rows):
        bits = _mix(stream[start : start + rows, None] + tokens)
        # 40 bits keep small draws, which are the ones that win, accurate in float32.
        block = noise[start : start + rows].copy_((bits >> 24).bitwise_and_((1 << 40) - 1))
        # Float32 rounds the largest up to 1: an infinite draw, with which even a token of probability 1 would lose.
        block.add_(0.5).mul_(-(2.0**-40)).clamp_min_(-_BELOW_ONE).log1p_().neg_()
    return noise


def sampling_logps(logits: Tensor, temperature: float, top_p: float = 1.0, top_k: int = 0) -> Tensor:
    """Log-probabilities [B, V] (float32) of the distribution that is sampled from; -inf for excluded tokens.

    temperature 0 puts all mass on the likeliest token. top_k keeps the k likeliest, then top_p the smallest set of
    likeliest tokens that holds at least that mass (Holtzman et al. 1904.09751); what is kept is renormalised.
    """
    logits = logits.float()
    if temperature == 0:
        point_mass = torch.full_like(logits, -torch.inf)
        return point_mass.scatter_(1, logits.argmax(-1, keepdim=True), 0.0)
    logps = torch.log_softmax(_scaled(logits, temperature), dim=-1)
    if top_k and top_k < logps.shape[-1]:
        kth = logps.topk(top_k, dim=-1).values[:, -1:]
        logps = torch.log_softmax(logps.masked_fill(logps < kth, -torch.inf), dim=-1)
    if top_p < 1:
        ordered, order = logps.sort(dim=-1, descending=True, stable=True)
        mass_before = ordered.exp().cumsum(-1) - ordered.exp()
        excluded = torch.zeros_like(mass_before, dtype=torch.bool).scatter_(1, order, mass_before >= top_p)
        logps = torch.log_softmax(logps.masked_fill(excluded, -torch.inf), dim=-1)
    return logps


def sample(
    logits: Tensor, keys: Tensor, position: int | Tensor, temperature: float, top_p: float = 1.0, top_k: int = 0
) -> tuple[Tensor, Tensor]:
    """Tokens [B] drawn from logits [B, V] with the noise of keys [B] at this position, and their float32 log-probs [B].

    Both by one softmax: the distribution is that of `sampling_logps`.
    """
    if temperature == 0:
        tokens = logits.argmax(-1)
        return tokens, torch.zeros_like(tokens, dtype=torch.float32)
    if top_p < 1 or 0 < top_k < logits.shape[-1]:
        probabilities = sampling_logps(logits, temperature, top_p, top_k).exp_()
    else:
        probabilities = torch.softmax(_scaled(logits.float(), temperature), dim=-1)
    return draw(probabilities, keys, position)


def draw(probabilities: Tensor, keys: Tensor, position: int | Tensor) -> tuple[Tensor, Tensor]:
    """Tokens [B] drawn from probabilities [B, V] with the noise of keys [B] at this position, and their log-probs."""
    if probabilities.is_cuda:
        from harness.engines.torch.cuda_noise import first_arrivals
    else:
        first_arrivals = first_arrivals_eagerly
    tokens = first_arrivals(probabilities, keys, position)
    return tokens, probabilities.gather(1, tokens[:, None])[:, 0].log_()


def first_arrivals_eagerly(probabilities: Tensor, keys: Tensor, position: int | Tensor) -> Tensor:
    """The tokens [B] that arrive first, where each arrives at random at the rate of its probability [B, V]."""
    noise = exponential_noise(keys, position, probabilities.shape[-1])
    return torch.div(noise, probabilities, out=noise).argmin(dim=-1)


def _scaled(logits: Tensor, temperature: float) -> Tensor:
    return logits if temperature == 1 else logits / temperature
