"""A judge behind a real server: vLLM's, which speaks the protocol as providers do."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from evals.grading import Submission
from evals.grading.asked_model import requests_sent
from evals.shelves.judges.grading import read_judge
from harness.errors import RefusedError
from harness.models.language_model import load_model
from harness.shelves.judges.services import judges_in
from tests.harness.shelves.judges.judge_server import write_judge
from tests.refusals import refuses

pytestmark = pytest.mark.slow
pytest.importorskip("vllm", reason="needs vLLM: make test-vllm")
pytest.importorskip("fastapi", reason="needs vLLM's server: make test-vllm")
START_WITHIN_S = 300.0
NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"


def _save_model(folder: Path) -> None:
    """The small model in $BENCH_MODELS, as a folder, which vLLM reads."""
    path = Path(os.environ.get("BENCH_MODELS") or "absent") / NAME
    if not path.is_file():
        pytest.skip(f"needs {NAME} in $BENCH_MODELS: make models")
    load_model(f"gguf:{path}").save(folder)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("server")
    _save_model(folder / "model")
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = [
        *("--served-model-name", "small", "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32"),
        *("--max-model-len", "256", "--max-num-seqs", "8", "--enforce-eager", "--api-key", "sk-test"),
    ]
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}
    with (folder / "log.txt").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder / "model"), *options],
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
    try:
        _wait_for(f"http://127.0.0.1:{port}/health", server, folder / "log.txt")
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait(30)


def _wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    until_s = time.monotonic() + START_WITHIN_S
    while time.monotonic() < until_s:
        assert server.poll() is None, log.read_text()[-4000:]
        with suppress(urllib.error.URLError, OSError), urllib.request.urlopen(url, timeout=2):
            return
        time.sleep(0.5)
    raise AssertionError(log.read_text()[-4000:])


def test_a_judge_asks_a_real_server(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "sk-test")
    settings: dict[str, Any] = {"address": address, "model": "small", "api_key_env": "JUDGE_KEY", "timeout_s": 120.0}
    text, parse = "Is {completion} a number? Answer yes or no.", r"(?i)\b(yes|no)\b"
    judge = read_judge(write_judge(tmp_path, **settings, text=text, parse=parse, max_completion_tokens=8))
    submissions = [Submission("", "", str(number), None) for number in range(1, 7)]
    with judges_in(tmp_path):
        verdicts = judge.verdicts(submissions)
        sent = requests_sent()
        assert judge.verdicts(submissions) == verdicts
        assert requests_sent() == sent >= 6, "a reply that is there is not asked for again"
    replies = [one.reply for one in verdicts if one.reply is not None]
    assert len({reply.question for reply in replies}) == 6
    assert all(reply.text and reply.prompt_tokens > 10 and 1 <= reply.completion_tokens <= 8 for reply in replies)
    assert any(one.reason in ("match", "mismatch") for one in verdicts), [reply.text for reply in replies]
    with judges_in(tmp_path / "wrong"), refuses(RefusedError, "shelves.judges.question_refused", status=401):
        monkeypatch.setenv("JUDGE_KEY", "sk-wrong")
        judge.verdicts(submissions[:1])
    with judges_in(tmp_path / "long"), refuses(RefusedError, "shelves.judges.question_refused", status=400):
        monkeypatch.setenv("JUDGE_KEY", "sk-test")
        judge.verdicts([Submission("", "", "one more " * 500, None)])
