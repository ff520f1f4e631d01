"""Marks for contrasts whose cells were made by different versions or machines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.records import SweepRecord, read_sweep
from harness.records.cell import write_status
from reports.measure import analyse
from reports.page.document import report_document
from reports.page.validity import ValidityCheck, validity_checks
from tests.reports.synthetic import write_sweep

ALIKE: dict[str, Any] = {
    "commit": "0123456789abcdef",
    "processor": "one",
    "torch_threads": 1,
    "packages": {"torch": "2.13.0", "numpy": "2.3", "bench-rl": "1.0"},
    "platform": "Linux 1",
    "model": {"architecture": "Llama"},
}


def starts(sweep: SweepRecord, changes: dict[tuple[str, int], list[dict[str, Any]]]) -> None:
    """The starts of every cell: one as all others, unless `changes` lists what each of them had differently."""
    for cell in sweep.cells:
        rows = [
            {"epoch": epoch, "from_step": 1000, **ALIKE, **change}
            for epoch, change in enumerate(changes.get((cell.arm, cell.seed), [{}]), start=1)
        ]
        (cell.path / "starts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def marks(sweep: SweepRecord) -> list[ValidityCheck]:
    analysis = analyse(sweep)
    checks = validity_checks(analysis, report_document(analysis))
    return [check for check in checks if "made differently" in check.label]


@pytest.fixture
def sweep(tmp_path: Path) -> SweepRecord:
    return write_sweep(tmp_path / "mine", {"base": 0.0, "up": 1.0, "down": -1.0}, seeds=3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"commit": "fedcba9876543210+changes"}, "commit fedcba9876+changes against 0123456789 (seed 1)"),
        ({"processor": "two"}, "processor two against one (seed 1)"),
        ({"torch_threads": 4}, "threads 4 against 1 (seed 1)"),
        ({"packages": ALIKE["packages"] | {"torch": "2.14.0"}}, "torch 2.14.0 against 2.13.0 (seed 1)"),
        ({"packages": ALIKE["packages"] | {"bench-rl": "1.1"}}, "bench-rl 1.1 against 1.0 (seed 1)"),
    ],
)
def test_a_contrast_of_cells_made_differently_has_a_mark(
    sweep: SweepRecord, change: dict[str, Any], words: str
) -> None:
    """It names the arms, the field, its values and the seeds."""
    starts(sweep, {("up", 1): [change]})
    assert marks(sweep) == [ValidityCheck("up and base made differently", words, ok=False)]


def test_cells_made_alike_have_none(sweep: SweepRecord) -> None:
    """Nor have those of a seed that all arms got later, under another version, nor arms of other models."""
    later = [{"commit": "later", "packages": {"torch": "3"}}]
    starts(sweep, {(arm, 2): later for arm in sweep.arms} | {("up", 0): [{"model": {"architecture": "Qwen"}}]})
    assert marks(sweep) == []


def test_a_cell_that_moved_in_between_has_a_mark_in_all_its_contrasts(sweep: SweepRecord) -> None:
    starts(sweep, {("base", 0): [{}, {"processor": "two"}], ("up", 0): [{}, {"processor": "two"}]})
    assert marks(sweep) == [
        ValidityCheck("up and base made differently", "processor one, then two in both (seed 0)", ok=False),
        ValidityCheck("down and base made differently", "processor one against one, then two (seed 0)", ok=False),
    ]


def evaluated_later(sweep: SweepRecord, commits: Mapping[str, str]) -> SweepRecord:
    """The same sweep whose cells of these arms were evaluated once more after training, each under a commit."""
    document = json.loads((sweep.path / "sweep.json").read_text())
    for entry, cell in zip(document["cells"], sweep.cells, strict=True):
        if cell.arm not in commits:
            continue
        entry["evaluation"] = "0123456789"
        folder = cell.path / "evaluations" / "0123456789"
        folder.mkdir(parents=True)
        for name in ("scores.jsonl", "evals.parquet", "spec.json"):
            (cell.path / name).rename(folder / name)
        write_status(folder, "done")
        row = {"epoch": 1, "from_step": 9, **ALIKE, "commit": commits[cell.arm]}
        (folder / "starts.jsonl").write_text(json.dumps(row) + "\n")
    (sweep.path / "sweep.json").write_text(json.dumps(document))
    return read_sweep(sweep.path)


def test_a_further_evaluation_is_compared_with_its_like(sweep: SweepRecord) -> None:
    """Evaluated later under a new version, both arms are alike; if only one was, they are not."""
    starts(sweep, {})
    again = evaluated_later(sweep, {"base": "new", "up": "new", "down": "newest"})
    words = "commit of the evaluation newest against new (seeds 0, 1, 2)"
    assert marks(again) == [ValidityCheck("down and base made differently", words, ok=False)]


def test_a_further_evaluation_is_compared_with_one_within_training(sweep: SweepRecord) -> None:
    """One arm was topped up under another commit; its partner drew as many samples from the start."""
    starts(sweep, {})
    again = evaluated_later(sweep, {"up": "new", "down": ALIKE["commit"]})
    words = "commit of the evaluation new against 0123456789 (seeds 0, 1, 2)"
    assert marks(again) == [ValidityCheck("up and base made differently", words, ok=False)]
