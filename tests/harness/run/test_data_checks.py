"""Where the rows of a task come from is written down when they are first used, and held to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import evals.tasks.rows
from evals.tasks import get_task
from evals.tasks.base import Task
from evals.tasks.rows import HubDataset, LocalFile, Rows
from harness.errors import RefusedError
from harness.run.data_checks import record_source


def task(source: Rows) -> Task:
    return Task("mine", "plain", "exact", "chain", 1.0, {"test": source})


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """The rows that stand-in for a data set on the hub has."""
    rows = [{"problem": "1+1", "answer": "2"}]
    monkeypatch.setattr(
        evals.tasks.rows, "hub_rows", lambda name, *given: [(f"{name} row {i}", row) for i, row in enumerate(rows)]
    )
    return rows


def test_a_hub_data_set_is_recorded_on_first_use_and_may_not_change(tmp_path: Path, hub: list[dict[str, str]]) -> None:
    mine = task(Rows("mine", hub=HubDataset("somebody/sums", "test", revision="v1")))
    found = record_source(tmp_path / "cache", mine, "test")
    assert found is not None
    assert (found["origin"], found["rows"], found["matches_pin"]) == ("hub:somebody/sums@v1/default/test", 1, None)
    (kept,) = (tmp_path / "cache").glob("rows-*.json")
    assert json.loads(kept.read_text()) == [found]
    assert record_source(tmp_path / "cache", mine, "test") == found
    hub[0]["answer"] = "3"
    with pytest.raises(RefusedError, match="when it was first used") as caught:
        record_source(tmp_path / "cache", mine, "test")
    assert str(kept) in str(caught.value) and found["digest"] in str(caught.value)


def test_two_sources_of_one_split_are_recorded_apart(tmp_path: Path, hub: list[dict[str, str]]) -> None:
    """The digest is the file's; the hub words the problems otherwise, and must go on doing so."""
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"problem": "one and one", "answer": "2"}) + "\n")
    digest = Rows("mine", LocalFile("rows.jsonl", tmp_path)).load().digest
    both = Rows("mine", LocalFile("rows.jsonl", tmp_path), HubDataset("somebody/sums", "test"), digest=digest)
    cache = tmp_path / "cache"
    first = record_source(cache, task(both), "test")
    file.unlink()
    second = record_source(cache, task(both), "test")
    assert first is not None and second is not None
    assert (first["matches_pin"], second["matches_pin"]) == (True, False)
    (kept,) = cache.glob("rows-*.json")
    assert json.loads(kept.read_text()) == [first, second]
    hub[0]["answer"] = "3"
    with pytest.raises(RefusedError, match="when it was first used"):
        record_source(cache, task(both), "test")


def test_a_file_of_ones_own_may_change(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({"problem": "1+1", "answer": "2"}) + "\n")
    mine = task(Rows("mine", LocalFile("rows.jsonl", tmp_path)))
    first = record_source(tmp_path / "cache", mine, "test")
    (tmp_path / "rows.jsonl").write_text(json.dumps({"problem": "1+1", "answer": "3"}) + "\n")
    second = record_source(tmp_path / "cache", mine, "test")
    assert first is not None and second is not None and first["digest"] != second["digest"]


def test_generated_problems_come_from_nowhere(tmp_path: Path) -> None:
    assert record_source(tmp_path, get_task("arithmetic"), "test") is None
    assert list(tmp_path.iterdir()) == []
