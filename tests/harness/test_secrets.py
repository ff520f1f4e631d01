"""A secret is in no record, log, page, database or line of output, in whatever form something quotes it."""

from __future__ import annotations

import html
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import secrets
from harness.errors import RefusedError
from harness.records.files import append_jsonl, read_json, read_jsonl, write_json
from harness.secrets import without_password
from harness.shelves.judges.chat_client import read_key
from harness.trainers.process import ProcessGroup
from tests.harness.run import bench
from tests.harness.shelves.judges.judge_server import Fault, serving, write_judge
from tests.refusals import refuses

KEY = """sk-"Q7\\n'/+&%<x>=9"""
"""Every form of it differs from the others."""
FORMS = (KEY, repr(f'{KEY}"')[1:-2], json.dumps(KEY)[1:-1], quote(KEY, safe=""), html.escape(KEY))
MAIN = "from harness.cli import main; main()"


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the secrets that a test registered."""
    monkeypatch.setattr(secrets, "_masks", {})


def bench_with(home: Path, environment: dict[str, str], *words: str) -> tuple[int, str]:
    """Run the command line; return its exit code and all that it printed."""
    command = [sys.executable, "-c", MAIN, *words, "--home", str(home)]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def contents(home: Path) -> Iterator[tuple[Path, bytes]]:
    """Yield the bytes of every file, and of a Parquet file, which is compressed, its rows in JSON."""
    for path in home.rglob("*"):
        if path.is_file():
            yield path, path.read_bytes()
        if path.suffix == ".parquet":
            rows = pyarrow.parquet.read_table(path).to_pylist()
            yield path, "\n".join(f"{value}" for row in rows for value in row.values()).encode()


LEAKY = """
import os

def f(group, context):
    raise KeyError({key} in os.environ and os.environ[{key}])
"""


@pytest.mark.slow
def test_a_key_that_servers_and_code_quote_is_nowhere(tmp_path: Path) -> None:
    quoting = " ".join(FORMS)
    refusal: Fault = 401, f"wrong key: Authorization: Bearer {quoting}".encode(), {}
    home = tmp_path / "home"
    (tmp_path / "leaky.py").write_text(LEAKY.format(key="'JUDGE'"))
    (tmp_path / "leaky_too.py").write_text(LEAKY.format(key="'SOME_API_KEY'"))
    with serving(lambda question: f"Bearer {quoting} Verdict: yes") as server, serving(str, [refusal] * 999) as other:
        for name, address in (("echo", server.address), ("refuse", other.address)):
            write_judge(tmp_path, f"{name}.yaml", address=address, model=name, api_key_env="JUDGE")
        arms: dict[str, dict[str, Any]] = {
            "echo": {"reward.grader": "echo.yaml"},
            "refused": {"reward.grader": "refuse.yaml"},
            "code": {"reward.grader": "echo.yaml", "reward.parts": {"correct": 1.0, "leaky:f": 1.0}},
            "code_too": {"reward.parts": {"correct": 1.0, "leaky_too:f": 1.0}},
        }
        sweep = bench.write_sweep(tmp_path, arms, seeds=1)
        small = ["train.steps=2", "eval.every=0", "eval.problems=4", "eval.samples=2", "eval.grader=echo.yaml"]
        options = [word for setting in small for word in ("--set", setting)]
        environment = {"JUDGE": f"{KEY}\n", "SOME_API_KEY": "k-0123456789-abc"}
        code, said = bench_with(home, environment, "run", str(sweep), "--json", *options)
    states = {name.partition("-s")[0]: cell.state for name, cell in bench.cells(home).items()}
    assert states == {"echo": "done", "refused": "failed", "code": "failed", "code_too": "failed"}
    assert code == 1
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"
    places = [*contents(home), (Path("output"), said.encode())]
    secret = [form.encode() for form in (*FORMS, environment["SOME_API_KEY"])]
    assert not [(path, form) for path, content in places for form in secret if form in content]
    for name in ("JUDGE", "SOME_API_KEY"):
        masks = f"<{name}>".encode(), f"&lt;{name}&gt;".encode()
        masked = {path.name for path, content in places if any(mask in content for mask in masks)}
        assert masked >= {"status.json", "log.txt", "report.json", "index.html", "mlflow.db", "output"}


def test_what_is_no_key_is_refused_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").mkdir()
    with serving(lambda question: "Verdict: yes") as server:
        for key in ("sk-first-half second-half", "sk-first-half-schlüssel", "sk-first-half\nsecond-half"):
            monkeypatch.setenv("JUDGE", key)
            with refuses(RefusedError, "shelves.judges.key_malformed") as refused:
                read_key("JUDGE", server.address)
            assert "half" not in str(refused.value)
        write_judge(tmp_path, address=server.address, api_key_env="JUDGE")
        sweep = bench.write_sweep(tmp_path, {"judged": {"reward.grader": "judge.yaml"}, "ruled": {}}, seeds=1)
        code, said = bench.run_here(sweep, tmp_path / "home")
    assert code == 2 and "JUDGE" in said
    assert not server.requests
    for content in (said.encode(), *(content for _, content in contents(tmp_path / "home"))):
        assert b"half" not in content


@pytest.mark.parametrize("form", FORMS, ids=["raw", "repr", "json", "url", "html"])
def test_every_form_is_replaced_in_records_and_output(tmp_path: Path, form: str) -> None:
    secrets.register("JUDGE", KEY)
    write_json(tmp_path / "a.json", {"said": [f"({form})", 1.5], "n": float("nan")})
    append_jsonl(tmp_path / "a.jsonl", [{"said": {"it": f"({form})"}}] * 2)
    assert read_json(tmp_path / "a.json") == {"said": ["(<JUDGE>)", 1.5], "n": None}
    assert read_jsonl(tmp_path / "a.jsonl") == [{"said": {"it": "(<JUDGE>)"}}] * 2
    assert secrets.redact(f"b'{form}'") == "b'<JUDGE>'"


@pytest.mark.parametrize("value", ["postgres", "123456789", "EMPTY", "", " \n"])
def test_a_word_or_a_number_is_left_alone(value: str) -> None:
    """A server without a password has such a key; replacing it would damage records."""
    secrets.register("JUDGE", value)
    assert secrets.redact(f"postgresql://{value} 123456789") == f"postgresql://{value} 123456789"


def test_a_record_stays_what_it_is_where_only_an_escape_looks_like_a_secret(tmp_path: Path) -> None:
    secrets.register("JUDGE", "n12345678")
    append_jsonl(tmp_path / "a.jsonl", [{"text": "\n12345678"}])
    assert read_jsonl(tmp_path / "a.jsonl") == [{"text": "\n12345678"}]


def test_a_program_prints_no_secret_into_its_log_however_it_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE", KEY)
    secrets.register_variable("JUDGE")
    code = """
import os, sys, time
for part in ("begins ", *os.environ["JUDGE"], " ends sk-"):
    sys.stdout.write(part), sys.stdout.flush(), time.sleep(0.01)
"""
    with ProcessGroup([sys.executable, "-c", code], None, {}, tmp_path / "log") as process:
        bench.wait_until(lambda: process.exit_code() is not None)
    assert (tmp_path / "log").read_text() == "begins <JUDGE> ends sk-"


@settings(max_examples=50)
@given(st.text(st.characters(exclude_categories=["C", "Z"]), min_size=4).filter(lambda text: "***" not in text))
def test_a_password_is_never_shown(password: str) -> None:
    """Neither in the address nor where a driver repeats it, as it was written or as it was meant."""
    for address in (
        f"https://me:{quote(password, safe='')}@secure.org/a",
        f"db://secure.org/a?password={quote(password, safe='')}",
    ):
        told = without_password(f"cannot open {address}: {password!s} refused", address)
        assert f": {password} refused" not in told
        assert f":{quote(password, safe='')}@" not in told
        assert "secure.org/a" in told or password in "secure.org/a"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        *((text, text) for text in ("http://127.0.0.1:5000/#/experiments/1", "sqlite:////home/a:b.db")),
        ("postgresql://me@h/db", "postgresql://me@h/db"),
        ("http://me:a@b@host/x", "http://me:***@host/x"),
    ],
)
def test_an_address_keeps_all_but_its_password(text: str, told: str) -> None:
    assert without_password(text, text) == told
