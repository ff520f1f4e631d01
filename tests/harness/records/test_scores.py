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
        ({"metrics": {"pass@1": "0.5"}}, "row 2: the metric pass@1 is no number"),
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
