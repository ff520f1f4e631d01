from __future__ import annotations

import mmap
import sys

import pytest
import torch

from harness.processes import peak_memory_mb, reset_peak_memory

CPU = torch.device("cpu")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux forgets a peak")
def test_a_peak_is_that_since_the_last_reset() -> None:
    # A mapping of its own: malloc may give free memory of the heap, which stays resident when it is given back.
    held = mmap.mmap(-1, 400_000_000, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    held.write(bytes(1_000_000) * 400)
    with_it = peak_memory_mb(CPU)
    held.close()
    assert peak_memory_mb(CPU) == pytest.approx(with_it, rel=0.02)
    reset_peak_memory(CPU)
    assert 10 < peak_memory_mb(CPU) < with_it - 300
