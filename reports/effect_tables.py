"""Tables of a factorial's effects and of arms over several tasks, from the rows of report.json."""

from __future__ import annotations

from typing import Any

from reports.formats import interval, number, p_value, percent, points, signed_pp
from reports.table import Table

Rows = list[dict[str, Any]]

EFFECTS = "Main effects and interactions"
INTERACTION_NOTE = (
    "A main effect is averaged over the values of all other knobs; an interaction is how much larger the first knob's "
    "effect is at the second's value than at its reference: 0 where they add up. Paired by seed, over {seeds} with "
    "a score in every arm. Intervals are of each effect on its own; q is p after Benjamini and Hochberg over all {m} "
    "effects: of those with q at most 0.05, 5% are expected to be false."
)
ACROSS_TASKS_NOTE = (
    "IQM: mean of the middle half of all scores, runs and tasks together. P(improvement): how likely a run of the arm "
    "beats one of the baseline on a task drawn at random, half where they tie; it says nothing of how much. Intervals: "
    "percentile bootstrap over runs, each with all its tasks (after Agarwal et al. 2108.13264); of few runs it is "
    "too narrow, so the verdicts do not rest on it."
)


def interaction_tables(rows: Rows) -> list[Table]:
    """None where the sweep is no factorial; the reason alone where it is one that has no effects to show."""
    if not rows:
        return []
    if rows[0]["refused"]:
        return [Table(EFFECTS, ["effects"], [["none"]], f"Refused: {rows[0]['refused']}.")]
    columns = ["effect", "difference (pp)", f"{percent(rows[0]['level'])} interval", "p", "q", "detectable (pp)"]
    note = INTERACTION_NOTE.format(seeds=_count(len(rows[0]["seeds"]), "seed"), m=len(rows))
    return [Table(EFFECTS, columns, [
        [
            effect_name(row),
            signed_pp(row["difference_pp"]),
            interval(row["low_pp"], row["high_pp"]),
            p_value(row["p"]).removeprefix("= "),
            p_value(row["q"]).removeprefix("= "),
            points(row["detectable_pp"]),
        ]
        for row in rows
    ], note)]  # fmt: skip


def effect_name(row: dict[str, Any]) -> str:
    """`clip_high 0.28 against 0.2`, `clip_high 0.28 × beta 0.1`: knobs by their last segments."""
    named = [f"{knob.rsplit('.', 1)[-1]} {value}" for knob, value in zip(row["knobs"], row["values"], strict=True)]
    return f"{named[0]} against {row['reference'][0]}" if row["kind"] == "main" else " × ".join(named)


def across_tasks_tables(rows: Rows) -> list[Table]:
    """None with fewer than three tasks."""
    if not rows:
        return []
    level = f"{percent(rows[0]['level'])} interval"
    return [Table("Across tasks", ["arm", "IQM (%)", level, "P(improvement)", level, "runs"], [
        [
            row["arm"],
            points(row["iqm_pp"]),
            interval(row["iqm_low_pp"], row["iqm_high_pp"], signed=False),
            *_improvement(row),
            str(len(row["seeds"])),
        ]
        for row in rows
    ], ACROSS_TASKS_NOTE)]  # fmt: skip


def _improvement(row: dict[str, Any]) -> list[str]:
    if row["improvement"] is None:
        return ["", ""]
    low, high = row["improvement_low"], row["improvement_high"]
    bounds = number(None) if low is None else f"[{low:.2f}, {high:.2f}]"
    return [f"{row['improvement']:.2f}", bounds]


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
