"""How often a question has been looked at, and at which level its verdicts stand because of that.

One look has all of alpha. Where there are more, each stage of looking has half of what remains: a look that nobody
planned is a stage, and so is a design with all its looks, which share what the stage has. However often somebody goes
on, no more than alpha is spent.
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
    """The look that a report of these records is, for each of so many contrasts."""
    looks, this = sweep.looks_and_this, sweep.look
    place = next(place for place, look in enumerate(looks) if look.is_same(this))
    # Fewer arms on the data of an earlier look were chosen by it: they share alpha with those that it compared.
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
    """`looking`; None for the only look at a question."""
    look = looking(sweep, n_contrasts)
    return None if len(look.seeds) == 1 and not look.planned else look


def look_rows(sweep: SweepRecord, verdicts: Mapping[str, str]) -> list[LookRow]:
    """`looks` of report.json: every look at this question with the verdicts that it showed. verdicts: those of now, by
    arm."""
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
    """The two-sided alpha of the interval at each look, so that the chance that any of them misses is `overall`.

    A look at the seeds of an earlier one and more, evaluated alike, shares known data with it, which widens its
    interval less. For any other, e.g. with more samples of the same seeds, what it shares is unknown: Bonferroni's
    bound.
    """
    spent = [overall * share for share in _shares(sweep, looks)]
    alphas = list(spent)
    for series in _series(looks):
        levels = look_alphas(tuple(len(looks[i].seeds) for i in series), tuple(spent[i] for i in series))
        for i, alpha in zip(series, levels, strict=True):
            alphas[i] = alpha
    return alphas


def _shares(sweep: SweepRecord, looks: Sequence[Look]) -> list[float]:
    """The share of alpha that each look spends."""
    design = sweep.design
    stages: list[int | None] = [place for place, look in enumerate(looks) if not look.planned]
    if design is not None:
        before = sum(not look.planned for look in looks[: design.looks_before])
        stages.insert(before, None)  # the design's stage
    of_stage = {stage: 1.0 if len(stages) == 1 else unplanned_share(i) for i, stage in enumerate(stages, start=1)}
    planned = {} if design is None else dict(zip(design.looks, planned_shares(design.looks), strict=True))
    return [
        of_stage[None] * planned[len(look.seeds)] if look.planned else of_stage[place]
        for place, look in enumerate(looks)
    ]


def _series(looks: Sequence[Look]) -> list[list[int]]:
    """The places of looks in which each holds the data of the one before it and more; with too few seeds for a test
    none."""
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
