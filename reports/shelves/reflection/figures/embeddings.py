"""Reflection tokens in a plane of the policy's input embeddings: their positions, and how training moved them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from harness.words import said
from reports.drawing.curves import PANEL_CHARACTERS, arm_label, panel_columns, seeds_per_arm
from reports.drawing.marks import mark
from reports.drawing.panels import Panels, legend_at_bottom, share_axes
from reports.drawing.rendering import DataRow, Drawing
from reports.drawing.style import GREY, INK, SEED_ALPHA, ArmStyle, arm_styles, is_narrow
from reports.figures import Figure
from reports.formats import number, percent
from reports.measure import Analysis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

    from harness.records.embeddings import EmbeddedToken
    from reports.statistics import FloatArray

LONGEST_ARROW_FRAC = 0.3
"""Arrows are lengthened by the largest power of ten for which none exceeds this share of the panel."""
CHARACTER_POINTS, LINE_POINTS = 4.4, 8.0
"""The width of a label's character and the height of its line."""
OFFSET_POINTS = (3.0, 1.0)
"""The offset of a label from its token."""
PANEL_IN = 2.3
LABELS = ("tokens of reflection words", "tokens nearest to them")


@dataclass(frozen=True)
class ArmPlane:
    """The tokens of an arm in the plane of its starting model, which its seeds share."""

    tokens: list[EmbeddedToken]
    """The tokens recorded by the first seed."""
    ends: dict[int, FloatArray]
    """The positions after training, by seed [N, 2]."""
    moved: FloatArray
    """The distance between start and end in all dimensions [seeds, N]."""

    @property
    def starts(self) -> FloatArray:
        return _places(self.tokens, "start")

    @property
    def steps(self) -> FloatArray:
        """The movement of each token from its start to its mean end position [N, 2]."""
        mean: FloatArray = np.mean([*self.ends.values()], axis=0) - self.starts
        return mean


def draw_embeddings(analysis: Analysis) -> Drawing | None:
    """Draw a panel of tokens and arrows for each arm; None if no cell recorded the positions of its tokens."""
    sweep = analysis.sweep
    planes = {
        arm: plane
        for arm, cells in analysis.measurements.items()
        if (plane := _plane({m.cell.seed: m.cell.read_embeddings() for m in cells})) is not None
    }
    if not planes:
        return None
    styles = arm_styles(sweep.arms, sweep.baseline)
    first = next(iter(planes.values()))
    is_one_plane = all(_agree(plane.tokens, first.tokens) for plane in planes.values())
    factor = _factor([*planes.values()])
    columns = panel_columns()
    rows = -(-len(planes) // columns)
    layout = Panels(rows, columns, PANEL_IN, column_gap=0.55, row_gap=0.45, left=0.65, top=0.45)
    figure, panels = layout.draw_some(len(planes), LABELS)
    for (arm, plane), panel in zip(planes.items(), panels, strict=True):
        _draw_plane(panel, arm, plane, styles[arm], factor)
        panel.set_title(arm_label(arm, len(plane.ends), PANEL_CHARACTERS), loc="left")
        panel.locator_params(nbins=4)
    if is_one_plane:
        # Arms with different starting models have planes of their own, whose coordinates are not comparable.
        share_axes(panels, columns)
    for panel in panels[-columns:]:
        panel.set_xlabel("first component")
    # Write labels after setting the limits, because overlaps depend on the final scale. A point is 1/72 of an inch.
    for plane, panel in zip(planes.values(), panels, strict=True):
        _write_labels(panel, plane, 72 / figure.dpi)
    for panel in panels[::columns]:
        panel.set_ylabel("second component")
        panel.yaxis.set_label_coords(-0.13 if is_narrow() else -0.18, 0.5)
    legend_at_bottom(figure, _legend())
    return Drawing(figure, _caption(planes, factor, is_one_plane), _rows(planes))


def _plane(by_seed: Mapping[int, list[EmbeddedToken]]) -> ArmPlane | None:
    """Return the seeds whose tokens start like those of the first recorded seed; None if no seed recorded any."""
    found = {seed: tokens for seed, tokens in by_seed.items() if tokens}
    if not found:
        return None
    first = next(iter(found.values()))
    alike = {seed: tokens for seed, tokens in found.items() if _agree(tokens, first)}
    ends = {seed: _places(tokens, "end") for seed, tokens in alike.items()}
    return ArmPlane(first, ends, np.array([[one["moved"] for one in tokens] for tokens in alike.values()]))


def _places(tokens: Sequence[EmbeddedToken], which: str) -> FloatArray:
    columns: list[dict[str, object]] = [{**token} for token in tokens]
    return np.array([[token[f"{which}_x"], token[f"{which}_y"]] for token in columns])


def _agree(tokens: Sequence[EmbeddedToken], others: Sequence[EmbeddedToken]) -> bool:
    """Return whether these are the same tokens at the same positions, up to rounding on another machine."""
    if [token["token"] for token in tokens] != [token["token"] for token in others]:
        return False
    scale = max(token["centre_distance"] for token in others)
    return bool(np.allclose(_places(tokens, "start"), _places(others, "start"), rtol=0, atol=1e-4 * scale))


def _factor(planes: Sequence[ArmPlane]) -> int:
    """Return the factor by which arrows are longer than the movement."""
    longest = max(float(np.linalg.norm(plane.steps, axis=1).max()) for plane in planes)
    span = max(float(np.ptp(plane.starts, axis=0).max()) for plane in planes)
    if longest == 0:
        return 1
    power = math.floor(math.log10(LONGEST_ARROW_FRAC * span / longest))
    return int(10 ** max(0, power))


def _draw_plane(panel: Axes, arm: str, plane: ArmPlane, style: ArmStyle, factor: int) -> None:
    """Draw the tokens of an arm, thin lines for the movement in each seed, and arrows for the mean movement."""
    starts, gap = plane.starts, np.full((len(plane.tokens), 2), np.nan)
    ways = [np.stack([starts, starts + factor * (end - starts), gap], axis=1) for end in plane.ends.values()]
    if len(ways) > 1:
        x, y = np.concatenate([way.reshape(-1, 2) for way in ways]).T
        # One line with gaps is several times as fast to draw as one line per token.
        mark(panel.plot(x, y, color=style.color, linewidth=0.5, alpha=SEED_ALPHA)[0], arm, "seed")
    tips = starts + factor * plane.steps
    # Matplotlib's automatic limits do not include the tips of a quiver plot.
    panel.update_datalim(tips)
    of_word = np.array([token["word"] is not None for token in plane.tokens])
    for chosen, color, marker in ((~of_word, GREY, "x"), (of_word, style.color, "o")):
        if not chosen.any():
            continue
        x, y = starts[chosen].T
        panel.plot(x, y, linestyle="", marker=marker, markersize=3.5, color=color)
        u, v = (tips - starts)[chosen].T
        arrows = panel.quiver(x, y, u, v, angles="xy", scale_units="xy", scale=1, width=0.006, color=color)
        mark(arrows, arm, "mean")
    panel.margins(0.12)
    panel.autoscale_view()


def _write_labels(panel: Axes, plane: ArmPlane, points: float) -> None:
    """Write the text of each token next to its start, unless it would cover another label or leave the panel.

    Tokens of reflection words have priority. points: the size of a pixel in points.
    """
    order = sorted(plane.tokens, key=lambda token: token["word"] is None)
    at = points * panel.transData.transform(_places(order, "start"))
    right = points * panel.get_window_extent().x1
    taken: list[tuple[float, float, float, float]] = []
    for token, (x, y) in zip(order, at.tolist(), strict=True):
        # `repr` makes line breaks and other invisible characters visible.
        text = repr(token["text"])[1:-1].strip()
        left, low = x + OFFSET_POINTS[0], y + OFFSET_POINTS[1]
        box = (left, low, left + CHARACTER_POINTS * len(text), low + LINE_POINTS)
        if box[2] > right or any(_overlap(box, other) for other in taken):
            continue
        taken.append(box)
        color, place = INK if token["word"] is not None else GREY, (token["start_x"], token["start_y"])
        panel.annotate(text, place, OFFSET_POINTS, textcoords="offset points", color=color, fontsize=7)


def _overlap(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _legend() -> list[Line2D]:
    from matplotlib.lines import Line2D

    looks = (ArmStyle(INK, "o", ""), ArmStyle(GREY, "x", ""))
    return [
        Line2D([], [], color=look.color, linestyle=look.dash, marker=look.marker, markersize=3.5, label=label)
        for look, label in zip(looks, LABELS, strict=True)
    ]


def _caption(planes: dict[str, ArmPlane], factor: int, is_one_plane: bool) -> str:
    first = next(iter(planes.values()))
    words = ", ".join(dict.fromkeys(token["word"] for token in first.tokens if token["word"] is not None))
    moved = np.concatenate([plane.moved.ravel() for plane in planes.values()])
    in_plane = np.concatenate(
        [np.linalg.norm(end - plane.starts, axis=1) for plane in planes.values() for end in plane.ends.values()]
    )
    spread = sum(token["centre_distance"] ** 2 for token in first.tokens)
    parts = [
        said("reports.shelves.reflection.input_embeddings_tokens_write", words=words),
        said("reports.shelves.reflection.holds_their_variance", sum=percent(float((first.starts**2).sum() / spread))),
        "" if is_one_plane else said("reports.shelves.reflection.arms_start_from_different"),
    ]
    if moved.any():
        longer = "" if factor == 1 else said("reports.shelves.reflection.drawn_times_as_long", factor=factor)
        in_plane_frac = float((in_plane**2).sum() / (moved**2).sum())
        parts += [
            said(
                "reports.shelves.reflection.arrow_leads_from_tokens",
                longer=longer,
                seeds_per_arm=seeds_per_arm([len(plane.ends) for plane in planes.values()]),
            ),
            said(
                "reports.shelves.reflection.tokens_moved_up_where",
                max=number(float(moved.max())),
                sqrt=number(math.sqrt(spread / len(first.tokens))),
                in_plane_frac=percent(in_plane_frac),
            ),
        ]
    else:
        n = seeds_per_arm([len(plane.ends) for plane in planes.values()])
        parts.append(said("reports.shelves.reflection.none_them_moved_these", n=n))
    parts.append(said("reports.shelves.reflection.labels_would_cover_another"))
    return " ".join(part for part in parts if part)


def _rows(planes: dict[str, ArmPlane]) -> list[DataRow]:
    return [
        {
            **{"arm": arm, "seed": seed, "token": token["token"], "text": token["text"], "word": token["word"] or ""},
            **{"start_x": token["start_x"], "start_y": token["start_y"], "end_x": end_x, "end_y": end_y},
            "moved": length,
        }
        for arm, plane in planes.items()
        for (seed, ends), moved in zip(plane.ends.items(), plane.moved.tolist(), strict=True)
        for token, (end_x, end_y), length in zip(plane.tokens, ends.tolist(), moved, strict=True)
    ]


EMBEDDINGS = Figure(
    name="reflection_embeddings",
    title=said("reports.shelves.reflection.reflection_tokens_among_embeddings"),
    draw=draw_embeddings,
    group="Policy",
    order=225,
)
