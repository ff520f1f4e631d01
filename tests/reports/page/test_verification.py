from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from reports.page import write_report
from reports.page.verification import Verification, compare_reports, verify_report
from tests.reports.page.invariants import only_figures
from tests.reports.synthetic import write_sweep

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def sweep(tmp_path_factory, few_figures):
    sweep = write_sweep(tmp_path_factory.mktemp("sweep") / "records", {"base": 0.0, "up": 3.0}, seeds=3)
    write_report(sweep, sweep.path / "report")
    return sweep


@pytest.fixture(scope="module", autouse=True)
def few_figures():
    with only_figures("forest", "learning"):
        yield


@pytest.fixture
def copied(sweep, tmp_path):
    return Path(shutil.copytree(sweep.path / "report", tmp_path / "report"))


def compared(sweep, copied: Path) -> Verification:
    return compare_reports(copied, sweep.path / "report")


def test_an_untouched_report_is_that_of_its_records(sweep):
    found = verify_report(sweep, sweep.path / "report")
    assert found.difference is None
    assert {"report.json", "report.md", "index.html", "data/steps.parquet", "data/final_scores.csv"} <= set(
        found.checked
    )
    assert all(found.checked.values())


def test_a_number_of_report_json(sweep, copied):
    path = copied / "report.json"
    document = json.loads(path.read_text())
    right = document["contrasts"][0]["low_pp"]
    document["contrasts"][0]["low_pp"] = right + 1e-6
    path.write_text(json.dumps(document))
    difference = compared(sweep, copied).difference
    assert difference is not None
    assert (difference.file, difference.place) == ("report.json", "contrasts[0].low_pp")
    assert (difference.written, difference.recomputed) == (pytest.approx(right + 1e-6), right)
    assert not difference.is_stale
    document["contrasts"][0]["low_pp"] = right * (1 + 1e-13)
    path.write_text(json.dumps(document))
    assert compared(sweep, copied).difference is None, "sums run in another order elsewhere"


def test_a_key_that_is_gone_or_new(sweep, copied):
    path = copied / "report.json"
    document = json.loads(path.read_text())
    del document["contrasts"][0]["p_holm"]
    path.write_text(json.dumps(document))
    difference = compared(sweep, copied).difference
    assert difference is not None and (difference.place, difference.written) == ("contrasts[0].p_holm", "absent")


def test_a_value_of_a_table(sweep, copied):
    path = copied / "data" / "steps.parquet"
    table = pyarrow.parquet.read_table(path)
    place = table.column_names.index("grad_norm")
    values = table["grad_norm"].to_pylist()
    values[4] += 0.5
    pyarrow.parquet.write_table(table.set_column(place, "grad_norm", pyarrow.array(values)), path)
    difference = compared(sweep, copied).difference
    assert difference is not None
    assert (difference.file, difference.place.split(", ")) == ("data/steps.parquet", ["row 5", "grad_norm"])


@pytest.mark.parametrize(
    ("name", "mark", "old", "new", "is_drawn"),
    [
        ("report.md", "", " [+", " [+1", False),
        ("index.html", "", " [+", " [+1", False),
        ("figures/forest.svg", "<text", "</text>", "9</text>", True),  # a number that is drawn, in its file or the page
        ("index.html", "<text", "</text>", "9</text>", True),
    ],
)
def test_a_digit_in_words_and_in_a_figure(sweep, copied, name, mark, old, new, is_drawn):
    path = copied / name
    before, mark, after = path.read_text().partition(mark) if mark else ("", "", path.read_text())
    path.write_text(before + mark + after.replace(old, new, 1))
    difference = compared(sweep, copied).difference
    assert difference is not None and (difference.file, difference.is_drawn) == (name, is_drawn)
    assert is_drawn or difference.place.startswith("line ")


def test_an_image(sweep, copied):
    (copied / "figures" / "forest.png").write_bytes((copied / "figures" / "learning.png").read_bytes())
    difference = compared(sweep, copied).difference
    assert difference is not None and difference.file == "figures/forest.png" and "sha256" in difference.sentence


def test_a_missing_table_and_one_too_many(sweep, copied):
    (copied / "data" / "extra.csv").write_text("a\n1\n")
    extra = compared(sweep, copied).difference
    assert extra is not None and (extra.file, extra.recomputed) == ("data/extra.csv", "absent")
    (copied / "data" / "final_scores.csv").unlink()
    gone = compared(sweep, copied).difference
    assert gone is not None and gone.file in ("data/extra.csv", "data/final_scores.csv")


def test_a_report_of_earlier_records_is_told_from_a_changed_one(sweep, copied):
    path, cell = copied / "report.json", "up seed 1"
    document = json.loads(path.read_text())
    document["cells"][4]["state"] = "pending"
    path.write_text(json.dumps(document))
    difference = compared(sweep, copied).difference
    assert difference is not None and difference.is_stale
    assert (difference.place, difference.written, difference.recomputed) == (f"{cell}, state", "pending", "done")
    del document["cells"][4]
    path.write_text(json.dumps(document))
    difference = compared(sweep, copied).difference
    assert difference is not None and (difference.place, difference.written) == (cell, "absent")
