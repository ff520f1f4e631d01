"""One sentence that answers the question over all contrasts, from report.json, and what would settle the rest."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from reports.formats import count, interval, percent, signed_pp
from reports.page.effects import effect_clause, effect_name, is_effect
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
        answer = _of_screening(report["screening"][0])
    elif not report["contrasts"]:
        answer = f"One arm, {report['arms'][0]['arm']}: nothing to compare."
    else:
        rows = declared_rows(report)
        answer = f"{_of_contrasts(rows)}{_next_step(rows)}"
    return f"{so_far}{answer}"


def headline_rows(report: Rows) -> list[Row]:
    return [{"sentence": headline(report)}]


def _of_screening(found: Row) -> str:
    if found["contrasts"]:
        return f"With {count(found['seeds'], 'fresh seed')}: {_of_contrasts(found['contrasts'])}"
    best = ", ".join(found["best"])
    confirm = "" if found["confirmed_in"] else f" `{found['command']}` confirms them on {found['seeds']} fresh seeds."
    return f"A screening ranks and does not judge. Highest means beside {found['baseline']}: {best}.{confirm}"


def _of_contrasts(rows: Sequence[Row]) -> str:
    """Which arms, or effects, have which verdict: differences first."""
    over = " over new problems of this kind" if rows[0].get("unit") == "problem" else ""
    tuned = next((row["bests"] for row in rows if row.get("bests")), None)
    at = f"Each at its best of {count(tuned['trials'], 'trial')}: " if tuned else ""
    if len(rows) == 1:
        return f"{at}{_of_one(rows[0])}{over}."
    return f"{at}{_of_effects(rows) if is_effect(rows[0]) else _of_arms(rows)}{over}."


def _of_one(row: Row) -> str:
    """The verdict with its size."""
    size = "" if row["low_pp"] is None else f" by {signed_pp(row['difference_pp'])} pp {_interval(row)}"
    measured = "" if row["low_pp"] is None else f": {signed_pp(row['difference_pp'])} pp {_interval(row)}"
    if is_effect(row):
        return f"{_of_effect(row)}{measured}"
    arm, baseline = row["arm"], row["baseline"]
    return {
        "better": f"{arm} beats {baseline}{size}",
        "worse": f"{arm} is worse than {baseline}{size}",
        "equivalent": f"{arm} is equivalent to {baseline} within ±{row['margin_pp']:g} pp{measured}",
        "identical": f"{arm} and {baseline} are identical",
        "inconclusive": f"Whether {arm} differs from {baseline} is undecided at ±{row['margin_pp']:g} pp{measured}",
        "no_test": f"{arm} against {baseline} has too few runs for a test (below {MIN_PAIRS} pairs)",
    }[row["verdict"]]


def _of_arms(rows: Sequence[Row]) -> str:
    baseline, margin = rows[0]["baseline"], f"±{rows[0]['margin_pp']:g} pp"
    arms = {row["verdict"]: [one for one in rows if one["verdict"] == row["verdict"]] for row in rows}
    better = arms.get("better", [])
    if better:
        first = f"{_names(better)} beat{'' if len(better) > 1 else 's'} {baseline}"
    elif {*arms} == {"no_test"}:
        return f"No arm has enough runs for a test against {baseline} (below {MIN_PAIRS} pairs)"
    else:
        first = f"No arm beats {baseline}"
    rest = [
        (verdict, words)
        for verdict, words in {
            "worse": "worse",
            "equivalent": f"equivalent within {margin}",
            "identical": "identical",
            "inconclusive": f"undecided at {margin}",
            "no_test": "without a test",
        }.items()
        if verdict in arms
    ]
    parts = [f"{_are(arms[verdict])} {words}{_listed(arms[verdict])}" for verdict, words in rest]
    return "; ".join([first, *parts])


def _of_effects(rows: Sequence[Row]) -> str:
    """Every decided effect in words, interactions first, for they qualify the rest."""
    decided = [row for row in rows if row["verdict"] in {"better", "worse", "equivalent", "identical"}]
    decided.sort(key=lambda row: row["kind"] == "main")
    undecided = [row for row in rows if row not in decided]
    parts = [_of_effect(row) for row in decided] or ["No effect is shown"]
    if undecided:
        parts.append(f"undecided at ±{rows[0]['margin_pp']:g} pp: {', '.join(map(effect_name, undecided))}")
    return "; ".join(parts)


def _of_effect(row: Row) -> str:
    return f"{effect_name(row)} has too few runs for a test" if row["verdict"] == "no_test" else effect_clause(row)


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
    n_open = sum(row["verdict"] in {"inconclusive", "no_test"} for row in rows)
    them = "it" if n_open == 1 else "each" if n_open == len(steps) else f"{len(steps)} of them"
    command = "" if most["command"] is None else f": `{most['command']}`"
    more = most["needed"] - most["now"]
    what, power = MORE[most["of"]][more > 1], percent(steps[0]["power"])
    return f" A further look with {more} more {what} would settle {them} with {power} power{command}."


def _are(rows: Sequence[Row]) -> str:
    if len(rows) == 1:
        return f"{rows[0]['arm']} is"
    return f"{len(rows)} are"


def _listed(rows: Sequence[Row]) -> str:
    """The names of a few arms, between brackets; one was named already."""
    return f" ({', '.join(row['arm'] for row in rows)})" if 1 < len(rows) <= MOST_NAMES else ""


def _names(rows: Sequence[Row]) -> str:
    if len(rows) > MOST_NAMES:
        return f"{len(rows)} arms ({', '.join(row['arm'] for row in rows)})"
    *first, last = [str(row["arm"]) for row in rows]
    return f"{', '.join(first)} and {last}" if first else last


def _interval(row: Row) -> str:
    return interval(row["low_pp"], row["high_pp"])
