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
from reports.page.validity import validity_checks
from tests.reports.synthetic import write_sweep

UP, DOWN = "up and base", "down and base"
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


def marks(sweep: SweepRecord) -> dict[str, str]:
    """Map each pair of arms that were made differently to the sentence about it."""
    analysis = analyse(sweep)
    checks = validity_checks(analysis, report_document(analysis))
    found = [check for check in checks if "made differently" in check.label]
    assert not any(check.ok for check in found)
    return {check.label.removesuffix(" made differently"): check.value for check in found}


@pytest.fixture
def sweep(tmp_path: Path) -> SweepRecord:
    return write_sweep(tmp_path / "mine", {"base": 0.0, "up": 1.0, "down": -1.0}, seeds=3)


@pytest.mark.slow
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
    assert marks(sweep) == {UP: words}


def test_cells_made_alike_have_none(sweep: SweepRecord) -> None:
    """Nor have those of a seed that all arms got later, under another version, nor arms of other models."""
    later = [{"commit": "later", "packages": {"torch": "3"}}]
    starts(sweep, {(arm, 2): later for arm in sweep.arms} | {("up", 0): [{"model": {"architecture": "Qwen"}}]})
    assert marks(sweep) == {}


def test_a_cell_that_moved_in_between_has_a_mark_in_all_its_contrasts(sweep: SweepRecord) -> None:
    starts(sweep, {("base", 0): [{}, {"processor": "two"}], ("up", 0): [{}, {"processor": "two"}]})
    both = {UP: "processor one, then two in both (seed 0)", DOWN: "processor one against one, then two (seed 0)"}
    assert marks(sweep) == both


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


@pytest.mark.parametrize(
    ("commits", "pair", "words"),
    [
        # Evaluated later under a new version, both arms are alike; if only one was, they are not.
        ({"base": "new", "up": "new", "down": "newest"}, "down and base", "newest against new"),
        # One arm was topped up under another commit; its partner drew as many samples from the start.
        ({"up": "new", "down": ALIKE["commit"]}, "up and base", "new against 0123456789"),
    ],
)
def test_a_further_evaluation_is_compared_with_its_like_or_with_one_within_training(
    sweep: SweepRecord, commits: dict[str, str], pair: str, words: str
) -> None:
    starts(sweep, {})
    expected = {pair: f"commit of the evaluation {words} (seeds 0, 1, 2)"}
    assert marks(evaluated_later(sweep, commits)) == expected
