"""The page of a finding, as Markdown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
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
from harness.plan.sweep_file import SHIPPED
from harness.plan.tuning import in_words
from reports.formats import count, duration, markdown_table, number, percent, points, tokens
from reports.page.record_tables import tuning_table
from reports.page.verdict import statements

FIGURE = "forest.svg"
NOT_WRITTEN = "Not written yet."
_ABOUT_MEASURES = """\
The table shows each arm's mean over its cells. Parentheses give the difference from the baseline, paired by seed, with
its 95% interval. These intervals are not corrected for multiple comparisons. In the report the measures are called:

{where}"""
_SCOPE = """\
This answer is for {models}. It need not hold for other models, tasks or budgets."""
_RULES = """\
We derived these tests from the claim and chose the arms and values ourselves, unless the page says otherwise; the
arms are listed under each run. The score is pass@1, and pp are percentage points. A predicted gain or loss is shown
if the interval lies entirely on the predicted side of 0. It is refuted if the interval rules out one of 1 pp or more
in the predicted direction. Predicted equivalence is shown if the interval lies within ±1 pp, and refuted if it lies
entirely outside. Otherwise a prediction is undecided. A measure other than the score has no margin: only the side of
0 on which its interval lies counts. Measures named pass@k are fractions, so 0.01 is 1 pp."""
_LOOKS = """\
In runs that mention looks, seeds were added in planned stages, until every contrast had a verdict or all seeds were
used. Each stage is a look at the results. For example, "look 2 of 4 planned; 98.3% over all looks" means that the
verdict comes from the second stage, and that the interval is widened so that all looks together keep a level of
98.3%. The p values do not account for the looks, so rely on the intervals."""


def page(finding: Finding, others: Sequence[Kept]) -> str:
    """The page of a finding that has begun. others: the runs of all findings, for a claim about all of them."""
    kept, found = kept_runs(finding), answers(finding, others)
    about_all = finding.about == "coverage"
    missing = [name for name in finding.runs if name not in kept]
    imported = {name: one for name, one in finding.imported.items() if one.record.is_file()}
    parts = [
        f"# {finding.number}. {finding.title}",
        f"<!-- Made by `make findings`; the words by hand are in {finding.number:02d}_{finding.name}.yaml. -->",
        f"> The claim, in our words: {finding.claim.strip()}\n>\n> Source: {finding.cited}",
        *([f"**{' '.join(filter(None, [finding.answer, summary(found, finding.about)]))}**"] if found else []),
        *([_SCOPE.format(models=finding.models)] if found else []),
        *([f"Not run yet: {', '.join(missing)}."] if missing else []),
        *([sharpening.section(finding, found, others)] if about_all else [_predictions(found)] if found else []),
        *([_LOOKS] if any(finding.runs[name].most_seeds for name in kept) else []),
        *(_run(name, one, finding.runs[name], others) for name, one in kept.items()),
        *([_measures(finding, kept)] if finding.measures and kept else []),
        *([change.section(finding, kept)] if kept else []),
        *(imported_runs.section(name, one) for name, one in imported.items()),
        f"## What to make of it\n\n{_paragraphs(finding.paragraph) or NOT_WRITTEN}",
        *([_again(finding, kept)] if kept else []),
    ]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def _paragraphs(text: str) -> str:
    """Return the text with an empty line between paragraphs; YAML folds each into one line."""
    return "\n\n".join(line for line in text.splitlines() if line)


def _predictions(found: Sequence[Judged]) -> str:
    rows = [[one.run, one.what, one.outcome, one.why] for one in found]
    return f"{markdown_table(['run', 'our test of the claim', 'outcome', 'reason'], rows)}\n\n{_RULES}"


def _run(name: str, kept: Kept, run: Run, others: Sequence[Kept]) -> str:
    report, sweep = kept.report, kept.sweep
    detectable = [row.detectable_pp for row in kept.contrasts if row.detectable_pp is not None]
    before = kept.before
    setup = [
        f"{count(len(sweep.arms), 'arm')} × {count(len(sweep.seeds), 'seed')}, with {sweep.baseline} as the baseline.",
        f"Profile: `{sweep.profile}` ({_description(sweep.profile)}).",
        f"Before training, pass@1 is {percent(before.get('pass@1'))} and {percent(before.get('truncated_frac'))} of the"
        " completions are truncated.",
        f"With 80% power the design detects {_range_pp(detectable)}.",
    ]
    headline = report.headline[0].sentence.replace(f"`bench run {run.name} ", f"`{run.command_without_looks} ")
    said = [f"- {one.sentence}" for one in statements(report)]
    lines = [f"## {name}: {sweep.question}", " ".join(setup), _arms(run, kept), headline, "\n".join(said)]
    if (tuned := tuning_table(report)) is not None:
        lines += [markdown_table(tuned.columns, tuned.rows), f"{tuned.title}. {tuned.note}"]
    if (kept.folder / FIGURE).is_file():
        lines.append(f"![Differences with their intervals](records/{kept.folder.name}/{FIGURE})")
    if run.is_another_evaluation:
        lines.append("This run evaluates the cells of a registered run again. It was not registered itself.")
    else:
        lines.append(_registered(kept, others))
    return "\n\n".join(lines)


def _arms(run: Run, kept: Kept) -> str:
    """What the sweep file and the run set, with what a search found, and the arms' scores."""
    asked, rows = load_yaml(run.sweep_file), kept.report.arms
    said = f"All arms: {_settings(asked.get('base', {}) | dict(one.split('=', 1) for one in run.set))}."
    metric = rows[0].metric_name
    columns = ["arm", f"{metric} before training", f"{metric} after training"]
    table = [[row.arm, f"{points(row.before_pp)}%", f"{points(row.mean_pp)}%"] for row in rows]
    if "grid" in asked:  # the names of its arms say what they set
        said = f"{said} Grid: {_settings(asked['grid'])}."
    else:
        columns.insert(1, "settings")
        found = {} if kept.sweep.tuning is None else kept.sweep.tuning.arms
        for row in table:
            own = [_settings(asked["arms"][row[0]])]
            best = [f"found by its search: `{in_words(found[row[0]].values)}`"] if row[0] in found else []
            row.insert(1, ", ".join(filter(None, [*own, *best])) or "no changes")
    return f"{said}\n\n{markdown_table(columns, table)}"


def _settings(knobs: dict[str, Any]) -> str:
    return ", ".join(
        f"`{knob}: {value if isinstance(value, str) else json.dumps(value)}`" for knob, value in knobs.items()
    )


def _registered(kept: Kept, others: Sequence[Kept]) -> str:
    """Say whether the question was registered in time, and which of its results were known before."""
    sentences = [
        f"Registered before any new cell of this run was trained (digest `{row.digest}`)."
        if row.holds
        else row.sentence
        for row in kept.report.registration
    ] or ["Not registered before its first cell."]
    earlier = registered_before(kept, others)
    cells, own = count(len(kept.trained()), "cell"), kept.settings()
    shared = kept.trained() & frozenset().union(*(one.trained() for one in earlier))
    asked = own & frozenset().union(*(one.settings() for one in earlier))
    if shared:
        sentences.append(
            f"{len(shared)} of its {cells} come from runs registered earlier, so their scores were known by then."
        )
    if again := len(asked) - len(shared):
        sentences.append(
            f"{again} of its {cells} were trained again with the settings and seeds of runs registered earlier."
        )
    for arm, name in known_before(kept, others).items():
        sentences.append(f"The run {name} had already compared {arm} with this baseline.")
    return " ".join(sentences)


def _description(profile: str) -> str:
    """Return the description in the file of a profile, without what it says about hardware."""
    path = Path(profile)
    text = str(load_yaml(path if path.suffix == ".yaml" else SHIPPED / "profiles" / f"{profile}.yaml")["description"])
    return text.partition(";")[0]


def _range_pp(values: Sequence[float]) -> str:
    """Return the effects that can be detected, for the end of a sentence."""
    if not values:
        return "an unknown effect"
    low, high = points(min(values)), points(max(values))
    if low == high:
        return f"a difference of {low} pp"
    return f"a difference of {low} to {high} pp, which varies with the contrast"


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
        searches=f" The searches before them generated another {tokens(searched)}." if searched else "",
        numerics=", ".join(map(str, numerics)),
        commands="\n".join(run.command for run in finding.runs.values()),
        checks="\n".join(f"bench verify docs/findings/records/{one.folder.name}" for one in kept.values()),
        on_gpu=on_gpu,
    )


_ON_GPU = """
We have not run this with the profile {profile}, because no GPU machine had its model. The command would be:

```
{command}
```
"""
_AGAIN = """## Cost, and how to run it again

{cells} generated {generated} tokens and took {took}, one cell at a time.{searches} Their version of
[the numerics](../explanation/hashing.md#what-the-hashes-cover) is {numerics}.

```
{commands}
```

To check the numbers above against the committed scores:

```
{checks}
```
{on_gpu}"""
