from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from harness.records import SweepRecord
from harness.records.cell import EMBEDDINGS_FILE
from harness.records.embeddings import read_embeddings, write_embeddings
from harness.records.files import DamagedRecordError
from reports.drawing.rendering import Drawing
from reports.measure import analyse
from reports.shelves.reflection.figures.embeddings import draw_embeddings
from tests.reports.synthetic import write_sweep


def change(sweep: SweepRecord, arm: str, **fields: Any) -> None:
    for cell in sweep.cells:
        if cell.arm == arm:
            path = cell.path / EMBEDDINGS_FILE
            write_embeddings(path, [{**token, **fields} for token in read_embeddings(path)])  # type: ignore[typeddict-item]


def drawing(sweep: SweepRecord) -> Drawing:
    found = draw_embeddings(analyse(sweep))
    assert found is not None
    return found


def labels(found: Drawing) -> list[list[str]]:
    return [[text.get_text() for text in panel.texts] for panel in found.figure.axes]


def test_the_rows_say_where_each_token_began_and_ended(tmp_path: Path) -> None:
    found = drawing(write_sweep(tmp_path, {"base": 0.0, "other": 1.0}, seeds=2))
    assert len(found.rows) == 2 * 2 * 6
    row = next(row for row in found.rows if (row["arm"], row["seed"], row["token"]) == ("other", 1, 2))
    assert row["start_x"] == pytest.approx(math.cos(2)) and row["end_x"] == pytest.approx(math.cos(2) + 0.03)
    assert (row["word"], row["text"], row["moved"]) == ("Wait", " t2", 0.06)


def test_the_caption_says_what_the_plane_leaves_out_and_how_long_arrows_are(tmp_path: Path) -> None:
    caption = drawing(write_sweep(tmp_path, {"base": 0.0, "other": 1.0}, seeds=2)).caption
    assert "words (Wait)" in caption
    assert "holds 25% of their variance" in caption  # places lie 1 from the centre, tokens 2
    assert "25% of the squared movement" in caption  # half of each token's way
    # The longest mean way is 0.025, the tokens span 1.96: at ten times, an arrow takes 0.13 of it.
    assert "drawn 10 times as long" in caption and "n = 2 per arm" in caption
    assert "planes of their own" not in caption


def test_arms_of_different_starts_are_not_laid_over_each_other(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path, {"base": 0.0, "other": 1.0}, seeds=1)
    change(sweep, "other", start_x=0.5)
    assert "have planes of their own" in drawing(sweep).caption


def test_frozen_embeddings_are_said_to_be(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path, {"base": 0.0}, seeds=1)
    for cell in sweep.cells:
        path = cell.path / EMBEDDINGS_FILE
        still = [
            token | {"end_x": token["start_x"], "end_y": token["start_y"], "moved": 0.0}
            for token in read_embeddings(path)
        ]
        write_embeddings(path, still)
    assert "None of them moved (n = 1 per arm): these embeddings were not trained." in drawing(sweep).caption


def test_a_label_that_would_cover_another_is_left_out_and_words_go_first(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path, {"base": 0.0}, seeds=1)
    assert sorted(labels(drawing(sweep))[0]) == [f"t{token}" for token in range(6)]
    path = sweep.cells[0].path / EMBEDDINGS_FILE
    tokens = read_embeddings(path)
    for token in tokens[2:]:
        token |= {"start_x": 0.0, "start_y": 0.0}
    write_embeddings(path, tokens[::-1])
    assert sorted(labels(drawing(sweep))[0]) == ["t0", "t1", "t2"]


def test_a_damaged_row_is_named(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path, {"base": 0.0}, seeds=1)
    with (sweep.cells[0].path / EMBEDDINGS_FILE).open("a") as handle:
        handle.write('{"token": 3}\n')
    with pytest.raises(DamagedRecordError, match=r"embeddings.jsonl, row 7: lacks text"):
        draw_embeddings(analyse(sweep))
