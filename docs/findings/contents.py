"""The table of all findings: docs/findings/README.md, and its first rows at the top of README.md."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from docs.findings.answer import (
    Judged,
    Kept,
    cost_s,
    distinct_contrasts,
    judged,
    judged_coverage,
    kept_runs,
    summary,
)
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
        n_predictions += len(found) if finding.about == "predictions" else 0
        number = f"[{finding.number}]({finding.page})" if begun else str(finding.number)
        cost = duration(cost_s(kept.values())) if kept else ""
        rows.append([number, finding.claim.strip(), finding.cited, _answer(finding, found), cost])
    return _CONTENTS.format(
        table=markdown_table(["", "claim", "source", "answer", "cost"], rows),
        contrasts=count(len(distinct_contrasts(others)), "contrast"),
        sweeps=count(len(others), "sweep"),
        predictions=count(n_predictions, "prediction"),
        method=_METHOD if others else "",
    )


def _answer(finding: Finding, found: Sequence[Judged]) -> str:
    """The answer in words, the outcomes of the predictions, and how many runs are pending."""
    n_kept, n_runs = len(kept_runs(finding)), len(finding.runs)
    if not found and n_kept == 0:
        return "not run"
    pending = "" if n_kept == n_runs else f"{n_runs - n_kept} of {count(n_runs, 'run')} pending."
    return " ".join(filter(None, [finding.answer, summary(found, finding.about) if found else "", pending]))


def with_head(readme: str, findings: Sequence[Finding], others: Sequence[Kept]) -> str:
    """README.md with the first answers between its two markers. Raises RefusedError if the markers are missing."""
    if _HEAD.search(readme) is None:
        raise RefusedError("README.md has no lines `<!-- findings -->` and `<!-- /findings -->` to write between.")
    answered = [(one, found) for one in findings if (found := answers(one, others))]
    rows = [[f"[{one.title}](docs/findings/{one.page})", _answer(one, found)] for one, found in answered[:HEAD_ROWS]]
    return _HEAD.sub(lambda _: f"{markdown_table(['claim about', 'answer'], rows)}\n" if rows else "", readme)


_CONTENTS = """# Findings

<!-- Made by `make findings`. -->

These pages test claims from the literature with paired seeds on a CPU. Nearly all runs train the built-in model, which
has 0.23M parameters and adds digits. Finding 1 also trains SmolLM2-135M, and finding 11 also fits public logs of larger
models. The answers describe these models and need not hold for larger ones; see [Limits](../explanation/limits.md).
Each page gives the claim, the design, the detectable effect, the verdicts, the cost, and the commands that repeat the
runs. Failed replications and open questions are included.

{table}

We wrote the predictions for a run before it started. Some runs reuse cells of earlier ones, as their pages say. A
prediction about the score is shown if the interval of the difference lies entirely on the predicted side of 0, or,
for equivalence, within ±1 pp. A predicted gain is refuted if the interval excludes a gain of 1 pp, and a predicted loss
if it excludes a loss of 1 pp. Equivalence is refuted if the interval lies entirely outside ±1 pp. Otherwise the
prediction is undecided. [Statistics](../explanation/statistics.md) explains the intervals and the looks. Measures other
than the score have no margin: they are judged by whether their 95% interval lies above or below 0.

The table rests on {contrasts} in {sweeps} and on {predictions}, not counting the arms in finding 13. Each sweep
corrects for its own contrasts. Nothing is corrected across pages: even if no knob had an effect, about one sweep in
twenty would show a difference in the score by chance. Measures other than the score are not corrected at all. If no
knob had an effect, about one such comparison in twenty would show a difference.
{method}"""
_METHOD = """
[What we learned about measuring](method.md) compares the noise of these sweeps and estimates what fewer seeds
would have shown.
"""
