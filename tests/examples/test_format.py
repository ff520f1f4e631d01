"""The format of docs/extending.md, from outside the package."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.records import read_sweep
from tests.harness.cli.conftest import Bench, bench

__all__ = ["bench"]
MODULE = Path(__file__).parent / "extending" / "format.py"


@pytest.mark.slow
def test_a_format_of_one_s_own_is_imported(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "lab_format.py").write_text(MODULE.read_text())
    for arm, verdicts in (("a", "right wrong"), ("b", "right right")):
        rows = "".join(f"p{number} {verdict}\n" for number, verdict in enumerate(verdicts.split()))
        (tmp_path / f"{arm}.verdicts").write_text(rows)
    unknown = bench("import", "ours", "a.verdicts", "b.verdicts")
    assert unknown.error is not None and unknown.error.code == "shelves.imports.unknown_format"
    assert bench("import", "ours", "a.verdicts", "b.verdicts", "--plugin", "lab_format").code == 0
    finals = {
        cell.arm: cell.read_scores()[-1]["metrics"]["pass@1"] for cell in read_sweep(tmp_path / "runs/ours").cells
    }
    assert finals == {"a": 0.5, "b": 1.0}
    (tmp_path / "b.verdicts").write_text("p0 right\np1 maybe\n")
    wrong = bench("import", "ours", "a.verdicts", "b.verdicts", "--plugin", "lab_format")
    assert wrong.code == 2 and "'p1 maybe'" in wrong.err
