"""The table of all findings: docs/findings/README.md, and its first rows at the top of README.md."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from docs.findings.answer import Judged, Kept, cost_s, judged, judged_coverage, kept_runs, summary
from docs.findings.source import Finding
from harness.errors import RefusedError
from reports.formats import count, duration, markdown_table

README = Path(__file__).parents[2] / "README.md"
HEAD_ROWS = 3
_HEAD = re.compile(r"(?<=<!-- findings -->\n).*?(?=<!-- /findings -->\n)", re.DOTALL)


def has_begun(finding: Finding, others: Sequence[Kept]) -> bool:
    """Whether there is anything to show: a run of its own, or for a claim about all runs, a run of any finding."""
    if finding.about == "coverage":
        return bool(others)
    return bool(kept_runs(finding)) or any(one.record.is_file() for one in finding.imported.values())


def answers(finding: Finding, others: Sequence[Kept]) -> list[Judged]:
    """The outcomes of the predictions whose runs are kept."""
    return judged_coverage(others) if finding.about == "coverage" else judged(finding, kept_runs(finding))


def contents(findings: Sequence[Finding], others: Sequence[Kept]) -> str:
    """README.md of the findings: all claims, with the answers to those that have been run. others: all kept runs."""
    rows, n_predictions = [], 0
    for finding in findings:
        begun = has_begun(finding, others)
        found, kept = answers(finding, others), kept_runs(finding)
        n_predictions += len(found)
        number = f"[{finding.number}]({finding.page})" if begun else str(finding.number)
        cost = duration(cost_s(kept.values())) if kept else ""
        rows.append([number, finding.claim.strip(), finding.source, _answer(finding, found), cost])
    return _CONTENTS.format(
        table=markdown_table(["", "claim", "source", "answer", "cost"], rows),
        contrasts=count(sum(len(one.contrasts) for one in others), "contrast"),
        sweeps=count(len(others), "sweep"),
        predictions=count(n_predictions, "prediction"),
        method=_METHOD if others else "",
    )


def _answer(finding: Finding, found: Sequence[Judged]) -> str:
    """The outcomes of the predictions, and how many runs are still to come."""
    n_kept, n_runs = len(kept_runs(finding)), len(finding.runs)
    if not found and n_kept == 0:
        return "not run"
    to_come = [] if n_kept == n_runs else [f"{n_runs - n_kept} of {count(n_runs, 'run')} to come."]
    return " ".join([*([summary(found)] if found else []), *to_come])


def with_head(readme: str, findings: Sequence[Finding], others: Sequence[Kept]) -> str:
    """README.md with the first answers between its two markers. Raises RefusedError if the markers are missing."""
    if _HEAD.search(readme) is None:
        raise RefusedError("README.md has no lines `<!-- findings -->` and `<!-- /findings -->` to write between.")
    answered = [(one, found) for one in findings if (found := answers(one, others))]
    rows = [[f"[{one.title}](docs/findings/{one.page})", _answer(one, found)] for one, found in answered[:HEAD_ROWS]]
    return _HEAD.sub(lambda _: f"{markdown_table(['claim about', 'answer'], rows)}\n" if rows else "", readme)


_CONTENTS = """# Findings

<!-- Made by `make findings`. -->

Claims from the literature, each tested with a design that can decide it. Each page has the claim, the design, the
verdicts, the cost, and the command that runs it again. Failed replications and open questions are kept.

{table}

The table rests on {contrasts} of {sweeps} and on {predictions}. Each sweep corrects for its own contrasts. Nothing is
corrected across pages: where no arm differs, one sweep in twenty still shows a difference. All runs are of small models
on a CPU; [Limits](../explanation/limits.md) says what that leaves open.
{method}"""
_METHOD = """
[What was learned about measuring](method.md) compares their noise, and says what fewer seeds would have shown.
"""
