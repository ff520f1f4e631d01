from __future__ import annotations

import pytest

from reports.analysis import analyse
from reports.figures import FIGURES, render_figures
from reports.figures.style import OKABE_ITO, arm_styles, legend_columns, short_name
from tests.reports.synthetic import write_sweep

LONG = "a_name_of_forty_characters_" + 13 * "x"


def test_styles_tell_arms_apart_without_colour():
    arms = [f"arm{i}" for i in range(13)]
    styles = arm_styles(arms, "arm3")
    assert len({style.marker for style in styles.values()}) == 13
    assert len({(style.color, str(style.dash)) for style in styles.values()}) == 13
    assert len({styles[arm].color for arm in arms[: len(OKABE_ITO) + 1]}) == len(OKABE_ITO) + 1


def test_the_reading_order():
    assert [kind.name for kind in FIGURES] == ["forest", "learning", "reward", "pass_at_k", "entropy", "length"]


@pytest.mark.parametrize("arms", [2, 5])
@pytest.mark.parametrize("seeds", [1, 3])
def test_no_text_is_clipped_and_no_two_labels_overlap(tmp_path, arms, seeds):
    names = {"base": 0.0, **{f"{LONG[:-1]}{i}": float(i) for i in range(arms - 1)}}
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    from reports.figures.style import RC

    analysis = analyse(write_sweep(tmp_path, names, seeds=seeds))
    for kind in FIGURES:
        with mpl.rc_context(RC):
            drawing = kind.draw(analysis)
            assert drawing is not None
            canvas = FigureCanvasAgg(drawing.figure)
            canvas.draw()
            boxes = []
            for text in drawing.figure.findobj(mpl.text.Text):
                if text.get_visible() and text.get_text().strip() and text.get_in_layout():
                    boxes.append((text.get_text(), text.get_window_extent(canvas.get_renderer())))
            width, height = canvas.get_width_height()
            for label, box in boxes:
                assert box.x0 >= -1 and box.x1 <= width + 1 and box.y0 >= -1 and box.y1 <= height + 1, (
                    kind.name,
                    label,
                )
            for i, (label, box) in enumerate(boxes):
                for other_label, other in boxes[i + 1 :]:
                    assert not box.padded(-1).overlaps(other.padded(-1)), (kind.name, label, other_label)


def test_captions_name_n_and_the_band(tmp_path):
    for seeds in (1, 3):
        figures = render_figures(analyse(write_sweep(tmp_path / str(seeds), {"base": 0.0, "up": 1.0}, seeds=seeds)))
        assert all(f"n = {seeds}" in figure.caption for figure in figures)
        band = "no band" if seeds == 1 else "95% t interval"
        assert all(band in figure.caption for figure in figures if figure.name != "forest")


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
