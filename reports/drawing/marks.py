"""What the parts of a drawing stand for, as attributes of the SVG that a page's script reads.

    data-arm      the arm that a line, band, dot or name belongs to
    data-kind     `mean`, `seed`, `interval` (a band or a bar) or `name`
    data-seeds    the seeds of a line or of dots, in the order in which they are drawn
    data-axes     on the background of a panel: the ends and the names of its axes, as JSON

matplotlib writes only ids, so that a drawing carries them there until `as_attributes` rewrites them.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import parse_qsl, urlencode

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend

Kind = Literal["mean", "seed", "interval", "name"]
_PREFIX = "mark?"


def mark(artist: Artist, arm: str, kind: Kind, seeds: Sequence[int] = ()) -> None:
    """Say what an artist shows. seeds: those of the parts of a line with gaps, or of dots."""
    _carry(artist, {"arm": arm, "kind": kind, "seeds": " ".join(map(str, seeds))})


def mark_legend(legend: Legend, handles: Sequence[Artist]) -> None:
    """Say of the entries of a legend whose they are, where their handles are marked."""
    for handle, drawn, text in zip(handles, legend.legend_handles, legend.get_texts(), strict=True):
        arm = dict(parse_qsl(str(handle.get_gid() or "").removeprefix(_PREFIX))).get("arm")
        if arm is not None:
            for entry in (drawn, text):
                if entry is not None:
                    mark(entry, arm, "name")


def name_axes(axes: Axes, x: str, y: str) -> None:
    """Name what the axes of a panel measure, where a label stands elsewhere."""
    axes.set_label(json.dumps({"x": x, "y": y}))


def mark_panels(figure: Figure) -> None:
    """Write the ends and the names of all axes onto the backgrounds of their panels. Call it when all is drawn."""
    for axes in figure.axes:
        label = str(axes.get_label())
        named = json.loads(label) if label.startswith("{") else {}
        ends: dict[str, Any] = {}
        for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
            low, high = axis.get_view_interval()
            what = named.get(name, axis.get_label_text())
            low, high = (float(f"{end:.6g}") for end in (low, high))
            ends[name] = {"low": low, "high": high, "scale": axis.get_scale(), "label": what}
        _carry(axes.patch, {"axes": json.dumps(ends, ensure_ascii=False)})


def as_attributes(svg: str) -> str:
    """The SVG with the ids of marks rewritten as attributes."""

    def rewrite(found: re.Match[str]) -> str:
        pairs = parse_qsl(html.unescape(found[1]))
        return "".join(f' data-{name}="{html.escape(value)}"' for name, value in pairs if value)

    return re.sub(r' id="' + re.escape(_PREFIX) + r'([^"]*)"', rewrite, svg)


def _carry(artist: Artist, attributes: dict[str, str]) -> None:
    artist.set_gid(_PREFIX + urlencode(attributes))
