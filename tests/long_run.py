"""`make test-long`: the tests marked `long`, by hand before a release, all or those of some files.

What came of each stands in tests/long.txt, with the day, the commit and the processor of its last run.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.run.provenance import provenance

RESULT = Path(__file__).with_name("long.txt")


class Outcomes:
    """A pytest plug-in: the outcome of each test and its seconds."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            self.found.append((f"{report.outcome:8} {report.duration:7.1f} s", report.nodeid))


def main(paths: Sequence[str]) -> int:
    """paths: test files or folders; none for all. The lines of tests that do not run now stay in the result."""
    outcomes, made_on = Outcomes(), provenance()
    day = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}"
    code = pytest.main(["-m", "long", "-n", "2", *paths], plugins=[outcomes])
    run = f"{day} {str(made_on['commit'])[:8]} {made_on['processor']}"
    lines = [f"{outcome}  {test}  {run}" for outcome, test in outcomes.found]
    kept = RESULT.read_text(encoding="utf-8").splitlines() if RESULT.exists() and paths else []
    lines += [line for line in kept if not any(f"  {test}  " in line for _, test in outcomes.found)]
    RESULT.write_text("".join(f"{line}\n" for line in sorted(lines)), encoding="utf-8")
    return int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
