"""method.md: where the noise of all these comparisons came from, what pairing saved, and what fewer seeds would have
seen."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from docs.findings.answer import Kept, kept_runs
from docs.findings.source import Finding
from reports.formats import MISSING, count, markdown_table, ratio
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

Row = dict[str, Any]


def method_page(findings: Sequence[Finding], kept: Sequence[Kept]) -> str:
    """method.md, over the runs that are kept."""
    rows = [row for one in kept for row in one.report["contrasts"]]
    found = [row for row in rows if row["verdict"] in ("better", "worse") and (_sd_pp(row) or 0) > 0]
    return _PAGE.format(
        comparisons=count(len(rows), "comparison"),
        sweeps=count(len(kept), "sweep"),
        budget=_budget(kept),
        pairing=_pairing(kept),
        visible=_visible(findings, found),
    )


_PAGE = """# What was learned about measuring

<!-- Made by `make findings`. -->

Over {comparisons} of an arm with its baseline, in {sweeps}.

## Where the noise comes from

{budget}

All numbers are standard deviations in percentage points, as root mean squares over the comparisons of a run. The first
is that of one seed's difference on these problems; the next three are its parts. Their squares add up to its square,
unless a part was estimated below zero and set to zero. More seeds reduce all three; more samples per problem reduce
only the third. The last is the noise of the mean difference that comes from the choice of problems, for another set of
the same kind and size. Neither more seeds nor more samples reduce it.

## What pairing saved

{pairing}

Medians over the comparisons of a run. The correlation is that of the two arms' scores over seeds. The variance ratio is
that of the paired mean difference over an unpaired one: at 0.5, pairing saved half of the seeds. Above 1 it cost some.

## What fewer seeds would have seen

{visible}

An effect counts as visible if a design with so many seeds finds it with 80% power at the 5% level, without any
correction. For one seed the sd is taken as known from elsewhere; nobody who has one seed knows it.
"""


def _sd_pp(row: Row) -> float | None:
    """The standard deviation of one seed's difference."""
    differences = row["differences_pp"]
    return statistics.stdev(differences) if len(differences) > 1 else None


def _median(rows: Sequence[Row], value: Callable[[Row], float | None]) -> float | None:
    known = [one for row in rows if (one := value(row)) is not None]
    return statistics.median(known) if known else None


def _part_pp(part: str) -> Callable[[Row], float | None]:
    """The sd of one seed's difference that comes from a part; for the problems, the sd of the mean."""

    def sd_pp(row: Row) -> float | None:
        found = row["variance"]["new_problems"]["parts"].get(part)  # greedy decoding has no noise of samples
        if found is None or found["sd_pp"] is None:
            return None
        return float(found["sd_pp"]) * (1 if part == "problems" else math.sqrt(row["variance"]["n_seeds"]))

    return sd_pp


def _budget(kept: Sequence[Kept]) -> str:
    rows = []
    for one in kept:
        known = [row for row in one.report["contrasts"] if row["variance"] and not row["variance"]["refused"]]
        parts = [_root_mean_square(known, part) for part in (_sd_pp, *map(_part_pp, _PARTS))]
        rows.append([one.folder.name, str(len(one.sweep.seeds)), *parts])
    return markdown_table(["run", "seeds", "one seed", *_PARTS.values()], rows)


def _root_mean_square(rows: Sequence[Row], value: Callable[[Row], float | None]) -> str:
    """Over comparisons. Unlike medians, mean variances still add up if they add up in each comparison."""
    known = [one for row in rows if (one := value(row)) is not None]
    return f"{math.sqrt(statistics.fmean(one**2 for one in known)):.2f}" if known else MISSING


def _pairing(kept: Sequence[Kept]) -> str:
    rows = []
    for one in kept:
        contrasts = one.report["contrasts"]
        medians = [_median(contrasts, lambda row, key=key: row[key]) for key in ("correlation", "variance_ratio")]  # type: ignore[misc]
        rows.append([one.folder.name, *map(ratio, medians)])
    return markdown_table(["run", "correlation", "variance ratio"], rows)


def _visible(findings: Sequence[Finding], found: Sequence[Row]) -> str:
    """How many effects so many seeds would have shown: those that the sources report, and those found here."""
    published = []
    for finding in findings:
        rows = [row for one in kept_runs(finding).values() for row in one.report["contrasts"]]
        if finding.published_pp is not None and (sd := _median(rows, _sd_pp)):
            published.append((finding.published_pp, sd))
    ours = [(abs(row["difference_pp"]), sd) for row in found if (sd := _sd_pp(row))]
    return markdown_table(
        ["effects", "number", "1 seed", *(f"{n} seeds" for n in FEW_SEEDS)],
        [
            _visible_row("reported by the sources, with the noise measured here", published),
            _visible_row("found here", ours),
        ],
    )


def _visible_row(name: str, effects: Sequence[tuple[float, float]]) -> list[str]:
    """effects: each with the sd of one seed's difference, in percentage points."""
    by_one = sum(effect >= ONE_SEED_SDS * sd for effect, sd in effects)
    by_few = [sum(effect >= power(sd, n=n).effect for effect, sd in effects) for n in FEW_SEEDS]
    return [name, str(len(effects)), str(by_one), *map(str, by_few)]
