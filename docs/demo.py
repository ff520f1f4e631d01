"""The numbers of the demo, written into README.md and docs/ from the report that is kept in docs/demo/.

    python -m docs.demo runs/std_norm    # once `make demo` has ended: keep its report, and write its numbers

A page says `<!-- demo: answer -->` before what is written and `<!-- /demo -->` after it. A test compares the pages with
the report.
"""

from __future__ import annotations

import io
import os
import re
import sys
import textwrap
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path

import numpy as np

from harness.cli.console import print_table
from harness.cli.report import compact
from harness.config.hashing import NUMERICS_VERSION
from harness.records import read_sweep
from reports.formats import number, number_interval, percent
from reports.page.kept import keep_report, kept_report
from reports.page.tables import result_table
from reports.report import ContrastRow, Report, Share

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "docs/demo"
MACHINE = "machine.txt"
FEW_SEEDS = 6
_MARKED = re.compile(r"(<!-- demo: (?P<name>\w+) -->\n).*?(?=<!-- /demo -->\n)", re.DOTALL)


def with_demo(markdown: str) -> str:
    """Write the demo's numbers between the marks of a page. Raises KeyError for a name that no function has."""
    return _MARKED.sub(lambda mark: f"{mark[1]}{PARTS[mark['name']](_report())}", markdown)


@cache
def _report() -> Report:
    return kept_report(KEPT)[1]


def answer(report: Report) -> str:
    """Return where the demo ran, its table of results, and its headline."""
    with redirect_stdout(io.StringIO()) as printed:
        print_table(*compact(result_table(report), over_problems=False))
    machine = (KEPT / MACHINE).read_text(encoding="utf-8").strip()
    rows = "\n".join(line.rstrip() for line in printed.getvalue().splitlines())
    sentences = "\n".join(one.sentence for one in report.headline)
    where = f"This is its answer on {machine}. On other processors, rounding changes the numbers slightly."
    return f"{where}\n\n```\n{rows}\n{sentences}\n```\n"


def pairing(report: Report) -> str:
    """Return the correlation of two arms in the demo, from all seeds and from the first few."""
    row = _contrast(report)
    scores = {arm.arm: arm.scores_pp for arm in report.arms}
    few = np.corrcoef(scores[row.arm][:FEW_SEEDS], scores[row.baseline][:FEW_SEEDS])[0, 1]
    return _filled(f"""
        A few seeds give a poor estimate of r. In the demo, {row.n_pairs} seeds give r = {row.correlation:.2f} for
        {row.arm} against {row.baseline}, with a {percent(row.level)} interval
        {number_interval(row.correlation_low, row.correlation_high)}. The first six seeds alone give r = {few:.2f}.
    """)


def noise(report: Report) -> str:
    """Return the demo's standard error and the share of its variance that each source of noise contributes."""
    row = _contrast(report)
    assert row.variance is not None and row.variance.these_problems is not None
    found = row.variance.these_problems
    seeds, problems, samples = (found.parts[name] for name in ("seeds", "seeds_x_problems", "sampling"))
    return _filled(f"""
        In the demo, with {row.variance.n_seeds} seeds, {row.variance.n_problems} problems and {row.variance.n_samples}
        samples, the standard error of {row.arm} against {row.baseline} is {number(found.error_pp, 2)} pp. Training
        seeds make up {_share(seeds)} of the variance, evaluation samples {_share(samples)} and seed x problem
        {_share(problems)}.
    """)


def _contrast(report: Report) -> ContrastRow:
    return next(row for row in report.contrasts if row.arm == "no_std")


def _share(part: Share) -> str:
    low, high = (round(100 * end) for end in (part.share_low, part.share_high))
    return f"{round(100 * part.share)} % [{low}, {high}]"


def _filled(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), 120, break_on_hyphens=False) + "\n"


PARTS: dict[str, Callable[[Report], str]] = {"answer": answer, "pairing": pairing, "noise": noise}
"""The texts for pages, by the names in their marks."""


def keep(folder: Path) -> None:
    """Keep the report of a finished demo, and where it ran."""
    starts = [start for cell in read_sweep(folder).cells for start in cell.provenances]
    (processor,) = {str(start["processor"]) for start in starts}
    (torch,) = {str(start["packages"]["torch"]) for start in starts}
    machine = f"{processor}, {os.cpu_count()} cores (torch {torch})\n"
    keep_report(folder, KEPT, NUMERICS_VERSION, {MACHINE: machine})


def pages() -> list[Path]:
    """Return the pages that may hold numbers of the demo."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


if __name__ == "__main__":
    keep(Path(sys.argv[1]))
    for page in pages():
        page.write_text(with_demo(page.read_text(encoding="utf-8")), encoding="utf-8")
