from __future__ import annotations

import json

import pytest

from reports.figures.policy import draw_entropy
from reports.measure import analyse
from tests.reports.synthetic import write_sweep


@pytest.mark.parametrize(
    ("models", "sentence"),
    [
        ([{"vocabulary_tokens": 32}] * 2, "vocabulary; with 32 tokens it is at most ln 32 = 3.47."),
        ([{"vocabulary_tokens": 32}, {"vocabulary_tokens": 151_936}], "3.47; with 151,936 tokens it is at most ln"),
        ([None, {}], "over the whole vocabulary. "),
        (["a name", {"vocabulary_tokens": "many"}], "over the whole vocabulary. "),
    ],
)
def test_the_caption_names_the_largest_entropy_there_can_be(tmp_path, models, sentence):
    sweep = write_sweep(tmp_path, {"base": 0.0, "up": 3.0}, seeds=1)
    for cell, model in zip(sweep.cells, models, strict=True):
        (cell.path / "provenance.json").write_text(json.dumps({"model": model}))
    drawing = draw_entropy(analyse(sweep))
    assert drawing is not None and sentence in drawing.caption
