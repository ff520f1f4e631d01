"""What training changed in a run: the scores of the model before training, beside those of the baseline's cells."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

from docs.findings.answer import Kept
from docs.findings.measures import Measure, difference
from docs.findings.source import Finding, Run
from harness.errors import BenchError
from harness.records import read_sweep
from reports.formats import markdown_table, number, percent, points, signed_pp
from reports.page.document import FINAL_SCORES

_SCORES = FINAL_SCORES.removesuffix(".csv")

Ask = Callable[[Sequence[str]], Any]
"""Calls `bench` with these words and returns the document that it prints."""


def ask(words: Sequence[str]) -> Any:
    """Run `bench` as a process. Raises BenchError if it fails."""
    called = subprocess.run(
        [sys.executable, "-c", "from harness.cli import main; main()", *words], stdout=subprocess.PIPE, text=True
    )
    if called.returncode != 0:
        raise BenchError(f"has not ended: {shlex.join(['bench', *words])}")
    return json.loads(called.stdout)


def before_and_after(run: Run, ask: Ask = ask) -> str:
    """JSON to be kept: the baseline's cell of the first seed against the model that it started from, on other tasks.
    Samples that were drawn before are not drawn again."""
    sweep = read_sweep(run.folder)
    cell = next(one for one in sweep.cells if (one.arm, one.seed) == (sweep.baseline, sweep.seeds[0]))
    start = cell.spec["model"]["source"]
    words = ["eval", str(cell.path), "--baseline", start, *shlex.split(run.before_and_after or "")]
    changes = ask([*words, "--home", str(run.folder.parent), "--json"])["changes"]
    document = {"cell": f"{cell.arm}, seed {cell.seed}", "command": shlex.join(["bench", *words]), "changes": changes}
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def section(finding: Finding, kept: dict[str, Kept]) -> str:
    """A row for each run and score: before, the mean of the baseline's cells after it, and whether it moved."""
    rows = []
    for name, one in kept.items():
        for words, measure in _scores(finding, one).items():
            before = one.before.get(measure.column)
            if before is None:
                continue
            changes = {cell: after - before for cell, after in measure.values(one.folder).items()}
            found = difference(changes, one.sweep.baseline, None)
            if found is None:
                continue
            moved = "up" if found.low > 0 else "down" if found.high < 0 else "undecided"
            after, change = number(before + found.mean), f"{found.mean:+.3g} {found.ends}"
            rows.append([name, words, number(before), after, change, moved])
    if not rows:
        return ""
    return "\n\n".join(
        [
            "## What training changed",
            markdown_table(["run", "score", "before", "after", "change, 95% interval", "direction"], rows),
            "The scores are means over the baseline's cells. The intervals cover variation between training seeds only;"
            " the set of test problems is fixed.",
            *(_elsewhere(name, one) for name, one in kept.items() if one.elsewhere),
        ]
    )


def _scores(finding: Finding, kept: Kept) -> dict[str, Measure]:
    """The compared score, and the finding's measures among the final scores, if they are of the compared task; by what
    the page calls them."""
    compared = kept.sweep.metric.rpartition(".")[2]
    asked = {words: Measure.parse(text) for words, text in finding.measures.items()}
    same = {None, ("task", kept.task)}
    scores = {words: one for words, one in asked.items() if one.table == _SCORES and one.only in same}
    columns = {compared: compared} | {words: one.column for words, one in scores.items()}
    return {words: Measure(_SCORES, column, ("task", kept.task), False) for words, column in columns.items()}


def _elsewhere(name: str, kept: Kept) -> str:
    """What `bench eval --baseline` found."""
    found = kept.elsewhere
    rows = [
        [
            *(row["task"], row["metric"], str(row["n_problems"]), percent(row["before"]), percent(row["after"])),
            f"{signed_pp(100 * row['difference'])} pp",
            f"{points(None if row['stderr'] is None else 100 * row['stderr'])} pp",
            *(str(row["gained"]), str(row["lost"])),
        ]
        for row in found["changes"]
    ]
    columns = [
        "task",
        "metric",
        "problems",
        "before",
        "after",
        "change",
        "standard error",
        "problems gained",
        "problems lost",
    ]
    return "\n\n".join(
        [
            f"{name}: one cell ({found['cell']}), evaluated on a task on which it was not trained:",
            markdown_table(columns, rows),
            f"```\n{found['command']}\n```",
        ]
    )
