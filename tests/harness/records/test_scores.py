from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.records.files import DamagedRecordError, append_jsonl
from harness.records.scores import read_scores
from tests.refusals import refuses

ROW = {"step": 3, "final": True, "task": "a", "generated_tokens": 7, "metrics": {"pass@1": 0.5, "ece": None}}


@pytest.mark.parametrize(
    ("change", "code", "fields"),
    [
        *((name, "row_lacks_fields", {"lacking": name}) for name in ROW),
        ({"metrics": None}, "row_lacks_fields", {"lacking": "metrics"}),
        ({"metrics": {"pass@1": "0.5"}}, "metric_not_a_number", {"metrics": "pass@1"}),
    ],
)
def test_a_row_that_says_too_little_is_named(
    tmp_path: Path, change: str | dict[str, Any], code: str, fields: dict[str, str]
) -> None:
    path = tmp_path / "scores.jsonl"
    wrong = ROW | change if isinstance(change, dict) else {key: ROW[key] for key in ROW if key != change}
    append_jsonl(path, [ROW])
    assert read_scores(path) == [ROW]
    append_jsonl(path, [wrong])
    with refuses(DamagedRecordError, f"records.{code}", path="scores.jsonl", number=2, **fields):
        read_scores(path)


BIN = {"low": 0.0, "high": 0.1, "count": 0, "confidence": None, "correct_frac": None}


@pytest.mark.parametrize(
    ("bins", "code", "fields"),
    [
        *(
            ([BIN, {key: BIN[key] for key in BIN if key != name}], "row_lacks_fields", {"number": 2, "lacking": name})
            for name in list(BIN)[2:]
        ),
        ([BIN, BIN | {"count": "3"}], "row_lacks_fields", {"number": 2, "lacking": "count"}),
        ([1], "row_not_an_object", {"number": 1}),
        (7, "row_lacks_fields", {"number": 4, "lacking": "reliability"}),
        ({"0": BIN}, "row_lacks_fields", {"number": 4, "lacking": "reliability"}),
    ],
)
def test_a_bin_that_says_too_little_is_named_with_its_row(
    tmp_path: Path, bins: object, code: str, fields: dict[str, object]
) -> None:
    path = tmp_path / "scores.jsonl"
    whole = [ROW, ROW | {"reliability": None}, ROW | {"reliability": [BIN]}]
    append_jsonl(path, whole)
    assert read_scores(path) == whole
    append_jsonl(path, [ROW | {"reliability": bins}])
    with refuses(DamagedRecordError, f"records.{code}", **fields):
        read_scores(path)
