"""No key reaches a file or a stream, whatever quotes it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from harness import secrets
from harness.errors import RefusedError
from harness.records.files import append_jsonl, write_json
from harness.sampling.chat_client import read_key
from tests.harness.run import bench
from tests.harness.sampling.judge_server import serving, write_judge

ROOT = Path(__file__).parents[2]
KEY = 'sk-0123/"key"+\\n'


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "_shown_as", {})


def test_a_key_loses_the_line_break_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "  sk-0123456789\r\n")
    assert read_key("JUDGE_KEY", "http://host/v1") == "sk-0123456789"


@pytest.mark.parametrize(
    "key", ["", " \n", "sk-01234\n56789abc", "sk-01234 56789abc", "sk-01234\u00e956789", "sk-01234\x0056789abc"]
)
def test_a_key_that_no_header_holds_is_refused_without_being_shown(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    if "\0" in key:
        monkeypatch.setattr(os, "environ", {**os.environ, "JUDGE_KEY": key})
    else:
        monkeypatch.setenv("JUDGE_KEY", key)
    with pytest.raises(RefusedError, match="JUDGE_KEY") as refused:
        read_key("JUDGE_KEY", "http://host/v1")
    assert "01234" not in str(refused.value) and "56789" not in str(refused.value)


@pytest.mark.parametrize(
    "form",
    [str, repr, json.dumps, quote, lambda key: repr(f"Bearer {key}".encode()), lambda key: json.dumps(json.dumps(key))],
)
def test_records_and_messages_hold_a_known_secret_in_no_form(tmp_path: Path, form: Any) -> None:
    secrets.keep(KEY, "<JUDGE_KEY>")
    said = f"HTTP 401: wrong key {form(KEY)}, sorry"
    write_json(tmp_path / "status.json", {"reason": said})
    append_jsonl(tmp_path / "rows.jsonl", [{"reason": said}])
    for text in (*(path.read_text() for path in tmp_path.iterdir()), str(RefusedError(said))):
        assert "0123" not in text and "<JUDGE_KEY>" in text and "sorry" in text
    assert json.loads((tmp_path / "status.json").read_text()).keys() == {"reason"}


def test_a_secret_that_is_part_of_other_words_changes_no_record() -> None:
    secrets.keep("EMPTY")
    assert secrets.redact("EMPTY") == "EMPTY"


def test_the_password_of_an_address_is_a_secret() -> None:
    secrets.keep_passwords_of("postgresql://me:pass%2Fw%C3%B6rd@host/name")
    assert secrets.redact("pass/w\u00f6rd pass%2Fw%C3%B6rd") == "*** ***"


REWARD = """
import os

def quoting(group, context):
    raise ValueError("headers: " + repr({"Authorization": "Bearer " + os.environ["JUDGE_KEY"]}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("case", ["plug-in", "server", "malformed"])
def test_a_key_stays_out_of_a_whole_run(tmp_path: Path, case: str) -> None:
    """A plug-in quotes it in an exception, a server in its refusal, or no header can hold it."""
    key = "sk-first-half\nsecond-half" if case == "malformed" else "sk-first-half-second-half"
    said = json.dumps({"error": f"wrong key: Bearer {key}"}).encode()
    (tmp_path / "quoting_reward.py").write_text(REWARD)
    with serving(lambda question: "yes", [(401, said, {})] * 50 if case == "server" else []) as server:
        judge = write_judge(tmp_path, address=server.address, api_key_env="JUDGE_KEY")
        arm: dict[str, Any] = {"reward.grader": judge}
        if case == "plug-in":
            arm["reward.parts"] = {"quoting_reward:quoting": 1.0}
        sweep = bench.write_sweep(tmp_path, {"judged": arm}, seeds=1)
        small = ["train.steps=1", "eval.every=0", "eval.problems=2", "eval.samples=1"]
        words = ["run", str(sweep), "--home", "home", *(word for setting in small for word in ("--set", setting))]
        ran = subprocess.run(
            [sys.executable, "-c", "from harness.cli import main; main()", *words],
            env=os.environ | {"JUDGE_KEY": key, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
    told = ran.stdout + ran.stderr
    everything = told + "".join(
        path.read_bytes().decode(errors="replace") for path in (tmp_path / "home").rglob("*") if path.is_file()
    )
    assert "first-half" not in everything and "second-half" not in everything
    assert "JUDGE_KEY" in told
