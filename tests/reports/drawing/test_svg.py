"""What the SVG of a figure holds, read back as a page's script reads it."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.drawing.marks import mark
from reports.drawing.style import INK, new_figure
from reports.drawing.svg import UNITS, Sheet, draw_svg, short_path

PLACES = {"M": 1, "L": 1, "Q": 2, "C": 3, "z": 0}
"""The path commands that matplotlib writes, and how many points each takes."""
PLACE = st.tuples(*2 * [st.integers(-40_000, 40_000).map(lambda units: units / UNITS)])
STEP = st.sampled_from("LQCz").flatmap(lambda letter: st.tuples(st.just(letter), st.tuples(*PLACES[letter] * [PLACE])))
PART = st.tuples(PLACE, st.lists(STEP, max_size=6)).map(
    lambda part: [("M", (part[0],)), *(step for step in part[1] if step[0] != "z"), *part[1][-1:]]
)


def steps_of(data: str) -> list[tuple[str, list[tuple[float, float]]]]:
    """The commands of a path, with places that start where the page starts."""
    found: list[tuple[str, list[tuple[float, float]]]] = []
    at = (0.0, 0.0)
    for letter, numbers in re.findall(r"([Mlqcz])([-\d ]*)", data):
        values = [int(one) / UNITS for one in re.findall(r"-?\d+", numbers)]
        size = 2 * PLACES[letter.upper() if letter != "z" else letter]
        for i in range(0, len(values), size or 1):
            base = (0.0, 0.0) if letter == "M" else at
            places = [
                (base[0] + x, base[1] + y)
                for x, y in zip(values[i : i + size : 2], values[i + 1 : i + size : 2], strict=True)
            ]
            at = places[-1]
            found.append((letter.upper(), places))
        if letter == "z":
            found.append(("Z", []))
    return found


@pytest.mark.slow
@given(st.lists(PART, min_size=1, max_size=4))
def test_a_path_leads_through_the_same_points(parts):
    steps = [step for part in parts for step in part if step[0] != "z" or step is part[-1]]
    data = "\n".join(" ".join([letter, *(f"{x} {y}" for x, y in places)]) for letter, places in steps)
    read = steps_of(short_path(data))
    assert [letter for letter, _ in read] == [letter.upper() for letter, _ in steps]
    for (_, found), (_, expected) in zip(read, steps, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_dots_labels_and_hatches_are_as_matplotlib_was_asked():
    label, title = "a < b", "a \x1b & b"

    def picture() -> tuple[str, str]:
        figure = new_figure(2.0, laid_out=False)
        axes = figure.add_axes((0.1, 0.1, 0.8, 0.8))
        (dots,) = axes.plot([0.166, 0.17, 0.17], [1, 2, 2], "s", color=INK)
        mark(dots, 'an "arm"', "seed", [3, 4, 5])
        axes.bar(0.168, 1.5, 0.001, hatch="///")
        axes.set(xlim=(0.165, 0.171), ylim=(0, 3), xticks=[0.166, 0.17], xlabel=label, title=title)
        sheet = Sheet()
        drawn = draw_svg(figure, sheet, "some")
        return drawn.document("label", sheet), drawn.element("label", sheet.for_page("some"))

    file, element = picture()
    assert (file, element) == picture()
    root = ElementTree.fromstring(file)
    assert root.get("stroke-width") == str(UNITS)  # a line as wide as matplotlib leaves unsaid
    texts = {text.text for text in root.findall(".//{*}text")}
    assert {"0.166", "0.170", label, title.replace("\x1b", "\ufffd")} <= texts
    (group,) = [one for one in root.iter() if one.get("data-seeds") == "3 4 5"]
    assert group.get("data-arm") == 'an "arm"'
    (one, other, again) = [
        (float(dot.attrib["x"]), float(dot.attrib["y"])) for dot in group.iter() if dot.tag.endswith("use")
    ]
    # 6.4 by 2 inches: from 10 to 90 % of them the axes reach.
    expected = np.array([(0.1 + 0.8 / 6) * 6.4, 2 * (1 - 0.1 - 0.8 / 3)]) * 72 * UNITS
    np.testing.assert_allclose(one, expected, atol=0.5)
    assert other == again  # two dots at one place, so that seeds can be told apart
    for used in re.findall(r'(?:href="|url\()#(\w+)', file):
        assert f'id="{used}"' in file
    assert INK in file and INK not in element and "currentColor" in element
