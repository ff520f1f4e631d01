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
from tests.frozen import frozen
from tests.refusals import refuses
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


def test_the_captions(tmp_path: Path) -> None:
    """Places lie 1 from the centre and tokens 2, so the plane holds a quarter of variance and of squared movement."""
    sweep = write_sweep(tmp_path / "two", {"base": 0.0, "other": 1.0}, seeds=2)
    lines = [drawing(sweep).caption]
    change(sweep, "other", start_x=0.5)
    lines.append(drawing(sweep).caption)
    still = write_sweep(tmp_path / "one", {"base": 0.0}, seeds=1)
    for cell in still.cells:
        path = cell.path / EMBEDDINGS_FILE
        tokens = read_embeddings(path)
        write_embeddings(path, [t | {"end_x": t["start_x"], "end_y": t["start_y"], "moved": 0.0} for t in tokens])
    frozen("reports/embeddings", "\n".join([*lines, drawing(still).caption]))


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
    with refuses(DamagedRecordError, "records.row_lacks_fields", path="embeddings.jsonl", number=7):
        draw_embeddings(analyse(sweep))
