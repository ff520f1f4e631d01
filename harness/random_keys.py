"""Keys of random draws: counter-based and stateless, so nothing of a generator is ever checkpointed.

Every draw is named by (seed, stream, step, example, sample) and the name is hashed to 64 bits. Two arms with the same
seed therefore draw the same prompts and the same sampling noise, and so does a resumed cell.
"""

from __future__ import annotations

import hashlib
from typing import Literal

SEED_OF_ALL_CELLS = 0
"""Keys what cells share whatever their own seed: pass rates, the reward model's data."""

Stream = Literal["init", "data", "rollout", "shuffle", "eval", "select"]


def random_key(seed: int, stream: Stream, step: int = 0, example: int | str = 0, sample: int = 0) -> int:
    """The signed 64-bit key of one draw. `example` is a position in the step, or a problem's id in evaluation."""
    name = f"{seed}/{stream}/{step}/{example}/{sample}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little", signed=True)


def uniform(key: int) -> float:
    """A number in [0, 1), fixed by the key: 53 of its 64 bits. A rate of 1 exceeds it always, a rate of 0 never."""
    return ((key >> 11) & (2**53 - 1)) / 2**53


def permutation(count: int, key: int) -> list[int]:
    """A random order of range(count), fixed by the key on every machine and Python version."""
    salt = key.to_bytes(8, "little", signed=True)

    def rank(index: int) -> bytes:
        return hashlib.blake2b(index.to_bytes(8, "little"), key=salt, digest_size=8).digest()

    return sorted(range(count), key=rank)
