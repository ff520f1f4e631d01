from __future__ import annotations

import json
import re
from operator import attrgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.records.files import DamagedRecordError, ProblemsFile, write_json
from reports import samples
from reports.samples import (
    RecordedSamples,
    SampleQuota,
    share,
    write_evaluation_samples,
    write_lm_eval_samples,
    write_sweep_samples,
)
from reports.samples.reading import read_samples
from tests.refusals import refuses
from tests.reports.page.invariants import check_same_files
from tests.reports.samples.synthetic import ATTACK, TEXTS, AskedProblem
from tests.reports.synthetic import STEPS, TASK, write_sweep
from tests.reports.synthetic_rollouts import recorded, write_rows

ARMS = {"base": 0.0, "up": 3.0, "same": 0.0}
sizes = st.integers(0, 300)
EVERYTHING = SampleQuota(10**9, 10**9)


def written(page: Path) -> dict[str, Any]:
    """What each file of the page hands on, by its name."""
    calls = {path.stem: path.read_text(encoding="utf-8") for path in page.glob("samples/*.js")}
    found = {}
    for name, call in calls.items():
        match = re.fullmatch(rf'benchSamples\("{name}",(.*)\);\n', call, flags=re.DOTALL)
        assert match is not None and "\n" not in match[1]
        found[name] = json.loads(match[1])
    return found


def listed(files: dict[str, Any]) -> list[dict[str, Any]]:
    """The samples in the order of the page, with names in the place of numbers."""
    index = files["index"]
    texts = [one for name in sorted(files) if name.startswith("text-") for one in files[name]]
    prompts = [one for name in sorted(files) if name.startswith("prompts-") for one in files[name]]
    return [
        {
            **body,
            "arm": index["arms"][index["arm"][row]],
            "seed": index["seed"][row],
            "when": index["whens"][index["when"][row]],
            "problem": index["problems"][index["problem"][row]][1],
            "sample": index["sample"][row],
            "flags": index["flags"][row],
            "prompt": None if index["prompt"][row] < 0 else prompts[index["prompt"][row]],
        }
        for row, body in enumerate(texts)
    ]


def counts_on(page: Path) -> set[tuple[int, int]]:
    """Every "n of m" on a page."""
    found = re.findall(r"\b(?=([\d,]+) of (?:the |more than )?([\d,]+) )", page.read_text())
    return {(int(n.replace(",", "")), int(m.replace(",", ""))) for n, m in found}


def page_of(sweep: Any, folder: Path) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    write_sweep_samples(sweep, folder)
    return written(folder)


def test_every_recorded_sample_is_there_flipped_ones_first_then_disagreeing_then_wrong_then_right(tmp_path):
    sweep = write_sweep(tmp_path / "records", ARMS, seeds=2)
    rows = listed(page_of(sweep, tmp_path / "page"))
    final = [row for row in rows if row["when"] == "final"]
    assert len(final) == 3 * 2 * 2 * 2
    assert len(rows) - len(final) == 3 * 2 * STEPS * 8
    assert final[0]["graders"] == [["math", "mismatch"], ["string", "mismatch"]]
    (training,) = [row for row in rows if (row["arm"], row["seed"], row["when"]) == ("up", 1, "training 3")][:1]
    assert training["reward"] in (0, 1)
    assert sum(training["tokens"]["chars"]) == len(training["text"])
    assert " 1,944 samples" in (tmp_path / "page" / "samples.html").read_text()
    right, wrong, _cut, disagree, flipped = (1 << place for place in range(5))
    flags = [row["flags"] for row in final]
    ranks = [0 if f & flipped else 1 if f & disagree else 2 if f & wrong else 3 for f in flags]
    assert ranks == sorted(ranks) and set(ranks) == {0, 1, 2, 3}
    of_flipped = {(row["arm"], row["problem"], row["sample"]) for row in final if row["flags"] & flipped}
    assert of_flipped == {("up", "p1", 1)}
    assert all(bool(f & right) != bool(f & wrong) for f in flags)


def test_each_grader_says_why(tmp_path):
    (cell,) = write_sweep(tmp_path / "records", {"base": 0.0}, seeds=1).cells
    rows = pyarrow.parquet.read_table(cell.evals).to_pylist()[:1]
    reasons = '{"string": "mismatch", "math": "match", "own": "</b>"}'
    pyarrow.parquet.write_table(pa.Table.from_pylist([rows[0] | {"reasons": reasons}]), cell.evals)
    (first,) = (json.loads(one.body) for one in read_samples(cell, EVERYTHING, 9, 0).samples if one.when == "final")
    assert first["graders"] == [[*pair] for pair in json.loads(reasons).items()]
    page = write_evaluation_samples("t", 0, {"base": cell.path}, tmp_path / "page")
    assert re.search(r"string\W.*✗.*math\W✓.*own\W✗ &lt;/b&gt;</p>", page.read_text())
    pyarrow.parquet.write_table(pa.Table.from_pylist([rows[0] | {"reasons": "no JSON"}]), cell.evals)
    with refuses(DamagedRecordError, "reports.sample_reasons_damaged", reasons="no JSON"):
        read_samples(cell, EVERYTHING, 9, 0)


@pytest.mark.slow
def test_the_same_records_give_the_same_bytes_and_stale_files_go(tmp_path):
    """And no text ends a script or its line."""
    sweep = write_sweep(tmp_path / "records", {"</script>": 0.0, "\u2028": 0.0}, seeds=1, texts=TEXTS)
    page_of(sweep, tmp_path / "page")
    (tmp_path / "page" / "samples" / "text-9999.js").write_text("stale")
    page_of(sweep, tmp_path / "page")
    page_of(sweep, tmp_path / "again")
    for one, other in (("page", "again"), ("again", "page")):
        check_same_files(tmp_path / one, tmp_path / other, least=4)
    for path in tmp_path.glob("page/samples/*.js"):
        text = path.read_text(encoding="utf-8")
        assert "<" not in text and text.isascii() and text.count("\n") == 1
    static = (tmp_path / "page" / "samples.html").read_text().split("<script>")[0]
    assert "<img" not in static and "\u202e" not in static


@pytest.mark.slow
def test_prompts_are_shown_and_their_absence_is_said(tmp_path):
    sweep = write_sweep(tmp_path / "records", ARMS, seeds=2)
    page_of(sweep, tmp_path / "page")
    without = "no prompt and no reference"
    assert without in (tmp_path / "page" / "samples.html").read_text()
    for cell in sweep.cells:
        problems, statement = ProblemsFile(cell.path / "problems.jsonl"), attrgetter("problem")
        problems.add(TASK, "test", [AskedProblem(f"p{i}", f"{i}+{i}=", "$2$") for i in range(2)], statement)
        problems.add("sums", "train", [AskedProblem(f"t{i}", f"{i}+1=", "") for i in range(7)], statement)
    files = page_of(sweep, tmp_path / "page")
    assert without not in (tmp_path / "page" / "samples.html").read_text()
    rows = listed(files)
    assert {row["prompt"]["prompt"]["text"] for row in rows if row["problem"] == "p1"} == {"1+1="}
    assert files["index"]["tasks"] == [TASK, "sums"]
    (answer,) = {json.dumps(row["prompt"]["answer"]) for row in rows if row["when"] == "final"}
    assert json.loads(answer)["formulas"][0][:2] == [0, 3]
    assert len(files["prompts-0001"]) == 2 + 7


def test_token_numbers_are_thousandths_and_must_fit_their_text(tmp_path):
    (cell,) = write_sweep(tmp_path / "records", {"base": 0.0}, seeds=1).cells
    ratios = {"token/log_ratio": [[0.1, 0.2], None], "token/entropy": [0.5, float("nan")]}
    row = recorded(1, "ab cd", True, ratios, epochs=2)
    write_rows(cell.path, [row | {"token/chars": [2, 3]}])
    (found,) = [one for one in read_samples(cell, EVERYTHING, 9, 0).samples if one.when == "training 1"]
    tokens = json.loads(found.body)["tokens"]
    assert tokens == {"chars": [2, 3], "entropy": [500, None], "advantage": 250, "log_ratio": [100, 200]}
    write_rows(cell.path, [row | {"token/chars": [2, 2]}])
    with refuses(DamagedRecordError, "reports.token_characters_differ"):
        read_samples(cell, EVERYTHING, 9, 0)


def test_an_environments_replies_stand_apart_from_the_models_text(tmp_path):
    (cell,) = write_sweep(tmp_path / "records", {"base": 0.0}, seeds=1).cells
    (row, *_) = pyarrow.parquet.read_table(cell.evals).to_pylist()
    reply = "<b>+</b> & more"
    turns = [
        {"end_chars": 2, "end_tokens": 3, "reply": reply, "reward": 0.25},
        {"end_chars": 4, "end_tokens": 6, "reply": "", "reward": 0.0},
    ]
    row |= {"text": "#4#5", "correct": False, "turns": json.dumps(turns)}
    pyarrow.parquet.write_table(pa.Table.from_pylist([row]), cell.evals)
    found = next(one for one in read_samples(cell, EVERYTHING, 9, 0).samples if one.when == "final")
    assert json.loads(found.body)["turns"] == [[2, 3, reply, 0.25], [4, 6, "", 0.0]]
    page = write_evaluation_samples("t", 0, {"base": cell.path}, tmp_path / "page")
    shown = '#4<span class="reply">environment: &lt;b&gt;+&lt;/b&gt; &amp; more</span>#5</pre>'
    assert shown in page.read_text()
    for damaged in ("no JSON", '[{"end_chars": 2}]', "[3]"):
        pyarrow.parquet.write_table(pa.Table.from_pylist([row | {"turns": damaged}]), cell.evals)
        with refuses(DamagedRecordError, "reports.sample_turns_damaged"):
            read_samples(cell, EVERYTHING, 9, 0)


@pytest.mark.slow
def test_of_too_many_samples_every_cell_shows_the_same_share(tmp_path, monkeypatch):
    monkeypatch.setattr(samples, "MOST_SAMPLES", 6 * 20)
    sweep = write_sweep(tmp_path / "records", ARMS, seeds=2, texts=TEXTS)
    rows = listed(page_of(sweep, tmp_path / "page"))
    assert len(rows) == 6 * (8 + 8)  # one row of each of the eight steps
    kept = [{tuple(row[key] for key in ("seed", "when", "problem", "sample")) for row in rows if row["arm"] == arm}
            for arm in ("base", "same")]  # fmt: skip
    finals = [{one for one in of_arm if one[1] == "final"} for of_arm in kept]
    assert finals[0] == finals[1]
    assert (96, 1968) in counts_on(tmp_path / "page" / "samples.html")


def test_of_long_completions_and_of_many_files_a_page_holds_fewer(tmp_path, monkeypatch):
    sweep = write_sweep(tmp_path / "records", {"base": 0.0}, seeds=1)  # 4 samples of 12 tokens, 320 of training
    for most, n in ((20, 4 + 16), (324, 324)):
        monkeypatch.setattr(samples, "MOST_TOKENS", 12 * most)
        assert len(listed(page_of(sweep, tmp_path / "page"))) == n
    monkeypatch.setattr(samples, "MOST_FILES", 2)
    steps = {row["when"] for row in listed(page_of(sweep, tmp_path / "page"))} - {"final"}
    assert steps == {f"training {step}" for step in (*range(1, 11), *range(31, 41))}
    assert (164, 164) in counts_on(tmp_path / "page" / "samples.html")


def test_a_file_of_training_may_hold_no_step_that_is_shown(tmp_path):
    cell = write_sweep(tmp_path, {"base": 0.0}, seeds=1).cells[0]
    shown = read_samples(cell, SampleQuota(0, 0, (1,), 3), 9, 0).samples
    assert [one.when for one in shown] == ["training 1"] * 3


@given(
    st.lists(st.builds(RecordedSamples, sizes, sizes, st.dictionaries(st.integers(1, 20), sizes)), max_size=5), sizes
)
def test_no_more_is_shown_than_there_is_room_for(extents, most):
    shown = share(extents, most)
    of_training = (one.training for one in extents)
    trained = [
        sum(n if shown.steps is None else min(n, shown.per_step) for step, n in steps.items()
            if shown.steps is None or step in shown.steps)
        for steps in of_training
    ]  # fmt: skip
    cells = zip(extents, trained, strict=True)
    assert sum(min(one.final, shown.final) + min(one.curve, shown.curve) + n for one, n in cells) <= most


def test_a_bench_eval_has_a_page_with_its_baseline_beside_it(tmp_path):
    folders = {name: tmp_path / name for name in ("before", "after")}
    for name, folder in folders.items():
        folder.mkdir()
        row = {"task": "t", "problem_id": "p", "sample": 0, "text": ATTACK, "n_tokens": 3, "truncated": True}
        row |= {"extracted": None, "correct": name == "after", "reason": "match", "verdicts": "{}"}
        pyarrow.parquet.write_table(pa.Table.from_pylist([row]), folder / "evals.parquet")
        write_json(folder / "scores.json", {})
    page = write_evaluation_samples("t", 7, folders, folders["after"])
    rows = listed(written(page.parent))
    assert [(row["arm"], row["seed"], row["when"], row["flags"]) for row in rows] == [
        *(("after", 7, "final", 1 + 4 + 16), ("before", 7, "final", 2 + 4))
    ]
    assert "index.html" not in page.read_text(), "there is no report"


def lm_eval_row(doc_id: int, filter_name: str, value: float, filtered: Any, *texts: str) -> dict[str, Any]:
    drawn = {"completions": texts, "n_tokens": [3] * len(texts), "truncated": [False] * len(texts)}
    about = {
        "doc_id": doc_id,
        "doc_hash": "",
        "filter": filter_name,
        "prompt": f"{doc_id}+1=",
        "reference": f"{doc_id + 1}",
    }
    return about | drawn | {"filtered": filtered, "metrics": {"exact_match": value}}


def test_what_lm_eval_graded_has_a_page_with_its_verdict_by_filter(tmp_path):
    folders = {name: tmp_path / name for name in ("before", "after")}
    rows = [
        *(lm_eval_row(0, name, value, "1", "so 1") for name, value in (("strict", 0.0), ("flexible", 1.0))),
        *(lm_eval_row(1, name, 0.0, "[invalid]", ATTACK, "2") for name in ("strict", "flexible")),
        lm_eval_row(2, "strict", 0.25, "as it is", "as it is"),
    ]
    other = lm_eval_row(0, "none", 1.0, "7", "7")
    for name, folder in folders.items():
        folder.mkdir()
        write_json(folder / "spec.json", {"seed": 0})
        (folder / "lease.json").touch()
        changed = [row | {"metrics": {"exact_match": 1.0}} if row["doc_id"] == 1 else row for row in rows]
        write_json(folder / "sums.json", {"name": "sums", "rows": changed if name == "after" else rows})
        write_json(folder / "other.json", {"name": "other", "rows": [other]})
    page = write_lm_eval_samples(7, folders, folders["after"])
    shown = listed(written(page.parent))
    assert [(row["arm"], row["problem"], row["flags"]) for row in shown] == [
        *(("after", "1", 1 + 16), ("before", "0", 2 + 8), ("after", "0", 2 + 8), ("before", "1", 2)),
        *(("before", "0", 1), ("after", "0", 1), ("before", "2", 0), ("after", "2", 0)),
    ]
    flipped, disagreeing = shown[:2]
    both = f"[completion 0]\n{ATTACK.replace(chr(0x202E), chr(0xFFFD))}\n\n[completion 1]\n2"
    assert flipped["text"] == both
    assert [[name.split()[-1], *said] for name, *said in disagreeing["graders"]] == [
        *(["strict", "mismatch", "1"], ["flexible", "match", "1"])
    ]
    assert disagreeing["prompt"] == {"prompt": {"text": "0+1="}, "answer": {"text": "1"}}
    assert [said for _, *said in shown[-1]["graders"]] == [[0.25]]
    assert re.search(r"strict\W.*✗.*:\s1\s·\s.*flexible\W✓.*:\s1", page.read_text())
    write_json(folders["after"] / "sums.json", {"name": "sums", "rows": [{"doc_id": 1}]})
    with refuses(DamagedRecordError, "records.row_lacks_fields", path="sums.json", number=1):
        write_lm_eval_samples(7, folders, folders["after"])


@pytest.mark.slow
def test_the_first_samples_are_a_page_in_one_file_each_with_that_of_the_baseline(tmp_path, monkeypatch):
    sweep = write_sweep(tmp_path / "records", ARMS, seeds=2, texts=TEXTS)
    everything = listed(page_of(sweep, tmp_path / "page"))
    page = tmp_path / "page" / "first_samples.html"
    html = page.read_text()
    calls = re.findall(r'benchSamples\("([^"]+)",(.*)\);\n', html.partition("</main>")[2])
    assert [name for name, _ in calls] == ["text-0001", "prompts-0001", "index"]
    rows = listed({name: json.loads(text) for name, text in calls})
    assert (len(rows), 1968) in counts_on(page) and len(rows) in (399, 400)
    places = [everything.index(next(one for one in everything if same_sample(one, row))) for row in rows]
    assert places == sorted(places)
    flipped = [row for row in rows if row["flags"] & 16]
    assert flipped and all(any(same_noise(row, one) and one["arm"] == "base" for one in rows) for row in flipped)
    assert all("long" not in row and len(row["text"]) <= max(map(len, TEXTS[:2])) + 600 for row in rows)
    assert html.lower().count("</script>") == html.lower().count("<script") == 2 and "<img" not in html
    monkeypatch.setattr("reports.samples.files.ONE_FILE_CHARACTERS", 1000)
    page_of(sweep, tmp_path / "page")
    assert any(0 < n < 10 and m == 1968 for n, m in counts_on(page))


def same_noise(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(one[name] == other[name] for name in ("seed", "when", "problem", "sample"))


def same_sample(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one["arm"] == other["arm"] and same_noise(one, other)


def test_cells_without_samples_give_a_page_without_samples(tmp_path):
    sweep = write_sweep(tmp_path / "records", {"base": 0.0}, seeds=1)
    (cell,) = sweep.cells
    cell.evals.unlink()
    write_rows(cell.path, [])
    files = page_of(sweep, tmp_path / "page")
    assert listed(files) == [] and "recorded" in (tmp_path / "page" / "samples.html").read_text()


def test_shares_divide_what_there_is_room_for():
    extent = RecordedSamples(final=100, curve=50, training=dict.fromkeys(range(1, 11), 10))
    assert share([extent], 250) == SampleQuota(100, 50)
    assert share([extent], 220) == SampleQuota(100, 20)
    assert share([extent], 120) == SampleQuota(60, 0, (1, 2, 4, 5, 6, 7, 9, 10), 7)
    assert share([extent, RecordedSamples(100, 0, {1: 10, 2: 10})], 100) == SampleQuota(25, 0, (1, 2), 12)
    assert share([RecordedSamples(100, 0, {})], 30) == SampleQuota(30, 0)
    assert share([], 100) == SampleQuota(0, 0)
