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
WHOLE = {"id": "i", "problem": "p", "answer": "a", "solution": "s"}
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
    with pytest.raises(DataMissingError):
        source.load()


def test_hub_rows_equal_local_ones(hub):
    rows = TaskRows("gsm8k-test", LocalFile("absent.jsonl", Path("nowhere")), HUB, 2, DIGEST).load()
    assert hub.calls == [(("openai/gsm8k", "main"), {"split": "test", "revision": None})]
    assert list(rows) == [
        Problem(f"gsm8k-test-0000{i}", *pair, solution=row["answer"])
        for i, (pair, row) in enumerate(zip(PAIRS, hub.rows, strict=True))
    ]
    assert (rows.origin, rows.matches_pin) == ("hub:openai/gsm8k@main/main/test", True)


def test_the_file_wins_over_the_hub(file, hub):
    assert TaskRows("r", file, HUB, 2, DIGEST).load().origin.endswith("rows.jsonl")
    assert hub.calls == []


def test_hub_rows_are_reported_where_only_the_file_was_pinned(hub):
    hub.rows[1]["answer"] = "#### 4"
    source = TaskRows("r", None, HUB, 2, DIGEST, digest_of="file")
    assert source.load().matches_pin is False
    with refuses(EvalError, "evals.data_digest_differs", digest=source.load().digest, pinned_digest=DIGEST):
        replace(source, digest_of="hub").load()


def test_changed_local_rows_are_refused(file):
    with refuses(EvalError, "evals.data_digest_differs", digest=DIGEST, pinned_digest="sha256:0"):
        TaskRows("r", file, digest="sha256:0").load()
    with refuses(EvalError, "evals.row_count_differs", n_rows=2, name="r", n_expected=3):
        TaskRows("r", file, count=3).load()


def test_a_hub_that_cannot_be_reached_is_missing_data(monkeypatch, hub):
    def load_dataset(*args, **kwargs):
        raise ConnectionError("offline")

    monkeypatch.setattr(sys.modules["datasets"], "load_dataset", load_dataset)
    source = TaskRows("r", LocalFile("absent.jsonl", Path("nowhere")), HUB, digest=DIGEST)
    with refuses(DataMissingError, "evals.hub_rows_not_loaded") as refused:
        source.load()
    for part in ("nowhere/absent.jsonl", "hub:openai/gsm8k@main/main/test", "HF_HUB_OFFLINE"):
        assert part in str(refused.value.fields["lookup"])


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
    ("line", "code", "fields"),
    [
        (b'{"problem": "p", "answer"', "row_not_json", {}),
        (b'{"problem": "\xff", "answer": "1"}', "row_not_json", {}),
        (b"[1]", "row_not_object", {"given_type": "list"}),
        (b'{"problem": "p", "anwser": "1"}', "row_field_missing", {"row_fields": "'problem', 'anwser'"}),
        (b'{"problem": "p", "answer": "1", "id": "id0"}', "duplicate_problem_id", {"problem": "id0"}),
        *(
            (b'{"problem": "p", "answer": %s}' % number, "row_field_not_text", {"field": "answer"})
            for number in (b"NaN", b"Infinity", b"-Infinity", b"1e999", b"true", b"null")
        ),
        *(
            (json.dumps(WHOLE | {field: "p \ud800"}).encode(), "half_character_in_field", {"field": field, "place": 2})
            for field in ("id", "problem", "answer", "solution")
        ),
    ],
)
def test_malformed_rows(file, line, code, fields):
    path = file.path()
    path.write_bytes(path.read_bytes().rstrip() + b"\n" + line)
    where = {} if code == "duplicate_problem_id" else {"where": f"{path}, line 3"}
    with refuses(EvalError, f"evals.{code}", **fields, **where):
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
    with refuses(EvalError, "evals.answer_mark_missing", where=f"{HUB}, row 0", field="answer", mark="####"):
        TaskRows("r", None, HUB, digest=DIGEST).load()


def test_an_answer_that_is_not_required_may_be_absent(hub):
    rows = TaskRows("r", None, HUB.model_copy(update={"revision": "abc"}), grader=None)
    del hub.rows[0]["answer"]
    assert [(p.answer, p.solution) for p in rows.load()] == [("", None), ("3", "#### 3")]
    with refuses(EvalError, "evals.row_field_missing", field="answer"):
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
    with refuses(EvalError, "evals.source_without_rows", origin=str(tmp_path / "rows.jsonl")):
        TaskRows("r", LocalFile("rows.jsonl", tmp_path)).load()


def test_a_number_of_any_size_is_an_answer(tmp_path):
    (tmp_path / "rows.jsonl").write_text(f'{{"problem": "p", "answer": {10**400}}}\n')
    assert TaskRows("r", LocalFile("rows.jsonl", tmp_path)).load()[0].answer == str(10**400)
