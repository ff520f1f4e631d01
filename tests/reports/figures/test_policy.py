from __future__ import annotations

import json
import re

import pytest

from harness.words import said
from reports.figures.policy import draw_entropy, draw_stability
from reports.measure import analyse
from reports.page import write_report
from tests.reports.page.invariants import only_figures
from tests.reports.rewriting import rewrite_rows
from tests.reports.synthetic import write_sweep


@pytest.mark.parametrize(
    ("models", "sizes"),
    [
        ([{"vocabulary_tokens": 32}] * 2, [("32", "3.47")]),
        ([{"vocabulary_tokens": 32}, {"vocabulary_tokens": 151_936}], [("32", "3.47"), ("151,936", "11.93")]),
        ([None, {}], []),
        (["a name", {"vocabulary_tokens": "many"}], []),
    ],
)
def test_the_caption_names_the_largest_entropy_there_can_be(tmp_path, models, sizes):
    sweep = write_sweep(tmp_path, {"base": 0.0, "up": 3.0}, seeds=1)
    for cell, model in zip(sweep.cells, models, strict=True):
        (cell.path / "starts.jsonl").write_text(json.dumps({"epoch": 0, "from_step": 0, "model": model}) + "\n")
    drawing = draw_entropy(analyse(sweep))
    assert drawing is not None
    found = re.findall(r"with ([\d,]+) tokens .*? = ([\d.]+\d)", drawing.caption)
    assert found == sizes


def test_what_is_the_same_in_every_arm_all_along_is_a_sentence(tmp_path):
    sweep = write_sweep(tmp_path, {"base": 0.0, "up": 1.0}, seeds=2)
    same = {"clip/high_frac_sign_aware": 0.0, "clip/low_frac_sign_aware": 0.0, "entropy/full": 1.5}
    rewrite_rows(sweep, "steps.jsonl", lambda row: row | same)
    analysis = analyse(sweep)
    panels, entropy = draw_stability(analysis), draw_entropy(analysis)
    assert panels is not None and entropy is not None
    assert said("reports.no_token_clipped") in panels.caption and not panels.in_words
    assert len(panels.figure.axes) == 2 * 2  # arms, quantities that differ
    assert entropy.in_words and " 1.5 in" in entropy.caption
    rewrite_rows(sweep, "steps.jsonl", lambda row: row | {"clip/low_frac_sign_aware": 0.25})
    clipped = draw_stability(analyse(sweep))
    assert clipped is not None and "0% (above, A > 0) and 25% (below, A < 0)" in clipped.caption
    with only_figures("entropy"):
        write_report(sweep, tmp_path / "report")
    assert (tmp_path / "report/data/entropy.csv").exists() and not (tmp_path / "report/figures/entropy.svg").exists()
    assert '<figure id="entropy">' in (tmp_path / "report/index.html").read_text()
