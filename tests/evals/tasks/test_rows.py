from __future__ import annotations

import json
import socket
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import constants

from evals.errors import DataMissingError, EvalError
from evals.hub import offline_without_network
from evals.tasks.base import Problem
from evals.tasks.rows import Fields, HubDataset, LocalFile, TaskRows, rows_digest
from tests.refusals import refuses

PAIRS = [("How many?", "1200"), ("Which {x}\u2028?", "3")]
DIGEST = rows_digest([Problem("", *pair) for pair in PAIRS])
HUB = HubDataset(
    id="openai/gsm8k",
    split="test",
    config="main",
    fields=Fields(problem="question", solution="answer", answer_after="####"),
)


@pytest.fixture
def file(tmp_path: Path) -> LocalFile:
    lines = [
        json.dumps({"id": f"id{i}", "problem": p, "answer": a}, ensure_ascii=False) for i, (p, a) in enumerate(PAIRS)
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines) + "\n\n", encoding="utf-8")
    return LocalFile("rows.jsonl", tmp_path)


@pytest.fixture
def hub(monkeypatch):
    """A stand-in for the hub that records the calls; its answers carry working and a thousands separator."""
    calls = []
    rows = [{"question": "How many?", "answer": "1 = <<1>>\n#### 1,200"}, {"question": PAIRS[1][0], "answer": "#### 3"}]

    def load_dataset(*args, **kwargs):
        calls.append((args, kwargs))
        return rows

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    monkeypatch.setitem(sys.modules, "datasets.exceptions", SimpleNamespace(DatasetsError=RuntimeError))
    return SimpleNamespace(calls=calls, rows=rows)


def test_local_rows(file, tmp_path):
    rows = TaskRows("r", file, count=2, digest=DIGEST).load()
    assert list(rows) == [Problem("id0", *PAIRS[0]), Problem("id1", *PAIRS[1])]
    assert (rows.origin, rows.digest, rows.matches_pin) == (str(tmp_path / "rows.jsonl"), DIGEST, True)
    assert rows[:1] == (rows[0],)


def test_the_digest_depends_on_problems_answers_and_order_only():
    problems = [Problem("", *pair) for pair in PAIRS]
    assert rows_digest([replace(p, id="x", solution="y", difficulty=1.0) for p in problems]) == DIGEST
    assert rows_digest(problems[::-1]) != DIGEST
    assert rows_digest([replace(problems[0], answer="1201"), problems[1]]) != DIGEST


def test_bench_data_is_the_default_folder(file, monkeypatch):
    source = TaskRows("r", LocalFile("rows.jsonl"), digest=DIGEST)
    monkeypatch.setenv("BENCH_DATA", str(file.folder))
    assert len(source.load()) == 2
    monkeypatch.delenv("BENCH_DATA")
    with pytest.raises(
        DataMissingError, match=r"BENCH_DATA is not set.*put rows.jsonl in a folder and set BENCH_DATA to it"
    ):
        source.load()


def test_hub_rows_equal_local_ones(hub):
    rows = TaskRows("gsm8k-test", LocalFile("absent.jsonl", Path("nowhere")), HUB, 2, DIGEST).load()
    assert hub.calls == [(("openai/gsm8k", "main"), {"split": "test", "revision": None})]
    assert [(p.id, p.problem, p.answer) for p in rows] == [
        ("gsm8k-test-00000", *PAIRS[0]),
        ("gsm8k-test-00001", *PAIRS[1]),
    ]
    assert rows[0].solution == "1 = <<1>>\n#### 1,200"
    assert (rows.origin, rows.matches_pin) == ("hub:openai/gsm8k@main/main/test", True)


def test_the_file_wins_over_the_hub(file, hub):
    assert TaskRows("r", file, HUB, 2, DIGEST).load().origin.endswith("rows.jsonl")
    assert hub.calls == []


def test_hub_rows_are_reported_where_only_the_file_was_pinned(hub):
    hub.rows[1]["answer"] = "#### 4"
    source = TaskRows("r", None, HUB, 2, DIGEST, digest_of="file")
    assert source.load().matches_pin is False
    with pytest.raises(EvalError, match=rf"digest {source.load().digest}, but the pinned digest is {DIGEST}"):
        replace(source, digest_of="hub").load()


def test_changed_local_rows_are_refused(file):
    with pytest.raises(EvalError, match=f"digest {DIGEST}, but the pinned digest is sha256:0"):
        TaskRows("r", file, digest="sha256:0").load()
    with pytest.raises(EvalError, match="2 rows, r has 3"):
        TaskRows("r", file, count=3).load()


def test_a_hub_that_cannot_be_reached_is_missing_data(monkeypatch, hub):
    def load_dataset(*args, **kwargs):
        raise ConnectionError("offline")

    monkeypatch.setattr(sys.modules["datasets"], "load_dataset", load_dataset)
    source = TaskRows("r", LocalFile("absent.jsonl", Path("nowhere")), HUB, digest=DIGEST)
    with pytest.raises(DataMissingError) as error:
        source.load()
    for part in ("nowhere/absent.jsonl", "hub:openai/gsm8k@main/main/test", "HF_HUB_OFFLINE", "offline"):
        assert part in str(error.value)


@pytest.mark.parametrize(("proxies", "is_offline"), [({}, True), ({"https": "http://proxy"}, False)])
def test_where_the_hubs_name_is_not_found_it_is_not_asked(monkeypatch, proxies, is_offline):
    def not_found(*address):
        raise socket.gaierror("Name or service not known")

    monkeypatch.setattr("evals.hub.getproxies", lambda: proxies)
    monkeypatch.setattr(socket, "getaddrinfo", not_found)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with offline_without_network():
        assert constants.HF_HUB_OFFLINE is is_offline
    assert constants.HF_HUB_OFFLINE is False


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"problem": "p", "answer"', "line 3: not valid JSON"),
        ("[1]", "line 3: list given"),
        ('{"problem": "p", "anwser": "1"}', "line 3: no field 'answer'; the row has 'problem', 'anwser'"),
        ('{"problem": "p", "answer": null}', "line 3: the field 'answer' is None"),
        ('{"problem": "p", "answer": "1", "id": "id0"}', "the id 'id0' occurs twice"),
        (b'{"problem": "\xff", "answer": "1"}', "line 3: not valid JSON"),
    ],
)
def test_malformed_rows(file, line, message):
    path = file.path()
    path.write_bytes(path.read_bytes().rstrip() + b"\n" + (line if isinstance(line, bytes) else line.encode()))
    with pytest.raises(EvalError, match=message):
        TaskRows("r", file).load()


def test_numbers_as_answers_and_numbered_rows(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"q": "p", "answer": 7, "level": 3}\n')
    file = LocalFile("rows.jsonl", tmp_path, Fields(problem="q", difficulty="level"))
    assert list(TaskRows("r", file).load()) == [Problem("r-00000", "p", "7", difficulty=3.0)]


def test_a_difficulty_that_is_no_number_can_be_declared(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"problem": "p", "answer": "7", "difficulty": null}\n')
    assert [p.difficulty for p in TaskRows("r", LocalFile("rows.jsonl", tmp_path)).load()] == [None]
    declared = LocalFile("rows.jsonl", tmp_path, Fields(difficulty_if_absent=2.5))
    assert [p.difficulty for p in TaskRows("r", declared).load()] == [2.5]


def test_an_answer_without_its_mark_is_an_error(hub):
    hub.rows[0]["answer"] = "no mark"
    with pytest.raises(EvalError, match="row 0: the field 'answer' has no '####'"):
        TaskRows("r", None, HUB, digest=DIGEST).load()


def test_an_answer_that_is_not_required_may_be_absent(hub):
    rows = TaskRows("r", None, HUB.model_copy(update={"revision": "abc"}), grader=None)
    del hub.rows[0]["answer"]
    assert [(p.answer, p.solution) for p in rows.load()] == [("", None), ("3", "#### 3")]
    with pytest.raises(EvalError, match="row 0: no field 'answer'"):
        replace(rows, grader="exact").load()


def test_fingerprints(file):
    assert TaskRows("r", LocalFile("absent.jsonl"), HUB, digest="sha256:1").fingerprint == "rows:sha256:1"
    assert TaskRows("r", file).fingerprint == f"rows:{DIGEST}"
    pinned = TaskRows("r", hub=HUB.model_copy(update={"revision": "abc"}))
    assert pinned.fingerprint.startswith("hub:openai/gsm8k@abc/main/test")
    assert (
        pinned.fingerprint
        != TaskRows("r", hub=HUB.model_copy(update={"revision": "abc", "fields": Fields()})).fingerprint
    )


def test_sources_must_be_given_and_pinned():
    with refuses(EvalError, "evals.rows_without_source"):
        TaskRows("r")
    with refuses(EvalError, "evals.hub_rows_not_pinned"):
        TaskRows("r", hub=HUB)


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_a_file_without_rows_is_refused(tmp_path, content):
    (tmp_path / "rows.jsonl").write_text(content)
    with pytest.raises(EvalError, match=r"rows\.jsonl has no rows, but a split needs at least one"):
        TaskRows("r", LocalFile("rows.jsonl", tmp_path)).load()


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "true", "null"])
def test_an_answer_that_is_no_finite_number_is_refused(tmp_path, number):
    (tmp_path / "rows.jsonl").write_text(f'{{"problem": "p", "answer": {number}}}\n')
    with refuses(EvalError, "evals.row_field_not_text", field="answer"):
        TaskRows("r", LocalFile("rows.jsonl", tmp_path)).load()


def test_a_number_of_any_size_is_an_answer(tmp_path):
    (tmp_path / "rows.jsonl").write_text(f'{{"problem": "p", "answer": {10**400}}}\n')
    assert TaskRows("r", LocalFile("rows.jsonl", tmp_path)).load()[0].answer == str(10**400)


@pytest.mark.parametrize("field", ["id", "problem", "answer", "solution"])
def test_half_of_a_character_is_refused(tmp_path, field):
    row = {"id": "i", "problem": "p", "answer": "a", "solution": "s"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n" + json.dumps(row | {field: "p \ud800"}) + "\n")
    with pytest.raises(
        EvalError, match=rf"line 2: the field '{field}' has half of a surrogate pair, '\\ud800', at position 2"
    ):
        TaskRows("r", LocalFile("rows.jsonl", tmp_path)).load()
