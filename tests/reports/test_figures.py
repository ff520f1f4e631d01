from __future__ import annotations

import itertools

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from reports.analysis import analyse
from reports.figures import FIGURES, render_figures
from reports.figures.style import OKABE_ITO, RC, arm_styles, legend_columns, short_name
from tests.reports.synthetic import write_sweep

LONG = "a_name_of_forty_characters_" + 13 * "x"


def test_styles_tell_arms_apart_without_colour():
    arms = [f"arm{i}" for i in range(13)]
    styles = arm_styles(arms, "arm3")
    assert len({style.marker for style in styles.values()}) == 13
    assert len({(style.color, str(style.dash)) for style in styles.values()}) == 13
    assert len({styles[arm].color for arm in arms[: len(OKABE_ITO) + 1]}) == len(OKABE_ITO) + 1


def test_the_reading_order():
    assert [kind.name for kind in FIGURES] == [
        "forest",
        "learning",
        "reward",
        "pass_at_k",
        "entropy",
        "entropy_score",
        "length",
    ]


def drawn_texts(figure: Figure) -> list[Text]:
    """Every text that shows; ticks outside the view have one that does not."""
    legends = [text for legend in figure.legends for text in legend.get_texts()]
    ticks, others = [], []
    for axes in figure.axes:
        if not axes.get_visible():
            continue
        others += [child for child in axes.get_children() if isinstance(child, Text)]
        others += [axes.xaxis.label, axes.yaxis.label]
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            ticks += [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    texts = [*figure.texts, *legends, *others, *ticks]
    return [text for text in texts if text.get_visible() and text.get_text().strip()]


@pytest.mark.parametrize("arms", [2, 4, 5, 12])
@pytest.mark.parametrize("seeds", [1, 3])
def test_no_text_is_clipped_and_no_two_texts_overlap(tmp_path, arms, seeds):
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    names = {f"base_{LONG}": 0.0, **{f"{LONG[:-2]}{i:02}": -4.0 * i for i in range(arms - 1)}}
    analysis = analyse(write_sweep(tmp_path, names, seeds=seeds))
    for kind in FIGURES:
        with rc_context(RC):
            drawing = kind.draw(analysis)
            assert drawing is not None
            canvas = FigureCanvasAgg(drawing.figure)
            canvas.draw()
            boxes = [(t.get_text(), t.get_window_extent(canvas.get_renderer())) for t in drawn_texts(drawing.figure)]
        width, height = canvas.get_width_height()
        assert len(boxes) > 5
        for label, box in boxes:
            assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height, (kind.name, label)
        for (label, box), (other_label, other) in itertools.combinations(boxes, 2):
            assert not box.overlaps(other), (kind.name, label, other_label)


@pytest.mark.parametrize(
    ("seeds", "band"), [(1, "no band"), (2, "no band"), (3, "Band: pointwise 95% t interval over training seeds")]
)
def test_captions_name_n_and_the_band(tmp_path, seeds, band):
    analysis = analyse(write_sweep(tmp_path, {"base": 0.0, "up": 1.0}, seeds=seeds))
    captions = {kind.name: drawing.caption for kind in FIGURES if (drawing := kind.draw(analysis)) is not None}
    assert len(captions) == len(FIGURES)
    assert all(f"n = {seeds}" in caption for caption in captions.values())
    assert all(band in caption for name, caption in captions.items() if name not in ("forest", "entropy_score"))


def test_a_dollar_sign_in_a_name_is_no_formula(tmp_path):
    render_figures(analyse(write_sweep(tmp_path, {"base$": 0.0, "$x^": 1.0}, seeds=1)))


def test_a_figure_without_records_is_left_out(tmp_path):
    sweep = write_sweep(tmp_path, {"base": 0.0}, seeds=1, base_scores=None)
    for cell in sweep.cells:
        (cell.path / "steps.jsonl").unlink()
    assert [figure.name for figure in render_figures(analyse(sweep))] == ["learning", "pass_at_k"]


def test_names_are_shortened_in_the_middle_and_legends_fit():
    assert short_name("short") == "short"
    assert len(short_name(100 * "x")) <= 44
    assert short_name("a" * 50 + "b" * 50).startswith("a") and short_name("a" * 50 + "b" * 50).endswith("b")
    assert legend_columns([LONG] * 3) == 1
    assert legend_columns(["short"] * 4) == 4
