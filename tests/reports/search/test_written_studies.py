"""The page of a search that was run, with cells that train nothing: its record is what readers expect."""

from __future__ import annotations

import json
from typing import Any

import pytest

from harness.records.study import read_study
from reports.search import write_search_report
from tests.harness.search.fake_cells import search, write_search

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"pruner": {"type": "median"}}, {"history", "parallel_coordinates", "slices", "intermediate"}),
        (
            {"objectives": ["eval.final.pass@1", "generated_tokens"], "pruner": {"type": "none"}},
            {"pareto", "history", "history_2", "parallel_coordinates", "slices", "slices_2"},
        ),
    ],
    ids=["one objective", "two objectives"],
)
def test_a_search_that_was_run_has_a_page(tmp_path, fields: dict[str, Any], expected: set[str]):
    found, _ = search(write_search(tmp_path, fields), 10)
    folder = tmp_path / "runs" / "found"
    study = read_study(folder)
    written = write_search_report(study, folder / "report")
    report = json.loads((folder / "report/report.json").read_text())
    assert [trial["number"] for trial in report["trials"]] == [trial["number"] for trial in found["trials"]]
    assert report["best"]["number"] == found["best"]
    assert report == json.loads(json.dumps(written))
    figures = {path.stem for path in (folder / "report/figures").iterdir()}
    assert figures >= expected
