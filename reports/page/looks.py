"""How often a question was looked at, in words, from `look` of a contrast in report.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reports.formats import percent

Row = dict[str, Any]

ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")


def look_clause(row: Row) -> str:
    """What follows an interval in the sentence of a verdict; nothing where there was one look only."""
    look = row.get("look")
    if look is None:
        return ""
    if look["is_planned"]:
        name = f"look {look['planned'].index(look['seeds'][look['number'] - 1]) + 1} of {len(look['planned'])} planned"
    else:
        name = f"{ORDINALS[look['number'] - 1]} look" if look["number"] <= len(ORDINALS) else f"look {look['number']}"
    over = "both" if len(look["seeds"]) == 2 and not look["planned"] else "all"
    return f" ({name}; {percent(look['overall_level'])} over {over} looks)"


def look_sentence(row: Row) -> str:
    """When this question was looked at, and what that does to the interval. row: one that has a `look`."""
    look = row["look"]
    plan = f"of those planned at {_listed(look['planned'])}" if look["planned"] else "not planned"
    taken = f"{_listed(look['seeds'])} seeds"
    if len({*look["samples"]}) > 1:
        taken += f", with {_listed(look['samples'])} samples per problem"
    return (
        f"Looks so far: at {taken}, {plan}. With {percent(row['level'])} at this one, the intervals of all looks hold "
        f"{percent(look['overall_level'])} together; p is not corrected for looks."
    )


def p_note(rows: Sequence[Mapping[str, Any]]) -> str:
    """What a table of p values has to say where there was more than one look, or a design; else nothing."""
    look = next((row["look"] for row in rows if row.get("look") is not None), None)
    if look is None:
        return ""
    return f"p and p (Holm) count one look; intervals and verdicts use the boundary of look {look['number']}."


def looks_taken(look: Row) -> str:
    """How often a question was looked at, of how many planned looks."""
    if not look["planned"]:
        return f"{len(look['seeds'])}, not planned"
    further = f", and {look['n_unplanned']} not planned" if look["n_unplanned"] else ""
    taken = len(look["seeds"]) - look["n_unplanned"]
    return f"{taken} of {len(look['planned'])} planned (at {_listed(look['planned'])} seeds){further}"


def _listed(numbers: Sequence[int | None]) -> str:
    *first, last = map(str, numbers)
    return f"{', '.join(first)} and {last}" if first else last
