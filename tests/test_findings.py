"""The findings: their sources can be asked, their pages follow from what is kept, and nothing is run twice."""

from __future__ import annotations

import functools
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs.findings import __main__ as findings_program
from docs.findings import answer, imported, source
from docs.findings.answer import Kept, _judged, all_runs, judged, summary
from docs.findings.change import before_and_after
from docs.findings.contents import README
from docs.findings.measures import Measure, difference, measures_table
from docs.findings.source import FOLDER, RECORDS, Prediction, Run, read_findings
from evals.graders import grader_version
from harness.config import hashing, references
from harness.config.hashing import NUMERICS_VERSION
from harness.errors import RefusedError
from harness.plan import make_plan
from harness.plan.tuning import arm_searches, digest, with_tuning
from harness.records.files import write_json
from reports.measure import analyse
from reports.measure.interactions import declared_names
from reports.page.document import verdict_document, write_data
from reports.page.kept import is_kept, kept_report, verify_kept
from reports.report import SECTIONS, ContrastRow, Report
from reports.statistics import power
from tests.reports.synthetic import write_sweep

FINDINGS = read_findings()
RUNS = {path.name: run for path, run in all_runs(FINDINGS).items()}
MOST_BYTES = 20_000_000
MOST_DETECTABLE_PP = {4: 1.0, 8: 1.5, 12: 1.5}
"""By the most contrasts: with the spread of the profile `tiny`, at the last look."""

KEPT_EXTRACTION_VERSION, KEPT_GRADER_VERSIONS = 5, {"numeric": 4}
"""Versions under which the kept records were made. Hashes of cells cover them: a run of today has other hashes."""


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_run_can_answer_and_repeats_the_cells_that_are_kept(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No sweep, profile or default has changed since: a reader who runs the command of a page trains the same cells."""
    run = RUNS[name]
    if "smollm2" in name and not Path(".models").is_dir():
        pytest.skip("needs the model that `make models` fetches to .models")
    for module in (hashing, references):
        monkeypatch.setattr(module, "EXTRACTION_VERSION", KEPT_EXTRACTION_VERSION)
        monkeypatch.setattr(
            module, "grader_version", lambda grader: KEPT_GRADER_VERSIONS.get(grader) or grader_version(grader)
        )
    plan = make_plan(run.sweep, run.profile, run.set, seeds=run.most_seeds)
    plan.require_answerable()
    declared = declared_names(plan.grid, [*plan.arms], plan.baseline)
    allowed = next(pp for most, pp in MOST_DETECTABLE_PP.items() if len(declared) <= most)
    sd = 0.8 * max(one.sd_ratio for one in declared)
    if "smollm2" not in name:  # its noise is another; the page says what could have been detected
        alpha = plan.sweep.compare.alpha / len(declared)
        assert power(sd, n=len(plan.request.seed_list), alpha=alpha).effect <= allowed
    compared = {one.name for one in declared} | {one.baseline for one in declared} | {*plan.arms}
    for finding in FINDINGS:
        for prediction in finding.predicts:
            arm, _, baseline = prediction.arms
            if finding.runs[prediction.run] == run:
                assert {arm, baseline} - {"0"} <= compared, f"{finding.number}: {prediction.says}"

    kept = Kept(run.record)
    if not run.record.is_dir() or kept.numerics != NUMERICS_VERSION:
        return
    if len(kept.sweep.seeds) != run.most_seeds:
        plan = make_plan(run.sweep, run.profile, run.set, seeds=len(kept.sweep.seeds))
    if kept.sweep.tuning is not None:  # which cells there are, its searches decided
        tuned = kept.sweep.tuning.arms
        searches = {arm: digest(search) for arm, search in arm_searches(plan.request).items()}
        assert searches == {arm: one.digest for arm, one in tuned.items()}
        plan = with_tuning(plan, tuned)
    assert {cell.hash for cell in plan.cells} == kept.settings()


def test_each_claim_has_its_number_and_its_source() -> None:
    assert [one.number for one in FINDINGS] == list(range(1, len(FINDINGS) + 1))
    assert all(any(character.isdigit() for character in one.source) for one in FINDINGS)


@pytest.mark.slow
def test_what_is_committed_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pages are those that the records give, every record passes `bench verify`, and none is of no finding."""
    monkeypatch.setattr(answer, "kept_report", functools.cache(kept_report))
    pages = findings_program.pages(FINDINGS)
    assert {*FOLDER.glob("*.md"), *FOLDER.glob("*.svg"), README} == {*pages}
    for path, text in pages.items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run `make findings`"
    folders = [path for path in RECORDS.glob("*") if path.is_dir()]
    assert {path.name for path in folders} <= {*RUNS}
    for folder in folders:
        difference = verify_kept(folder).difference
        assert difference is None, f"{folder.name}: {difference.sentence}"
    assert sum(path.stat().st_size for path in RECORDS.rglob("*") if path.is_file()) < MOST_BYTES


ARMS = {"base": 0.0, "up": 3.0, "same": 0.0}
SET = {"base": {}, "up": {"objective.scale": "none"}, "same": {}}
"""What the sweep file sets in each."""
MARKED = "# bench\n\n<!-- findings -->\nold\n<!-- /findings -->\n\n## Try it\n"


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sources, records and homes of a test's own."""
    for module, name in ((source, "RECORDS"), (source, "FOLDER"), (findings_program, "FOLDER")):
        monkeypatch.setattr(module, name, tmp_path / name.lower())
    for module, name in ((source, "HOME"), (imported, "HOME")):
        monkeypatch.setattr(module, name, tmp_path / "runs")
    monkeypatch.setattr(findings_program, "README", tmp_path / "README.md")
    (tmp_path / "README.md").write_text(MARKED, encoding="utf-8")
    monkeypatch.setattr(findings_program, "read_findings", lambda: source.read_findings(tmp_path / "folder"))
    (tmp_path / "folder").mkdir()
    monkeypatch.setattr(source, "SHIPPED", tmp_path / "sweeps")
    (tmp_path / "sweeps").mkdir()
    for sweep in ("mine", "theirs", "ours"):
        write_json(tmp_path / "sweeps" / f"{sweep}.yaml", {"base": {"algorithm": "grpo"}, "arms": SET})
    return tmp_path


def claim(own: Path, number: int = 1, **fields: Any) -> None:
    document: dict[str, Any] = {
        "title": "A knob",
        "claim": "The knob | helps.",
        "source": "Somebody (1234.56789)",
        "runs": {"small": {"sweep": "mine"}},
        "measures": {"right answers": "final_scores.pass@1", "luck": "final_scores.unheard_of"},
        "predicts": [
            {"run": "small", "says": "up better than base"},
            {"run": "small", "says": "same better than base"},
            {"run": "small", "says": "up equivalent to base"},
            {"run": "small", "says": "up more than base", "measure": "right answers"},
            {"run": "small", "says": "base less than up", "measure": "right answers"},
            {"run": "small", "says": "base more than up", "measure": "right answers"},
            {"run": "small", "says": "up more than base", "measure": "luck"},
        ],
    }
    path = own / "folder" / f"{number:02d}_knob.yaml"
    path.write_text(yaml.safe_dump(document | fields, sort_keys=False), encoding="utf-8")


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return end(tmp_path_factory.mktemp("ended") / "mine")


def end(folder: Path, **fields: Any) -> Path:
    """The folder of a sweep that has ended, with what is kept of its report."""
    folder.mkdir()
    asked = {"file": "sweep.yaml", "profile": "tiny", "folder": "."}
    analysis = analyse(write_sweep(folder, ARMS, seeds=6, asked=asked, **fields))
    (folder / "report").mkdir()
    write_json(folder / "report" / "report.json", {key: [] for key in SECTIONS} | verdict_document(analysis).as_json())
    write_data(analysis, folder / "report" / "data")
    return folder


def rows(page: str, first: str) -> list[list[str]]:
    """Return the cells of the rows of a page's tables that begin with this cell."""
    return [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith(f"| {first} |")]


def runner(ended: Path, calls: list[list[str]]) -> Callable[[Sequence[str]], int]:
    """A `bench` whose runs end at once."""

    def call(words: Sequence[str]) -> int:
        calls.append([*words])
        if words[0] == "run":
            shutil.copytree(ended, Path(words[words.index("--home") + 1]) / words[1])
        return 0

    return call


@pytest.mark.slow
def test_findings_are_made_once(own: Path, ended: Path) -> None:
    claim(own, answer="It helps.", paragraph="It helps here.")
    calls: list[list[str]] = []
    assert findings_program.main([], runner(ended, calls)) == 0
    options = ["--profile", "tiny", "--home", str(own / "runs" / "tiny")]
    assert calls == [["freeze", "mine", *options], ["run", "mine", *options]]
    assert is_kept(own / "records" / "mine-tiny")
    first = {path.name: path.read_text() for path in (own / "folder").glob("*.md")}
    assert {*first} == {"01_knob.md", "README.md", "method.md"}

    assert findings_program.main([], runner(ended, calls)) == 0
    assert len(calls) == 2, "what is kept is not run again"
    assert {path.name: path.read_text() for path in (own / "folder").glob("*.md")} == first

    page = first["01_knob.md"]
    assert "Not registered" in page and "pending" not in page
    assert "pass@1 is 35%" in page
    assert "knob \\|" in first["README.md"], "a bar ends no cell of the table"
    assert rows(page, "up")[0][1:3] == ["`objective.scale: none`", "35.0%"]
    assert "](docs/findings/01_knob.md)" in (own / "README.md").read_text()


def test_a_run_that_does_not_end_is_said_and_the_others_are_made(own: Path, ended: Path) -> None:
    claim(own, runs={"small": {"sweep": "mine"}, "other": {"sweep": "theirs", "set": ["train.steps=3"]}}, predicts=[])
    able = runner(ended, [])
    assert findings_program.main([], lambda words: 1 if words[1] == "theirs" else able(words)) == 1
    assert is_kept(own / "records" / "mine-tiny") and not is_kept(own / "records" / "theirs-tiny+steps=3")
    assert {path.name for path in (own / "folder").glob("*.md")} == {"01_knob.md", "README.md", "method.md"}
    assert "yet: other." in (own / "folder" / "01_knob.md").read_text()


def test_findings_are_made_in_the_order_asked_with_the_workers_asked(own: Path, ended: Path) -> None:
    for number, sweep in ((1, "mine"), (2, "theirs"), (3, "ours")):
        claim(own, number, runs={"small": {"sweep": sweep}}, predicts=[])
    calls: list[list[str]] = []
    able = runner(ended, calls)
    assert findings_program.main(["3", "1", "--workers", "1"], able) == 0
    runs = [words for words in calls if words[0] == "run"]
    assert [words[1] for words in runs] == ["ours", "mine"]
    assert all(words[-2:] == ["--workers", "1"] for words in runs)
    assert "--workers" not in (own / "folder" / "03_knob.md").read_text()
    assert findings_program.main(["4"], able) == 2 and len(calls) == 4


def test_what_is_done_is_whole_whenever_it_is_stopped(own: Path, ended: Path) -> None:
    says = [{"run": run, "says": "up better than base"} for run in ("other", "small")]
    claim(own, runs={"small": {"sweep": "mine"}, "other": {"sweep": "theirs"}}, predicts=says)
    able = runner(ended, [])

    def stopped(words: Sequence[str]) -> int:
        if words[:2] == ["run", "theirs"]:
            raise KeyboardInterrupt
        return able(words)

    with pytest.raises(KeyboardInterrupt):
        findings_program.main([], stopped)
    assert is_kept(own / "records" / "mine-tiny")
    written = {path: path.read_text() for path in (*own.glob("*.md"), *(own / "folder").glob("*.md"))}
    assert len(written) == 4
    (counts,) = re.findall(r"\b(\d+) shown\b.*\b(\d+) of (\d+)\b", written[own / "folder" / "README.md"])
    assert counts == ("1", "1", "2")
    assert findings_program.pages(source.read_findings(own / "folder")) == written


def test_another_score_can_be_asked_for_where_the_cells_are_gone(own: Path, ended: Path) -> None:
    claim(own, measures={}, predicts=[])
    findings_program.main([], runner(ended, []))
    shutil.rmtree(own / "runs")
    predicts = [{"run": "small", "says": "up more than base", "measure": "right answers"}]
    claim(own, measures={"right answers": "final_scores.pass@1"}, predicts=predicts)
    assert findings_program.main(["--pages"]) == 0
    page = (own / "folder" / "01_knob.md").read_text()
    assert rows(page, "small")[0][2] == "shown"
    assert not (own / "records" / "mine-tiny" / "measures.csv").exists()


def test_a_cell_is_compared_with_its_start_on_other_tasks(
    own: Path, ended: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim(own, runs={"small": {"sweep": "mine", "before_and_after": "--tasks gsm8k --problems 2"}})
    asked: list[list[str]] = []
    row = {"task": "gsm8k", "metric": "avg@n", "n_problems": 2, "before": 0.0, "after": 0.5, "difference": 0.5}
    able = runner(ended, [])

    def call(words: Sequence[str]) -> int:
        able(words)
        for path in (own / "runs").rglob("spec.json"):
            write_json(path, {"model": {"source": "builtin:tiny"}})
        return 0

    def ask(words: Sequence[str]) -> dict[str, Any]:
        asked.append([*words])
        return {"changes": [row | {"stderr": 0.5, "gained": 1, "lost": 0}]}

    monkeypatch.setattr(findings_program, "before_and_after", lambda run: before_and_after(run, ask))
    assert findings_program.main([], call) == 0
    (words,) = asked
    assert words[0] == "eval" and words[2:6] == ["--baseline", "builtin:tiny", "--tasks", "gsm8k"]
    assert "/cells/arm0-s0-" in words[1] and words[-2:] == [str(own / "runs" / "tiny"), "--json"]
    page = (own / "folder" / "01_knob.md").read_text()
    assert rows(page, "gsm8k") == [["gsm8k", "avg@n", "2", "0%", "50%", "+50.0 pp", "50.0 pp", "1", "0"]]
    assert verify_kept(own / "records" / "mine-tiny").difference is None


LAW: dict[str, Any] = {"law": "entropy", "target": "training reward", "seed": None, "arm": "ppo", "n_points": 9}
LAW |= {"a": 1, "b": 2, "r2": 0.5}
RMSE = {"n_predicted": 6, "rmse_law": 0.1, "rmse_line": 0.2, "rmse_last": 0.3, "rmse_step": 0.4}


def test_the_laws_of_logs_made_elsewhere_are_kept_without_them(
    own: Path, ended: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim(own, imported={"made elsewhere": {"logs": "logs", "origin": "https://there", "ablate": ["a", "b"]}})
    calls: list[list[str]] = []

    def call(words: Sequence[str]) -> int:
        calls.append([*words])
        folder = own / "runs" / "imported" / "logs" / "report"
        folder.mkdir(parents=True, exist_ok=True)
        others: list[dict[str, Any]] = [{}, {"seed": 0}, {"target": "score"}, {"forecast": None}]
        write_json(folder / "report.json", {"laws": [LAW | {"forecast": RMSE} | other for other in others]})
        return 0

    monkeypatch.delenv("BENCH_EXTERNAL", raising=False)
    assert findings_program.main([], call) == 2 and calls == []
    monkeypatch.setenv("BENCH_EXTERNAL", str(own))
    (own / "logs").mkdir()
    assert findings_program.main(["--pages"], call) == 0 and not (own / "folder" / "01_knob.md").exists()
    able = runner(ended, [])
    assert findings_program.main([], lambda words: able(words) if words[0] in ("freeze", "run") else call(words)) == 0
    assert [words[0] for words in calls] == ["import", "report"] and calls[0][-4:-2] == ["--ablate", "a,b"]
    page = (own / "folder" / "01_knob.md").read_text()
    assert rows(page, "ppo") == [["ppo", "9", "1", "2", "0.5", "0.1", "0.2", "0.3", "0.4"]]
    assert str(own) not in (own / "records" / "logs.csv").read_text()


def test_predictions_are_shown_refuted_or_open(own: Path, ended: Path) -> None:
    claim(own)
    findings_program.main([], runner(ended, []))
    (finding,) = source.read_findings(own / "folder")
    kept = Kept(own / "records" / "mine-tiny")
    found = judged(finding, {"small": kept})
    by_arm: dict[str, Any] = {row.arm: row for row in kept.report.contrasts}
    assert by_arm["up"].low_pp > 1.0, "beyond the margin"
    low, high = by_arm["same"].low_pp, by_arm["same"].high_pp
    same = "shown" if low > 0 else "refuted" if high < 1.0 else "undecided"
    assert [one.outcome for one in found[:3]] == ["shown", same, "refuted"]
    ends = difference(kept.measured("final_scores.pass@1"), "up", "base")
    assert ends is not None and ends.low > 0
    assert [one.outcome for one in found[3:]] == ["shown", "shown", "refuted", "undecided"]
    assert f"[{ends.low:+.3g}, {ends.high:+.3g}]" in found[3].why
    assert re.findall(r"\d \w+", summary([found[0], found[0], found[2]])) == ["3 predictions", "2 shown", "1 refuted"]
    assert f"**{summary(found)}**" in (own / "folder" / "01_knob.md").read_text()


@pytest.mark.parametrize(
    ("relation", "low_pp", "high_pp", "outcome"),
    [
        ("better than", 0.1, 2.0, "shown"),
        ("better than", -0.5, 0.9, "refuted"),
        ("better than", -0.5, 1.1, "undecided"),
        ("worse than", -2.0, -0.1, "shown"),
        ("worse than", -0.9, 0.5, "refuted"),
        ("worse than", -1.1, 0.5, "undecided"),
        ("equivalent to", -0.9, 0.9, "shown"),
        ("equivalent to", 1.1, 1.5, "refuted"),
        ("equivalent to", -1.5, -1.1, "refuted"),
        ("equivalent to", 0.1, 1.5, "undecided"),
        ("equivalent to", -1.5, 0.5, "undecided"),
    ],
)
def test_an_interval_decides_a_prediction(relation: str, low_pp: float, high_pp: float, outcome: str) -> None:
    """A gain is refuted where the interval rules one as large as the margin out."""
    ends = {"low_pp": low_pp, "high_pp": high_pp, "level": 0.95, "margin_pp": 1.0}
    kept = Kept(Path("kept"))
    vars(kept)["report"] = Report(contrasts=[ContrastRow(arm="up", baseline="base", verdict="inconclusive", **ends)])
    prediction = Prediction(run="small", says=f"up {relation} base")
    turned = Prediction(run="small", says=f"base {_TURNED.get(relation, relation)} up")
    assert _judged(prediction, kept, {}).outcome == _judged(turned, kept, {}).outcome == outcome


_TURNED = {"better than": "worse than", "worse than": "better than"}


def test_a_measure_is_the_mean_of_a_cells_rows(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    rows = [f"{arm},{seed},{step},{part},{value}" for arm in "ab" for seed in (0, 1) for step, part, value in (
        (1, "x", 1.0), (2, "x", 2.0), (3, "x", ""), (4, "x", 9.0 + seed), (4, "y", 50.0))]  # fmt: skip
    (data / "table.csv").write_text("\n".join(["arm,seed,step,part,value", *rows]) + "\n")
    assert Measure.parse("table.value[part=x]").values(tmp_path)["a", 0] == 4.0
    assert Measure.parse("table.value[part=x]@end").values(tmp_path)["a", 1] == 10.0
    assert Measure.parse("table.other").values(tmp_path) == Measure.parse("none.value").values(tmp_path) == {}
    assert measures_table(tmp_path, ["table.step"]).splitlines()[:2] == ["arm,seed,measure,value", "a,0,table.step,2.8"]
    assert measures_table(tmp_path, ["table.other"]) == ""
    with pytest.raises(RefusedError):
        Measure.parse("value")


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"predicts": [{"run": "smal", "says": "up better than base"}]}, "'smal'; did you mean small"),
        ({"predicts": [{"run": "small", "says": "up not worse than base"}]}, "predicts.0: says is"),
        ({"predicts": [{"run": "small", "says": "up above base", "measure": "luck"}]}, "predicts.0: 'up above base'"),
        ({"predicts": [{"run": "small", "says": "up more than base", "measure": "lack"}]}, "did you mean luck"),
        ({"measures": {"length": "tokens"}}, "'tokens'"),
        ({"about": "coverage"}, "runs: "),
        ({"clam": "x"}, "clam is not a key"),
    ],
)
def test_a_faulty_source_is_refused(own: Path, fields: dict[str, Any], fault: str) -> None:
    claim(own, **fields)
    with pytest.raises(RefusedError) as refused:
        source.read_findings(own / "folder")
    assert fault in str(refused.value) and str(refused.value).startswith(str(own / "folder"))


def test_settings_have_homes_and_records_of_their_own() -> None:
    runs = [Run(sweep="a"), Run(sweep="a", profile="my/b.yaml"), Run(sweep="my/a.yaml", set=["x.y=1"])]
    runs += [Run(sweep="a", set=["eval.temperature=0"])]
    assert [run.place for run in runs] == ["tiny", "b", "tiny+y=1", "tiny"], "another evaluation trains nothing"
    assert [run.is_another_evaluation for run in runs] == [False, False, False, True]
    assert [run.record.name for run in runs] == ["a-tiny", "a-b", "a-tiny+y=1", "a-tiny+temperature=0"]


@pytest.mark.slow
def test_a_finding_is_registered_run_kept_and_verified(own: Path) -> None:
    """With the real `bench`, on two arms that train for two steps."""
    asked = {
        "name": "mine",
        "question": "Does it matter?",
        "profile": "tiny",
        "ablate": ["objective.scale"],
        "base": {"algorithm": "grpo", "train.steps": 2, "eval": {"every": 0, "problems": 16, "samples": 2}},
        "arms": {"base": {}, "up": {"objective.scale": "none"}},
        "seeds": 6,
    }
    sweep = own / "mine.yaml"
    sweep.write_text(yaml.safe_dump(asked), encoding="utf-8")
    one: dict[str, Any] = {"sweep": str(sweep), "most_seeds": 6}
    one["before_and_after"] = "--tasks arithmetic --problems 4"
    greedy = {"sweep": str(sweep), "set": ["eval.temperature=0"]}
    says = [{"run": "small", "says": "up better than base"}]
    claim(own, runs={"small": one, "greedy": greedy}, predicts=says, measures={"entropy (nats)": "steps.entropy/full"})
    assert findings_program.main([]) == 0
    page = (own / "folder" / "01_knob.md").read_text()
    assert "Registered before" in page
    assert rows(page, "arithmetic")[0][1:3] == ["avg@n", "4"]
    assert "pass@1" in [row[1] for row in rows(page, "greedy")], "both evaluations say whether they moved"
    for name in ("mine-tiny", "mine-tiny+temperature=0"):
        assert verify_kept(own / "records" / name).difference is None
    cells = [path.name for path in (own / "runs" / "tiny" / "mine" / "cells").iterdir()]
    assert len(cells) == 12, "the greedy evaluation trains nothing"
    trained = {path: path.stat().st_mtime_ns for path in (own / "runs").rglob("steps.jsonl")}
    assert findings_program.main([]) == 0
    assert {path: path.stat().st_mtime_ns for path in (own / "runs").rglob("steps.jsonl")} == trained
    assert (own / "folder" / "01_knob.md").read_text() == page
