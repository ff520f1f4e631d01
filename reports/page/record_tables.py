"""The tables of settings, costs and records: knobs, cost, provenance, and cells that are flagged or not done."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from harness.words import said
from reports.formats import Table, duration, megabytes, number, percent, points, seconds, tokens
from reports.measure import Analysis
from reports.report import Report

MOST_KNOB_COLUMNS = 8

ABSENT = "(absent)"
"""The value in sweep.json for a knob that does not exist in an arm."""

COST_NOTE = said("reports.medians_over_steps_cell")
COST_COLUMNS: dict[str, tuple[str, Callable[[float | None], str]]] = {
    "step_s": ("step", duration),
    "rollout_s": ("rollout", duration),
    "sync_s": ("rollout: sync", duration),
    "prefill_s": ("rollout: prefill", duration),
    "decode_s": ("rollout: decode", duration),
    "reward_s": ("reward", duration),
    "logprob_s": ("log-probs", duration),
    "update_s": ("update", duration),
    "backward_s": ("update: backward", duration),
    "tokens_per_s": ("tokens/s", tokens),
    "occupancy_frac": ("occupancy", percent),
    "padding_frac": ("padding", percent),
    "micro_batch_tokens": ("tokens per pass", tokens),
    "peak_memory_mb": ("peak memory", megabytes),
    "evaluation_s": ("evaluations", duration),
}
"""The heading of each field of `Cost`, and its formatter."""


def knob_table(analysis: Analysis) -> Table | None:
    """Return the table of knobs that differ between arms, or None if none is known to differ.

    Each knob has a column. If there are too many, each arm lists its differences from the baseline instead.
    """
    sweep, varied = analysis.sweep, analysis.sweep.varied
    knobs = sorted({knob for values in varied.values() for knob in values})
    if not knobs:
        return None
    if len(knobs) <= MOST_KNOB_COLUMNS:
        rows = [[arm, *(str(varied.get(arm, {}).get(knob, "")) for knob in knobs)] for arm in sweep.arms]
        return Table("Knobs that differ", ["arm", *knobs], rows)
    baseline = varied.get(sweep.baseline, {})
    rows = []
    for arm in sweep.arms:
        changed = {knob: value for knob, value in varied.get(arm, {}).items() if value != baseline.get(knob)}
        # A knob that the arm lacks has no value to show.
        present = ", ".join(f"{knob}={value}" for knob, value in changed.items() if value != ABSENT)
        rows.append([arm, "baseline" if arm == sweep.baseline else present])
    return Table("Knobs that differ", ["arm", said("reports.knobs_differ_from", baseline=sweep.baseline)], rows)


TUNING_NOTE = said("reports.what_each_arms_search")


def tuning_table(report: Report) -> Table | None:
    """Return what each arm's search found and what it cost, or None unless arms were tuned."""
    rows = report.tuning
    if not rows:
        return None
    knobs = list(dict.fromkeys(knob for row in rows for knob in row.values))
    columns = [
        "arm", *knobs, "scored trials", "untuned (%)", "best in the search (%)", "with fresh seeds (%)",
        "left open (pp)", "tokens of the search", "tokens of the comparison",
    ]  # fmt: skip
    written = [
        [
            row.arm,
            *(_value(row.values.get(knob), is_at_end=knob in row.at_end) for knob in knobs),
            f"{row.complete} of {row.trials}",
            points(row.default_pp),
            points(row.search_pp),
            points(row.fresh_pp),
            f"{points(row.short_pp)} ± {points(row.short_sd_pp)}",
            tokens(row.generated_tokens),
            tokens(row.verdict_tokens),
        ]
        for row in rows
    ]
    at_end = any(row.at_end for row in rows)
    caution = said("reports.value_marked_end_what") if at_end else ""
    return Table(said("reports.each_arm_its_best"), columns, written, TUNING_NOTE + caution)


def _value(value: object, is_at_end: bool) -> str:
    return f"{number(value) if isinstance(value, float) else value}{' !' if is_at_end else ''}"


def cost_table(report: Report) -> Table | None:
    """Return the recorded cost of each arm, or None if nothing was recorded, as for imported arms."""
    costs = [dict(arm.cost) for arm in report.arms]
    shown = {key: column for key, column in COST_COLUMNS.items() if any(cost[key] is not None for cost in costs)}
    trained = report.arms[0].checkpoint is None and any(arm.total_s is not None for arm in report.arms)
    if not shown and not trained:
        return None
    columns = ["arm", *(heading for heading, _ in shown.values()), *(["total training"] if trained else [])]
    rows = [
        [
            arm.arm,
            *(write(cost[key]) for key, (_, write) in shown.items()),
            *([seconds(arm.total_s)] if trained else []),
        ]
        for arm, cost in zip(report.arms, costs, strict=True)
    ]
    return Table("Cost", columns, rows, COST_NOTE)


_OF_PROGRAM = "program.packages."
_SHOWN_OF_PROGRAM = ("accelerate", "deepspeed", "numpy", "torch", "transformers", "trl", "verl", "vllm")
"""The packages of a program to show. Records list all packages of its interpreter, which may be hundreds."""


def provenance_table(analysis: Analysis) -> Table:
    """Return the provenance of the finished cells over all their launches. A field that differs lists every value."""
    values: dict[str, list[str]] = {}
    for cells in analysis.measurements.values():
        for m in cells:
            for key, value in itertools.chain.from_iterable(map(_flat, m.cell.provenances)):
                if value not in values.setdefault(key, []):
                    values[key].append(value)
    hidden = [
        key for key in values if key.startswith(_OF_PROGRAM) and key.removeprefix(_OF_PROGRAM) not in _SHOWN_OF_PROGRAM
    ]
    for key in hidden:
        del values[key]
    rows = [["command", analysis.sweep.command], ["profile", analysis.sweep.profile]]
    return Table("Provenance", ["field", "value"], rows + [[key, "; ".join(values[key])] for key in sorted(values)])


def _flat(value: object, prefix: str = "") -> list[tuple[str, str]]:
    """Flatten recorded values into (dotted name, text), leaving out null, such as the version of a missing package."""
    if isinstance(value, dict):
        return [item for key in value for item in _flat(value[key], f"{prefix}.{key}" if prefix else str(key))]
    if isinstance(value, list):
        return [(prefix, ", ".join(map(str, value)))] if value else []
    return [] if value is None else [(prefix, str(value))]


def troubled_cells(report: Report) -> Table:
    """Return every cell that is failed, invalid, unfinished or flagged."""
    rows = [
        [cell.arm, str(cell.seed), cell.state, ", ".join(cell.flags), cell.reason or ""]
        for cell in report.cells
        if cell.state != "done" or cell.flags
    ]
    return Table(said("reports.failed_flagged_invalid_cells"), ["arm", "seed", "state", "flags", "reason"], rows)
