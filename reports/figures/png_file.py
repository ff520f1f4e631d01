"""Pixels as a PNG file (W3C, Portable Network Graphics, third edition)."""

from __future__ import annotations

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

SIGNATURE = b"\x89PNG\r\n\x1a\n"
BITS, TRUE_COLOUR, UNFILTERED = 8, 2, 0


def encode_png(pixels: NDArray[np.uint8], dots_per_inch: float) -> bytes:
    """pixels [height, width, 3]: red, green and blue.

    Rows are compressed as they are. Pillow, as the standard advises for photographs, tries five filters on each: for
    lines on white that takes four times as long, a tenth of a large report's time, and makes no smaller files.
    """
    height, width, _ = pixels.shape
    rows = np.full((height, 1 + 3 * width), UNFILTERED, dtype=np.uint8)
    rows[:, 1:] = pixels.reshape(height, -1)
    per_metre = round(dots_per_inch / 0.0254)
    return SIGNATURE + b"".join(
        (
            _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, BITS, TRUE_COLOUR, 0, 0, 0)),
            _chunk(b"pHYs", struct.pack(">IIB", per_metre, per_metre, 1)),
            _chunk(b"IDAT", zlib.compress(rows.tobytes(), level=3)),
            _chunk(b"IEND", b""),
        )
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
