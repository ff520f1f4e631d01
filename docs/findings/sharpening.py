"""The claim about all runs: whether training sharpened what the model could do already, or discovered something."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from docs.findings.answer import OUTCOMES, Judged, Kept
from docs.findings.source import Finding
from reports.drawing.rendering import Drawing, render_figure
from reports.drawing.style import GREY, INK, new_figure, short_name
from reports.formats import count, markdown_table, percent
from reports.report import CoverageRow

CEILING = 0.98
"""Where the model before training solves this share or more within k samples, there is no room to discover."""
_ROW_IN, _AXIS_IN = 0.24, 0.7


def figure_name(finding: Finding) -> str:
    return f"{finding.number:02d}_{finding.name}.svg"


def section(finding: Finding, found: Sequence[Judged], others: Sequence[Kept]) -> str:
    """By run, how many arms have which word, and whether there was room to discover. An arm with the cells of an arm of
    another run is counted with the first of them."""
    rows = []
    for one in others:
        counts = Counter(arm.outcome for arm in found if arm.run == one.folder.name)
        if not counts:
            continue
        k = max(row.k[-1] for row in _trained(one))
        before = one.before.get(f"pass@{k}")
        room = "unknown" if before is None else "no" if before >= CEILING else "yes"
        rows.append([one.folder.name, str(k), percent(before), room, *(str(counts[outcome]) for outcome in OUTCOMES)])
    columns = ["run", "largest k", "pass@k before training, at the largest k", "room to discover"]
    return _SECTION.format(
        arms=count(len(found), "arm"),
        table=markdown_table([*columns, "arms that sharpened", "arms that discovered", "arms undecided"], rows),
        ceiling=percent(CEILING),
        figure=figure_name(finding),
    )


_SECTION = """The table counts {arms} of all findings. Each is compared with the model that it started from.

{table}

An arm sharpened (the claim is shown) if pass@1 rose and pass@k fell at some large k. It discovered (the claim is
refuted) if pass@k rose at some large k. A k counts as large from half of the largest k upward. The intervals hold for
all k jointly. There is no room to discover if the model before training already solves {ceiling} of the problems or
more within the largest k samples.

![Change in the pass@1 of baselines, and in their pass@k at the largest k]({figure})
"""


def figure(others: Sequence[Kept]) -> str:
    """An SVG: for every run, by how much training changed pass@k in the cells of the baseline, at k = 1 and at the
    largest k, with its interval."""
    rows = [*_baselines(others)]

    def draw() -> Drawing:
        drawn = new_figure(_ROW_IN * len(rows) + _AXIS_IN)
        for at, (axes, title) in enumerate(zip(drawn.subplots(1, 2, sharey=True), ("k = 1", "largest k"), strict=True)):
            place = (0, -1)[at]
            for y, (_, row) in enumerate(rows):
                middle, low, high = row.difference_pp[place], row.low_pp[place], row.high_pp[place]
                axes.plot([low, high], [y, y], color=INK, linewidth=1.5)
                axes.plot(middle, y, "o", color=INK, markersize=4)
            axes.axvline(0, color=GREY, linewidth=0.9)
            axes.set_title(title)
            axes.set_xlabel("trained - before (pp)")
            axes.set_yticks(range(len(rows)), labels=[short_name(name) for name, _ in rows])
            axes.set_ylim(len(rows) - 0.5, -0.5)
        return Drawing(drawn, "", [])

    rendered = render_figure(
        "sharpening", "Change in the pass@1 of baselines, and in their pass@k at the largest k", draw
    )
    assert rendered is not None
    return rendered.svg


def _baselines(others: Sequence[Kept]) -> Iterator[tuple[str, CoverageRow]]:
    for one in others:
        row = next((row for row in _trained(one) if row.arm == one.sweep.baseline), None)
        if row is not None:
            yield one.folder.name, row


def _trained(kept: Kept) -> list[CoverageRow]:
    """The coverage of its arms against the model before training."""
    return [row for row in kept.report.coverage if row.against is None]
