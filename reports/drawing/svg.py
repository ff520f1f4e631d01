"""Figures as small SVG: whole tenths of a point, looks as classes of a style sheet, dots as markers of one path.

Matplotlib's own writer repeats the look of each part beside it and makes an element of each dot, which made pages three
times as large. Import this module within functions only, since it imports matplotlib.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import quoteattr

import matplotlib as mpl
import numpy as np
from matplotlib.backend_bases import FigureCanvasBase, RendererBase
from matplotlib.colors import rgb2hex
from matplotlib.font_manager import weight_dict
from matplotlib.path import Path
from matplotlib.textpath import text_to_path
from matplotlib.transforms import Affine2D, Transform
from numpy.typing import NDArray

from reports.drawing.rendering import attributes_of, mark_panels
from reports.drawing.style import RC, Sheet
from reports.statistics import FloatArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.text import Text

Points = NDArray[np.int64]

UNITS = 10
"""How many units of an SVG, whose numbers are whole, make a point."""
POINTS_PER_INCH = 72
HATCH_POINTS = 72
"""The side of the square that matplotlib draws a hatch in."""
IMAGE_PIXELS_PER_POINT = 3
SPILL = UNITS
"""So far beyond its panel a line may reach without being cut off, which would take an attribute."""
ANCHORS = {"left": "", "center": ";text-anchor:middle", "right": ";text-anchor:end"}
STEPS = {int(Path.LINETO): ("l", 1), int(Path.CURVE3): ("q", 2), int(Path.CURVE4): ("c", 3)}
"""The letter of a step of a path, and of how many points it is made."""


@dataclass(frozen=True)
class Picture:
    """What is drawn, as elements of SVG. width, height: in points."""

    width: float
    height: float
    elements: str

    def document(self, sheet: Sheet) -> str:
        """An SVG file."""
        size = f'width="{self.width:g}pt" height="{self.height:g}pt"'
        return (
            f'<?xml version="1.0" encoding="utf-8"?>\n<svg xmlns="http://www.w3.org/2000/svg" {size} {self._common}>\n'
            f"<style>\n{sheet.for_file()}\n</style>\n{self.elements}\n</svg>\n"
        )

    def element(self, label: str, style: str = "") -> str:
        """An element of a page, without a size. label: what it shows, for those who do not see it."""
        sheet = f"<style>\n{style}\n</style>\n" if style else ""
        return f'<svg role="img" aria-label="{html.escape(label)}" {self._common}>\n{sheet}{self.elements}\n</svg>'

    @property
    def _common(self) -> str:
        box = f'viewBox="0 0 {self.width * UNITS:g} {self.height * UNITS:g}"'
        return f'{box} fill="none" stroke-linejoin="round" font-family="{RC["font.family"]}"'


def draw_svg(figure: Figure, sheet: Sheet, prefix: str) -> Picture:
    """The same elements for the same figure. Whatever lays it out does so now, for good. prefix: of ids, which are to
    be unique on a page."""
    figure.set(dpi=POINTS_PER_INCH, facecolor="none")
    width, height = figure.bbox.size
    renderer = _Renderer(float(width), float(height), sheet, prefix)
    _Canvas(figure, renderer)
    with mpl.rc_context(RC):
        if (engine := figure.get_layout_engine()) is not None:
            engine.execute(figure)
            figure.set_layout_engine("none")
        mark_panels(figure)
        figure.draw(renderer)
    return Picture(float(width), float(height), renderer.elements())


class _Canvas(FigureCanvasBase):
    """Lets a layout engine measure text as it will be drawn."""

    fixed_dpi = POINTS_PER_INCH

    def __init__(self, figure: Figure, renderer: _Renderer) -> None:
        super().__init__(figure)
        self._renderer = renderer

    def get_renderer(self) -> _Renderer:
        return self._renderer


@dataclass
class _Line:
    """A path that others of the same look may join."""

    attributes: str
    data: str
    is_rule: bool

    def __str__(self) -> str:
        return f'<path{self.attributes} d="{self.data}"/>'


class _Renderer(RendererBase):
    """Matplotlib calls the public methods; y grows upwards there, except for texts."""

    def __init__(self, width: float, height: float, sheet: Sheet, prefix: str) -> None:
        super().__init__()
        self._size, self._sheet, self._prefix = (width, height), sheet, prefix
        self._to_page = Affine2D().scale(UNITS, -UNITS).translate(0, UNITS * height)
        self._definitions: dict[tuple[str, str], str] = {}
        self._groups: list[tuple[Mapping[str, str] | None, list[_Line | str]]] = [({}, [])]

    def elements(self) -> str:
        definitions = [f'<{tag} id="{name}"{rest}' for (tag, rest), name in self._definitions.items()]
        return "\n".join(["<defs>", *definitions, "</defs>", *map(str, self._groups[0][1])])

    def get_canvas_width_height(self) -> tuple[float, float]:
        return self._size

    def get_text_width_height_descent(self, s: str, prop: Any, ismath: Any) -> tuple[float, float, float]:
        return _text_size(s, prop.copy(), ismath)

    def open_group(self, s: str, gid: str | None = None) -> None:
        """Only what marks something, and panels, become groups."""
        attributes = attributes_of(gid or "")
        self._groups.append((attributes if attributes or s == "axes" else None, []))

    def close_group(self, s: str) -> None:
        attributes, parts = self._groups.pop()
        if attributes is None:
            for part in parts:
                self._add(part)
        elif parts:
            start = "".join(f" data-{name}={quoteattr(value)}" for name, value in attributes.items())
            self._add("\n".join([f"<g{start}>", *map(str, parts), "</g>"]))

    def draw_path(self, gc: Any, path: Path, transform: Transform, rgbFace: Any = None) -> None:
        is_panel = "axes" in (self._groups[-1][0] or {})
        look = "" if is_panel else self._look(gc, rgbFace)  # the page shows through a panel
        if not look and not is_panel:
            return
        is_filled = rgbFace is not None or gc.get_hatch() is not None
        frame = None if is_filled else (0.0, 0.0, *self._size)
        codes, points = _outline(path, transform, self._to_page, frame, path.should_simplify and not is_filled)
        clip = self._clip(gc, points[:-1], 0 if is_filled else SPILL)
        is_segment = not is_filled and codes == [Path.MOVETO, Path.LINETO, Path.STOP]
        is_rule = is_segment and bool((points[0] == points[1]).any())
        self._add(_Line(self._class(look) + clip, path_data(codes, points), is_rule))

    def draw_markers(
        self,
        gc: Any,
        marker_path: Path,
        marker_trans: Transform,
        path: Path,
        trans: Transform,
        rgbFace: Any = None,
    ) -> None:
        places = np.array([vertices[-2:] for vertices, _ in path.iter_segments(trans, simplify=False)])
        look = self._look(gc, rgbFace)
        if not look or not len(places):
            return
        if len(places) == 1 and not places.any():  # the origin: a shape that lies where it is drawn
            self.draw_path(gc, marker_path, marker_trans, rgbFace)
            return
        codes, corners = _outline(marker_path, marker_trans, Affine2D().scale(UNITS, -UNITS))
        drawn = f'<path{self._class(look)} d="{path_data(codes, corners)}"/>'
        name = self._define("marker", ' overflow="visible" markerUnits="userSpaceOnUse"', drawn)
        points = self._places(places)
        clip = self._clip(gc, points, -int(np.abs(corners).max()))
        (x, y), *rest = points.tolist()
        following = np.diff(points, axis=0).tolist() if rest else [[0, 0]]
        data = f"M{_pairs([[x, y]])}l{_pairs(following)}"
        at = "marker" if rest else "marker-start"
        self._add(f'<path style="{at}:url(#{name})"{clip} d="{data}"/>')

    def draw_text(
        self,
        gc: Any,
        x: float,
        y: float,
        s: str,
        prop: Any,
        angle: float,
        ismath: Any = False,
        mtext: Text | None = None,
    ) -> None:
        if ismath:
            super().draw_text(gc, x, y, s, prop, angle, ismath, mtext)  # the outlines of its glyphs
            return
        color = gc.get_rgb()
        opacity = gc.get_alpha() if gc.get_forced_alpha() else color[3]
        if opacity == 0:
            return
        weight = weight_dict.get(prop.get_weight(), prop.get_weight())
        anchor = ""
        if mtext is not None and (angle == 0 or mtext.get_rotation_mode() == "anchor"):
            # The place that it is aligned at, because a reader's font may be wider or narrower.
            anchor = ANCHORS[mtext.get_horizontalalignment()]
            at_x, at_y = mtext.get_transform().transform(mtext.get_unitless_position())
            up = np.array([np.sin(np.deg2rad(angle)), np.cos(np.deg2rad(angle))])
            at = np.array([at_x, self._size[1] - at_y])
            x, y = at + up * (up @ (np.array([x, y]) - at))
        look = (
            f"font-size:{UNITS * prop.get_size_in_points():g}px{anchor};fill:{rgb2hex(color)}"
            + ("" if opacity == 1 else f";opacity:{opacity:.3g}")
            + ("" if weight == 400 else f";font-weight:{weight}")
            + ("" if prop.get_style() == "normal" else f";font-style:{prop.get_style()}")
            + ("" if prop.get_family() == [RC["font.family"]] else f";font-family:{','.join(prop.get_family())}")
        )
        place_x, place_y = round(UNITS * x), round(UNITS * y)
        turned = f' transform="rotate({-angle:g} {place_x} {place_y})"' if angle else ""
        where = f' x="{place_x}" y="{place_y}"{turned}'
        self._add(f"<text{self._class(look)}{where}>{html.escape(s, quote=False)}</text>")

    def get_image_magnification(self) -> float:
        return IMAGE_PIXELS_PER_POINT

    def draw_image(self, gc: Any, x: float, y: float, im: Any, transform: Any = None) -> None:
        from PIL import Image

        height, width = (UNITS * size / IMAGE_PIXELS_PER_POINT for size in im.shape[:2])
        place = f'x="{UNITS * x:g}" y="{UNITS * (self._size[1] - y) - height:g}" width="{width:g}" height="{height:g}"'
        written = io.BytesIO()
        Image.fromarray(im[::-1]).save(written, format="png")
        data = base64.b64encode(written.getvalue()).decode()
        self._add(f'<image {place} href="data:image/png;base64,{data}"/>')

    def _add(self, part: _Line | str) -> None:
        """Rules of one look, as those of a grid, become one path, though labels lie between them."""
        parts = self._groups[-1][1]
        if isinstance(part, _Line) and part.is_rule:
            before = next((one for one in reversed(parts) if not str(one).startswith("<text")), None)
            if isinstance(before, _Line) and before.is_rule and before.attributes == part.attributes:
                before.data += part.data
                return
        parts.append(part)

    def _class(self, look: str) -> str:
        return f' class="{self._sheet.class_of(look)}"' if look else ""

    def _places(self, vertices: FloatArray) -> Points:
        return _whole(self._to_page.transform(vertices))

    def _define(self, tag: str, attributes: str, content: str) -> str:
        """The id of an element for others to refer to."""
        name = f"{self._prefix}.{len(self._definitions)}"
        return self._definitions.setdefault((tag, f"{attributes}>{content}</{tag}>"), name)

    def _look(self, gc: Any, face: Any) -> str:
        """Declarations of CSS; "" for what is not seen."""
        parts = []
        is_alike = gc.get_forced_alpha()  # one opacity for fill and stroke, whatever theirs are
        if is_alike and gc.get_alpha() == 0:
            return ""
        if gc.get_hatch() is not None:
            parts.append(f"fill:url(#{self._hatch(gc, face)})")
        elif face is not None and (is_alike or len(face) < 4 or face[3]):
            parts.append(f"fill:{rgb2hex(face)}")
            if not is_alike and len(face) == 4 and face[3] != 1:
                parts.append(f"fill-opacity:{face[3]:.3g}")
        width, color = gc.get_linewidth(), gc.get_rgb()
        if width and (is_alike or color[3]):
            parts += [f"stroke:{rgb2hex(color)}", f"stroke-width:{UNITS * width:.4g}"]
            if not is_alike and color[3] != 1:
                parts.append(f"stroke-opacity:{color[3]:.3g}")
            offset, dashes = gc.get_dashes()
            if dashes is not None:
                parts.append(f"stroke-dasharray:{','.join(f'{UNITS * one:.4g}' for one in dashes)}")
                if offset:
                    parts.append(f"stroke-dashoffset:{UNITS * offset:.4g}")
            if gc.get_joinstyle() != "round":
                parts.append(f"stroke-linejoin:{gc.get_joinstyle()}")
            if gc.get_capstyle() != "butt":
                parts.append(f"stroke-linecap:{gc.get_capstyle().replace('projecting', 'square')}")
        if parts and is_alike and gc.get_alpha() != 1:
            parts.append(f"opacity:{gc.get_alpha():.3g}")
        return ";".join(parts)

    def _clip(self, gc: Any, points: Points, spill: int) -> str:
        """The attribute that cuts a shape off at the edge of its panel; "" if it reaches no further than `spill` beyond
        it."""
        path, transform = gc.get_clip_path()
        box = gc.get_clip_rectangle()
        if path is not None:
            cut = f'<path d="{path_data(*_outline(path, transform, self._to_page))}"/>'
        elif box is not None:
            corners = self._places(box.corners())
            low, high = corners.min(axis=0), corners.max(axis=0)
            if not len(points) or ((points >= low - spill) & (points <= high + spill)).all():
                return ""
            (x, y), (width, height) = low.tolist(), (high - low).tolist()
            cut = f'<rect x="{x}" y="{y}" width="{width}" height="{height}"/>'
        else:
            return ""
        return f' clip-path="url(#{self._define("clipPath", "", cut)})"'

    def _hatch(self, gc: Any, face: Any) -> str:
        """The id of a pattern."""
        path, edge = gc.get_hatch_path(), rgb2hex(gc.get_hatch_color())
        square = Affine2D().scale(UNITS * HATCH_POINTS, -UNITS * HATCH_POINTS).translate(0, UNITS * HATCH_POINTS)
        codes, points = _outline(path, None, square)
        width = UNITS * gc.get_hatch_linewidth()
        look = f"fill:{edge};stroke:{edge};stroke-width:{width:.4g};stroke-linejoin:miter"
        if set(gc.get_hatch()) == {"."}:  # hundreds of discs: round ends of lines without a length
            discs = np.split(points[:-1], [place for place, code in enumerate(codes) if code == Path.MOVETO][1:])
            look = f"stroke:{edge};stroke-width:{width + int(np.ptp(discs[0][:, 0])):.4g};stroke-linecap:round"
            points = np.array([(disc.min(axis=0) + disc.max(axis=0)) // 2 for disc in discs])
            data = "".join(f"M{_pairs([point])}h0" for point in points.tolist())
        else:
            data = path_data(codes, points)
        side = f'width="{UNITS * HATCH_POINTS}" height="{UNITS * HATCH_POINTS}"'
        back = "" if face is None else f"<rect {side}{self._class(f'fill:{rgb2hex(face)}')}/>"
        hatch = f'{back}<path{self._class(look)} d="{data}"/>'
        return self._define("pattern", f' patternUnits="userSpaceOnUse" {side}', hatch)


@lru_cache(maxsize=4096)
def _text_size(text: str, font: Any, ismath: Any) -> tuple[float, float, float]:
    """Width, height and descent in points: a figure is drawn several times, with the same texts."""
    return text_to_path.get_text_width_height_descent(text, font, ismath)


def _outline(
    path: Path,
    transform: Transform | None,
    to_units: Transform,
    frame: tuple[float, float, float, float] | None = None,
    simplify: bool = False,
) -> tuple[list[int], Points]:
    """Matplotlib's codes [n] and places [n, 2] of a path, which goes on where its numbers are known. frame: what lies
    far outside is left out. simplify: so are points that make no difference to the eye."""
    drawn = path.cleaned(transform, remove_nans=True, clip=frame, simplify=simplify, curves=True)
    return np.asarray(drawn.codes).tolist(), _whole(to_units.transform(np.asarray(drawn.vertices)))


def _whole(places: FloatArray) -> Points:
    whole: Points = np.rint(places).astype(np.int64)
    return whole


def path_data(codes: Sequence[int], points: Points) -> str:
    """The `d` of a path from matplotlib's codes [n] and points [n, 2], up to Path.STOP. Starts are absolute, and steps
    relative. Steps of no length are left out, unless nothing else shows a dot."""
    data: list[str] = []
    letter, i = "", 0
    start = at = (0, 0)
    pairs: list[tuple[int, int]] = [(x, y) for x, y in points.tolist()]
    while codes[i] != Path.STOP:
        if codes[i] == Path.MOVETO:
            start = at = pairs[i]
            data.append(f"M{_pairs([at])}")
            letter, i = "M", i + 1
        elif codes[i] == Path.CLOSEPOLY:
            data.append("z")
            letter, at, i = "z", start, i + 1
        else:
            kind, length = STEPS[codes[i]]
            end = i + length
            while kind == "l" and codes[end] == Path.LINETO:  # lines on end are written at once: they can be thousands
                end += 1
            origins = [at, *pairs[i : end - 1]] if kind == "l" else [at] * length
            steps = [(x - x0, y - y0) for (x, y), (x0, y0) in zip(pairs[i:end], origins, strict=True)]
            i = end
            moving = [step for step in steps if any(step)] if kind == "l" else steps * any(map(any, steps))
            if not moving and letter == "M" and codes[i] in (Path.MOVETO, Path.STOP):
                moving = steps[-length:]
            if moving:
                joint = kind if letter != kind else "" if moving[0][0] < 0 else " "
                data.append(f"{joint}{_pairs(moving)}")
                letter, at = kind, pairs[i - 1]
    return "".join(data)


def _pairs(numbers: Sequence[Sequence[int]]) -> str:
    """Numbers with no more between them than they need: a minus divides as a space does."""
    words = " ".join(f"{x} {y}" for x, y in numbers)
    return words.replace(" -", "-")
