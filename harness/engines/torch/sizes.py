"""Sizes of the batches that are decoded together; without torch, since plans estimate memory with them."""

MAX_ROWS = 1024
"""Samples decoded together. More cost memory and gain little once the matrix products are large enough."""
CACHE_BYTES_CPU = 4 * 2**30
"""Keys and values of the samples decoded together, on a CPU. On CUDA a share of the GPU's memory bounds them."""
ARENAS_CPU = 2
"""A batch that runs out of columns is copied from one arena to the other."""
LEAST_COLUMNS = 64
"""The first bucket of columns."""


def bucket(size: int, least: int = 1) -> int:
    """Return the smallest bucket that is at least `size` and `least`, a power of two.

    Buckets are the powers of two and the middles between them.
    """
    # The middles halve the worst padding: a batch is at most half again as large as needed, not twice.
    power = max(least, 1 << (size - 1).bit_length())
    middle = power * 3 // 4
    return middle if power > max(least, 2) and size <= middle else power
