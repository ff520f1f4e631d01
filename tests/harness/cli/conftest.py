"""`bench` called in this process: exit code, stdout, stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness import cli
from harness.cli.app import app as typer_app
from harness.errors import BenchError


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str
    error: BenchError | None = None
    """What ended the command."""

    @property
    def document(self) -> Any:
        """stdout, which must be one JSON document and nothing else."""
        return json.loads(self.out)


Bench = Callable[..., Result]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Bench:
    """`bench("plan", "std_norm")`, in an empty folder of its own."""
    monkeypatch.chdir(tmp_path)
    for variable in ("BENCH_HOME", "BENCH_DATA", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(variable, raising=False)

    ended_by: list[BenchError] = []

    def app(**options: Any) -> object:
        try:
            return typer_app(**options)
        except BenchError as error:
            ended_by.append(error)
            raise

    monkeypatch.setattr("harness.cli.app.app", app)

    def call(*words: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["bench", *map(str, words)])
        capsys.readouterr()
        ended_by.clear()
        with pytest.raises(SystemExit) as left:
            cli.main()
        captured = capsys.readouterr()
        code = left.value.code
        assert code is None or isinstance(code, int)
        return Result(code or 0, captured.out, captured.err, *ended_by)

    return call
