from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import pytest

from reports.drawing.curves import extremes
from reports.drawing.style import ARM_COLORS, arm_styles, bounded_view
from reports.page.templating import TEMPLATES


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


@pytest.mark.parametrize("n", [1, 5, 200, 201, 500, 1999])
def test_a_long_line_keeps_its_ends_and_its_extremes(n):
    y = np.random.default_rng(n).normal(size=n)
    kept = extremes(y, stretches=100)
    assert (kept[0], kept[-1]) == (0, n - 1)
    assert np.all(np.diff(kept) > 0)
    assert {int(y.argmin()), int(y.argmax())} <= set(kept.tolist())
    assert len(kept) == n if n <= 200 else len(kept) <= 202
