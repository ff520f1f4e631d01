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
    return " ".join(filter(None, [finding.answer, summary(found) if found else "", pending]))


def with_head(readme: str, findings: Sequence[Finding], others: Sequence[Kept]) -> str:
    """README.md with the first answers between its two markers. Raises RefusedError if the markers are missing."""
    if _HEAD.search(readme) is None:
        raise RefusedError("README.md has no lines `<!-- findings -->` and `<!-- /findings -->` to write between.")
    answered = [(one, found) for one in findings if (found := answers(one, others))]
    rows = [[f"[{one.title}](docs/findings/{one.page})", _answer(one, found)] for one, found in answered[:HEAD_ROWS]]
    return _HEAD.sub(lambda _: f"{markdown_table(['claim about', 'answer'], rows)}\n" if rows else "", readme)


_CONTENTS = """# Findings

<!-- Made by `make findings`. -->

Claims from the literature, tested with paired seeds on a CPU. Nearly all runs train the built-in model with 0.23M
parameters, which adds digits; finding 1 also trains SmolLM2-135M, and finding 11 also fits public logs. So an answer
says what was seen there, not what holds for large models; see [Limits](../explanation/limits.md). Each page has the
claim, the design, the detectable effect, the verdicts, the cost, and the command that runs it again. Failed
replications and open questions are kept.

{table}

The predictions of a run were written before it started; some runs reuse cells of earlier ones, as their pages say. A
prediction about the score is shown if the interval of the difference lies wholly on the predicted side of 0, or for
equivalence within ±1 pp. A predicted gain is refuted if the interval excludes a gain of 1 pp, a predicted loss if it
excludes a loss of 1 pp, and equivalence if it lies beyond ±1 pp. Otherwise the prediction is undecided.
[Statistics](../explanation/statistics.md) explains the intervals and looks. Other measurements have no margin: they are
judged by whether their 95% interval lies above or below 0.

The table rests on {contrasts} of {sweeps} and on {predictions}, besides the arms that finding 13 counts. Each sweep
corrects for its own contrasts. Nothing is corrected across pages: even if no arm differed, about one sweep in twenty
would show a difference in the score by chance. Measurements other than the score are not corrected at all, so each such
comparison errs in about one case in twenty.
{method}"""
_METHOD = """
[What was learned about measuring](method.md) compares the noise of these sweeps, and says what fewer seeds would have
shown.
"""
