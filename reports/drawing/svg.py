"""Figures as SVG: matplotlib's output, made small enough for a page with dozens of figures.

Matplotlib writes the style of each part inline, puts each part into a group, and writes coordinates with six decimals.
Here, styles become classes of a style sheet, only groups that carry information remain, and coordinates are rounded to
tenths of a point. Import this module only inside functions, because it imports matplotlib.
"""

from __future__ import annotations

import html
import io
import re
import string
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal
from xml.etree import ElementTree
from xml.sax.saxutils import quoteattr

import matplotlib as mpl
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.backends.backend_svg import RendererSVG
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

from reports.drawing.marks import attributes_of, mark_panels
from reports.drawing.style import INK, RC, SEED_ALPHA, SEED_ALPHA_ON_DARK

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POINTS_PER_INCH = 72
UNITS = 10
"""SVG units per point."""
COMMAND = re.compile("([MLQCz])([^MLQCz]*)")
"""A path command as matplotlib writes it, with its points."""
NUMBER = re.compile(r"-?\d*\.?\d+")
LENGTHS = re.compile(r"(font-size|stroke-width|stroke-dasharray|stroke-dashoffset):([^;]+)")
MOVES = re.compile(r"(translate\(|rotate\(\S+ |matrix\((?:\S+ ){4})([^)]+)")
"""The coordinates in a transform."""


class Sheet:
    """The style sheet of a figure: one class per style, in the order in which its views first use the styles."""

    def __init__(self) -> None:
        self._classes: dict[str, str] = {}

    def class_of(self, look: str) -> str:
        """Return the class of a style, creating one if the style is new. look: CSS declarations."""
        # Names are a, b, ..., z, aa, ab, ...
        place, letters = len(self._classes), string.ascii_lowercase
        name = letters[place] if place < len(letters) else letters[place // 26 - 1] + letters[place % 26]
        return self._classes.setdefault(look, name)

    def for_file(self) -> str:
        return "\n".join(f".{name}{{{look}}}" for look, name in self._classes.items())

    def for_page(self, figure: str) -> str:
        """Return CSS rules for the contents of the element with this id.

        INK becomes the page's text colour, so it turns light on a dark page. The thin lines of seeds are hard to see on
        dark, so they become more opaque there.
        """
        rules = [f"#{figure} .{name}{{{look.replace(INK, 'currentColor')}}}" for look, name in self._classes.items()]
        thin = [
            f"#{figure} .{name}"
            for look, name in self._classes.items()
            if f"stroke-opacity:{SEED_ALPHA:g}" in look and f"stroke:{INK}" not in look
        ]
        if thin:
            stronger = f"{','.join(thin)}{{stroke-opacity:{SEED_ALPHA_ON_DARK:g}}}"
            rules.append(f"@media(prefers-color-scheme:dark){{{stronger}}}")
        return "\n".join(rules)


@dataclass(frozen=True)
class Picture:
    """A drawn figure, as SVG elements."""

    width: float
    """In points."""
    height: float
    """In points."""
    elements: str

    def document(self, label: str, sheet: Sheet) -> str:
        """Return the text of an SVG file."""
        size = f'width="{self.width:g}pt" height="{self.height:g}pt"'
        element = self.element(label, sheet.for_file())
        start = f'<?xml version="1.0" encoding="utf-8"?>\n<svg xmlns="http://www.w3.org/2000/svg" {size}'
        return f"{start}{element.removeprefix('<svg')}\n"

    def element(self, label: str, style: str = "") -> str:
        """Return an SVG element for a page, without a fixed size.

        label: what the figure shows, for readers who cannot see it.
        """
        box, said = f'viewBox="0 0 {UNITS * self.width:g} {UNITS * self.height:g}"', quoteattr(known_to_xml(label))
        sheet = f"<style>\n{style}\n</style>\n" if style else ""
        looks = f'stroke-width="{UNITS}" stroke-linejoin="round"'  # Matplotlib leaves these out of styles.
        return f'<svg role="img" aria-label={said} {box} {looks}>\n{sheet}{self.elements}</svg>'


def draw_svg(figure: Figure, sheet: Sheet, prefix: str) -> Picture:
    """Draw a figure as SVG. The same figure gives the same elements.

    prefix: the name of the figure, which keeps ids unique on a page.
    The layout engine runs here for the last time.
    """
    figure.patch.set_visible(False)
    mark_panels(figure)
    figure.set_dpi(POINTS_PER_INCH)
    width, height = (size * POINTS_PER_INCH for size in figure.get_size_inches().tolist())
    written = io.StringIO()
    # Without a fixed salt, ids would differ each time; with a date, the metadata would.
    with mpl.rc_context(RC | {"svg.hashsalt": prefix}):
        renderer = RendererSVG(width, height, written, metadata={"Date": None})
        # Matplotlib would measure the same texts again in every figure, at about a millisecond each.
        renderer.get_text_width_height_descent = _text_size
        _Canvas(figure, renderer)
        figure.draw(renderer)
        renderer.finalize()
    # The figure becomes a PNG next, and must keep its layout.
    figure.set_layout_engine("none")
    root = ElementTree.fromstring(known_to_xml(written.getvalue()))
    return Picture(width, height, "".join(part for child in root for part in _written(child, sheet)))


class _Canvas(FigureCanvasBase):
    """The canvas of a figure that becomes an SVG. The layout uses the same renderer as the drawing."""

    def __init__(self, figure: Figure, renderer: RendererSVG) -> None:
        super().__init__(figure)
        self._renderer = renderer

    def get_renderer(self) -> RendererSVG:
        return self._renderer


@lru_cache(maxsize=10_000)
def _text_size(s: str, prop: FontProperties, ismath: bool | Literal["TeX"]) -> tuple[float, float, float]:
    width, height, descent = text_to_path.get_text_width_height_descent(s, prop, ismath)
    return width, height, descent


def known_to_xml(text: str) -> str:
    """Replace each character that XML does not allow."""
    return re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\N{REPLACEMENT CHARACTER}", text)


def _written(element: ElementTree.Element, sheet: Sheet) -> Iterator[str]:
    tag = element.tag.rpartition("}")[2]
    if tag in ("metadata", "style"):
        return
    inside = [part for child in element for part in _written(child, sheet)]
    attributes = dict(_attributes(tag, element, sheet))
    is_panel = element.get("id", "").startswith("axes_")
    # A group without attributes draws nothing itself, so only its contents are kept. Groups of panels are kept for the
    # page's script.
    if tag in ("g", "defs") and (not inside or (tag == "g" and not attributes and not is_panel)):
        yield from inside
        return
    text = html.escape(element.text, quote=False) if element.text and element.text.strip() else ""
    start = "".join((f"<{tag}", *(f" {name}={quoteattr(value)}" for name, value in attributes.items())))
    yield f"{start}>{text}{''.join(inside)}</{tag}>\n" if text or inside else f"{start}/>\n"


def _attributes(tag: str, element: ElementTree.Element, sheet: Sheet) -> Iterator[tuple[str, str]]:
    for name, value in element.items():
        plain = name.rpartition("}")[2]
        if plain == "id":
            marks = attributes_of(value)
            yield from ((f"data-{key}", of) for key, of in marks.items())
            # Other ids belong to clip paths and markers, which elements refer to.
            if tag not in ("g", "text") and not marks:
                yield "id", value
        elif plain == "style":
            yield "class", sheet.class_of(_look(value))
        elif plain == "d":
            yield "d", short_path(value)
        elif plain in ("x", "y", "width", "height"):
            yield plain, _in_units(value)
        elif not (plain == "transform" and value.startswith("rotate(-0 ")):
            yield plain, MOVES.sub(lambda found: found[1] + _in_units(found[2]), value)


@lru_cache(maxsize=10_000)
def _look(style: str) -> str:
    """Return a style without spaces, with its lengths in SVG units."""
    look = re.sub(r"(?<=[:;,]) ", "", style)
    return LENGTHS.sub(lambda found: f"{found[1]}:{_in_units(found[2], '.3g')}", look)


def _in_units(points: str, digits: str = ".0f") -> str:
    return NUMBER.sub(lambda found: format(UNITS * float(found[0]), digits), points)


def short_path(data: str) -> str:
    """Return the path in integer units, with absolute starting points and relative steps."""
    written, last, x, y = [], "", 0, 0
    for command, points in COMMAND.findall(data):
        places = [round(UNITS * float(one)) for one in points.split()]
        name = command if command == "M" else command.lower()
        if command == "M":
            x, y = 0, 0
        # Every point of a command is relative to the last point of the previous command. Round before taking
        # differences, so that errors do not add up along the path.
        steps = [place - (y if odd % 2 else x) for odd, place in enumerate(places)]
        written.append(f"{' ' if name == last != 'M' else name}{' '.join(map(str, steps))}")
        x, y = places[-2:] or (x, y)
        last = name
    return "".join(written).replace(" -", "-")
