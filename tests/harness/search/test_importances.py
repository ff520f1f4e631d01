"""Shares of knobs are refused for the objective that says nothing of them, and for no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.search.fake_cells import METRIC, FakeCells, search, write_search

pytestmark = pytest.mark.slow


def test_an_objective_that_never_changes_takes_nothing_from_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All fake cells generate as many tokens."""
    path = write_search(tmp_path, {"objectives": ["eval.final.pass@1", "generated_tokens"]})
    study, _ = search(path, 12)
    assert [found["metric"] for found in study["importances"]] == [METRIC]
    assert study["importances_refused"] == "all complete trials have the same generated_tokens"


def test_two_that_never_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_search(tmp_path, {"objectives": ["eval.final.pass@1", "generated_tokens"]})
    study, _ = search(path, 12, FakeCells(score=lambda spec: 0.5))
    assert study["importances"] == []
    assert study["importances_refused"] == (f"all complete trials have the same {METRIC} and the same generated_tokens")
