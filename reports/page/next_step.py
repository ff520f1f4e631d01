"""The way to a verdict, in words: the looks so far, and what would probably settle the question."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.words import said
from reports.formats import count, percent, seconds, signed_pp
from reports.measure.next_step import MOST_FACTOR, OPEN_VERDICTS, SD_CONFIDENCE, has_planned_looks_left
from reports.report import Looking, NextStep, VerdictRow, Way
from reports.statistics import MIN_PAIRS

if TYPE_CHECKING:
    from harness.records import SweepRecord


LITTLE_FRAC = 0.1
"""A way that reduces less of the variance than this hardly narrows the interval."""

NOUNS = {"seeds": "seeds", "samples": "samples per problem", "problems": "problems"}
WORK = {"seeds": "to train", "samples": "to evaluate", "problems": "to evaluate"}


def next_step_sentence(row: VerdictRow, step: NextStep) -> str:
    """Describe the cheapest way first, then the others, then those that cannot settle the contrast."""
    # False sorts first, so the cheapest way leads and the others keep their order.
    ways = sorted(step.ways, key=lambda way: way.of != step.cheapest)
    able = [way for way in ways if way.needed is not None]
    unable = [_cannot(way) for way in ways if way.needed is None]
    if row.bests is not None:
        unable.append(said("reports.more_trials_each_search"))
    if not able:
        return said("reports.next_step_none_would", goal=_goal(row, step), unable=" ".join(unable)).rstrip()
    first, *others = able
    sentences = [said("reports.cheapest_next_step", goal=_goal(row, step), way=_way(first))]
    sentences += [f"Or {_way(way)}." for way in others]
    further = "Each is a further look" if others else "This is a further look"
    spread = said("reports.they_also_allow_for", sd_pp=step.sd_pp, sd_confidence=percent(SD_CONFIDENCE))
    return " ".join([*sentences, *unable, said("reports.numbers_allow_for", further=further), spread])


def what_to_do(row: VerdictRow, sweep: SweepRecord) -> str:
    """Return `next_step_sentence`, or the reason why a contrast has no next step."""
    if sweep.screening is not None:
        return said("reports.this_screening_ranks_arms")
    if row.next_step is not None:
        return next_step_sentence(row, row.next_step)
    if row.verdict not in OPEN_VERDICTS:
        return "Nothing more is needed."
    if not sweep.is_complete:
        return said("reports.not_every_cell_has")
    if has_planned_looks_left(sweep):
        return said("reports.planned_looks_left_bench")
    if row.verdict == "no_test":
        return said("reports.test_needs_pairs", min_pairs=MIN_PAIRS)
    return said("reports.what_would_settle_unknown", note=row.note)


def _goal(row: VerdictRow, step: NextStep) -> str:
    chance = f"with {percent(step.power)} power"
    if step.target == "difference":
        observed_pp = (row.bests or row).difference_pp
        return said("reports.detect_difference_as_large", observed_pp=signed_pp(observed_pp), chance=chance)
    return said("reports.show_equivalence_within_pp", margin_pp=row.margin_pp, chance=chance)


def _way(way: Way) -> str:
    cost = [f"{count(way.cells or 0, 'cell')} {WORK[way.of]}"]
    if way.seconds is not None:
        cost.append(said("reports.about_run_one_after", seconds=seconds(way.seconds)))
    cost.append(f"then {percent(way.level)} intervals")
    command = "" if way.command is None else f": `{way.command}`"
    return f"{way.needed} {NOUNS[way.of]} instead of {way.now} ({', '.join(cost)}){command}"


def _cannot(way: Way) -> str:
    """Say that a way cannot settle the contrast, because it leaves the rest of the variance unchanged."""
    cannot = said("reports.do_not_suffice_even", most_factor=MOST_FACTOR)
    if way.limit is not None:
        cannot = said("reports.do_not_suffice_even_cannot", limit=way.limit)
    if way.shrinks_frac < LITTLE_FRAC:
        cannot = "would not help"
    return said(
        "reports.more_they_shrink_only", nouns=NOUNS[way.of], cannot=cannot, shrinks_frac=percent(way.shrinks_frac)
    )


ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")


def look_clause(row: VerdictRow) -> str:
    """Name the look behind an interval, in brackets; "" if there was only one look."""
    look = row.look
    if look is None:
        return ""
    if look.is_planned:
        # look.number also counts unplanned looks, so find the position in the plan by the number of seeds.
        name = f"look {look.planned.index(look.seeds[look.number - 1]) + 1} of {len(look.planned)} planned"
    else:
        name = f"{ORDINALS[look.number - 1]} look" if look.number <= len(ORDINALS) else f"look {look.number}"
    over = "both" if len(look.seeds) == 2 and not look.planned else "all"
    return f" ({name}; {percent(look.overall_level)} over {over} looks)"


def look_sentence(look: Looking, level: float | None) -> str:
    """List the looks at this question and explain their effect on the interval. level: the level of the interval."""
    plan = said("reports.those_planned", planned=_listed(look.planned)) if look.planned else "not planned"
    taken = f"{_listed(look.seeds)} seeds"
    if len({*look.samples}) > 1:
        taken += said("reports.samples_per_problem", samples=_listed(look.samples))
    return said(
        "reports.looks_so_far_this",
        taken=taken,
        plan=plan,
        level=percent(level),
        overall_level=percent(look.overall_level),
    )


def p_note(rows: Sequence[VerdictRow]) -> str:
    """Return the note that p values ignore earlier looks; "" if there was one unplanned look only."""
    look = next((row.look for row in rows if row.look is not None), None)
    if look is None:
        return ""
    return said("reports.p_p_holm_count", number=look.number)


def looks_taken(look: Looking) -> str:
    """Count the looks taken at a question: planned, out of how many, and unplanned."""
    if not look.planned:
        return f"{len(look.seeds)}, not planned"
    further = f", and {look.n_unplanned} not planned" if look.n_unplanned else ""
    taken = len(look.seeds) - look.n_unplanned
    return said(
        "reports.planned_seeds",
        taken=taken,
        n_planned=len(look.planned),
        planned=_listed(look.planned),
        further=further,
    )


def _listed(numbers: Sequence[int | None]) -> str:
    *first, last = map(str, numbers)
    return f"{', '.join(first)} and {last}" if first else last
