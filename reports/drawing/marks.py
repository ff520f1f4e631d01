"""Labels that tell a page's script what each part of a figure shows.

The script reads them from attributes of the SVG:

    data-arm      the arm that a line, band, dot or name belongs to
    data-kind     `mean`, `seed`, `interval` (a band or a bar) or `name`
    data-seeds    the seeds of a line or of dots, in drawing order
    data-axes     on the background of a panel: the limits and names of its axes, as JSON

Matplotlib's artists carry these attributes in their ids.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal
from urllib.parse import parse_qsl, urlencode

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend

Kind = Literal["mean", "seed", "interval", "name"]
_PREFIX = "mark?"


def mark(artist: Artist, arm: str, kind: Kind, seeds: Sequence[int] = ()) -> None:
    """Record in an artist's id what it shows. seeds: the seeds of the segments of a line with gaps, or of dots."""
    _carry(artist, {"arm": arm, "kind": kind, "seeds": " ".join(map(str, seeds))})


def mark_legend(legend: Legend, handles: Sequence[Artist]) -> None:
    """Mark the entries of a legend with the arms of their handles, if the handles are marked."""
    for handle, drawn, text in zip(handles, legend.legend_handles, legend.get_texts(), strict=True):
        arm = attributes_of(str(handle.get_gid() or "")).get("arm")
        if arm is not None:
            for entry in (drawn, text):
                if entry is not None:
                    mark(entry, arm, "name")


def name_axes(axes: Axes, x: str, y: str) -> None:
    """Record the names of a panel's axes if the axes themselves have no labels."""
    # Matplotlib never draws the label of an Axes object, so it can carry the names until `mark_panels` reads them.
    axes.set_label(json.dumps({"x": x, "y": y}))


def mark_panels(figure: Figure) -> None:
    """Write the limits and names of all axes onto the backgrounds of their panels.

    Call this after everything is drawn, when limits no longer change.
    """
    for axes in figure.axes:
        label = str(axes.get_label())
        named = json.loads(label) if label.startswith("{") else {}
        ends: dict[str, dict[str, object]] = {}
        for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
            low, high = axis.get_view_interval()
            what = named.get(name, axis.get_label_text())
            ends[name] = {"low": float(f"{low:.7g}"), "high": float(f"{high:.7g}"), "label": what}
            if axis.get_scale() != "linear":
                ends[name]["scale"] = axis.get_scale()
        _carry(axes.patch, {"axes": json.dumps(ends, ensure_ascii=False, separators=(",", ":"))})


def attributes_of(gid: str) -> dict[str, str]:
    """Return the attributes in an artist's id; {} if `mark` did not write it."""
    return dict(parse_qsl(gid.removeprefix(_PREFIX))) if gid.startswith(_PREFIX) else {}


def _carry(artist: Artist, attributes: dict[str, str]) -> None:
    artist.set_gid(_PREFIX + urlencode(attributes))
