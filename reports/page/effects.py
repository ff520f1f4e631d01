"""The main effects and interactions of a factorial in words and as a table, from the rows of report.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reports.formats import Table, interval, p_value, percent, points, signed_pp
from reports.page.next_step import p_note

Row = Mapping[str, Any]

EFFECT_NOTE = (
    "A main effect is averaged over the values of all other knobs. An interaction is how much larger the first knob's "
    "effect is at the second's value than at its reference: 0 if the two effects add up. Paired by seed, over the {n} "
    "seeds with a score in every arm; intervals and p (Holm) are corrected over these {m} effects."
)
SECONDARY_NOTE = (
    "Secondary: each arm against {baseline}. A grid asks about its {m} main effects and interactions, whose correction "
    "does not count these arms. The arms have {level} intervals, corrected among themselves."
)


def is_effect(row: Row) -> bool:
    return "kind" in row


def effect_name(row: Row) -> str:
    """`clip_high 0.28 against 0.2`, `clip_high 0.28 × beta 0.1`: knobs by their last segments."""
    named = _settings(row)
    return f"{named[0]} against {row['reference'][0]}" if row["kind"] == "main" else " × ".join(named)


def effect_clause(row: Row) -> str:
    """What the verdict says of an effect, as the beginning of its sentence."""
    if row["kind"] == "main":
        (setting,), (reference,) = _settings(row), row["reference"]
        clauses = {
            "better": f"{setting} is better than {reference}",
            "worse": f"{setting} is worse than {reference}",
            "equivalent": f"{setting} is equivalent to {reference} within {row['margin_pp']:g} pp",
            "identical": f"{setting} is identical to {reference}",
            "inconclusive": f"{setting} against {reference} is inconclusive",
        }
        over = ", ".join(dict.fromkeys(_last_part(one["knob"]) for one in row["within"]))
        return f"{clauses[row['verdict']]}, averaged over {over}"
    both = " and ".join(_settings(row))
    clauses = {
        "better": f"{both} together give more than the sum of their effects",
        "worse": f"{both} together give less than the sum of their effects",
        "equivalent": f"{both} add up within {row['margin_pp']:g} pp",
        "identical": f"{both} do not interact",
        "inconclusive": f"Whether {both} add up is inconclusive",
    }
    return clauses[row["verdict"]]


INTERACTION_WORDS = {
    "better": "above the sum",
    "worse": "below the sum",
    "equivalent": "add up",
    "identical": "no interaction",
}
"""The verdicts on an interaction, which is neither better nor worse than anything."""


def verdict_word(row: Row) -> str:
    """The verdict as it stands in tables and badges."""
    verdict = str(row["verdict"])
    return (INTERACTION_WORDS.get(verdict, verdict) if row.get("kind") == "interaction" else verdict).replace("_", " ")


def within_sentences(row: Row) -> list[str]:
    """How large a main effect is at each value of each other knob: its average hides an interaction."""
    by_knob: dict[str, list[str]] = {}
    for one in row["within"]:
        by_knob.setdefault(_last_part(one["knob"]), []).append(
            f"{signed_pp(one['difference_pp'])} pp at {one['value']}"
        )
    return [f"By {knob}: {', '.join(sizes)}." for knob, sizes in by_knob.items()]


def effect_table(rows: Sequence[Row]) -> Table | None:
    """The effects of a factorial; None if the sweep is none."""
    if not rows:
        return None
    first = rows[0]
    level = next((percent(row["level"]) for row in rows if row["level"] is not None), None)
    columns = ["effect", f"difference (pp), {level} interval" if level else "difference (pp)"]
    columns += ["p", "p (Holm)", "seeds", "detectable (pp)", "verdict"]
    written = [
        [
            effect_name(row),
            difference_pp(row),
            p_value(row["p"]).removeprefix("= "),
            p_value(row["p_holm"]).removeprefix("= "),
            str(row["n_pairs"]),
            points(row["detectable_pp"]),
            verdict_word(row),
        ]
        for row in rows
    ]
    note = EFFECT_NOTE.format(n=first["n_pairs"], m=len(rows))
    return Table("Main effects and interactions", columns, written, f"{note} {p_note(rows)}".rstrip())


def secondary_note(effects: Sequence[Row], contrasts: Sequence[Row]) -> str | None:
    """What stands above the comparisons of arms with the baseline in a factorial; None in other sweeps."""
    if not effects or not contrasts:
        return None
    level = next((row["level"] for row in contrasts if row["level"] is not None), None)
    return SECONDARY_NOTE.format(baseline=contrasts[0]["baseline"], m=len(effects), level=percent(level))


def difference_pp(row: Row) -> str:
    """+3.0 [+2.2, +3.8]; without an interval where none is known."""
    difference = signed_pp(row["difference_pp"])
    return difference if row["low_pp"] is None else f"{difference} {interval(row['low_pp'], row['high_pp'])}"


def _settings(row: Row) -> list[str]:
    return [f"{_last_part(knob)} {value}" for knob, value in zip(row["knobs"], row["values"], strict=True)]


def _last_part(knob: str) -> str:
    return knob.rpartition(".")[2]
