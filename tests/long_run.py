"""`make test-long`: the tests marked `long`, by hand before a release. What came of each stands in tests/long.txt."""

from __future__ import annotations

import datetime
import sys
from pathlib import Path

import pytest

from harness.run.provenance import provenance

RESULT = Path(__file__).with_name("long.txt")


class Outcomes:
    """A pytest plug-in: one line for each test, with its seconds."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            self.lines.append(f"{report.outcome:8} {report.duration:7.1f} s  {report.nodeid}")


def main() -> int:
    outcomes, made_on = Outcomes(), provenance()
    began = datetime.datetime.now(datetime.UTC)
    code = pytest.main(["-m", "long", "-n", "2"], plugins=[outcomes])
    heading = [
        f"make test-long, {began:%Y-%m-%d}, commit {made_on['commit']}, exit code {int(code)}",
        f"{made_on['processor']}, Python {made_on['python']}, torch {made_on['packages']['torch']}",
        "",
    ]
    RESULT.write_text("\n".join([*heading, *sorted(outcomes.lines), ""]), encoding="utf-8")
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
