"""One sentence that answers the question over all contrasts, from report.json, and what would settle the rest."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from reports.formats import count, percent
from reports.measure.next_step import OPEN_VERDICTS
from reports.page.effects import averaged_over, effect_clause, effect_name, is_effect, size_pp, turns
from reports.statistics import MIN_PAIRS

Row = dict[str, Any]
Rows = Mapping[str, Sequence[Row]]
"""report.json, or what is known of it while it is made."""

MOST_NAMES = 4
"""More arms with one verdict are counted first."""

MORE = {
    "seeds": ("seed", "seeds"),
    "samples": ("sample of each problem", "samples of each problem"),
    "problems": ("problem", "problems"),
}
"""What there can be more of: one, several. Where no costs are known, seeds come first."""

ENDED = frozenset({"done", "failed", "invalid"})


def declared_rows(report: Rows) -> list[Row]:
    """The contrasts that a sweep asks about: in a screening those that confirm its best arms, if they have run; in a
    factorial its effects; else the arms."""
    if report["screening"]:
        return list(report["screening"][0]["contrasts"])
    return list(report["interactions"] or report["contrasts"])


def headline(report: Rows) -> str:
    """The answer to the question of the sweep. Commands stand between backticks."""
    ended = sum(cell["state"] in ENDED for cell in report["cells"])
    so_far = "" if ended == len(report["cells"]) else f"Interim look, {ended} of {len(report['cells'])} cells: "
    if report["screening"]:
        said = _of_screening(report["screening"][0])
    elif not report["contrasts"]:
        said = f"One arm, {report['arms'][0]['arm']}: nothing to compare."
    else:
        rows = declared_rows(report)
        said = f"{answer(rows)}{_next_step(rows)}"
    return f"{so_far}{said}"


def headline_rows(report: Rows) -> list[Row]:
    return [{"sentence": headline(report)}]


def _of_screening(found: Row) -> str:
    if found["contrasts"]:
        return f"With {count(found['seeds'], 'fresh seed')}: {answer(found['contrasts'])}"
    best = ", ".join(found["best"])
    confirm = "" if found["confirmed_in"] else f" `{found['command']}` confirms them on {found['seeds']} fresh seeds."
    return f"A screening ranks and does not judge. Highest means beside {found['baseline']}: {best}.{confirm}"


def answer(rows: Sequence[Row]) -> str:
    """Return the sentence that says which contrasts are undecided, and what is shown of the others."""
    over = " over new problems of this kind" if rows[0].get("unit") == "problem" else ""
    tuned = next((row["bests"] for row in rows if row.get("bests")), None)
    at = f"Each at its best of {count(tuned['trials'], 'trial')}: " if tuned else ""
    said = _of_one(rows[0]) if len(rows) == 1 else "; ".join(_clause(code, some, rows) for code, some in parts(rows))
    return f"{at}{said}{over}."


def parts(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """Return what the headline says, in its order: a code, and the contrasts that it is about.

    `turns`: effects that turn round with another knob, before any average. `undecided`: the largest difference first.
    `untested`: no seed has both scores. `none_better`, of arms only: a gain of the margin is excluded for each. The
    other codes are verdicts. Decided effects come one by one, interactions first, for they qualify the rest.
    """
    undecided = [row for row in rows if row["verdict"] in OPEN_VERDICTS]
    decided = [row for row in rows if row["verdict"] not in OPEN_VERDICTS]
    tested = [row for row in undecided if row["difference_pp"] is not None]
    found = [
        ("turns", [row for row in rows if is_effect(row) and turns(row, rows)]),
        ("undecided", sorted(tested, key=lambda row: -abs(_judged(row)["difference_pp"]))),
        ("untested", [row for row in undecided if row["difference_pp"] is None]),
    ]
    if is_effect(rows[0]):
        decided.sort(key=lambda row: row["kind"] == "main")
        found += [(row["verdict"], [row]) for row in decided]
    else:
        shown = {code: [row for row in decided if row["verdict"] == code] for code in _SHOWN}
        if all(map(_excludes_gain, rows)):
            shown["none_better"] = [*rows]
        found += shown.items()
    return [(code, some) for code, some in found if some]


_SHOWN = ("better", "none_better", "worse", "equivalent", "identical")


def _judged(row: Row) -> Row:
    """Return the numbers that decide: those between the arms' bests where only they leave the verdict open."""
    bests = row.get("bests")
    return row if bests is None or bests["settles"] or bests["low_pp"] is None else bests


def _excludes_gain(row: Row) -> bool:
    """Return whether a gain as large as the margin is excluded; of tuned arms, between their bests too."""
    if row["verdict"] not in OPEN_VERDICTS:
        return bool(row["verdict"] != "better")
    ends = [one["high_pp"] for one in (row, row.get("bests")) if one is not None]
    return all(high is not None and high < row["margin_pp"] for high in ends)


def _of_one(row: Row) -> str:
    """Word the only contrast, with its size."""
    if row["verdict"] in OPEN_VERDICTS:
        return _clause("untested" if row["difference_pp"] is None else "undecided", [row], [row])
    arm, baseline, size = row["arm"], row["baseline"], size_pp(row)
    return {
        "better": f"{arm} beats {baseline} by {size}",
        "worse": f"{arm} is worse than {baseline} by {size}",
        "equivalent": f"{arm} is equivalent to {baseline} within ±{row['margin_pp']:g} pp: {size}",
        "identical": f"{arm} and {baseline} are identical",
    }[row["verdict"]]


def _clause(code: str, rows: Sequence[Row], of: Sequence[Row]) -> str:
    """Word what the headline says of these rows, out of all."""
    first = rows[0]
    baseline, margin = first["baseline"], f"{first['margin_pp']:g} pp"
    if code == "turns":
        return "; ".join(turns(row, of) for row in rows)
    if code == "undecided":
        return _undecided(rows)
    if code == "untested":
        where = "every arm" if is_effect(first) else "both arms"
        return f"{_names(rows)} could not be tested: no seed has a score in {where}"
    if is_effect(first):
        return effect_clause(first)
    if code == "better":
        return f"{_names(rows)} beat{'' if len(rows) > 1 else 's'} {baseline}"
    if code == "none_better":
        is_open = any(row["verdict"] in OPEN_VERDICTS for row in of)
        return f"no arm beats {baseline} by {margin}" if is_open else f"No arm beats {baseline}"
    words = {"worse": "worse", "equivalent": f"equivalent within ±{margin}", "identical": "identical"}[code]
    if len(rows) == 1:
        return f"{first['arm']} is {words}"
    return f"{len(rows)} are {words}{_listed(rows)}"


def _undecided(rows: Sequence[Row]) -> str:
    """Name the largest undecided difference with its interval, and count the others."""
    first, *others = rows
    n = first["n_pairs"]
    # Rows of `bench compare` may be unpaired.
    seen = (
        f"{first['n_treatment']} and {first['n_baseline']} runs" if n is None else count(n, first.get("unit", "seed"))
    )
    too_few = f", too few for a test (below {MIN_PAIRS})" if first["verdict"] == "no_test" else ""
    judged = _judged(first)
    between = "" if judged is first else " between their bests"
    against = averaged_over(first) if is_effect(first) else f" against {first['baseline']}"
    noun = "other effect" if is_effect(first) else "other arm"
    rest = f", and {count(len(others), noun)}{_listed(others)}" if others else ""
    return f"Undecided after {seen}{too_few}: {_name(first)} {size_pp(judged)}{between}{against}{rest}"


def _next_step(rows: Sequence[Row]) -> str:
    """What would settle all that is open, at the least cost: of one kind, the most that any contrast needs; "" if
    nothing is open or nothing settles it all."""
    steps = [row["next_step"] for row in rows if row.get("next_step")]
    able = [way for step in steps for way in step["ways"] if way["needed"] is not None]
    by_kind = {kind: [way for way in able if way["of"] == kind] for kind in MORE}
    settling = [max(ways, key=itemgetter("needed")) for ways in by_kind.values() if ways and len(ways) == len(steps)]
    if not settling:
        return ""
    most = min(settling, key=lambda way: math.inf if way["seconds"] is None else way["seconds"])
    still = [row for row in rows if row["verdict"] in OPEN_VERDICTS]
    every = "both" if len(still) == 2 else f"all {len(still)}"
    which = every if len(still) == len(steps) else f"{len(steps)} of the {len(still)}"
    them = _name(still[0]) if len(still) == 1 else f"{which} undecided"
    command = "" if most["command"] is None else f": `{most['command']}`"
    more = most["needed"] - most["now"]
    what, power = MORE[most["of"]][more > 1], percent(steps[0]["power"])
    return f" A further look with {more} more {what} would settle {them} with {power} power{command}."


def _name(row: Row) -> str:
    return effect_name(row) if is_effect(row) else str(row["arm"])


def _listed(rows: Sequence[Row]) -> str:
    """Return the names of a few contrasts, in brackets."""
    return f" ({', '.join(map(_name, rows))})" if len(rows) <= MOST_NAMES else ""


def _names(rows: Sequence[Row]) -> str:
    names = [*map(_name, rows)]
    if len(names) > MOST_NAMES:
        return f"{len(names)} {'effects' if is_effect(rows[0]) else 'arms'} ({', '.join(names)})"
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
