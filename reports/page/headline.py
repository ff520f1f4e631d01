"""The headline: one sentence that answers the question over all contrasts, and what would probably settle the rest."""

from __future__ import annotations

import math
from collections.abc import Sequence

from harness.records.sweep import ENDED
from harness.words import said
from reports.formats import count, percent
from reports.measure.next_step import OPEN_VERDICTS
from reports.page.effects import averaged_over, effect_clause, size_pp, turns
from reports.report import BestDifference, EffectRow, Report, ScreeningRow, Sentence, VerdictRow, Way
from reports.statistics import MIN_PAIRS

MOST_NAMES = 4
"""If more arms than this share a verdict, they are counted instead of named."""

MORE = {
    "seeds": ("seed", "seeds"),
    "samples": ("sample of each problem", "samples of each problem"),
    "problems": ("problem", "problems"),
}
"""The noun of each kind of step, singular and plural. If costs are unknown, the first kind wins: seeds."""


def headline(report: Report) -> str:
    """Return the answer to the sweep's question; commands are enclosed in backticks."""
    ended = sum(cell.state in ENDED for cell in report.cells)
    so_far = (
        "" if ended == len(report.cells) else said("reports.interim_look_cells", ended=ended, n_cells=len(report.cells))
    )
    if report.screening:
        found = _of_screening(report.screening[0])
    elif not report.contrasts:
        found = said("reports.one_arm_nothing_compare", arm=report.arms[0].arm)
    else:
        rows = report.declared
        found = f"{answer(rows)}{_next_step(rows)}"
    return f"{so_far}{found}"


def with_headline(report: Report) -> Report:
    return report.model_copy(update={"headline": [Sentence(sentence=headline(report))]})


def _of_screening(found: ScreeningRow) -> str:
    if found.contrasts:
        return f"With {count(found.seeds, 'fresh seed')}: {answer(found.contrasts)}"
    best = ", ".join(found.best)
    confirm = (
        "" if found.confirmed_in else said("reports.confirms_them_on_fresh", command=found.command, seeds=found.seeds)
    )
    return said("reports.screening_ranks_does_not", baseline=found.baseline, best=best, confirm=confirm)


def answer(rows: Sequence[VerdictRow]) -> str:
    """Return the sentence that names the undecided contrasts and the findings about the others."""
    over = said("reports.over_new_problems_this") if rows[0].is_over_problems else ""
    tuned = next((row.bests for row in rows if row.bests), None)
    at = said("reports.each_its_best", trials=count(tuned.trials, "trial")) if tuned else ""
    answers = _of_one(rows[0]) if len(rows) == 1 else "; ".join(_clause(code, some, rows) for code, some in parts(rows))
    return f"{at}{answers}{over}."


def parts(rows: Sequence[VerdictRow]) -> list[tuple[str, list[VerdictRow]]]:
    """Return the parts of the headline in order, each as a code and the contrasts that it covers.

    * `turns`: effects whose sign changes with another knob. They come before any average.
    * `undecided`: sorted by difference, largest first.
    * `untested`: contrasts for which no seed has both scores.
    * `none_better`, for arms only: a gain as large as the margin is excluded for every arm.

    The other codes are verdicts. Decided effects are listed individually, interactions first, because they qualify the
    main effects.
    """
    effects = [row for row in rows if isinstance(row, EffectRow)]
    undecided = [row for row in rows if row.verdict in OPEN_VERDICTS]
    decided = [row for row in rows if row.verdict not in OPEN_VERDICTS]
    tested = [row for row in undecided if row.difference_pp is not None]
    found: list[tuple[str, list[VerdictRow]]] = [
        ("turns", [row for row in effects if turns(row, effects)]),
        ("undecided", sorted(tested, key=lambda row: -abs(_judged(row).difference_pp or 0.0))),
        ("untested", [row for row in undecided if row.difference_pp is None]),
    ]
    if isinstance(rows[0], EffectRow):
        # The sort is stable and False comes first: interactions lead, in the order of the factorial.
        decided.sort(key=lambda row: not row.is_interaction)
        found += [(row.verdict, [row]) for row in decided]
    else:
        shown = {code: [row for row in decided if row.verdict == code] for code in _SHOWN}
        if all(map(_excludes_gain, rows)):
            shown["none_better"] = [*rows]
        found += shown.items()
    return [(code, some) for code, some in found if some]


_SHOWN = ("better", "none_better", "worse", "equivalent", "identical")


def _judged(row: VerdictRow) -> VerdictRow | BestDifference:
    """Return the numbers to quote: those between the arms' bests if they left the verdict open, else the row's own."""
    bests = row.bests
    return row if bests is None or bests.settles or bests.low_pp is None else bests


def _excludes_gain(row: VerdictRow) -> bool:
    """Return whether a gain as large as the margin is excluded; for tuned arms, also between their bests."""
    if row.verdict not in OPEN_VERDICTS:
        return bool(row.verdict != "better")
    ends = [one.high_pp for one in (row, row.bests) if one is not None]
    return all(high is not None and high < row.margin_pp for high in ends)


def _of_one(row: VerdictRow) -> str:
    """Return the clause for the only contrast, with its size."""
    if row.verdict in OPEN_VERDICTS:
        return _clause("untested" if row.difference_pp is None else "undecided", [row], [row])
    arm, baseline, size = row.arm, row.baseline, size_pp(row)
    return {
        "better": f"{arm} beats {baseline} by {size}",
        "worse": said("reports.worse_than", arm=arm, baseline=baseline, size=size),
        "equivalent": said(
            "reports.equivalent_within_pp_of_one", arm=arm, baseline=baseline, margin_pp=row.margin_pp, size=size
        ),
        "identical": f"{arm} and {baseline} are identical",
    }[row.verdict]


def _clause(code: str, rows: Sequence[VerdictRow], of: Sequence[VerdictRow]) -> str:
    """Return the headline's clause for the contrasts `rows`, which share a code. of: all contrasts."""
    first = rows[0]
    baseline, margin = first.baseline, f"{first.margin_pp:g} pp"
    if code == "turns":
        effects = [row for row in of if isinstance(row, EffectRow)]
        return "; ".join(turns(row, effects) for row in rows if isinstance(row, EffectRow))
    if code == "undecided":
        return _undecided(rows)
    if code == "untested":
        where = "every arm" if isinstance(first, EffectRow) else "both arms"
        return said("reports.could_not_be_tested", rows=_names(rows), where=where)
    if isinstance(first, EffectRow):
        return effect_clause(first)
    if code == "better":
        return f"{_names(rows)} beat{'' if len(rows) > 1 else 's'} {baseline}"
    if code == "none_better":
        # Name the margin while a row is open: then only gains of its size are excluded, not every gain.
        is_open = any(row.verdict in OPEN_VERDICTS for row in of)
        return said("reports.no_arm_beats", baseline=baseline, margin=margin) if is_open else f"No arm beats {baseline}"
    words = {"worse": "worse", "equivalent": f"equivalent within ±{margin}", "identical": "identical"}[code]
    if len(rows) == 1:
        return f"{first.arm} is {words}"
    return f"{len(rows)} are {words}{_listed(rows)}"


def _undecided(rows: Sequence[VerdictRow]) -> str:
    """Quote the largest undecided difference with its interval, and count the others."""
    first, *others = rows
    n = first.n_pairs
    # Rows of `bench compare` may be unpaired.
    seen = f"{first.n_treatment} and {first.n_baseline} runs" if n is None else count(n, first.unit)
    too_few = said("reports.too_few_for_test", min_pairs=MIN_PAIRS) if first.verdict == "no_test" else ""
    judged = _judged(first)
    between = "" if judged is first else " between their bests"
    against = averaged_over(first) if isinstance(first, EffectRow) else f" against {first.baseline}"
    noun = "other effect" if isinstance(first, EffectRow) else "other arm"
    rest = f", and {count(len(others), noun)}{_listed(others)}" if others else ""
    return f"Undecided after {seen}{too_few}: {_name(first)} {size_pp(judged)}{between}{against}{rest}"


def _next_step(rows: Sequence[VerdictRow]) -> str:
    """Return the cheapest step that settles every open contrast; "" if nothing is open or no step settles them all.

    All contrasts take the same kind of step, as large as the most demanding of them needs.
    """
    steps = [row.next_step for row in rows if row.next_step]
    able = [way for step in steps for way in step.ways if way.needed is not None]
    by_kind = {kind: [way for way in able if way.of == kind] for kind in MORE}
    # A kind counts only if it settles every contrast. Its number is the largest that any of them needs.
    settling = [max(ways, key=_needed) for ways in by_kind.values() if ways and len(ways) == len(steps)]
    if not settling:
        return ""
    # Without timings every way costs infinity, and min() keeps the first: seeds.
    most = min(settling, key=lambda way: math.inf if way.seconds is None else way.seconds)
    still = [row for row in rows if row.verdict in OPEN_VERDICTS]
    every = "both" if len(still) == 2 else f"all {len(still)}"
    which = every if len(still) == len(steps) else f"{len(steps)} of the {len(still)}"
    them = _name(still[0]) if len(still) == 1 else f"{which} undecided"
    command = "" if most.command is None else f": `{most.command}`"
    more = _needed(most) - most.now
    what, power = MORE[most.of][more > 1], percent(steps[0].power)
    return said("reports.further_look_more_would", more=more, what=what, them=them, power=power, command=command)


def _needed(way: Way) -> int:
    return way.needed or 0


def _name(row: VerdictRow) -> str:
    return row.name if isinstance(row, EffectRow) else row.arm


def _listed(rows: Sequence[VerdictRow]) -> str:
    """Return the names in brackets, or "" if there are too many."""
    return f" ({', '.join(map(_name, rows))})" if len(rows) <= MOST_NAMES else ""


def _names(rows: Sequence[VerdictRow]) -> str:
    names = [*map(_name, rows)]
    if len(names) > MOST_NAMES:
        return f"{len(names)} {'effects' if isinstance(rows[0], EffectRow) else 'arms'} ({', '.join(names)})"
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
