"""method.md: what the comparisons cost, where their noise came from, what pairing saved, and what fewer seeds would
have seen."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from docs.findings.answer import Kept, cells_of, cost_s, distinct_contrasts, kept_runs
from docs.findings.source import Finding
from reports.formats import MISSING, count, duration, interval, markdown_table, percent, ratio, signed_pp
from reports.report import BestDifference, VerdictRow
from reports.statistics import power

FEW_SEEDS = (3, 6)
ONE_SEED_SDS = 1.960 + 0.842
"""If the sd is known from elsewhere, a single seed detects a true difference of this many sds, with 80% power at the 5%
level."""
_PARTS = {
    "seeds": "by training seeds",
    "seeds_x_problems": "by seed x problem",
    "sampling": "by evaluation samples",
    "problems": "by the choice of problems",
}

_OF_ONE_SEED = ("seeds", "seeds_x_problems", "sampling")

Effect = tuple[float, float]
"""A difference, and the sd of one seed's difference, in percentage points."""


def method_page(findings: Sequence[Finding], kept: Sequence[Kept]) -> str:
    """method.md, over the runs that are kept."""
    rows = distinct_contrasts(kept)
    found = [row for row in rows if row.verdict in ("better", "worse") and (_sd_pp(row) or 0) > 0]
    effects = _effects(findings, found)
    return _PAGE.format(
        comparisons=count(len(rows), "comparison"),
        sweeps=count(len(kept), "sweep"),
        cells=count(len(cells_of(kept)), "cell"),
        took=duration(cost_s(kept)),
        main_part=_main_part(kept),
        saving=_saving(kept),
        budget=_budget(kept),
        pairing=_pairing(kept),
        again=_again(kept),
        tuned=_tuned(findings),
        few=_few(effects["found here"]),
        visible=markdown_table(
            ["effects", "number", "1 seed", *(f"{n} seeds" for n in FEW_SEEDS)],
            [_visible_row(name, rows) for name, rows in effects.items()],
        ),
    )


_PAGE = """# What we learned about measuring

<!-- Made by `make findings`. -->

This page covers {comparisons} of an arm with its baseline, in {sweeps}. Training and evaluating their {cells} took
{took}, one cell at a time.

In short:

- {main_part}
- {saving}
- {few}

## Where the noise comes from

{budget}

All numbers are standard deviations in percentage points. Each is a root mean square over the comparisons of a run.

* The first, "one seed's difference", describes how the difference between two arms varies from seed to seed on these
  problems.
* The next three are its parts. Their squares add up to its square, unless an estimate fell below zero and was set to
  zero. More seeds reduce what all three contribute to the mean difference. More samples per problem reduce only the
  part of the evaluation samples.
* The last is the noise that the choice of problems adds to the mean difference, if it is to hold for other problems of
  the same kind. Only more problems reduce it.

## What pairing saved

{pairing}

The table shows medians over the comparisons of a run. The correlation is that of the two arms' scores over seeds. The
variance ratio is the variance of the paired mean difference, divided by that of an unpaired one. At 0.5, pairing saved
half of the seeds. Above 1, pairing cost precision.

{again}{tuned}## What fewer seeds would have shown

{visible}

The table counts the effects that a design with this many seeds detects with 80% power at the 5% level, without any
correction. The column for one seed assumes that the standard deviation is known, which one seed cannot provide. Three
seeds must estimate it, so that column can show fewer effects. The sources measured their effects on other tasks, with
other noise. The effects found here are those that were significant, so their sizes are overestimated on average.
"""


_AGAIN = """## What retraining the same cells changes

{table}

These cells repeat the settings and seeds of earlier cells on another machine, and ended with different weights. On one
machine, retraining a cell reproduces it bit for bit. Each retraining counts once, in the first run that contains it.
With one update per rollout (`kimi_length`) the scores hardly changed. With four (`cispo_tuned`, `entropy`) small
differences grew until two trainings with one seed differed about as much as trainings with two seeds.

"""

_TUNED = """## What tuning each arm separately changes

{table}

The table shows each comparison twice: with one setting for both arms, and with the setting that a search found for each
arm. The last column allows for how far each search may have stopped short of its arm's best (`bests` in report.json). A
verdict must hold there too. The brackets give the intervals behind the verdicts; their levels depend on the sweep. The
scores of the searches are not used: both arms were trained again with other seeds. The two comparisons come from
different trainings, which alone can change a difference by 1 pp or more.

"""


def _sd_pp(row: VerdictRow) -> float | None:
    """The standard deviation of one seed's difference."""
    differences = row.differences_pp
    return statistics.stdev(differences) if len(differences) > 1 else None


def _median(rows: Sequence[VerdictRow], value: Callable[[VerdictRow], float | None]) -> float | None:
    known = [one for row in rows if (one := value(row)) is not None]
    return statistics.median(known) if known else None


def _part_pp(part: str) -> Callable[[VerdictRow], float | None]:
    """The sd of one seed's difference that comes from a part; for the problems, the sd of the mean."""

    def sd_pp(row: VerdictRow) -> float | None:
        variance = row.variance
        if variance is None or variance.new_problems is None:
            return None
        found = variance.new_problems.parts.get(part)  # greedy decoding has no noise of samples
        if found is None or found.sd_pp is None:
            return None
        return found.sd_pp * (1 if part == "problems" else math.sqrt(variance.n_seeds or 0))

    return sd_pp


def _budget(kept: Sequence[Kept]) -> str:
    rows = []
    for one in kept:
        parts = [_root_mean_square(one, part) for part in (_sd_pp, *map(_part_pp, _PARTS))]
        shown = [MISSING if part is None else f"{part:.2f}" for part in parts]
        rows.append([one.folder.name, str(len(one.sweep.seeds)), *shown])
    return markdown_table(["run", "seeds", "one seed's difference", *_PARTS.values()], rows)


def _root_mean_square(kept: Kept, value: Callable[[VerdictRow], float | None]) -> float | None:
    """Over the comparisons of a run. Unlike medians, mean variances still add up if they add up in each comparison."""
    rows = [row for row in kept.report.contrasts if row.variance and not row.variance.refused]
    known = [one for row in rows if (one := value(row)) is not None]
    return math.sqrt(statistics.fmean(one**2 for one in known)) if known else None


def _main_part(kept: Sequence[Kept]) -> str:
    """Say in how many runs the training seeds are the largest source of noise, and how large that of the samples is.

    Only runs that sample their answers count.
    """
    parts = [[_root_mean_square(one, _part_pp(part)) for part in _OF_ONE_SEED] for one in kept]
    variances = [[part**2 for part in run if part is not None] for run in parts if None not in run]
    sampled = [run for run in variances if sum(run)]
    if not sampled:
        return "The sources of noise are unknown."
    largest = sum(run[0] == max(run) for run in sampled)
    share = percent(statistics.median(run[-1] / sum(run) for run in sampled))
    return (
        f"In {largest} of {count(len(sampled), 'run')} with sampled answers, the training seed is the largest source"
        f" of noise in one seed's difference. In the median run, the evaluation samples contribute {share} of its"
        " variance."
    )


def _saving(kept: Sequence[Kept]) -> str:
    """In how many runs pairing saved how much."""
    ratios = [_median(one.report.contrasts, lambda row: row.variance_ratio) for one in kept]
    known = [one for one in ratios if one is not None]
    if not known:
        return "It is unknown what pairing saved."
    half, tenth = sum(one <= 0.5 for one in known), sum(one > 0.9 for one in known)
    return (
        f"Pairing removed half of the variance or more in {half} of {count(len(known), 'run')}, and less than a tenth"
        f" in {tenth}. In the median run, {percent(statistics.median(known))} of the variance remained."
    )


def _pairing(kept: Sequence[Kept]) -> str:
    rows = []
    for one in kept:
        contrasts = one.report.contrasts
        medians = [_median(contrasts, lambda row: row.correlation), _median(contrasts, lambda row: row.variance_ratio)]
        rows.append([one.folder.name, *map(ratio, medians)])
    return markdown_table(["run", "correlation", "variance ratio"], rows)


def _again(kept: Sequence[Kept]) -> str:
    """A row for each run with cells that an earlier run had trained to other weights: how much their scores differ. ""
    if there are none."""
    rows, trained = [], dict[str, dict[str, float]]()
    for one in sorted(kept, key=lambda run: run.registered_at or ""):
        changes = []
        for cell in one.report.cells:
            scores = trained.setdefault(cell.hash, {})
            if cell.score_pp is None or cell.digest is None:
                continue
            if scores and cell.digest not in scores:
                changes.append(cell.score_pp - next(iter(scores.values())))
            scores.setdefault(cell.digest, cell.score_pp)
        if len(changes) > 1:
            mean, sd = statistics.fmean(changes), statistics.stdev(changes)
            rows.append([one.folder.name, str(len(changes)), f"{mean:+.2f}", f"{sd:.2f}"])
    columns = ["run", "cells", "mean change (pp)", "sd of a cell's change (pp)"]
    return _AGAIN.format(table=markdown_table(columns, rows)) if rows else ""


def _tuned(findings: Sequence[Finding]) -> str:
    """A row for each comparison that a finding makes with and without tuning on one profile; "" if none does."""
    rows = []
    for finding in findings:
        kept = kept_runs(finding)
        places = {name: (run.profile, tuple(run.set)) for name, run in finding.runs.items()}
        alike = {
            (places[name], row.arm, row.baseline): row
            for name, one in kept.items()
            for row in one.contrasts
            if row.bests is None
        }
        for name, row in ((name, row) for name, one in kept.items() for row in one.contrasts if row.bests is not None):
            if (untuned := alike.get((places[name], row.arm, row.baseline))) is not None:
                what = f"{row.arm} against {row.baseline}"
                link = f"[{finding.number}]({finding.page})"
                rows.append([link, what, *map(_difference, (untuned, row, row.bests))])
    columns = ["finding", "comparison", "one setting (pp)", "own settings (pp)", "corrected to the bests (pp)"]
    return _TUNED.format(table=markdown_table(columns, rows)) if rows else ""


def _difference(row: VerdictRow | BestDifference | None) -> str:
    return "" if row is None else f"{signed_pp(row.difference_pp)} {interval(row.low_pp, row.high_pp)}"


def _effects(findings: Sequence[Finding], found: Sequence[VerdictRow]) -> dict[str, list[Effect]]:
    """Those that the sources report, and those found here."""
    published = []
    for finding in findings:
        rows = [row for one in kept_runs(finding).values() for row in one.report.contrasts]
        if finding.published_pp is not None and (sd := _median(rows, _sd_pp)):
            published.append((finding.published_pp, sd))
    ours = [(abs(row.difference_pp or 0.0), sd) for row in found if (sd := _sd_pp(row))]
    return {"reported by the sources, with the noise measured here": published, "found here": ours}


def _few(effects: Sequence[Effect]) -> str:
    """The last row of the table in words, without the one seed that nobody can judge by."""
    _, number, _, *shown = _visible_row("", effects)
    by_few = " and ".join(f"{n} seeds {found}" for n, found in zip(FEW_SEEDS, shown, strict=True))
    return f"Of the {number} effects found here, designs with few seeds would probably have shown fewer: {by_few}."


def _visible_row(name: str, effects: Sequence[Effect]) -> list[str]:
    """How many effects so many seeds would have shown."""
    by_one = sum(effect >= ONE_SEED_SDS * sd for effect, sd in effects)
    by_few = [sum(effect >= power(sd, n=n).effect for effect, sd in effects) for n in FEW_SEEDS]
    return [name, str(len(effects)), str(by_one), *map(str, by_few)]
