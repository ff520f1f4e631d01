"""benchmarks/README.md shows what was measured."""

from __future__ import annotations

import json
from pathlib import Path

from machine import machine_name
from table import README, RESULTS, START, outcomes_in, tables, with_tables


def test_the_readme_shows_the_results() -> None:
    text = README.read_text(encoding="utf-8")
    assert START in text
    assert with_tables(text) == text, "run python benchmarks/table.py"


def test_a_result_changes_the_table(tmp_path: Path) -> None:
    outcome = {
        "benchmark": "logprob_memory",
        "machine": {"processor": "P", "cores": 2, "python": "3.11", "torch": "2"},
        "settings": {"tokens": 4096, "vocabulary": 1000},
        "ways": {"plain": {"gib": 6.0}, "chunked": {"gib": 0.5}},
        "memory_ratio": 12.0,
        "required": {"at_most": {}, "at_least": {"memory_ratio": 6.0}},
    }
    (tmp_path / "logprob_memory-p.json").write_text(json.dumps(outcome))
    written = tables(outcomes_in(tmp_path))
    assert "| 0.50 GiB | all at once 6.00 GiB | 12.0 times less | at least 6 |" in written
    assert "Measured on: P, 2 cores, Python 3.11, torch 2." in written


def test_growth_has_a_row_for_each_verb_and_number_of_cells(tmp_path: Path) -> None:
    outcome = {
        "benchmark": "growth_postgresql",
        "machine": {"processor": "P", "cores": 2, "python": "3.11", "torch": "2"},
        "settings": {"steps": 500},
        "sync_200_s": 90.0,
        "sync_200_cpu_s": 70.0,
        "sync_200_peak_mb": 300.0,
        "required": {"at_most": {"sync_200_s": 120.0}, "at_least": {}},
    }
    (tmp_path / "growth_postgresql-p.json").write_text(json.dumps(outcome))
    written = tables(outcomes_in(tmp_path))
    assert "| sync, postgresql | 200 x 500 | P | 90.0 | 70.0 | 300 | at most 120 s |" in written


def test_every_kept_result_met_its_bounds_or_says_so() -> None:
    for name, outcome in outcomes_in(RESULTS).items():
        assert name == f"{outcome['benchmark']}-{machine_name(outcome['machine'])}"
        assert isinstance(outcome["met"], bool)
