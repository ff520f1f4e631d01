"""What the SVG of a figure holds, read back as a page's script reads it."""

from __future__ import annotations

import re
from itertools import groupby
from xml.etree import ElementTree

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.path import Path

from reports.drawing.rendering import mark
from reports.drawing.style import INK, Sheet, new_figure
from reports.drawing.svg import UNITS, draw_svg, path_data

PLACES = st.tuples(st.integers(-4000, 4000), st.integers(-4000, 4000))


def parts_of(data: str) -> list[list[tuple[int, int]]]:
    """The points of each part of a path of straight lines."""
    parts: list[list[tuple[int, int]]] = []
    for letter, numbers in re.findall(r"([Ml])([-\d ]+)", data):
        values = [int(one) for one in re.findall(r"-?\d+", numbers)]
        for dx, dy in zip(values[::2], values[1::2], strict=True):
            if letter == "M":
                parts.append([(dx, dy)])
            else:
                x, y = parts[-1][-1]
                parts[-1].append((x + dx, y + dy))
    return parts


@given(st.lists(st.lists(PLACES, min_size=1, max_size=6), min_size=1, max_size=4))
def test_a_path_leads_through_the_same_points(parts):
    codes = [code for part in parts for code in (Path.MOVETO, *[Path.LINETO] * (len(part) - 1))]
    points = np.array([*(point for part in parts for point in part), (0, 0)])
    read = parts_of(path_data([*map(int, codes), int(Path.STOP)], points))
    assert [[point for point, _ in groupby(part)] for part in read] == [[p for p, _ in groupby(part)] for part in parts]


def test_dots_labels_and_hatches_are_as_matplotlib_was_asked():
    def picture() -> tuple[str, str]:
        figure = new_figure(2.0, laid_out=False)
        axes = figure.add_axes((0.1, 0.1, 0.8, 0.8))
        (dots,) = axes.plot([0.166, 0.17, 0.17], [1, 2, 2], "s", color=INK)
        mark(dots, 'an "arm"', "seed", [3, 4, 5])
        axes.bar(0.168, 1.5, 0.001, hatch="...")
        axes.set(xlim=(0.165, 0.171), ylim=(0, 3), xticks=[0.166, 0.17], xlabel="a < b")
        sheet = Sheet()
        drawn = draw_svg(figure, sheet, "some")
        return drawn.document(sheet), drawn.element("label", sheet.for_page("some"))

    file, element = picture()
    assert (file, element) == picture()
    root = ElementTree.fromstring(file)
    assert {"0.166", "0.170", "a < b"} <= {text.text for text in root.findall(".//{*}text")}
    (group,) = [one for one in root.iter() if one.get("data-seeds") == "3 4 5"]
    assert group.get("data-arm") == 'an "arm"'
    (path,) = group
    ((one, *others),) = parts_of(path.attrib["d"])
    # 6.4 by 2 inches: from 10 to 90 % of them the axes reach.
    expected = np.array([(0.1 + 0.8 / 6) * 6.4, 2 * (1 - 0.1 - 0.8 / 3)]) * 72 * UNITS
    np.testing.assert_allclose(one, expected, atol=0.5)
    assert len(others) == 2 and others[0] == others[1]  # two dots at one place, so that seeds can be told apart
    (pattern,) = root.findall(".//{*}pattern")
    assert len(re.findall("M", pattern[-1].attrib["d"])) > 100
    assert INK in file and INK not in element and "currentColor" in element
