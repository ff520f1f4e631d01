from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.records.files import DamagedRecordError, append_jsonl
from harness.records.scores import read_scores

ROW = {"step": 3, "final": True, "task": "a", "generated_tokens": 7, "metrics": {"pass@1": 0.5, "ece": None}}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        *((name, f"row 2: lacks {name}") for name in ROW),
        ({"metrics": None}, "row 2: lacks metrics, or holds something else"),
        ({"metrics": {"pass@1": "0.5"}}, "row 2: the metric pass@1 is not a number"),
    ],
)
def test_a_row_that_says_too_little_is_named(tmp_path: Path, change: str | dict[str, Any], says: str) -> None:
    path = tmp_path / "scores.jsonl"
    wrong = ROW | change if isinstance(change, dict) else {key: ROW[key] for key in ROW if key != change}
    append_jsonl(path, [ROW])
    assert read_scores(path) == [ROW]
    append_jsonl(path, [wrong])
    with pytest.raises(DamagedRecordError, match=rf"scores\.jsonl, {says}"):
        read_scores(path)


BIN = {"low": 0.0, "high": 0.1, "count": 0, "confidence": None, "correct_frac": None}


def test_a_byte_order_mark_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "scores.jsonl"
    append_jsonl(path, [ROW])
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    with pytest.raises(DamagedRecordError, match=r"scores\.jsonl, line 1: is damaged"):
        read_scores(path)


@pytest.mark.parametrize(
    ("bins", "says"),
    [
        *(([BIN, {key: BIN[key] for key in BIN if key != name}], f", row 2: lacks {name}") for name in list(BIN)[2:]),
        ([BIN, BIN | {"count": "3"}], ", row 2: lacks count, or holds something else"),
        ([1], ", row 1: is not a JSON object"),
        (7, ", or holds something else"),
        ({"0": BIN}, ", or holds something else"),
    ],
)
def test_a_bin_that_says_too_little_is_named_with_its_row(tmp_path: Path, bins: object, says: str) -> None:
    path = tmp_path / "scores.jsonl"
    whole = [ROW, ROW | {"reliability": None}, ROW | {"reliability": [BIN]}]
    append_jsonl(path, whole)
    assert read_scores(path) == whole
    append_jsonl(path, [ROW | {"reliability": bins}])
    with pytest.raises(DamagedRecordError, match=rf"scores\.jsonl, row 4.* reliability{says}"):
        read_scores(path)
