from __future__ import annotations

import math

import numpy as np
import pytest
from matplotlib.lines import Line2D

from harness.records import SweepRecord
from reports.drawing.rendering import Drawing
from reports.drawing.style import GREY
from reports.measure import analyse
from reports.shelves.laws.figures import draw_entropy_law
from reports.statistics import FloatArray
from tests.frozen import frozen
from tests.reports.rewriting import rewrite_rows, write_spec
from tests.reports.synthetic import STEPS, write_sweep

pytestmark = pytest.mark.slow

A, B = 0.2, 0.9


def drawn(sweep) -> Drawing:
    drawing = draw_entropy_law(analyse(sweep))
    assert drawing is not None
    return drawing


def points(line: Line2D) -> FloatArray:
    """[points, 2]."""
    return np.asarray(line.get_xydata(), dtype=np.float64)


@pytest.fixture
def sweep(tmp_path):
    written = write_sweep(tmp_path, {"base": 0.0, "up": 1.0}, seeds=2)
    rewrite_rows(written, "steps.jsonl", lambda row: row | {"reward/mean": B - A * math.exp(row["entropy/full"])})
    return written


def test_points_are_means_of_stretches_the_first_part_filled_the_rest_hollow(sweep):
    drawing = drawn(sweep)
    rows = [row for row in drawing.rows if (row["arm"], row["seed"]) == ("base", 0)]
    assert [row["part"] for row in rows] == ["first"] * 6 + ["later"] * 14
    steps = sweep.cells[0].read_steps()
    assert rows[0]["step"] == 1.5 and rows[-1]["step"] == STEPS - 0.5
    assert rows[0]["entropy_nats"] == pytest.approx(np.mean([row["entropy/full"] for row in steps[:2]]))
    assert rows[0]["reward"] == pytest.approx(np.mean([row["reward/mean"] for row in steps[:2]]))
    first, later = (line for line in drawing.figure.axes[0].lines if line.get_marker() == "o")
    assert (len(points(first)), len(points(later))) == (12, 28)
    assert (first.get_markerfacecolor() == "none", later.get_markerfacecolor() == "none") == (False, True)


def test_the_law_is_drawn_from_the_largest_entropy_to_none_with_its_ceiling_there(sweep):
    axes = drawn(sweep).figure.axes[0]
    (ceiling,) = (line for line in axes.lines if line.get_marker() == "d")
    assert points(ceiling)[0] == pytest.approx([0, B - A])
    law = [line for line in axes.lines if line.get_linestyle() == "-" and len(points(line)) == 100]
    assert len(law) == 2
    for line in law:
        assert line.get_ydata() == pytest.approx(B - A * np.exp(line.get_xdata()))
    (start, _), (end, _) = points(law[0])[0], points(law[0])[-1]
    assert start == 0 and end == points(law[1])[0][0]
    assert axes.get_xlim()[0] < 0 and axes.get_ylim()[1] > B - A


def test_the_forecast_is_the_law_of_the_first_part_in_its_cone(sweep):
    rewrite_rows(sweep, "steps.jsonl", lambda row: row | ({"reward/mean": 0.1} if row["step"] > 12 else {}), arm="base")
    base, up = drawn(sweep).figure.axes[:2]
    for axes in (base, up):
        (line,) = (line for line in axes.lines if line.get_linestyle() == "--" and line.get_color() == GREY)
        assert line.get_ydata() == pytest.approx(B - A * np.exp(line.get_xdata()), abs=1e-6)
        assert len(axes.collections) == 1
    assert ["loses" in axes.get_title(loc="left") for axes in (base, up)] == [True, False]


def noise(sweep: SweepRecord) -> None:
    rng = np.random.default_rng(0)
    rewrite_rows(sweep, "steps.jsonl", lambda row: row | {"reward/mean": rng.normal()})


def narrow(sweep: SweepRecord) -> None:
    rewrite_rows(sweep, "steps.jsonl", lambda row: row | {"entropy/full": 0.5 + 0.0001 * row["step"]}, arm="up")


def sampled(sweep: SweepRecord) -> None:
    write_spec(sweep, "up", {"objective": {"select": {"type": "kl_cov"}}, "rollout": {"temperature": 0.8}})
    rewrite_rows(
        sweep,
        "steps.jsonl",
        lambda row: {k: row[k] for k in row if k != "entropy/full"} | {"entropy/sampled": row["entropy/full"]},
    )


def test_titles_and_captions_say_what_is_drawn_and_what_is_not(sweep):
    """One of each kind, to be read; the changes add up."""
    lines = []
    for change in (None, narrow, sampled, noise):
        if change is not None:
            change(sweep)
        drawing = drawn(sweep)
        titles = [axes.get_title(loc="left").replace("\n", " ") for axes in drawing.figure.axes if axes.get_visible()]
        lines += [f"# {getattr(change, '__name__', 'as the law')}", *titles, drawing.caption]
    frozen("reports/entropy_law", "\n".join(lines))


def test_where_no_training_reward_was_recorded_it_is_of_the_score(sweep):
    rewrite_rows(sweep, "steps.jsonl", lambda row: {key: row[key] for key in row if key != "reward/mean"})
    drawing = drawn(sweep)
    assert "pass@1" in drawing.figure.get_supylabel()
    assert len(drawing.rows) == 2 * 2 * 5  # four evaluations and the score before training


def test_large_entropy_is_drawn_and_entropy_that_is_gone_follows_no_law(sweep):
    rewrite_rows(sweep, "steps.jsonl", lambda row: row | {"entropy/full": 5.0 + 0.01 * row["step"]})
    drawing = drawn(sweep)
    drawing.figure.canvas.draw()
    assert drawing.figure.axes[0].get_xlim()[1] > 5.0
    rewrite_rows(sweep, "steps.jsonl", lambda row: row | {"entropy/full": 0.0})
    assert draw_entropy_law(analyse(sweep)) is None


@pytest.mark.parametrize(("steep", "in_legend"), [([], True), (["base", "up"], False), (["up"], True)])
def test_only_a_ceiling_in_view_is_in_the_legend(sweep, steep, in_legend):
    """Entropy from 2.0 to 2.1 nats and a law whose ceiling is far from every point."""
    for arm in steep:
        rewrite_rows(sweep, "steps.jsonl", lambda row: row | {"entropy/full": 2.1 - 0.1 * row["step"] / STEPS}, arm)
        rewrite_rows(sweep, "steps.jsonl", lambda row: row | {"reward/mean": 9 - math.exp(row["entropy/full"])}, arm)
    labels = [text.get_text() for text in drawn(sweep).figure.legends[0].get_texts()]
    assert any("ceiling" in label for label in labels) == in_legend
