"""Sizes of decoding batches. This module does not import torch, because plans use it to estimate memory."""

MAX_ROWS = 1024
"""Maximum number of samples in a batch. More would cost memory and gain little speed."""
CACHE_BYTES_CPU = 4 * 2**30
"""Maximum size of a batch's keys and values on a CPU. On CUDA the limit is a fraction of the GPU's memory."""
ARENAS_CPU = 2
"""Number of cache arenas on a CPU. A batch that runs out of columns is copied from one to the other."""
LEAST_COLUMNS = 64
"""The smallest bucket of columns."""


def bucket(size: int, least: int = 1) -> int:
    """Return the smallest bucket that is at least `size` and at least `least`.

    Buckets are the powers of two and the midpoints between them. `least` must be a power of two.
    """
    # With the midpoints, a batch is at most 1.5 times as large as needed instead of twice.
    power = max(least, 1 << (size - 1).bit_length())
    middle = power * 3 // 4
    return middle if power > max(least, 2) and size <= middle else power
