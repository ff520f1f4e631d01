"""Keys of random numbers. They are stateless, so a checkpoint contains no generator state.

Every random number has a name (seed, stream, step, example, sample), which is hashed to 64 bits. Two arms with the same
seed therefore use the same prompts and sampling noise, and so does a resumed cell.
"""

from __future__ import annotations

import hashlib
from typing import Literal

SEED_OF_ALL_CELLS = 0
"""The seed of everything that cells share, whatever their own seeds: pass rates, the reward model's data."""

Stream = Literal["init", "data", "rollout", "shuffle", "eval", "select"]


def random_key(seed: int, stream: Stream, step: int = 0, example: int | str = 0, sample: int = 0) -> int:
    """Return the signed 64-bit key of one random number.

    example: a position in the step, or a problem's id in evaluation.
    """
    name = f"{seed}/{stream}/{step}/{example}/{sample}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little", signed=True)


def uniform(key: int) -> float:
    """Return a number in [0, 1) that is determined by the key, from 53 of its 64 bits.

    It is always below a rate of 1 and never below a rate of 0.
    """
    # A float64 has a mantissa of 53 bits, so every result is exact and below 1. The mask removes the sign bits that >>
    # extends.
    return ((key >> 11) & (2**53 - 1)) / 2**53


def permutation(count: int, key: int) -> list[int]:
    """Return a random order of range(count), determined by the key on every machine and Python version."""
    salt = key.to_bytes(8, "little", signed=True)

    def rank(index: int) -> bytes:
        return hashlib.blake2b(index.to_bytes(8, "little"), key=salt, digest_size=8).digest()

    # Sorting by hash needs no generator. random.shuffle may change between Python versions.
    return sorted(range(count), key=rank)
