"""The way to a verdict in words: the looks taken at a question, and what would settle it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from reports.formats import count, percent, seconds, signed_pp
from reports.measure.next_step import MOST_FACTOR, OPEN_VERDICTS, SD_CONFIDENCE, has_planned_looks_left
from reports.report import Looking, NextStep, VerdictRow, Way
from reports.statistics import MIN_PAIRS

if TYPE_CHECKING:
    from harness.records import SweepRecord


LITTLE_FRAC = 0.1
"""A way that shrinks less of the variance than this hardly narrows an interval."""

NOUNS = {"seeds": "seeds", "samples": "samples per problem", "problems": "problems"}
WORK = {"seeds": "to train", "samples": "to evaluate", "problems": "to evaluate"}


def next_step_sentence(row: VerdictRow, step: NextStep) -> str:
    """Name the cheapest way first, then the others, then those that do not settle the contrast."""
    # False sorts first, so the cheapest way leads and the others stay in order.
    ways = sorted(step.ways, key=lambda way: way.of != step.cheapest)
    able = [way for way in ways if way.needed is not None]
    unable = [_cannot(way) for way in ways if way.needed is None]
    if row.bests is not None:
        unable.append("More trials in each search (tune.trials) shrink what these left open.")
    if not able:
        return f"Next step: none that would {_goal(row, step)}. {' '.join(unable)}".rstrip()
    first, *others = able
    sentences = [f"Cheapest next step to {_goal(row, step)}: {_way(first)}."]
    sentences += [f"Or {_way(way)}." for way in others]
    further = "Each is a further look" if others else "This is a further look"
    spread = (
        f"They also allow for a standard deviation of up to {step.sd_pp:.2g} pp, the {percent(SD_CONFIDENCE)} upper"
        " bound of its estimate."
    )
    return " ".join([*sentences, *unable, f"{further}; the numbers allow for that.", spread])


def what_to_do(row: VerdictRow, sweep: SweepRecord) -> str:
    """Return `next_step_sentence`, or why a declared contrast has no next step."""
    if sweep.screening is not None:
        return "This is a screening: it ranks arms, and verdicts come from fresh seeds for the best of them."
    if row.next_step is not None:
        return next_step_sentence(row, row.next_step)
    if row.verdict not in OPEN_VERDICTS:
        return "Nothing more is needed."
    if not sweep.is_complete:
        return "Not every cell has ended; `bench run` continues it."
    if has_planned_looks_left(sweep):
        return "Planned looks are left; `bench run` with --until verdict takes them."
    if row.verdict == "no_test":
        return f"A test needs {MIN_PAIRS} pairs."
    return f"What would settle it is unknown: {row.note}."


def _goal(row: VerdictRow, step: NextStep) -> str:
    chance = f"with {percent(step.power)} power"
    if step.target == "difference":
        observed_pp = (row.bests or row).difference_pp
        return f"detect a difference as large as the observed {signed_pp(observed_pp)} pp {chance}"
    return f"show equivalence within ±{row.margin_pp:g} pp {chance} if there is no difference"


def _way(way: Way) -> str:
    cost = [f"{count(way.cells or 0, 'cell')} {WORK[way.of]}"]
    if way.seconds is not None:
        cost.append(f"about {seconds(way.seconds)} run one after another")
    cost.append(f"then {percent(way.level)} intervals")
    command = "" if way.command is None else f": `{way.command}`"
    return f"{way.needed} {NOUNS[way.of]} instead of {way.now} ({', '.join(cost)}){command}"


def _cannot(way: Way) -> str:
    """Say that a way does not suffice, however far it goes, because it leaves the rest of the variance as it is."""
    cannot = f"do not suffice, even {MOST_FACTOR} times as many"
    if way.limit is not None:
        cannot = f"do not suffice, even all {way.limit} that there are"
    if way.shrinks_frac < LITTLE_FRAC:
        cannot = "would not help"
    return f"More {NOUNS[way.of]} {cannot}: they shrink only {percent(way.shrinks_frac)} of the variance."


ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")


def look_clause(row: VerdictRow) -> str:
    """Return the clause on looks behind an interval; "" if there was only one look."""
    look = row.look
    if look is None:
        return ""
    if look.is_planned:
        # Unplanned looks are counted in look.number but not in the plan, so find the planned look by its seeds.
        name = f"look {look.planned.index(look.seeds[look.number - 1]) + 1} of {len(look.planned)} planned"
    else:
        name = f"{ORDINALS[look.number - 1]} look" if look.number <= len(ORDINALS) else f"look {look.number}"
    over = "both" if len(look.seeds) == 2 and not look.planned else "all"
    return f" ({name}; {percent(look.overall_level)} over {over} looks)"


def look_sentence(look: Looking, level: float | None) -> str:
    """Say when this question was looked at, and what that does to the interval, which has this level."""
    plan = f"of those planned at {_listed(look.planned)}" if look.planned else "not planned"
    taken = f"{_listed(look.seeds)} seeds"
    if len({*look.samples}) > 1:
        taken += f", with {_listed(look.samples)} samples per problem"
    return (
        f"Looks so far: at {taken}, {plan}. With {percent(level)} at this one, the intervals of all looks hold "
        f"{percent(look.overall_level)} together; p is not corrected for looks."
    )


def p_note(rows: Sequence[VerdictRow]) -> str:
    """Return the caution for a table of p values if there was more than one look, or a design; otherwise ""."""
    look = next((row.look for row in rows if row.look is not None), None)
    if look is None:
        return ""
    return f"p and p (Holm) count one look; intervals and verdicts use the boundary of look {look.number}."


def looks_taken(look: Looking) -> str:
    """Say how often a question was looked at, of how many planned looks."""
    if not look.planned:
        return f"{len(look.seeds)}, not planned"
    further = f", and {look.n_unplanned} not planned" if look.n_unplanned else ""
    taken = len(look.seeds) - look.n_unplanned
    return f"{taken} of {len(look.planned)} planned (at {_listed(look.planned)} seeds){further}"


def _listed(numbers: Sequence[int | None]) -> str:
    *first, last = map(str, numbers)
    return f"{', '.join(first)} and {last}" if first else last
