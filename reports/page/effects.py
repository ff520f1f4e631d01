"""The main effects and interactions of a factorial, in words and as a table, from the rows of a report."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from harness.words import said
from reports.formats import Table, p_value, percent, points, signed_pp, with_interval
from reports.page.next_step import p_note
from reports.report import BestDifference, Compared, ContrastRow, EffectRow, VerdictRow, Within, last_part


def effect_clause(row: EffectRow) -> str:
    """Return the first clause of an effect's verdict sentence."""
    if row.kind == "main":
        (setting,), (reference,) = row.settings, row.reference
        clauses = {
            "better": f"{setting} is better than {reference}",
            "worse": f"{setting} is worse than {reference}",
            "equivalent": said(
                "reports.equivalent_within_pp", setting=setting, reference=reference, margin_pp=row.margin_pp
            ),
            "identical": f"{setting} is identical to {reference}",
            "inconclusive": f"{setting} against {reference} is inconclusive",
        }
        return f"{clauses[row.verdict]}{averaged_over(row)}"
    both = " and ".join(row.settings)
    clauses = {
        "better": said("reports.together_give_more_than", both=both),
        "worse": said("reports.together_give_less_than", both=both),
        "equivalent": said("reports.add_up_within_pp", both=both, margin_pp=row.margin_pp),
        "identical": f"{both} do not interact",
        "inconclusive": said("reports.whether_add_up_inconclusive", both=both),
    }
    return clauses[row.verdict]


def averaged_over(row: EffectRow) -> str:
    """Name the knobs that a main effect is averaged over; "" for an interaction."""
    knobs = dict.fromkeys(last_part(one.knob) for one in row.within)
    return f", averaged over {', '.join(knobs)}" if knobs else ""


def turns(row: EffectRow, rows: Sequence[EffectRow]) -> str:
    """Describe the knobs with which a main effect changes its sign; "" if there are none.

    rows: all effects of the factorial.
    "turns": one value of the knob shows a gain and another a loss, each with an interval that excludes 0.
    "may turn": an interaction with the knob is shown, and the effect's signs at the two values that it compares differ.
    """
    by_knob: dict[str, list[Within]] = {}
    for one in row.within:
        by_knob.setdefault(one.knob, []).append(one)
    found = []
    for knob, sizes in by_knob.items():
        gains = [one for one in sizes if one.low_pp is not None and one.low_pp > 0]
        losses = [one for one in sizes if one.high_pp is not None and one.high_pp < 0]
        word = "turns" if gains and losses else "may turn"
        ends = [*gains, *losses] if gains and losses else _of_opposite_signs(row, knob, sizes, rows)
        if ends:
            # Show the largest gain and the largest loss, whatever lies between.
            most, least = (end(ends, key=attrgetter("difference_pp")) for end in (max, min))
            values = ", ".join(f"{size_pp(one)} at {one.value}" for one in (most, least))
            found.append(f"{row.name} {word} round with {last_part(knob)}: {values}")
    return "; ".join(found)


def _of_opposite_signs(row: EffectRow, knob: str, sizes: Sequence[Within], rows: Sequence[EffectRow]) -> list[Within]:
    """Return a main effect's sizes at the two values that a decided interaction compares, if their signs differ."""
    own = dict(zip(row.knobs, row.values, strict=True))
    for other in rows:
        ends = {name: pair for name, *pair in zip(other.knobs, other.values, other.reference, strict=True)}
        # The interaction must be between this knob and the effect's own, at the effect's own value.
        is_own = {*ends} == {knob, *own} and all(ends[name][0] == value for name, value in own.items())
        if is_own and other.verdict in ("better", "worse"):
            at_both = [one for one in sizes if one.value in ends[knob]]
            if min(one.difference_pp for one in at_both) < 0 < max(one.difference_pp for one in at_both):
                return at_both
    return []


INTERACTION_WORDS = {
    "better": "above the sum",
    "worse": "below the sum",
    "equivalent": "add up",
    "identical": "no interaction",
}
"""Words for the verdicts on interactions, to which better and worse do not apply."""


def verdict_word(row: VerdictRow) -> str:
    """Return the verdict as tables and badges word it."""
    word = INTERACTION_WORDS.get(row.verdict, row.verdict) if row.is_interaction else row.verdict
    return word.replace("_", " ")


def within_sentences(row: EffectRow) -> list[str]:
    """Describe a main effect at each value of each other knob, because its average hides an interaction."""
    by_knob: dict[str, list[str]] = {}
    for one in row.within:
        by_knob.setdefault(last_part(one.knob), []).append(f"{size_pp(one)} at {one.value}")
    return [f"By {knob}: {', '.join(sizes)}." for knob, sizes in by_knob.items()]


def effect_table(rows: Sequence[EffectRow]) -> Table | None:
    """Return the table of a factorial's effects, or None for other sweeps."""
    if not rows:
        return None
    first = rows[0]
    level = next((percent(row.level) for row in rows if row.level is not None), None)
    columns = ["effect", f"difference (pp), {level} interval" if level else "difference (pp)"]
    columns += ["p", "p (Holm)", "seeds", "detectable (pp)", "verdict"]
    written = [
        [
            row.name,
            difference_pp(row),
            p_value(row.p).removeprefix("= "),
            p_value(row.p_holm).removeprefix("= "),
            str(row.n_pairs),
            points(row.detectable_pp),
            verdict_word(row),
        ]
        for row in rows
    ]
    note = said("reports.main_effects_and_interactions", n=first.n_pairs, m=len(rows))
    return Table("Main effects and interactions", columns, written, f"{note} {p_note(rows)}".rstrip())


def secondary_note(effects: Sequence[EffectRow], contrasts: Sequence[ContrastRow]) -> str | None:
    """Return the note above the comparisons with the baseline in a factorial, or None for other sweeps."""
    if not effects or not contrasts:
        return None
    level = next((row.level for row in contrasts if row.level is not None), None)
    return said("reports.arms_beside_effects", baseline=contrasts[0].baseline, m=len(effects), level=percent(level))


def size_pp(row: Compared | BestDifference | Within) -> str:
    """Format a size with its interval: +3.0 pp [+2.2, +3.8]; about +3.0 pp if no interval is known."""
    difference = f"{signed_pp(row.difference_pp)} pp"
    return f"about {difference}" if row.low_pp is None else with_interval(difference, row.low_pp, row.high_pp)


def difference_pp(row: Compared) -> str:
    """Format a difference with its interval, if known: +3.0 [+2.2, +3.8]."""
    return with_interval(signed_pp(row.difference_pp), row.low_pp, row.high_pp)
