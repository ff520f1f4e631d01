from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.measure import analyse
from reports.measure.flips import biggest_movers, find_flips, mark_first_difference
from reports.measure.problems import ProblemScores
from tests.reports.synthetic import write_sweep


def test_the_biggest_movers_either_way_and_none_that_did_not_move():
    by_arm = {"base": {0: np.array([0.5, 0.5, 0.5, 0.0])}, "arm": {0: np.array([0.6, 0.0, 0.5, 1.0])}}
    scores = ProblemScores(["a", "b", "c", "d"], by_arm)
    assert biggest_movers(scores, "arm", "base") == [3, 1, 0]
    assert biggest_movers(scores, "arm", "base", n=1) == [3]
    assert biggest_movers(scores, "base", "base") == []


@pytest.mark.parametrize(
    ("text", "other", "expected"),
    [
        ("1 + 2 is 3", "1 + 2 is 4", ("1 + 2 is", " 3", "")),
        ("1 + 2", "1 + 2 is 4", ("1 + 2", "", "")),
        ("1 + 2 is 4", "1 + 2", ("1 + 2", " is", " 4")),
        ("same", "same", ("same", "", "")),
        ("", "more", ("", "", "")),
        ("a\nb", "a b", ("a", "\nb", "")),
    ],
)
def test_the_first_word_that_differs_is_marked(text, other, expected):
    marked = mark_first_difference(text, other)
    assert (marked.before, marked.word, marked.after) == expected


@given(st.text(alphabet="ab \n", max_size=30), st.text(alphabet="ab \n", max_size=30))
def test_a_marked_text_is_the_text_and_begins_alike(text, other):
    marked = mark_first_difference(text, other)
    assert marked.before + marked.word + marked.after == text
    assert other.startswith(marked.before)


def test_long_texts_are_cut_around_the_difference():
    marked = mark_first_difference(500 * "a " + "here" + 500 * " b", 500 * "a " + "there", context=20)
    assert marked.before.startswith("(979 characters) … ") and marked.before.endswith("a a")
    assert marked.word == " here"
    assert marked.after.startswith(" b b") and marked.after.endswith("(980 characters)")
    unbroken = mark_first_difference(1000 * "x", "y", context=20)
    assert (unbroken.word, unbroken.after) == (20 * "x", f"{20 * 'x'} … (960 characters)")


def test_a_flip_shows_the_samples_that_drew_the_same_noise(tmp_path):
    (flip,) = find_flips(analyse(write_sweep(tmp_path, {"base": 0.0, "odd": 1.0}, seeds=2)))
    assert (flip.arm, flip.baseline, flip.problem_id, flip.n_seeds) == ("odd", "base", "p1", 2)
    assert (flip.baseline_frac, flip.arm_frac, flip.difference_pp) == (0, 0.5, 50)
    assert (flip.seed, flip.sample) == (0, 1)
    before, after = flip.completions
    assert [(c.arm, c.correct) for c in (before, after)] == [("base", False), ("odd", True)]
    assert (before.text.word, after.text.word) == ("", " <b>so")
    assert flip.as_row()["completions"][1]["text"] == {"before": "2+2=5 #### 5", "word": " <b>so", "after": ""}


def test_a_problem_that_got_worse_shows_the_sample_that_got_worse(tmp_path):
    sweep = write_sweep(tmp_path, {"base": 0.0, "odd": 1.0}, seeds=1, baseline="odd")
    (flip,) = find_flips(analyse(sweep))
    assert (flip.arm, flip.difference_pp) == ("base", -50)
    assert [(c.arm, c.correct) for c in flip.completions] == [("odd", True), ("base", False)]


def test_seeds_that_do_not_pair_and_cells_without_samples_give_none(tmp_path):
    apart = {("base", 0): {"state": "failed"}, ("odd", 1): {"state": "failed"}}
    assert find_flips(analyse(write_sweep(tmp_path / "apart", {"base": 0.0, "odd": 1.0}, seeds=2, changes=apart))) == []
    sweep = write_sweep(tmp_path / "without", {"base": 0.0, "odd": 1.0}, seeds=1)
    for cell in sweep.cells:
        (cell.path / "evals.parquet").unlink()
    assert find_flips(analyse(sweep)) == []
