from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from reports.figures.png_file import encode_png


@given(
    st.tuples(st.integers(1, 9), st.integers(1, 9)).flatmap(lambda size: arrays.arrays(np.uint8, (*size, 3))),
    st.sampled_from([72, 200]),
)
def test_pillow_reads_the_same_pixels(pixels, dots_per_inch):
    image = Image.open(io.BytesIO(encode_png(pixels, dots_per_inch)))
    image.load()  # verifies the checksums
    assert image.mode == "RGB"
    assert image.info["dpi"] == pytest.approx((dots_per_inch, dots_per_inch), rel=1e-3)
    np.testing.assert_array_equal(np.asarray(image), pixels)


def test_a_part_of_wider_pixels_is_taken():
    """As of those with opacity, of which three in four bytes are wanted."""
    wide = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
    image = Image.open(io.BytesIO(encode_png(wide[..., :3], 200)))
    np.testing.assert_array_equal(np.asarray(image), wide[..., :3])
