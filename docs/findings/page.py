"""The page of a finding, as Markdown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from docs.findings import change, sharpening
from docs.findings import imported as imported_runs
from docs.findings.answer import (
    Judged,
    Kept,
    cells_of,
    cost_s,
    kept_runs,
    known_before,
    registered_before,
    summary,
)
from docs.findings.contents import answers
from docs.findings.measures import Values, difference
from docs.findings.source import Finding, Run
from evals.yaml_file import load_yaml
from harness.plan.tuning import in_words
from reports.formats import count, duration, markdown_table, number, percent, points, tokens
from reports.page.record_tables import tuning_table
from reports.page.verdict import statements

FIGURE = "forest.svg"
NOT_WRITTEN = "Not written yet."
_ABOUT_MEASURES = """\
The table shows means over the cells of an arm. The brackets hold the difference from the baseline over the seeds, with
its uncorrected 95% interval. The measures in the report:

{where}"""


def page(finding: Finding, others: Sequence[Kept]) -> str:
    """The page of a finding that has begun. others: the runs of all findings, for a claim about all of them."""
    kept, found = kept_runs(finding), answers(finding, others)
    about_all = finding.about == "coverage"
    missing = [name for name in finding.runs if name not in kept]
    imported = {name: one for name, one in finding.imported.items() if one.record.is_file()}
    parts = [
        f"# {finding.number}. {finding.title}",
        f"<!-- Made by `make findings`; the words by hand are in {finding.number:02d}_{finding.name}.yaml. -->",
        f"> {finding.claim.strip()}\n>\n> {finding.cited}",
        *([f"**{' '.join(filter(None, [finding.answer, summary(found)]))}**"] if found else []),
        *([f"Not run yet: {', '.join(missing)}."] if missing else []),
        *([sharpening.section(finding, found, others)] if about_all else [_predictions(found)] if found else []),
        *(_run(name, one, finding.runs[name], others) for name, one in kept.items()),
        *([_measures(finding, kept)] if finding.measures and kept else []),
        *([change.section(finding, kept)] if kept else []),
        *(imported_runs.section(name, one) for name, one in imported.items()),
        f"## What to make of it\n\n{finding.paragraph.strip() or NOT_WRITTEN}",
        *([_again(finding, kept)] if kept else []),
    ]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def _predictions(found: Sequence[Judged]) -> str:
    rows = [[one.run, one.what, one.outcome, one.why] for one in found]
    return markdown_table(["run", "the claim predicts", "", "because"], rows)


def _run(name: str, kept: Kept, run: Run, others: Sequence[Kept]) -> str:
    report, sweep = kept.report, kept.sweep
    detectable = [row.detectable_pp for row in kept.contrasts if row.detectable_pp is not None]
    before = kept.before
    setup = [
        f"{count(len(sweep.arms), 'arm')} × {count(len(sweep.seeds), 'seed')}, baseline {sweep.baseline}, profile "
        f"{sweep.profile}",
        f"before training {percent(before.get('pass@1'))} pass@1, {percent(before.get('truncated_frac'))} truncated",
        f"detectable effect {_range_pp(detectable)}",
    ]
    headline = report.headline[0].sentence.replace(f"`bench run {run.name} ", f"`{run.command_without_looks} ")
    said = [f"- {one.sentence}" for one in statements(report)]
    lines = [f"## {name}: {sweep.question}", f"{'; '.join(setup)}.", _arms(run, kept), headline, "\n".join(said)]
    if (tuned := tuning_table(report)) is not None:
        lines += [markdown_table(tuned.columns, tuned.rows), f"{tuned.title}. {tuned.note}"]
    if (kept.folder / FIGURE).is_file():
        lines.append(f"![Differences with their intervals](records/{kept.folder.name}/{FIGURE})")
    if run.is_another_evaluation:
        lines.append("This evaluates the cells of a registered run in another way, and was not registered itself.")
    else:
        lines.append(_registered(kept, others))
    return "\n\n".join(lines)


def _arms(run: Run, kept: Kept) -> str:
    """What the sweep file and the run set, with what a search found, and the arms' scores."""
    asked, rows = load_yaml(run.sweep_file), kept.report.arms
    said = f"All arms: {_settings(asked.get('base', {}) | dict(one.split('=', 1) for one in run.set))}."
    metric = rows[0].metric_name
    columns = ["arm", f"{metric} before training", "after it"]
    table = [[row.arm, f"{points(row.before_pp)}%", f"{points(row.mean_pp)}%"] for row in rows]
    if "grid" in asked:  # the names of its arms say what they set
        said = f"{said} Grid: {_settings(asked['grid'])}."
    else:
        columns.insert(1, "sets")
        found = {} if kept.sweep.tuning is None else kept.sweep.tuning.arms
        for row in table:
            own = [_settings(asked["arms"][row[0]])]
            best = [f"found: `{in_words(found[row[0]].values)}`"] if row[0] in found else []
            row.insert(1, ", ".join(filter(None, [*own, *best])) or "no changes")
    return f"{said}\n\n{markdown_table(columns, table)}"


def _settings(knobs: dict[str, Any]) -> str:
    return ", ".join(
        f"`{knob}: {value if isinstance(value, str) else json.dumps(value)}`" for knob, value in knobs.items()
    )


def _registered(kept: Kept, others: Sequence[Kept]) -> str:
    """When the question was registered, and what was known of it then."""
    sentences = [row.sentence for row in kept.report.registration] or ["Not registered before its first cell."]
    earlier = registered_before(kept, others)
    cells, own = count(len(kept.trained()), "cell"), kept.settings()
    shared = kept.trained() & frozenset().union(*(one.trained() for one in earlier))
    asked = own & frozenset().union(*(one.settings() for one in earlier))
    if shared:
        sentences.append(f"{len(shared)} of its {cells} are reused from runs registered earlier.")
    if again := len(asked) - len(shared):
        sentences.append(f"{again} of its {cells} repeat cells of runs registered earlier.")
    for arm, name in known_before(kept, others).items():
        sentences.append(f"{name} had already compared {arm} with this baseline.")
    return " ".join(sentences)


def _range_pp(values: Sequence[float]) -> str:
    if not values:
        return "unknown"
    low, high = points(min(values)), points(max(values))
    return f"{low} pp" if low == high else f"{low} to {high} pp"


def _measures(finding: Finding, kept: dict[str, Kept]) -> str:
    """A row for each run and measure: the mean of every arm, and its difference from the baseline. Runs with the same
    arms share a table."""
    tables: dict[tuple[str, ...], list[list[str]]] = {}
    for name, one in kept.items():
        arms = tuple(one.sweep.arms)
        for words, measure in finding.measures.items():
            if values := one.measured(measure):
                row = [name, words, *(_measure(values, arm, one.sweep.baseline) for arm in arms)]
                tables.setdefault(arms, []).append(row)
    written = [markdown_table(["run", "measure", *arms], rows) for arms, rows in tables.items()]
    where = "\n".join(f"- {words}: `{measure}`" for words, measure in finding.measures.items())
    return "\n\n".join(["## Other measurements", *written, _ABOUT_MEASURES.format(where=where)])


def _measure(values: Values, arm: str, baseline: str) -> str:
    own = [value for (one, _), value in values.items() if one == arm]
    if not own:
        return "not recorded"
    mean = number(sum(own) / len(own))
    found = None if arm == baseline else difference(values, arm, baseline)
    if found is None:
        return mean
    return f"{mean} ({found.mean:+.3g}{f' {found.ends}' if found.ends else ''})"


def _again(finding: Finding, kept: dict[str, Kept]) -> str:
    cells = cells_of(kept.values())
    numerics = sorted({one.numerics for one in kept.values()})
    searched = sum(row.generated_tokens for one in kept.values() for row in one.report.tuning)
    on_gpu = (
        "" if finding.on_gpu is None else _ON_GPU.format(command=finding.on_gpu.command, profile=finding.on_gpu.profile)
    )
    return _AGAIN.format(
        cells=count(len(cells), "cell"),
        generated=tokens(sum(cell.generated_tokens or 0 for cell in cells)),
        took=duration(cost_s(kept.values())),
        searches=f" The searches before them generated {tokens(searched)} tokens more." if searched else "",
        numerics=", ".join(map(str, numerics)),
        commands="\n".join(run.command for run in finding.runs.values()),
        checks="\n".join(f"bench verify docs/findings/records/{one.folder.name}" for one in kept.values()),
        on_gpu=on_gpu,
    )


_ON_GPU = """
Not run on a GPU: no machine had both a GPU and the model of the profile {profile}.

```
{command}
```
"""
_AGAIN = """## Cost, and how to run it again

{cells}, {generated} generated tokens; {took} with one cell at a time.{searches} Numerics {numerics}.

```
{commands}
```

To check the numbers above against the committed scores:

```
{checks}
```
{on_gpu}"""
