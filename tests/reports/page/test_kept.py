"""A report that is kept without its cells: its contrasts are computed again from the final scores."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from harness.errors import RefusedError
from harness.records import SweepRecord
from harness.records.files import write_json
from reports.measure import analyse
from reports.measure.contrasts import EQUAL_COMPLETIONS
from reports.page.document import verdict_document, write_data
from reports.page.kept import KEPT, keep_report, verify_kept
from reports.report import SECTIONS
from tests.refusals import refuses
from tests.reports.synthetic import write_sweep

GRID: dict[str, dict[str, Any]] = {
    f"clip={clip}+beta={beta}": {"clip": clip, "beta": beta} for clip in (0.2, 0.3) for beta in (0.0, 0.1)
}
SCORES = "data/final_scores.csv"


def written(sweep: SweepRecord) -> Path:
    """A sweep's folder with what a kept report takes of its report."""
    analysis = analyse(sweep)
    page = sweep.path / "report"
    page.mkdir()
    laws = [{"arm": "up", "seed": None}, {"arm": "up", "seed": 1}]
    report = {key: [] for key in SECTIONS} | verdict_document(analysis).as_json() | {"laws": laws}
    write_json(page / "report.json", report)
    write_data(analysis, page / "data")
    return sweep.path


def kept(tmp_path: Path, **fields: Any) -> Path:
    asked = {"file": "sweep.yaml", "profile": "tiny", "folder": str(tmp_path)}
    folder = written(write_sweep(tmp_path / "mine", asked=asked, **fields))
    keep_report(folder, tmp_path / "kept", numerics=5, beside={"note.txt": "beside"})
    return tmp_path / "kept"


def change(folder: Path, file: str, old: str, new: str) -> None:
    """Put one text in place of another, and say that this is what was kept."""
    path = folder / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    record = json.loads((folder / KEPT).read_text())
    record["files"][file] = hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    (folder / KEPT).write_text(json.dumps(record))


@pytest.mark.slow
def test_a_kept_report_and_a_kept_factorial_agree_with_their_scores(tmp_path: Path) -> None:
    flagged = {("up", 2): {"flags": ["collapse"]}, ("up", 3): {"state": "failed", "reason": "a reason"}}
    folder = kept(tmp_path, arms={"base": 0.0, "up": 2.0, "same": 0.1}, seeds=6, changes=flagged)
    arms = {arm: 2.0 * (place == 3) for place, arm in enumerate(GRID)}
    factorial = kept(tmp_path / "factorial", arms=arms, seeds=6, grid=GRID)
    assert json.loads((factorial / "report.json").read_text())["interactions"]
    assert verify_kept(factorial).difference is None
    found = verify_kept(folder)
    assert found.difference is None
    assert found.checked["report.json"] > 100
    assert json.loads((folder / KEPT).read_text())["numerics"] == 5
    assert (folder / "note.txt").read_text() == "beside"
    assert str(tmp_path) not in (folder / "sweep.json").read_text(), "a path of this machine"
    assert json.loads((folder / "report.json").read_text())["laws"] == [{"arm": "up", "seed": None}]


def test_what_was_altered_is_named(tmp_path: Path) -> None:
    folder = kept(tmp_path, arms={"base": 0.0, "up": 2.0}, seeds=6)
    scores, report = (folder / SCORES).read_text(), json.loads((folder / "report.json").read_text())
    (folder / SCORES).write_text(scores.replace("up,5", "up,6", 1))
    difference = verify_kept(folder).difference
    assert difference is not None and (difference.file, difference.place) == (SCORES, "the digest")
    (folder / SCORES).write_text(scores)

    score = repr(report["arms"][1]["scores_pp"][3] / 100)
    change(folder, SCORES, score, "0.999")
    difference = verify_kept(folder).difference
    assert difference is not None and difference.file == "report.json"
    assert difference.place == "contrasts[0].difference_pp"
    change(folder, SCORES, "0.999", score)
    assert verify_kept(folder).difference is None

    change(folder, "report.json", '"note": ""', f'"note": "{EQUAL_COMPLETIONS}"')
    assert verify_kept(folder).difference is None, "texts are not kept, so this is taken on trust"

    change(folder, "report.json", '"verdict": "better"', '"verdict": "worse"')
    difference = verify_kept(folder).difference
    assert difference is not None and difference.place == "contrasts[0].verdict"
    assert (difference.written, difference.recomputed) == ("worse", "better")


def test_a_report_that_could_not_be_computed_again_is_not_kept(tmp_path: Path) -> None:
    open_sweep = write_sweep(tmp_path / "open", {"base": 0.0, "up": 1.0}, changes={("up", 1): {"state": "pending"}})
    with refuses(RefusedError, "reports.cells_unfinished", folder="open", sweep="open"):
        keep_report(written(open_sweep), tmp_path / "kept", numerics=5)
    one_model = write_sweep(tmp_path / "one", {"base": 0.0, "up": 1.0}, checkpoint="builtin:tiny")
    (tmp_path / "one" / "report").mkdir()
    with refuses(RefusedError, "reports.no_scores_of_problems"):
        keep_report(one_model.path, tmp_path / "kept", numerics=5)
