from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.cli.conftest import Bench


def test_it_says_what_it_found(bench: Bench, tmp_path: Path) -> None:
    result = bench("doctor", "--json")
    assert (result.code, result.err) == (0, "")
    assert all(set(row) == {"check", "ok", "found"} for row in result.document)
    found = {row["check"]: row for row in result.document}
    assert {"python", "torch", "mlflow", "device", "runs folder", "free disk", "BENCH_DATA"} <= set(found)
    assert found["runs folder"]["found"] == str(tmp_path / "runs")
    assert list(tmp_path.iterdir()) == []


def test_a_problem_is_a_refusal(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("BENCH_DATA", "nowhere")
    for home in ("file", "file/below"):
        result = bench("doctor", "--json", "--home", home)
        assert result.code == 2
        assert {row["check"] for row in result.document if not row["ok"]} == {"runs folder", "BENCH_DATA"}
        assert "BENCH_DATA: nowhere" in result.err
    assert "PROBLEM" in bench("doctor", "--home", "file").out
