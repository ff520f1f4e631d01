"""`bench freeze`, `bench verify`, `bench verdict`."""

from __future__ import annotations

import errno
import html
import json
import re
from pathlib import Path
from unittest.mock import Mock

import pytest

from harness.plan import make_plan
from harness.records import SweepRecord, read_sweep
from harness.records.files import append_jsonl
from harness.records.registration import REGISTERED
from harness.run.cell import CellLog
from harness.tracking.question import sync_report
from reports.home import read_home
from tests.frozen import frozen
from tests.harness.cli.conftest import Bench
from tests.harness.plan.files import write_sweep_file
from tests.reports.page.test_kept import kept
from tests.reports.synthetic import Changes, write_sweep

pytestmark = pytest.mark.usefixtures("plain_report")

SCORES = {"base": (0.50, 0.52, 0.51, 0.55), "up": (0.53, 0.56, 0.57, 0.58), "same": (0.501, 0.519, 0.512, 0.549)}
CHANGES: Changes = {(arm, seed): {"score": score} for arm, by in SCORES.items() for seed, score in enumerate(by)}


def judged(tmp_path: Path, **fields: object) -> None:
    given = {"changes": CHANGES, "seeds": 4} | fields
    write_sweep(tmp_path / "runs" / "mine", dict.fromkeys(SCORES, 0.0), **given)  # type: ignore[arg-type]


def test_a_question_is_registered_with_its_plan(bench: Bench, tmp_path: Path) -> None:
    sweep = write_sweep_file(tmp_path)
    result = bench("freeze", sweep, "--seeds", "3")
    path = tmp_path / "runs" / "mine" / REGISTERED
    document = json.loads(path.read_text())
    assert result.code == 0 and f"digest: {document['digest']}" in result.out
    assert "bench run" in result.out and "--seeds 3" in result.out
    planned = make_plan(str(sweep), seeds=3)
    assert document["cells"] == {
        arm: {str(cell.seed): cell.hash for cell in planned.cells if cell.arm == arm} for arm in planned.arms
    }
    assert (document["asked"]["margin_pp"], document["asked"]["alpha"]) == (planned.margin_pp, 0.05)
    assert document["asked"]["seeds"] == [0, 1, 2] and document["asked"]["question"] == planned.sweep.question
    assert document["specs"]["with"]["train"] == planned.arms["with"].model_dump(mode="json")["train"]
    again = bench("freeze", sweep, "--seeds", "3", "--json").document
    assert (again["digest"], again["replaced"]) == (document["digest"], None)
    other = bench("freeze", sweep, "--seeds", "4", "--json").document
    assert other["digest"] != document["digest"] and other["replaced"] == document["digest"]


def test_a_start_names_the_registration_it_found_and_nothing_is_registered_after_it(
    bench: Bench, tmp_path: Path
) -> None:
    sweep = write_sweep_file(tmp_path)
    digest = bench("freeze", sweep, "--json").document["digest"]
    cell = make_plan(str(sweep)).cells[0]
    record = make_plan(str(sweep)).record(cell, tmp_path / "runs")
    record.path.mkdir(parents=True)
    CellLog(record).started(0, {"torch": "x"})
    (start,) = record.read_starts()
    assert start["registered"] == digest
    assert record.provenance["torch"] == "x" and "registered" not in record.provenance
    assert bench("freeze", sweep, "--set", "train.learning_rate=0.5").code == 0, "other cells, none of which has run"
    bench("freeze", sweep).refused("cli.cells_already_run", n_started=1, n_cells=24)


def test_arms_that_cannot_be_compared_are_not_registered(bench: Bench, tmp_path: Path) -> None:
    sweep = write_sweep_file(tmp_path, ablate=["train.steps"])
    assert bench("freeze", sweep).code == 3
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_program_requires_a_verdict(bench: Bench, tmp_path: Path) -> None:
    judged(tmp_path)
    frozen("cli/verdict", bench("verdict", "mine").out)
    good = bench("verdict", "mine", "--require", "up better than base", "--require", "same not worse than base")
    assert (good.code, good.err) == (0, "")
    assert [line.partition(":")[0] for line in good.out.splitlines()] == ["holds", "holds"]
    bad = bench("verdict", "mine", "--require", "up better than base", "--require", "same better than base", "--json")
    bad.ended(1, "cli.requirements_not_met", n_failed=1, n_requirements=2)
    assert [row["holds"] for row in bad.document["requirements"]] == [True, False]
    assert {"low_pp", "high_pp", "level", "margin_pp", "verdict", "why"} <= set(bad.document["requirements"][0])
    bench("verdict", "mine", "--require", "sam better than base").refused("reports.requirement_of_unknown_arm")


@pytest.mark.slow
def test_an_open_verdict_ends_with_what_would_settle_it_as_power_says(bench: Bench, tmp_path: Path) -> None:
    scores = {("up", seed): {"score": score} for seed, score in enumerate((0.53, 0.50, 0.57, 0.52))}
    judged(tmp_path, changes={**CHANGES, **scores})
    line = bench("power", "mine").out.splitlines()[0]
    assert line.replace(" inconclusive.", "") in bench("verdict", "mine").out.splitlines()
    steps = bench("verdict", "mine", "--json").document["next_steps"]
    assert [*steps] == ["up"] and steps["up"]["cheapest"] == "seeds"


@pytest.mark.slow
def test_one_headline_stands_everywhere(bench: Bench, tmp_path: Path) -> None:
    scores = {("up", seed): {"score": score} for seed, score in enumerate((0.53, 0.50, 0.57, 0.52))}
    judged(tmp_path, changes={**CHANGES, **scores})
    (sentence,) = (row["sentence"] for row in bench("report", "mine", "--json").document["headline"])
    page = tmp_path / "runs" / "mine" / "report"
    mirrored = Mock(tags={})
    sync_report(mirrored, page)
    description = mirrored.set_tags.call_args[0][0]["mlflow.note.content"]
    (shown,) = re.findall(r'<p class="headline">(.*?)</p>', (page / "index.html").read_text())
    assert {
        "page": html.unescape(re.sub(r"<abbr[^>]*>|</?\w+>", "", shown)),
        "MLflow": re.search(r"\*\*(.*)\*\*", description)[1],  # type: ignore[index]
        "home": read_home(tmp_path / "runs").sweeps[0].answer,
        "verdict": bench("verdict", "mine").out.splitlines()[0],
        "report": bench("report", "mine").out.splitlines()[-2],
    } == {"page": sentence.replace("`", ""), **dict.fromkeys(("MLflow", "home", "verdict", "report"), sentence)}


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["verdict", "power"])
def test_showing_verdicts_is_a_look(bench: Bench, tmp_path: Path, verb: str) -> None:
    judged(tmp_path, asks="this")
    shown = [bench(verb, "mine", *options).out for options in ((), (), ("--json",))]
    (look,) = read_sweep(tmp_path / "runs" / "mine").looks
    assert (len(look.seeds), look.verdicts) == (4, {"up": "better", "same": "equivalent"})
    assert shown[0] == shown[1]


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["verdict", "power"])
def test_verdicts_of_records_that_cannot_be_written_are_shown(
    bench: Bench, tmp_path: Path, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged(tmp_path, asks="this")

    def read_only(record: SweepRecord) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(SweepRecord, "write", read_only)
        shown = bench(verb, "mine")
    assert (shown.code, shown.out) == (0, bench(verb, "mine").out)
    assert shown.err.startswith("warning: ") and "(Permission denied)" in shown.err


def test_nothing_that_is_required_holds_before_the_end(bench: Bench, tmp_path: Path) -> None:
    judged(tmp_path, changes={**CHANGES, ("same", 3): {"state": "pending"}})
    early = bench("verdict", "mine", "--require", "up better than base", "--json")
    assert early.code == 1 and [row["holds"] for row in early.document["requirements"]] == [False]


def test_a_registration_is_told_with_the_verdict(bench: Bench, tmp_path: Path) -> None:
    judged(tmp_path)
    for folder in (tmp_path / "runs" / "mine" / "cells").iterdir():
        append_jsonl(folder / "starts.jsonl", [{"epoch": 1, "from_step": 99, "registered": "0" * 32}])
    told = bench("verdict", "mine", "--json").document["registration"]
    assert told and told in bench("verdict", "mine").out


@pytest.mark.slow
def test_a_report_is_verified_against_its_records(bench: Bench, tmp_path: Path) -> None:
    judged(tmp_path)
    bench("verify", "mine").refused("cli.no_written_report", sweep="mine")
    bench("report", "mine")
    good = bench("verify", "mine", "--json").document
    assert good["agrees"] and good["difference"] is None and good["checked"]["report.json"] > 100
    path = tmp_path / "runs" / "mine" / "report" / "report.json"
    report = json.loads(path.read_text())
    report["arms"][0]["mean_pp"] += 1
    path.write_text(json.dumps(report))
    bad = bench("verify", "mine")
    bad.ended(1, "cli.report_differs")
    assert all(text in bad.err for text in ("report.json, arms[0].mean_pp", " 53.", " 52."))


@pytest.mark.slow
def test_results_are_printed_for_a_paper(bench: Bench, tmp_path: Path) -> None:
    judged(tmp_path)
    latex = bench("report", "mine", "--format", "latex").out
    assert latex.startswith("\\begin{tabular}") and "up &" in latex and latex.rstrip().endswith("\\end{tabular}")
    first, *rows = bench("report", "mine", "--format", "csv").out.splitlines()
    assert first.startswith("arm,") and {row.split(",")[0] for row in rows} == {*SCORES}
    bench("report", "mine", "--format", "csv", "--json").refused("cli.json_with_format")


def test_a_kept_report_is_verified_without_its_cells(bench: Bench, tmp_path: Path) -> None:
    folder = kept(tmp_path, arms={"base": 0.0, "up": 2.0}, seeds=6)
    assert bench("verify", folder).code == 0
    bench("verify", folder, "--reflection-words", "wait").refused("cli.kept_report_without_texts")
    (folder / "report.json").write_text((folder / "report.json").read_text().replace("better", "worse"))
    altered = bench("verify", folder)
    assert altered.code == 1 and "report.json" in altered.err
