from __future__ import annotations

import itertools
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.lines import Line2D

from harness.records.study import RangeRecord, StudyRecord
from reports.drawing.rendering import Drawing
from reports.drawing.style import RC
from reports.figures import in_reading_order
from reports.search.drawing import KnobAxis
from reports.search.figures import SEARCH_FIGURES, render_search_figures
from reports.search.values import objectives_of
from tests.frozen import frozen
from tests.reports.figures.test_figures import drawn_texts
from tests.reports.search.studies import LONG_KNOBS, Changes, study_document, write_study

pytestmark = pytest.mark.slow

VARIED: Changes = {
    5: {"same_as": 2},
    12: {"flags": ["nan"]},
    38: {"state": "running", "values": None, "reason": None, "intermediate": []},
}
FAILED: Changes = {
    number: {"state": "failed", "values": None, "reason": "broke", "intermediate": []} for number in range(5)
}
EVERY_FIGURE = {
    *("pareto", "history", "history_2", "importance", "importance_2", "parallel_coordinates", "slices", "slices_2"),
    "intermediate",
}
LONG_TASK = {"metric": "eval.final./a/folder/with/a_long_name/of_problems.jsonl.pass@1", "direction": "maximize"}


def drawings(study: StudyRecord) -> dict[str, Drawing]:
    """By name of the figure, and of the second objective."""
    drawn: dict[str, Drawing] = {}
    with mpl.rc_context(RC):
        for kind in in_reading_order(SEARCH_FIGURES):
            for objective in objectives_of(study)[: 2 if kind.each_objective else 1]:
                drawing = kind.draw(study, objective)
                if drawing is not None:
                    drawn[f"{kind.name}{'' if objective.index == 0 else '_2'}"] = drawing
    return drawn


def points(line: Line2D) -> tuple[list[float], list[float]]:
    return np.asarray(line.get_xdata(), dtype=float).tolist(), np.asarray(line.get_ydata(), dtype=float).tolist()


@pytest.mark.parametrize(
    "document",
    [
        study_document(40, changes=VARIED),
        study_document(40, objectives=2),
        study_document(40, knobs=LONG_KNOBS) | {"objectives": [LONG_TASK]},
        study_document(2),
        study_document(9, knobs={"train.steps": {"kind": "int", "low": 5, "high": 5}}),
    ],
    ids=["forty", "two objectives", "long names", "two trials", "one knob"],
)
def test_no_text_is_clipped_and_no_two_texts_overlap(tmp_path, document):
    for name, drawing in drawings(write_study(tmp_path, document)).items():
        with mpl.rc_context(RC):
            canvas = FigureCanvasAgg(drawing.figure)
            canvas.draw()
            boxes = [(t.get_text(), t.get_window_extent(canvas.get_renderer())) for t in drawn_texts(drawing.figure)]
        width, height = canvas.get_width_height()
        assert len(boxes) > 3
        for label, box in boxes:
            assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height, (name, label)
        for (label, box), (other_label, other) in itertools.combinations(boxes, 2):
            assert not box.overlaps(other), (name, label, other_label)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (study_document(40), {"history", "importance", "parallel_coordinates", "slices", "intermediate"}),
        (study_document(40, objectives=2), EVERY_FIGURE - {"intermediate"}),
        (study_document(1), {"history", "intermediate"}),
        (study_document(5, changes=FAILED), set()),
        (study_document(0), set()),
        (study_document(3) | {"knobs": {}, "trials": [{**t, "params": {}} for t in study_document(3)["trials"]]},
         {"history", "intermediate"}),
    ],
    ids=["forty", "two objectives", "one", "all failed", "none", "no knobs"],
)  # fmt: skip
def test_what_cannot_be_shown_is_left_out(tmp_path, document, expected):
    assert set(drawings(write_study(tmp_path, document))) == expected


def test_captions_say_n(tmp_path):
    captions: dict[str, str] = {}
    for name, document in {"one": study_document(20, changes=VARIED), "two": study_document(20, objectives=2)}.items():
        captions |= {f"{name}, {key}": of.caption for key, of in drawings(write_study(tmp_path, document)).items()}
    assert all("n = " in caption for caption in captions.values())
    frozen("reports/search_captions", "\n".join(f"{name}: {caption}" for name, caption in captions.items()))


def test_history_is_the_best_so_far(tmp_path):
    drawing = drawings(write_study(tmp_path, study_document(40, changes=VARIED)))["history"]
    (line,) = [line for line in drawing.figure.axes[0].lines if line.get_label() == "best so far"]
    numbers, levels = points(line)
    assert (numbers, [round(level, 1) for level in levels]) == ([0, 1, 6, 7, 39], [70.0, 71.4, 74.8, 79.6, 79.6])
    kinds = {line.get_label() for line in drawing.figure.axes[0].lines}
    assert len(kinds) >= 7


def test_the_second_objective_has_figures_of_its_own(tmp_path):
    """With files and titles of their own."""
    knobs: dict[str, Any] = {"train.steps": {"kind": "int", "low": 5, "high": 9}}
    figures = render_search_figures(write_study(tmp_path, study_document(12, objectives=2, knobs=knobs)))
    assert {figure.name for figure in figures} == EVERY_FIGURE - {"intermediate"}
    titles = {figure.title for figure in figures}
    assert len(titles) == len(figures) and sum(title.endswith("tokens") for title in titles) == 3


@pytest.mark.parametrize(("direction", "style"), [("minimize", "steps-post"), ("maximize", "steps-pre")])
def test_the_front_runs_along_what_was_reached(tmp_path, direction, style):
    document = study_document(40, objectives=2)
    document["objectives"][1] = {"metric": "eval.final.gsm8k.pass@1", "direction": direction}
    document["trials"] = [t | {"values": t["values"] and [t["values"][0], 0.5]} for t in document["trials"]]
    drawing = drawings(write_study(tmp_path, document))["pareto"]
    (line,) = [line for line in drawing.figure.axes[0].lines if line.get_label() == "front"]
    assert line.get_drawstyle() == style
    numbers = [text.get_text() for text in drawing.figure.axes[0].texts]
    assert "7" in numbers and len(numbers) == len(set(numbers)) <= 6
    assert {row["trial"] for row in drawing.rows if row["on_front"]} == {4, 6, 7, 20, 25, 34}


def test_only_complete_trials_are_compared(tmp_path):
    """A pruned trial's value would be of half a training."""
    document = study_document(20, changes={3: {"values": [0.99]}})
    study = write_study(tmp_path, document)
    assert all(row["trial"] != 3 for name in ("slices", "parallel_coordinates") for row in drawings(study)[name].rows)


def test_curves_end_where_their_trials_were_pruned(tmp_path):
    drawing = drawings(write_study(tmp_path, study_document(20)))["intermediate"]
    crosses = [line for line in drawing.figure.axes[0].lines if line.get_marker() == "x" and len(points(line)[0]) == 1]
    assert [points(line)[0] for line in crosses] == 6 * [[20.0]]
    axes = drawing.figure.axes[0]
    assert axes.get_xlabel() == "step"
    by_seed = drawings(write_study(tmp_path, study_document(20, pruner={"type": "wilcoxon"})))["intermediate"]
    axes = by_seed.figure.axes[0]
    assert axes.get_xlabel() == "training seed"
    document = study_document(3, changes={number: {"intermediate": [[1, None]]} for number in range(3)})
    assert "intermediate" not in drawings(write_study(tmp_path, document))


def knob(
    kind: Any, low: float | None = None, high: float | None = None, choices: list[Any] | None = None
) -> RangeRecord:
    return RangeRecord(kind, low, high, None, choices, {})


@pytest.mark.parametrize(
    ("axis", "value", "place"),
    [
        (KnobAxis.of(knob("float", 0.0, 2.0), []), 0.5, 0.25),
        (KnobAxis.of(knob("float", 0.0, 2.0), [4.0]), 2.0, 0.5),
        (KnobAxis.of(knob("log", 1e-4, 1e-2), []), 1e-3, 0.5),
        (KnobAxis.of(knob("log", 1e-4, 1e-2), [0.0]), 0.0, 0.0),
        (KnobAxis.of(knob("int", 3, 3), []), 3, 0.5),
        (KnobAxis.of(knob("categorical", choices=[1, True]), []), True, 0.75),
        (KnobAxis.of(knob("categorical", choices=["a"]), [None]), None, 0.75),
    ],
)
def test_where_a_value_lies(axis, value, place):
    assert axis.position(value) == pytest.approx(place)
