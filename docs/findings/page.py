"""The page of a finding, and the table of all of them, as Markdown."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from docs.findings.answer import OUTCOMES, Judged, Kept, judged, judged_coverage, kept_runs, summary
from docs.findings.measures import difference
from docs.findings.source import Finding
from reports.formats import count, duration, interval, number, percent, points, tokens
from reports.page.verdict import statements

FIGURE = "forest.svg"
NOT_WRITTEN = "Nobody has written yet what to make of this."


def page(finding: Finding, others: Sequence[Kept]) -> str:
    """The page of a finding whose runs are all kept. others: the runs of all findings, for a claim about all."""
    kept = kept_runs(finding)
    about_all = finding.about == "coverage"
    found = judged_coverage(others) if about_all else judged(finding, kept)
    parts = [
        f"# {finding.number}. {finding.title}",
        f"<!-- Made by `make findings`; the words by hand are in {finding.number:02d}_{finding.name}.yaml. -->",
        f"> {finding.claim.strip()}\n>\n> {finding.source}",
        f"**{summary(found)}**",
        *([_coverage_table(found)] if about_all else [_predictions(found)]),
        *(_run(name, one) for name, one in kept.items()),
        *([_measures(finding, kept)] if finding.measured else []),
        f"## What to make of it\n\n{finding.paragraph.strip() or NOT_WRITTEN}",
        *([] if about_all else [_again(finding, kept)]),
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _predictions(found: Sequence[Judged]) -> str:
    rows = [[one.run, f"`{one.what}`", one.outcome, one.why] for one in found]
    return table(["run", "the claim predicts", "", "because"], rows)


def _coverage_table(found: Sequence[Judged]) -> str:
    """By run, how many arms have which word against the model before training."""
    rows = []
    for run in dict.fromkeys(one.run for one in found):
        counts = Counter(one.outcome for one in found if one.run == run)
        rows.append([run, *(str(counts[outcome]) for outcome in OUTCOMES)])
    return table(["run", "arms that sharpened", "arms that discovered", "cannot be told"], rows)


def _run(name: str, kept: Kept) -> str:
    report, sweep = kept.report, kept.sweep
    detectable = [row["detectable_pp"] for row in kept.contrasts if row["detectable_pp"] is not None]
    before = kept.before
    setup = [
        f"{count(len(sweep.arms), 'arm')} × {count(len(sweep.seeds), 'seed')}, baseline {sweep.baseline}, profile "
        f"{sweep.profile}",
        f"before training {percent(before.get('pass@1'))} pass@1, {percent(before.get('truncated_frac'))} truncated",
        f"detectable effect {_range_pp(detectable)}",
    ]
    registered = [row["sentence"] for row in report["registration"]] or ["Not registered before its first cell."]
    said = [f"- {one.sentence}" for one in statements(report)]
    lines = [f"## {name}: {sweep.question}", f"{'; '.join(setup)}.", report["headline"][0]["sentence"], "\n".join(said)]
    if (kept.folder / FIGURE).is_file():
        lines.append(f"![Differences with their intervals](records/{kept.folder.name}/{FIGURE})")
    return "\n\n".join([*lines, *registered])


def _range_pp(values: Sequence[float]) -> str:
    if not values:
        return "unknown"
    low, high = points(min(values)), points(max(values))
    return f"{low} pp" if low == high else f"{low} to {high} pp"


def _measures(finding: Finding, kept: dict[str, Kept]) -> str:
    """A row for each run and arm: the mean of every measure, and its difference from the baseline."""
    rows = []
    for name, one in kept.items():
        for arm in one.sweep.arms:
            cells = [_measure(one, measure, arm) for measure in finding.measured]
            rows.append([name, arm, *cells])
    note = "In brackets: the difference from the baseline over the seeds, with its 95% interval, not corrected."
    return f"## Beside the score\n\n{table(['run', 'arm', *finding.measured], rows)}\n\n{note}"


def _measure(kept: Kept, measure: str, arm: str) -> str:
    values, baseline = kept.measures.get(measure, {}), kept.sweep.baseline
    own = [value for (one, _), value in values.items() if one == arm]
    if not own:
        return "not recorded"
    mean = number(sum(own) / len(own))
    found = None if arm == baseline else difference(values, arm, baseline)
    if found is None:
        return mean
    ends = "" if math.isnan(found.low) else f" {interval(found.low, found.high, decimals=3)}"
    return f"{mean} ({number(found.mean)}{ends})"


def _again(finding: Finding, kept: dict[str, Kept]) -> str:
    cells = [cell for one in kept.values() for cell in one.report["cells"]]
    numerics = sorted({one.numerics for one in kept.values()})
    on_gpu = "" if finding.on_gpu is None else f"\nNot run on a GPU: `{finding.on_gpu.command}`.\n"
    return _AGAIN.format(
        cells=count(len(cells), "cell"),
        generated=tokens(sum(cell["generated_tokens"] for cell in cells)),
        took=duration(cost_s(kept.values())),
        numerics=", ".join(map(str, numerics)),
        commands="\n".join(run.command for run in finding.runs.values()),
        checks="\n".join(f"bench verify docs/findings/records/{one.folder.name}" for one in kept.values()),
        on_gpu=on_gpu,
    )


_AGAIN = """## Cost, and how to run it again

{cells}, {generated} generated tokens; {took} if one cell runs after another. Numerics {numerics}.

```
{commands}
```

To check the numbers above against the committed scores:

```
{checks}
```
{on_gpu}"""


def cost_s(kept: Iterable[Kept]) -> float:
    return sum(one.trained_s for one in kept)


def contents(findings: Sequence[Finding], others: Sequence[Kept]) -> str:
    """README.md: all claims, those that have been run with their answers."""
    rows, n_predictions = [], 0
    for finding in findings:
        about_all = finding.about == "coverage"
        done = bool(others) if about_all else finding.is_run
        if not done:
            rows.append([str(finding.number), finding.claim.strip(), finding.source, "not run", ""])
            continue
        kept = kept_runs(finding)
        found = judged_coverage(others) if about_all else judged(finding, kept)
        n_predictions += len(found)
        cost = duration(cost_s(kept.values())) if kept else ""
        rows.append(
            [f"[{finding.number}]({finding.page})", finding.claim.strip(), finding.source, summary(found), cost]
        )
    return _CONTENTS.format(
        table=table(["", "claim", "source", "answer", "cost"], rows),
        contrasts=count(sum(len(one.contrasts) for one in others), "contrast"),
        sweeps=count(len(others), "sweep"),
        predictions=count(n_predictions, "prediction"),
        method=_METHOD if others else "",
    )


_CONTENTS = """# Findings

<!-- Made by `make findings`. -->

What the literature argues about, asked with designs that can answer. Each page has the claim, the design, the verdicts,
the cost, and the command that runs it again. Failed replications and open questions stay in.

{table}

The table stands on {contrasts} of {sweeps} and on {predictions}. Each sweep corrects for its own contrasts. Nothing is
corrected across pages: where no arm differs, one sweep in twenty still shows a difference. All runs are of small models
on a CPU; [Limits](../explanation/limits.md) says what that leaves open.
{method}"""
_METHOD = """
[What was learned about measuring](method.md) has the noise of all of them, and what fewer seeds would have seen.
"""


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(
        "| " + " | ".join(" ".join(str(cell).replace("|", "\\|").split()) for cell in line) + " |" for line in lines
    )
