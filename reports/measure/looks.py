"""The looks at a question so far, and the level that each look's verdicts therefore have.

A look is an analysis of the results at some point of the experiment. A single look has all of alpha. If there are
several, each stage gets half of the alpha that remains. An unplanned look is a stage of its own; a design is one stage,
whose share its planned looks divide. However many looks follow, the shares never add up to more than alpha.

The first look has all of alpha until there is a second. So somebody who adds seeds only while the verdict is open errs
somewhat more often: in up to 6.9% of designs instead of 5% (`benchmarks/results/sequential.md`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

from harness.records.looks import related_looks
from reports.report import Looking, LookRow
from reports.statistics import MIN_PAIRS, look_alphas, planned_shares, unplanned_share

if TYPE_CHECKING:
    from harness.records import SweepRecord
    from harness.records.looks import Look


def looking(sweep: SweepRecord, n_contrasts: int) -> Looking:
    """Describe the look that this report is: its number, seeds, samples, and the alpha of n_contrasts contrasts."""
    looks, this = sweep.looks_and_this, sweep.look
    place = next(place for place, look in enumerate(looks) if look.is_same(this))
    # These arms may have been chosen on the data of an earlier look, so they share alpha with all arms compared there.
    earlier = takewhile(lambda look: not look.is_same(this), related_looks(sweep.looks, sweep.asks, sweep.contrasts))
    others = (len(look.contrasts) for look in earlier if look.question != sweep.asks)
    overall = sweep.alpha / max(1, n_contrasts, *others)
    return Looking(
        number=place + 1,
        seeds=[len(look.seeds) for look in looks],
        samples=[None if look.evaluation is None else look.evaluation.samples for look in looks],
        is_planned=looks[place].planned,
        planned=[] if sweep.design is None else sweep.design.looks,
        n_unplanned=sum(not look.planned for look in looks),
        alpha=alphas_of(sweep, looks, overall)[place],
        overall_level=1 - overall,
    )


def shown_look(sweep: SweepRecord, n_contrasts: int) -> Looking | None:
    """Return `looking`, or None if this is the only look and it was not planned."""
    look = looking(sweep, n_contrasts)
    return None if len(look.seeds) == 1 and not look.planned else look


def look_rows(sweep: SweepRecord, verdicts: Mapping[str, str]) -> list[LookRow]:
    """Build `looks` of report.json: every look at this question, with the verdicts that it showed.

    verdicts: the current verdict of each arm.
    """
    return [
        LookRow(
            seeds=len(look.seeds),
            evaluation=None if look.evaluation is None else look.evaluation.model_dump(),
            planned=look.planned,
            verdicts=dict(verdicts) if look.is_same(sweep.look) else look.verdicts,
        )
        for look in sweep.looks_and_this
    ]


def alphas_of(sweep: SweepRecord, looks: Sequence[Look], overall: float) -> list[float]:
    """Return each look's two-sided alpha such that the chance that any of the looks misses the truth is `overall`.

    A look that adds seeds to an earlier one under the same evaluation shares a known part of its data, so its interval
    widens less. For any other look, e.g. one with more samples for the same seeds, the shared part is unknown, and
    Bonferroni's bound applies.
    """
    spent = [overall * share for share in _shares(sweep, looks)]
    alphas = list(spent)
    for series in _series(looks):
        levels = look_alphas(tuple(len(looks[i].seeds) for i in series), tuple(spent[i] for i in series))
        for i, alpha in zip(series, levels, strict=True):
            alphas[i] = alpha
    return alphas


def _shares(sweep: SweepRecord, looks: Sequence[Look]) -> list[float]:
    """Return the share of alpha that each look spends."""
    design = sweep.design
    stages: list[int | None] = [place for place, look in enumerate(looks) if not look.planned]
    if design is not None:
        before = sum(not look.planned for look in looks[: design.looks_before])
        # The design is one stage (None), placed after the unplanned looks that came before it.
        stages.insert(before, None)
    of_stage = {stage: 1.0 if len(stages) == 1 else unplanned_share(i) for i, stage in enumerate(stages, start=1)}
    planned = {} if design is None else dict(zip(design.looks, planned_shares(design.looks), strict=True))
    return [
        of_stage[None] * planned[len(look.seeds)] if look.planned else of_stage[place]
        for place, look in enumerate(looks)
    ]


def _series(looks: Sequence[Look]) -> list[list[int]]:
    """Return the positions of looks grouped into series, in which each look adds seeds to the previous one.

    Looks with too few seeds for a test are in no series.
    """
    series: list[list[int]] = []
    for place, look in enumerate(looks):
        if len(look.seeds) < MIN_PAIRS:
            continue
        for one in series:
            last = looks[one[-1]]
            if last.evaluation == look.evaluation and {*last.seeds} < {*look.seeds}:
                one.append(place)
                break
        else:
            series.append([place])
    return series
