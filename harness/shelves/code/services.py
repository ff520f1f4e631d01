"""Running the programs of completions for the grader `unit_tests`, if a spec or `bench eval` allows it.

`<home>/cache/code/<digest>/` remembers how each program ended (see `remembered`). The same text is run once for its
tests. A cell that is repeated from its checkpoint gets the same verdicts, even on programs that use random numbers or
were stopped by the time limit.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

from evals.grading import Reason
from evals.shelves.code.grading import Trial, UnitTestResult, lent, outcome_of, unit_tests
from evals.shelves.code.sandbox import AT_ONCE, Limits
from harness.config.hashing import digest
from harness.sampling.remembered import Remembered
from harness.sampling.services import Service

FOLDER = "code"


class Outcomes(Remembered[UnitTestResult]):
    """The outcomes of programs, keyed by the digest of a program and its tests."""

    def _row_of(self, name: str, item: UnitTestResult) -> dict[str, object]:
        return {"program": name, "reason": item.reason, "passed": item.passed}

    def _item_in(self, row: dict[str, Any]) -> tuple[str, UnitTestResult]:
        if row["reason"] not in get_args(Reason):
            raise ValueError(f"unknown reason {row['reason']!r}")
        return str(row["program"]), UnitTestResult(row["reason"], int(row["passed"]))


class CodeTester:
    """Runs programs, several at once, unless the home remembers their outcome."""

    def __init__(self, home: Path) -> None:
        # An outcome depends on all three, so each combination has a folder of its own.
        python = {"python": platform.python_version(), "grader": unit_tests.version, "limits": asdict(Limits())}
        self._outcomes = Outcomes(home / "cache" / FOLDER / digest(python)[:16])

    def outcomes(self, asked: Sequence[Trial]) -> list[UnitTestResult]:
        """Implement `evals.shelves.code.grading.Tester.outcomes`."""
        names = [_name(one) for one in asked]
        by_name = dict(zip(names, asked, strict=True))
        missing = self._outcomes.missing([*by_name])
        # Threads suffice: each waits for a sandboxed process of its own. Every outcome is on disk before it is used.
        with ThreadPoolExecutor(AT_ONCE) as threads:
            for name, outcome in zip(missing, threads.map(outcome_of, map(by_name.__getitem__, missing)), strict=True):
                self._outcomes.keep(name, outcome)
        return [self._outcomes[name] for name in names]


def _name(trial: Trial) -> str:
    # json.dumps escapes lone surrogates, which cannot be encoded; the digest's own JSON does not.
    return digest(json.dumps(trial))


CODE = Service(
    "code",
    "runs the programs of completions, and remembers how they ended",
    lambda home, allowed, on_waiting: lent(CodeTester(home)) if allowed else nullcontext(),
)
