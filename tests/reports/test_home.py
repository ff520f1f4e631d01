"""The page of all runs of a home: from any records, those of others and damaged ones too."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from reports.home import INDEX, home_page, read_home, write_index
from reports.page.verdict import SIGNS
from tests.reports.page.browser import measure
from tests.reports.search.studies import confirmation, study_document, write_study
from tests.reports.synthetic import Changes, write_sweep


def judged(arm: str, verdict: str, **more: Any) -> dict[str, Any]:
    return {"arm": arm, "verdict": verdict, **more}


EFFECT = {"kind": "main", "knobs": ["t"], "values": [1.2], "reference": [1.0]}


def screening(*contrasts: dict[str, Any]) -> dict[str, Any]:
    found = {"best": ["best"], "seeds": 2, "confirmed_in": None, "baseline": "base", "command": "bench run s"}
    return {**found, "contrasts": contrasts}


def write_report_json(folder: Path, **sections: Any) -> None:
    (folder / "report").mkdir(exist_ok=True)
    (folder / "report" / "report.json").write_text(json.dumps(sections))


def test_a_sweep_on_a_line(tmp_path: Path) -> None:
    changes: Changes = {("up", 1): {"state": "failed", "generated_tokens": 5}, ("down", 1): {"state": "pending"}}
    sweep = write_sweep(tmp_path / "question", {"base": 0.0, "up": 3.0, "down": -3.0}, seeds=2, changes=changes)
    for cell, day in zip(sweep.cells, (1, 3, 2), strict=False):
        (cell.path / "starts.jsonl").write_text(f'{{"epoch": 1, "from_step": 0, "time": "2026-01-0{day}T10:11:12Z"}}\n')
    (entry,) = read_home(tmp_path).sweeps
    assert (entry.progress, entry.running, entry.last_start) == ("5/6", 0, "2026-01-03 10:11")
    assert entry.tokens == sum(cell.generated_tokens or 0 for cell in sweep.cells)
    assert (entry.question, entry.badges, entry.page) == (sweep.question, [], None)
    answer = "2 are worse."
    contrasts = [judged("a", "inconclusive"), judged("b", "worse"), judged("c", "worse"), judged("d", "no_test")]
    write_report_json(sweep.path, contrasts=contrasts, headline=[{"sentence": answer}])
    (sweep.path / "report" / INDEX).touch()
    (entry,) = read_home(tmp_path).sweeps
    assert [(badge.sign, badge.word, badge.names) for badge in entry.badges] == [
        ("▼", "worse", "b, c"), ("?", "inconclusive", "a"), ("∅", "no test", "d")
    ]  # fmt: skip
    assert (entry.answer, entry.page) == (answer, "question/report/index.html")


def test_a_sweep_shows_its_curves_in_small_and_in_words(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "question", {"up": 0.0, "base": -9.0}, seeds=2, baseline="base")
    for cell in sweep.cells:
        low, high = (0.1, 0.6) if cell.arm == "up" else (0.1, 0.35)
        extra = [high] if cell.seed else []  # its budget allowed one evaluation more
        rows = [{"step": i, "final": False, "task": task, "generated_tokens": i, "metrics": {"pass@1": score}}
                for i, score in enumerate([low, low, high, *extra]) for task in sweep.tasks]  # fmt: skip
        cell.scores.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (entry,) = read_home(tmp_path).sweeps
    assert entry.sparkline is not None
    points = ["0.0,20.0 33.3,20.0 66.7,0.0 100.0,0.0", "0.0,20.0 33.3,20.0 66.7,10.0 100.0,10.0"]
    assert entry.sparkline.lines == points
    described = re.findall(r"(\w+) ([\d.]+) to ([\d.]+)", entry.sparkline.description)
    assert described == [("up", "10.0", "60.0"), ("base", "10.0", "35.0")]
    assert home_page(read_home(tmp_path), "Runs").count("<polyline") == 2
    for cell in sweep.cells:
        cell.scores.unlink()
    assert read_home(tmp_path).sweeps[0].sparkline is None


@pytest.mark.parametrize(
    ("sections", "names"),
    [
        (
            {"interactions": [judged("t = 1.2", "better", **EFFECT)], "contrasts": [judged("corner", "worse")]},
            ["t = 1.2"],
        ),
        ({"screening": [screening()], "contrasts": [judged("ranked", "worse")]}, []),
        ({"screening": [screening(judged("best", "better"))], "contrasts": [judged("x", "worse")]}, ["best"]),
    ],
)
def test_badges_are_of_what_the_sweep_asks(tmp_path: Path, sections: dict[str, Any], names: list[str]) -> None:
    write_report_json(write_sweep(tmp_path / "question", {"base": 0.0}, seeds=1).path, **sections)
    assert [badge.names for badge in read_home(tmp_path).sweeps[0].badges] == names


@pytest.mark.parametrize("report", ["{", "[]", '{"contrasts": 3}', '{"contrasts": [3]}', '{"contrasts": [{}]}'])
def test_a_damaged_report_is_named_and_stops_nothing(tmp_path: Path, report: str) -> None:
    write_sweep(tmp_path / "fine", {"base": 0.0}, seeds=1)
    sweep = write_sweep(tmp_path / "torn", {"base": 0.0}, seeds=1)
    write_report_json(sweep.path)
    (sweep.path / "report" / "report.json").write_text(report)
    fine, torn = read_home(tmp_path).sweeps
    assert (fine.fault, "report.json" in torn.fault) == ("", True)


def test_what_is_damaged_or_foreign_is_named(tmp_path: Path) -> None:
    files = {f"{name}/sweep.json": text for name, text in zip("abcd", ("{", "{}", '{"schema": 99}', "[]"), strict=True)}
    files |= {"evals/model/sums-0123456789/scores.json": '{"n_problems": "many"}', "search/study.json": "{}"}
    files |= dict.fromkeys(("notes/file", "cache/file", "mlartifacts/file", ".hidden/file"), "")
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    home = read_home(tmp_path)
    assert [entry.name for entry in home.sweeps] == [*"abcd"] and home.strangers == ["notes"]
    assert all(entry.fault for entry in (*home.sweeps, *home.searches, *home.evaluations))
    page = home_page(home, "Runs")
    assert "notes" in page and "cache" not in page


def test_an_evaluation_on_a_line(tmp_path: Path) -> None:
    store = tmp_path / "evals" / "tiny" / "sums-0123456789"
    store.mkdir(parents=True)
    assert read_home(tmp_path).evaluations[0].answer.startswith("not ")
    metrics = {"avg@n": 0.79, "se_problems_pp": 3.45, "mean_tokens": 15.5}
    (store / "scores.json").write_text(json.dumps({"n_problems": 50, "n_samples": 4, "metrics": metrics}))
    (store / "samples.html").touch()
    (entry,) = read_home(tmp_path).evaluations
    assert (entry.name, entry.done, entry.tokens) == ("tiny: sums", 200, 3100)
    assert entry.answer.startswith("79.0% right") and entry.page == "evals/tiny/sums-0123456789/samples.html"


def test_a_search_on_a_line(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "search", {"base": 0.0}, seeds=1, kind="search")
    write_study(sweep.path, study_document(trials=12, changes={11: {"state": "running", "values": None}}))
    (entry,) = read_home(tmp_path).searches
    assert (entry.done, entry.total, entry.is_interim, entry.badges) == (11, 12, True, [])
    assert "best of" in entry.answer
    best = study_document(trials=12)["best"]
    write_study(sweep.path, study_document(trials=12, confirmation=confirmation(best)))
    assert [badge.word for badge in read_home(tmp_path).searches[0].badges] == ["better"]


def test_the_index_has_the_same_bytes_and_escapes_what_a_file_says(tmp_path: Path) -> None:
    write_sweep(tmp_path / "question", {"base": 0.0}, seeds=1, question="<script>alert(1)</script>")
    path = write_index(tmp_path)
    assert path == tmp_path / INDEX
    first = path.read_bytes()
    assert write_index(tmp_path) == path and path.read_bytes() == first
    assert b"<script>alert" not in first and b"&lt;script&gt;alert" in first
    assert not [*tmp_path.rglob("*.tmp")]


def test_the_index_of_another_program_stays(tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text("<h1>my site</h1>")
    assert write_index(tmp_path) is None
    assert (tmp_path / INDEX).read_text() == "<h1>my site</h1>"


@pytest.mark.slow
def test_it_fits_loads_nothing_and_axe_finds_no_barrier(chromium: str, axe: Path, tmp_path: Path) -> None:
    home = tmp_path / "runs"
    sweep = write_sweep(home / f"a_name_of_{60 * 'x'}", {"base": 0.0}, seeds=1, question=40 * "Is it so? ")
    write_report_json(sweep.path, contrasts=[judged(f"arm_{verdict}_{30 * 'y'}", verdict) for verdict in SIGNS])
    (home / "torn").mkdir()
    (home / "torn" / "sweep.json").write_text("{")
    page = write_index(home)
    assert page is not None
    widths = [360, 800, 1400]
    for width, layout in zip(widths, measure(chromium, page, widths, tmp_path, axe), strict=True):
        assert (layout.sticking_out, layout.scroll_width) == ([], width)
        assert (layout.loaded, layout.blocked, layout.violations) == ([], [], [])
    (dark,) = measure(chromium, page, [1400], tmp_path, axe, is_dark=True)
    assert dark.violations == []
