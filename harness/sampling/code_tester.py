"""Running the programs of completions for the grader `unit_tests`, where a spec or `bench eval` allows it.

`<home>/cache/code/<digest>/` remembers how each program ended (see `remembered`): the same text is run once for its
tests, and a cell that is repeated from its checkpoint gets the same verdicts, also on programs that draw lots or were
cut short by the clock.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

from evals.grading import Reason
from evals.grading.sandbox import AT_ONCE, Limits, isolation
from evals.grading.unit_tests import Outcome, Trial, lent, outcome_of, unit_tests
from harness.config.hashing import digest
from harness.sampling.remembered import Remembered

FOLDER = "code"


class Outcomes(Remembered[Outcome]):
    """How programs ended, by the digest of a program and its tests."""

    def _row_of(self, name: str, item: Outcome) -> dict[str, object]:
        return {"program": name, "reason": item.reason, "passed": item.passed}

    def _item_in(self, row: dict[str, Any]) -> tuple[str, Outcome]:
        if row["reason"] not in get_args(Reason):
            raise ValueError(f"unknown reason {row['reason']!r}")
        return str(row["program"]), Outcome(row["reason"], int(row["passed"]))


class CodeTester:
    """Runs what the home does not remember, several programs at once."""

    def __init__(self, home: Path) -> None:
        python = {"python": platform.python_version(), "grader": unit_tests.version, "limits": asdict(Limits())}
        self._outcomes = Outcomes(home / "cache" / FOLDER / digest(python)[:16])

    def outcomes(self, asked: Sequence[Trial]) -> list[Outcome]:
        """As `evals.grading.unit_tests.Tester.outcomes`."""
        names = [_name(one) for one in asked]
        by_name = dict(zip(names, asked, strict=True))
        missing = self._outcomes.missing([*by_name])
        with ThreadPoolExecutor(AT_ONCE) as threads:
            for name, outcome in zip(missing, threads.map(outcome_of, map(by_name.__getitem__, missing)), strict=True):
                self._outcomes.keep(name, outcome)
        return [self._outcomes[name] for name in names]


def _name(trial: Trial) -> str:
    return digest(json.dumps(trial))  # which escapes halves of characters, unlike the digest's own JSON


@contextmanager
def code_allowed(home: Path, allowed: bool) -> Iterator[None]:
    """Let programs be run, if that is allowed, with what this home remembers, until the block ends."""
    with lent(CodeTester(home)) if allowed else nullcontext():
        yield


def code_account(runs_code: bool) -> dict[str, object]:
    """What a start's provenance says of how programs are contained; {} where none are run. Raises EvalError where they
    cannot be contained."""
    return {"code": isolation().account} if runs_code else {}
