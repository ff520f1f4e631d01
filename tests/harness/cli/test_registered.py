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
    refused = bench("freeze", sweep, "--set", "train.learning_rate=0.5")
    assert refused.code == 0, "other cells, none of which has run"
    refused = bench("freeze", sweep)
    assert refused.code == 2 and "1 of 24 cells have run already (with-s0" in refused.err and "Give" in refused.err


def test_arms_that_cannot_be_compared_are_not_registered(bench: Bench, tmp_path: Path) -> None:
    sweep = write_sweep_file(tmp_path, ablate=["train.steps"])
    assert bench("freeze", sweep).code == 3
    assert not (tmp_path / "runs").exists()


def test_a_program_requires_a_verdict(bench: Bench, tmp_path: Path) -> None:
    judged(tmp_path)
    plain = bench("verdict", "mine")
    assert plain.code == 0 and plain.out.count("\n") == 3 and "up is better than base" in plain.out
    good = bench("verdict", "mine", "--require", "up better than base", "--require", "same not worse than base")
    assert (good.code, good.err) == (0, "")
    assert [line.partition(":")[0] for line in good.out.splitlines()] == ["holds", "holds"]
    bad = bench("verdict", "mine", "--require", "up better than base", "--require", "same better than base", "--json")
    assert bad.code == 1 and "1 of 2 requirements do not hold" in bad.err
    assert [row["holds"] for row in bad.document["requirements"]] == [True, False]
    assert {"low_pp", "high_pp", "level", "margin_pp", "verdict", "why"} <= set(bad.document["requirements"][0])
    wrong = bench("verdict", "mine", "--require", "sam better than base")
    assert wrong.code == 2 and "did you mean same" in wrong.err


def test_an_open_verdict_ends_with_what_would_settle_it_as_power_says(bench: Bench, tmp_path: Path) -> None:
    scores = {("up", seed): {"score": score} for seed, score in enumerate((0.53, 0.50, 0.57, 0.52))}
    judged(tmp_path, changes={**CHANGES, **scores})
    line = bench("power", "mine").out.splitlines()[0]
    assert line.startswith("up against base: inconclusive. Cheapest next step to show equivalence within ±1 pp")
    assert line.replace(" inconclusive.", "") in bench("verdict", "mine").out.splitlines()
    steps = bench("verdict", "mine", "--json").document["next_steps"]
    assert [*steps] == ["up"] and steps["up"]["cheapest"] == "seeds"


def test_one_headline_stands_everywhere(bench: Bench, tmp_path: Path) -> None:
    scores = {("up", seed): {"score": score} for seed, score in enumerate((0.53, 0.50, 0.57, 0.52))}
    judged(tmp_path, changes={**CHANGES, **scores})
    (sentence,) = (row["sentence"] for row in bench("report", "mine", "--json").document["headline"])
    assert sentence.startswith("Undecided after 4 seeds: up +1.0 pp [")
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


@pytest.mark.parametrize("verb", ["verdict", "power"])
def test_showing_verdicts_is_a_look(bench: Bench, tmp_path: Path, verb: str) -> None:
    judged(tmp_path, asks="this")
    shown = [bench(verb, "mine", *options).out for options in ((), (), ("--json",))]
    (look,) = read_sweep(tmp_path / "runs" / "mine").looks
    assert (len(look.seeds), look.verdicts) == (4, {"up": "better", "same": "equivalent"})
    assert shown[0] == shown[1]


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
    assert "this look is not counted, since" in shown.err and "(Permission denied)" in shown.err


def test_nothing_that_is_required_holds_before_the_end(bench: Bench, tmp_path: Path) -> None:
    judged(tmp_path, changes={**CHANGES, ("same", 3): {"state": "pending"}})
    early = bench("verdict", "mine", "--require", "up better than base")
    assert early.code == 1 and "does not hold: up better than base: Unfinished sweep" in early.out


def test_a_registration_is_told_with_the_verdict(bench: Bench, tmp_path: Path) -> None:
    judged(tmp_path)
    for folder in (tmp_path / "runs" / "mine" / "cells").iterdir():
        append_jsonl(folder / "starts.jsonl", [{"epoch": 1, "from_step": 99, "registered": "0" * 32}])
    assert "The registration that" in bench("verdict", "mine").out
    assert "is gone" in bench("verdict", "mine", "--json").document["registration"]


@pytest.mark.slow
def test_a_report_is_verified_against_its_records(bench: Bench, tmp_path: Path) -> None:
    judged(tmp_path)
    early = bench("verify", "mine")
    assert early.code == 2 and "`bench report mine` writes one" in early.err
    bench("report", "mine")
    good = bench("verify", "mine", "--json").document
    assert good["agrees"] and good["difference"] is None and good["checked"]["report.json"] > 100
    path = tmp_path / "runs" / "mine" / "report" / "report.json"
    report = json.loads(path.read_text())
    report["arms"][0]["mean_pp"] += 1
    path.write_text(json.dumps(report))
    bad = bench("verify", "mine")
    assert bad.code == 1 and "report.json, arms[0].mean_pp: the report says 53." in bad.err
    assert "the records give 52." in bad.err


def test_results_are_printed_for_a_paper(bench: Bench, tmp_path: Path) -> None:
    judged(tmp_path)
    latex = bench("report", "mine", "--format", "latex").out
    assert latex.startswith("\\begin{tabular}") and "up &" in latex and latex.rstrip().endswith("\\end{tabular}")
    first, *rows = bench("report", "mine", "--format", "csv").out.splitlines()
    assert first.startswith("arm,") and {row.split(",")[0] for row in rows} == {*SCORES}
    refused = bench("report", "mine", "--format", "csv", "--json")
    assert refused.code == 2 and "give one of them" in refused.err


def test_a_kept_report_is_verified_without_its_cells(bench: Bench, tmp_path: Path) -> None:
    folder = kept(tmp_path, arms={"base": 0.0, "up": 2.0}, seeds=6)
    result = bench("verify", folder)
    assert result.code == 0 and "values of the kept report match its final scores" in result.out
    refused = bench("verify", folder, "--reflection-words", "wait")
    assert refused.code == 2 and "is a kept report, without the text that --reflection-words looks at" in refused.err
    (folder / "report.json").write_text((folder / "report.json").read_text().replace("better", "worse"))
    altered = bench("verify", folder)
    assert altered.code == 1 and "report.json, the digest" in altered.err
