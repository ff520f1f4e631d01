from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Collection
from contextlib import nullcontext
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from harness.records import SweepRecord
from harness.records.cell import EMBEDDINGS_FILE
from reports.drawing.rendering import Drawing
from reports.drawing.style import RC, drawn_narrow
from reports.figures import FIGURES, drawn_figure, in_reading_order, render_figures
from reports.figures.pareto import frontier
from reports.measure import analyse
from reports.measure.curves import SECONDS
from reports.statistics import MIN_PAIRS
from tests.frozen import frozen
from tests.reports.rewriting import rewrite_rows, vary_samples, write_steps
from tests.reports.synthetic import BEST_OF_N, STEPS, TASK, write_sweep

YARDSTICK = "best of n"

pytestmark = pytest.mark.slow

OTHER_TASKS = ["gsm8k", "aime24", "think4:arithmetic", "think8:arithmetic"]
OF_A_FACTORIAL = ("interactions", "cell_means")
"""Other sweeps have none of these figures."""
LONG = "a_name_of_forty_characters_" + 13 * "x"


def test_every_figure_has_a_place_of_its_own_in_the_reading_order():
    places = [figure.order for figure in in_reading_order(FIGURES)]
    assert len(places) > 20 and places == sorted(set(places))


def drawn_texts(figure: Figure) -> list[Text]:
    """Every text that shows; ticks outside the view have one that does not."""
    legends = [text for legend in figure.legends for text in legend.get_texts()]
    ticks, others = [], []
    for axes in figure.axes:
        if not axes.get_visible():
            continue
        others += [child for child in axes.get_children() if isinstance(child, Text)]
        for axis in (axis for axis in (axes.xaxis, axes.yaxis) if axis.get_visible()):
            others.append(axis.label)
            low, high = sorted(axis.get_view_interval())
            ticks += [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    texts = [*figure.texts, *legends, *others, *ticks]
    return [text for text in texts if text.get_visible() and text.get_text().strip()]


@pytest.mark.parametrize(
    ("arms", "seeds", "drawn_for"),
    [
        *((2, 3, nullcontext), (2, 3, drawn_narrow), (12, 3, nullcontext)),
        *(
            pytest.param(arms, seeds, nullcontext, marks=pytest.mark.long)
            for arms, seeds in ((2, 1), (4, 1), (4, 3), (5, 1), (5, 3), (12, 1), (12, 10))
        ),
        pytest.param(12, 3, drawn_narrow, marks=pytest.mark.long),
    ],
)
def test_no_text_is_clipped_and_no_two_texts_overlap(tmp_path, arms, seeds, drawn_for):
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    names = {f"base$_{LONG}": 0.0, **{f"{LONG[:-2]}{i:02}": -4.0 * i for i in range(arms - 1)}}
    sweep = write_sweep(tmp_path, names, seeds=seeds, other_tasks=OTHER_TASKS)
    vary_samples(sweep)
    analysis = analyse(sweep)
    for kind in in_reading_order(FIGURES):
        with rc_context(RC), drawn_for():
            drawing = kind.draw(analysis)
            if kind.name in OF_A_FACTORIAL or (seeds < MIN_PAIRS and kind.name == "variance"):
                assert drawing is None
                continue
            assert drawing is not None
            canvas = FigureCanvasAgg(drawing.figure)
            canvas.draw()
            boxes = [(t.get_text(), t.get_window_extent(canvas.get_renderer())) for t in drawn_texts(drawing.figure)]
        if kind.name in ("forest", "distinct_answers"):
            data = [axes.get_window_extent() for axes in drawing.figure.axes]
            assert not [label for label, box in boxes if any(box.overlaps(panel) for panel in data)]
        width, height = canvas.get_width_height()
        assert len(boxes) > 5
        for label, box in boxes:
            assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height, (kind.name, label)
        for (label, box), (other_label, other) in itertools.combinations(boxes, 2):
            assert not box.overlaps(other), (kind.name, label, other_label)


def test_captions_name_n_and_the_band(tmp_path):
    """Freeze the captions of one seed and of three, to be read."""
    lines = []
    for seeds in (1, 3):
        sweep = write_sweep(tmp_path / f"{seeds}", {"base": 0.0, "up": 1.0}, seeds=seeds, other_tasks=OTHER_TASKS)
        vary_samples(sweep)
        analysis = analyse(sweep)
        kinds = [kind for kind in in_reading_order(FIGURES) if kind.name not in OF_A_FACTORIAL]
        drawings = {kind.name: drawing for kind in kinds if (drawing := kind.draw(analysis)) is not None}
        assert len(drawings) == len(kinds) - (seeds < MIN_PAIRS)  # the variance
        assert all(f"n = {seeds}" in drawing.caption for drawing in drawings.values())
        lines += [f"{seeds}, {name}: {drawing.caption}" for name, drawing in drawings.items()]
    frozen("reports/captions", "\n".join(lines))


def test_what_older_records_lack_is_left_out(tmp_path):
    sweep = write_sweep(tmp_path, {"base": 0.0}, seeds=1, base_scores=[])
    shutil.rmtree(sweep.cells[0].rollouts)
    (sweep.cells[0].path / EMBEDDINGS_FILE).unlink()
    rewrite_rows(sweep, "scores.jsonl", without_newer_metrics)
    rewrite_rows(sweep, "steps.jsonl", lambda row: {key: row[key] for key in ("step", "generated_tokens", "len/mean")})
    assert [figure.name for figure in render_figures(analyse(sweep))] == ["learning", "pass_at_k", "length", "pareto"]
    rewrite_rows(sweep, "scores.jsonl", lambda row: row | {"reliability": None})
    assert "reliability" not in [figure.name for figure in render_figures(analyse(sweep))]


def without_newer_metrics(row: dict[str, Any]) -> dict[str, Any]:
    older = {key: value for key, value in row["metrics"].items() if "maj@" not in key and key != "distinct_answers"}
    return {key: value for key, value in row.items() if key != "reliability"} | {"metrics": older}


def test_reliability_pools_the_samples_of_all_seeds(tmp_path):
    sweep = write_sweep(tmp_path, {"base": 0.0}, seeds=2)
    empty = {"low": 0.0, "high": 0.5, "count": 0, "confidence": None, "correct_frac": None}
    for cell, count in zip(sweep.cells, (30, 10), strict=True):
        filled = {"low": 0.5, "high": 1.0, "count": count, "confidence": 0.02 * count, "correct_frac": 0.4}
        rows = [row | {"reliability": [empty, filled]} for row in cell.read_scores()]
        (cell.path / "scores.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (drawing,) = drawn(sweep, ["reliability"])
    (mean,) = (line for line in drawing.figure.axes[0].lines if line.get_label() == "base (n = 2)")
    assert mean.get_xydata() == pytest.approx(np.array([[(30 * 0.6 + 10 * 0.2) / 40, 0.4]]))
    assert len([row for row in drawing.rows if row["arm"] == "base"]) == 2
    assert {row["seed"] for row in drawing.rows if row["arm"] == "base model"} == {""}


def test_paths_of_proxy_and_truth_are_drawn_in_the_order_of_training(tmp_path):
    """Also where the KL goes back; arms with one yardstick show it once."""
    sweep = write_sweep(tmp_path, {"base": 0.0, "up": 1.0}, seeds=1)
    back = [(1.0, 0.1, 0.3), (4.0, 0.5, 0.5), (2.0, 0.9, 0.4)]
    for cell in sweep.cells:
        rows = [
            {"step": i, "generated_tokens": i, "kl/sequence_start": kl, "reward/reward_model": p, "reward/correct": c}
            for i, (kl, p, c) in enumerate(back, start=1)
        ]
        write_steps(cell, rows)
    (drawing,) = drawn(sweep, ["overoptimisation"])
    proxy, truth = drawing.figure.axes
    (path,) = (line for line in truth.lines if line.get_label() == "up (n = 1)")
    assert path.get_xydata() == pytest.approx(np.array([[1.0, 30], [4.0, 50], [2.0, 40]]))
    labels = [[line.get_label() for line in axes.lines] for axes in (proxy, truth)]
    assert [of_axes.count(YARDSTICK) for of_axes in labels] == [1, 1]
    assert {row["best_of_n"] for row in drawing.rows if "best_of_n" in row} == {1, 2, 4}


def test_arms_with_other_proxies_are_drawn_apart_each_beside_its_own_yardstick(tmp_path):
    other = [row | {"proxy": 2 * row["proxy"]} for row in BEST_OF_N]
    sweep = write_sweep(tmp_path, {"base": 0.0, "noisy": 1.0}, seeds=1, best_of_n={"base": BEST_OF_N, "noisy": other})
    (drawing,) = drawn(sweep, ["overoptimisation"])
    heights = [
        np.max(line.get_ydata())
        for axes in drawing.figure.axes[:2]
        for line in axes.lines
        if line.get_label() == "best of n"
    ]
    assert heights == [1.03, 2.06]


def test_a_policy_that_has_not_moved_is_drawn_without_best_of_n(tmp_path):
    sweep = write_sweep(tmp_path, {"base": 0.0}, seeds=1, best_of_n={})
    rewrite_rows(sweep, "steps.jsonl", lambda row: row | {"kl/sequence_start": 0.0})
    (drawing,) = drawn(sweep, ["overoptimisation"])
    assert "best_of_n" not in drawing.rows[-1]


def drawn(sweep: SweepRecord, names: Collection[str]) -> list[Drawing]:
    analysis = analyse(sweep)
    drawings = [
        drawing
        for kind in in_reading_order(FIGURES)
        if kind.name in names and (drawing := kind.draw(analysis)) is not None
    ]
    assert len(drawings) == len(names)
    return drawings


def test_a_bar_that_is_cut_ends_in_an_arrow(tmp_path):
    sweep = write_sweep(tmp_path, {"base": 0.0, "wild": 0.0}, seeds=3, changes={("wild", 0): {"score": 0.1}})
    (drawing,) = drawn(sweep, ["forest"])
    (axes,) = drawing.figure.axes
    (contrast,) = analyse(sweep).contrasts
    assert contrast.comparison is not None
    (cut,) = (np.max(line.get_xdata()) for line in axes.lines if line.get_marker() == ">")
    assert max(contrast.differences_pp) < cut < contrast.comparison.high
    assert "Arrow" in drawing.caption


def test_the_frontier_is_what_no_other_beats():
    points = [(10.0, 50.0), (20.0, 60.0), (15.0, 40.0), (20.0, 55.0), (30.0, 60.0), (40.0, 70.0)]
    assert frontier(points) == [(10.0, 50.0), (20.0, 60.0), (40.0, 70.0)]
    assert frontier([]) == []


def test_the_truth_is_drawn_beside_a_reward_that_is_something_else(tmp_path):
    sweep = write_sweep(tmp_path, {"base": 0.0, "proxy": 0.0}, seeds=1)
    rewrite_rows(sweep, "steps.jsonl", lambda row: row | {"reward/mean": row["reward/correct"]})
    drawings = [kind.draw(analyse(sweep)) for kind in in_reading_order(FIGURES) if kind.name == "proxy"]
    assert drawings == [None], "all are trained on the truth"
    rewrite_rows(sweep, "steps.jsonl", lambda row: row | {"reward/mean": 1 - row["reward/correct"]}, arm="proxy")
    (drawing,) = drawn(sweep, ["proxy"])
    points = [(row["reward/mean"], row["reward/correct"]) for row in drawing.rows if row["arm"] == "proxy"]
    assert all(reward == pytest.approx(1 - float(truth)) for reward, truth in points)


def test_the_paired_difference_ends_at_the_differences_of_the_verdict(tmp_path):
    changes = {(arm, seed): {"generated_tokens": 200_000} for arm in ("base", "up") for seed in range(3)}
    sweep = write_sweep(tmp_path, {"base": 0.0, "up": 3.0}, seeds=3, changes=changes)
    rewrite_rows(sweep, "scores.jsonl", lambda row: row | {"generated_tokens": 5000 * row["step"]})
    (drawing,) = drawn(sweep, ["paired_difference"])
    last = [row["difference_pp"] for row in drawing.rows if row["generated_tokens"] == 5000 * STEPS]
    assert last == pytest.approx(analyse(sweep).contrasts[0].differences_pp)
    first = [row["difference_pp"] for row in drawing.rows if row["generated_tokens"] == 0]
    assert first == [0, 0, 0]


def test_the_forest_has_every_task_and_names_an_arm_that_it_cannot_show(tmp_path):
    arms = {"base": 0.0, "broken": 0.0, "up": 3.0, "partial": 0.0}
    changes = {("broken", seed): {"state": "failed"} for seed in range(2)}
    sweep = write_sweep(tmp_path, arms, seeds=2, changes=changes, other_tasks=OTHER_TASKS[:1])
    rewrite_rows(sweep, "scores.jsonl", lambda row: row | {"final": row["final"] and row["task"] == TASK}, "partial")
    (drawing,) = drawn(sweep, ["forest"])
    headings = [text.get_text() for axes in drawing.figure.axes for text in axes.texts]
    assert [(heading.split()[0], "not" in heading) for heading in headings] == [(TASK, False), ("gsm8k", True)]
    assert {row["task"] for row in drawing.rows} == {TASK, "gsm8k"}
    assert [axes.get_title(loc="left") for axes in drawing.figure.axes] == ["up", "partial", "up"]
    assert drawing.caption.rpartition(": ")[2].split() == ["broken;", "partial", "on", "gsm8k."]


def test_arms_over_all_tasks_the_baseline_first_and_absent_ones_by_name(tmp_path):
    arms = {"up": 3.0, "base": 0.0, "broken": 0.0}
    changes = {("broken", seed): {"state": "failed"} for seed in range(6)}
    sweep = write_sweep(tmp_path / "s", arms, seeds=6, changes=changes, other_tasks=OTHER_TASKS, baseline="base")
    (drawing,) = drawn(sweep, ["across_tasks"])
    panels = [
        axes.get_title(loc="left") or "".join(text.get_text() for text in axes.texts) for axes in drawing.figure.axes
    ]
    assert panels == ["base", "baseline", "up", ""]
    assert [set(row) >= {"improvement", "improvement_low"} for row in drawing.rows] == [False, True]
    assert drawing.caption.endswith(": broken.")
    alone = write_sweep(tmp_path / "alone", {"base": 0.0}, seeds=1, other_tasks=OTHER_TASKS)
    (drawing,) = drawn(alone, ["across_tasks"])
    assert len(drawing.figure.axes) == 1


def test_learning_is_seen_over_tokens_steps_and_seconds_on_a_telephone_and_with_marks_for_a_script(tmp_path):
    sweep = write_sweep(tmp_path, {"base": 0.0, 'other "<&>"': 1.0}, seeds=3)
    figure = drawn_figure(analyse(sweep), "learning")
    assert figure is not None
    assert [view.over.split()[0] for view in figure.views] == ["generated", "generated", "training", "seconds"]
    assert [view.narrow for view in figure.views] == [False, True, False, False]
    wide, narrow = (re.search(r'viewBox="0 0 ([\d.]+) ', view.inline) for view in figure.views[:2])
    assert wide is not None and narrow is not None and float(narrow[1]) < 0.6 * float(wide[1])
    assert all("<text" in view.inline and view.over in view.inline for view in figure.views)
    parsed = ElementTree.fromstring(figure.svg)
    marks = {(one.get("data-arm"), one.get("data-kind"), one.get("data-seeds")) for one in parsed.iter()}
    for arm in sweep.arms:
        seeds = " ".join(map(str, range(3)))
        assert {(arm, "mean", None), (arm, "seed", seeds), (arm, "interval", None)} <= marks
    (panel,) = [json.loads(axes) for one in parsed.iter() if (axes := one.get("data-axes")) is not None]
    assert panel["x"]["label"] == "generated tokens" and panel["x"]["low"] == 0 < panel["x"]["high"]
    assert panel["y"]["label"].endswith("(%)")


def test_a_panel_of_an_arm_that_recorded_nothing_says_so(tmp_path):
    sweep = write_sweep(tmp_path, {"base": 0.0, "offline": 3.0}, seeds=1)
    rewrite_rows(
        sweep, "steps.jsonl", lambda row: {k: v for k, v in row.items() if k != "kl/exact_start"}, arm="offline"
    )
    (drawing,) = drawn(sweep, ["stability"])
    texts = ["".join(text.get_text() for text in axes.texts) for axes in drawing.figure.axes]
    assert ["not recorded" in text for text in texts] == [place == 4 for place in range(6)]


def test_distinct_answers_are_compared_at_equal_samples_only(tmp_path):
    sweep = write_sweep(tmp_path, {"base": 0.0, "up": 1.0}, seeds=3)
    (drawing,) = drawn(sweep, ["distinct_answers"])
    assert [row["distinct_answers"] for row in drawing.rows if row["arm"] == "base model"] == [3.5]
    rewrite_rows(sweep, "scores.jsonl", lambda row: row | {"n_samples": 4})
    (drawing,) = drawn(sweep, ["distinct_answers"])
    assert "base model" not in [row["arm"] for row in drawing.rows]
    assert "4 samples" in drawing.caption


def test_seconds_are_the_sum_over_steps(tmp_path):
    sweep = write_sweep(tmp_path, {"base": 0.0}, seeds=1)
    rewrite_rows(sweep, "timing.jsonl", lambda row: row | {"total_s": 2.0} if "total_s" in row else row)
    (measurement,) = analyse(sweep).measurements["base"]
    np.testing.assert_allclose(SECONDS.of_steps(measurement), 2.0 * np.arange(1, measurement.steps.length + 1))
    last = measurement.evaluations[-1]
    assert SECONDS.of_evaluation(measurement, last) == pytest.approx(2.0 * measurement.steps.length)
