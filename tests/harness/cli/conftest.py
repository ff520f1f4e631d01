"""`bench` called in this process: exit code, stdout, stderr."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer

from harness import cli
from harness.cli.app import app as typer_app
from harness.errors import BenchError
from tests.refusals import codes_of

COMMAND = typer.main.get_command(typer_app)
"""What the app builds from all verbs' signatures at each call, which takes half of a short command's time."""


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str
    error: BenchError | None = None
    """The error that ended the command."""

    def refused(self, code: str, /, **fields: object) -> None:
        """Assert that the command was refused by this error, see `tests.refusals`, with nothing on stdout."""
        assert self.out == ""
        self.ended(2, code, **fields)

    def ended(self, exit_code: int, code: str, /, **fields: object) -> None:
        """Assert that this error, or one that it was made of, ended the command, and that it was told once."""
        found = list(codes_of(self.error))
        assert self.code == exit_code, self.err
        assert len(re.findall("^error: ", self.err, re.MULTILINE)) == 1 and "Traceback" not in self.err
        known = [values for one, values in found if one == code]
        assert any(all(values.get(name) == fields[name] for name in fields) for values in known), (found, self.err)

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
            return COMMAND(**options)
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
