"""`bench` called in this process: exit code, stdout, stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

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

    def call(*words: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["bench", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main()
        captured = capsys.readouterr()
        code = left.value.code
        assert code is None or isinstance(code, int)
        return Result(code or 0, captured.out, captured.err)

    return call
