from __future__ import annotations

import html
import io
import json
import re

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from reports.drawing.curves import extremes
from reports.drawing.panels import Panels, keep_only_grid
from reports.drawing.rendering import encode_png, svg
from reports.drawing.style import ARM_COLORS, arm_styles, bounded_view, legend_columns, new_figure, short_name
from reports.page.templating import TEMPLATES


@pytest.mark.parametrize("axis", ["x", "y"])
def test_where_labels_are_left_out_the_grid_stays(axis):
    layout = Panels(1, 2, height=1.0, column_gap=0.2, row_gap=0.2, left=0.5, top=0.3)
    figure, ((whole, without),) = layout.draw()
    for panel in (whole, without):
        panel.set(xlim=(0, 10), ylim=(2, 4))
    keep_only_grid([without], axis)
    own = without.xaxis if axis == "x" else without.yaxis
    assert not own.get_visible()
    (line,) = [
        artist for artist in without.get_children() if artist.get_zorder() == 0.5 and hasattr(artist, "get_xydata")
    ]
    figure.draw_without_rendering()
    corners = without.transAxes.inverted().transform(
        line.get_transform().transform(line.get_xydata()[~np.isnan(line.get_xydata()).any(axis=1)])
    )
    along, across = (corners[:, 0], corners[:, 1]) if axis == "x" else (corners[:, 1], corners[:, 0])
    np.testing.assert_allclose(across, np.tile([0.0, 1.0], len(across) // 2), atol=1e-9)
    low, high = (0, 10) if axis == "x" else (2, 4)
    other = whole.xaxis if axis == "x" else whole.yaxis
    shown = [tick for tick in other.get_majorticklocs() if low <= tick <= high]
    np.testing.assert_allclose(along[::2], (np.array(shown) - low) / (high - low), atol=1e-9)
    np.testing.assert_allclose(along[1::2], along[::2])


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


def test_styles_tell_arms_apart_without_colour():
    arms = [f"arm{i}" for i in range(13)]
    styles = arm_styles(arms, "arm3")
    assert len({style.marker for style in styles.values()}) == 13
    assert len({(style.color, str(style.dash)) for style in styles.values()}) == 13
    assert len({styles[arm].color for arm in arms[: len(ARM_COLORS) + 1]}) == len(ARM_COLORS) + 1


def test_colours_show_on_white_and_on_dark_and_stay_apart_for_the_colour_blind():
    """WCAG 2.2, 1.4.11, with the colours of the page; distances in OKLab, seen as Machado et al. (2009) simulate it."""
    css = (TEMPLATES / "style.css").read_text(encoding="utf-8")
    pages = [linear(color) @ LUMINANCE for color in re.findall(r"--page: (#\w{6})", css)[:2]]
    colors = np.array([linear(color) for color in ARM_COLORS])
    for page in pages:
        brighter, darker = np.maximum(colors @ LUMINANCE, page), np.minimum(colors @ LUMINANCE, page)
        assert ((brighter + 0.05) / (darker + 0.05)).min() >= 3
    for seen in (np.eye(3), *COLOUR_BLIND.values()):
        places = np.cbrt(np.clip(colors @ seen.T, 0, 1) @ TO_CONES.T) @ TO_OKLAB.T
        apart = np.linalg.norm(places[:, None] - places, axis=-1)[~np.eye(len(colors), dtype=bool)]
        assert apart.min() > 0.04


LUMINANCE = np.array([0.2126, 0.7152, 0.0722])
COLOUR_BLIND = {
    "protanopia": np.array([[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]),
    "deuteranopia": np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]),
    "tritanopia": np.array([[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]]),
}
TO_CONES = np.array([[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.6300]])
TO_OKLAB = np.array([[0.2105, 0.7936, -0.0041], [1.9780, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]])


def linear(color: str) -> npt.NDArray[np.float64]:
    """#rrggbb as linear sRGB."""
    shares = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)


def test_a_far_interval_does_not_hide_the_rest():
    assert bounded_view([0.0, 1.0], [-3.0, 4.0]) == (-3.0, 4.0)  # near enough
    assert bounded_view([0.0, 20.0], [-180.0, 30.0]) == (-20.0, 30.0)
    assert bounded_view([1.0, 1.0], [float("nan"), float("nan")]) == (1.0, 1.0)


def test_names_are_shortened_in_the_middle_and_legends_fit():
    assert short_name("short") == "short"
    assert len(short_name(100 * "x")) <= 44
    assert short_name("a" * 50 + "b" * 50).startswith("a") and short_name("a" * 50 + "b" * 50).endswith("b")
    assert legend_columns([40 * "x"] * 3) == 1
    assert legend_columns(["short"] * 4) == 4


@pytest.mark.parametrize("n", [1, 5, 200, 201, 500, 1999])
def test_a_long_line_keeps_its_ends_and_its_extremes(n):
    y = np.random.default_rng(n).normal(size=n)
    kept = extremes(y, stretches=100)
    assert (kept[0], kept[-1]) == (0, n - 1)
    assert np.all(np.diff(kept) > 0)
    assert {int(y.argmin()), int(y.argmax())} <= set(kept.tolist())
    assert len(kept) == n if n <= 200 else len(kept) <= 202


def test_numbers_that_are_read_keep_their_digits_and_coordinates_do_not():
    figure = new_figure(2.0)
    axes = figure.subplots()
    axes.plot([0.00012, 0.00034], [0.5, 0.5], label="beta 0.001")
    axes.set_xticks([0.0001, 0.0003])
    axes.legend()
    drawn = svg(figure, "numbers")
    assert {"0.0001", "0.0003", "beta 0.001"} <= {*re.findall(r">\s*([^<>]+?)\s*</text>", drawn)}
    (ends,) = re.findall(r'data-axes="([^"]*)"', drawn)
    assert json.loads(html.unescape(ends))["x"]["low"] == pytest.approx(axes.get_xlim()[0], rel=1e-5)
    assert not re.search(r' d="[^"]*\d\.\d{3}', drawn)
