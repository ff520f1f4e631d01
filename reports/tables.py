"""The tables of a report, as text for a terminal, a page or Markdown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from reports.analysis import Analysis
from reports.document import Report
from reports.effect_tables import across_tasks_tables, interaction_tables
from reports.formats import (
    duration,
    interval,
    megabytes,
    number,
    p_value,
    percent,
    points,
    ratio,
    seconds,
    signed_pp,
    tokens,
)
from reports.law_tables import law_tables
from reports.statistics import MIN_PAIRS
from reports.table import Table

MOST_KNOB_COLUMNS = 8
COST_NOTE = (
    "Medians over the steps of a cell, then means over the finished cells of the arm; evaluations and training in all "
    "are of a whole cell, peak memory is the highest (on a CPU that of the process), tokens a pass the lowest. "
    "These describe and are not tested: "
    "cells that ran at the same time shared the machine, and an arm that ran beside others is slower for it."
)
SHARPENING_NOTE = (
    "pass@k after training minus before it, mean over seeds. Crossover: the k at which the gain, once above 0,"
    " falls below 0 for the first time, with all k around it at which the t interval over training seeds holds 0; the"
    " model before training is evaluated once and its noise is not in it. A dash: the gain does not fall below 0 among"
    " the k evaluated."
)
ABSENT = "(absent)"
"""What a record of the sweep says of a knob that an arm does not have."""


def report_tables(analysis: Analysis, report: Report) -> list[Table]:
    """Contrasts in full, effects of a factorial, arms over several tasks, arms, proxy against truth where there is a
    proxy, laws, the knobs that differ, cost, provenance."""
    return [
        *([_contrast_table(report)] if report["contrasts"] else []),
        *interaction_tables(report["interactions"]),
        *across_tasks_tables(report["across_tasks"]),
        _arm_table(report),
        *([_proxy_table(report)] if any(arm["proxy_and_truth"] for arm in report["arms"]) else []),
        *([_sharpening_table(analysis, report)] if any(arm["sharpening"] for arm in report["arms"]) else []),
        *law_tables(report["laws"]),
        _knob_table(analysis),
        _cost_table(report),
        _provenance_table(analysis),
    ]


def troubled_cells(report: Report) -> Table:
    """Every cell that is not simply done: failed, invalid, unfinished or flagged."""
    rows = [
        [cell["arm"], str(cell["seed"]), cell["state"], ", ".join(cell["flags"]), cell["reason"] or ""]
        for cell in report["cells"]
        if cell["state"] != "done" or cell["flags"]
    ]
    return Table("Failed, flagged and invalid cells", ["arm", "seed", "state", "flags", "reason"], rows)


def _contrast_table(report: Report) -> Table:
    columns = ["arm", "difference (pp)", "interval", "median", "IQM", "p", "p (Holm)", "p (sign flip)", "pairs", "ρ"]
    columns += ["interval of ρ", "variance ratio", "detectable (pp)", "tokens, arm / baseline"]
    return Table(f"Differences from {report['contrasts'][0]['baseline']}", columns, [
        [
            c["arm"],
            signed_pp(c["difference_pp"]),
            interval(c["low_pp"], c["high_pp"]),
            signed_pp(c["median_pp"]),
            signed_pp(c["iqm_pp"]),
            p_value(c["p"]).removeprefix("= "),
            p_value(c["p_holm"]).removeprefix("= "),
            _sign_flip(c),
            str(c["n_pairs"]),
            number(c["correlation"], 2),
            _correlation_interval(c),
            number(c["variance_ratio"], 2),
            points(c["detectable_pp"]),
            ratio(c["token_ratio"]),
        ]
        for c in report["contrasts"]
    ])  # fmt: skip


def _sign_flip(contrast: dict[str, Any]) -> str:
    """The p value beside the lowest that so few pairs can give."""
    p = contrast["p_sign_flip"]
    return number(p) if p is None else f"{number(p)} (floor {2.0 ** (1 - contrast['n_pairs']):.2g})"


def _correlation_interval(contrast: dict[str, Any]) -> str:
    low, high = contrast["correlation_low"], contrast["correlation_high"]
    return number(None) if low is None else f"[{number(low, 2)}, {number(high, 2)}]"


def _arm_table(report: Report) -> Table:
    columns = ["arm", "before training (%)", "after (%)", "ECE before", "ECE after", "tokens per answer"]
    columns += ["length slope", "truncated", "faulty steps", "entropy", "gradient norm", "clipped steps"]
    columns += ["generated tokens", "over budget"]
    return Table("Arms", columns, [
        [
            arm["arm"],
            points(arm["before_pp"]),
            points(arm["mean_pp"]),
            ratio(arm["before_ece"]),
            ratio(arm["ece"]),
            number(arm["mean_tokens"]),
            number(arm["length_slope_tokens"]),
            percent(arm["truncated_frac"]),
            percent(arm["faulty_steps_frac"]),
            number(arm["entropy_nats"]),
            number(arm["grad_norm"]),
            percent(arm["grad_clipped_frac"]),
            tokens(arm["generated_tokens"]),
            percent(arm["overshoot_frac"]),
        ]
        for arm in report["arms"]
    ])  # fmt: skip


def _proxy_table(report: Report) -> Table:
    """The end of training against the best point on the way, for the arms that recorded a proxy."""
    columns = ["arm", "proxy (sd)", "truth (%)", "KL (nats)", "peak of the truth (%)", "KL at the peak (nats)"]
    columns += ["truth since the peak (pp)", "proxy since the peak (sd)", "seeds with truth down, proxy up"]
    return Table("Proxy and truth at the end of training", columns, [
        [
            arm["arm"],
            number(end["proxy_sd"]),
            points(end["correct_pp"]),
            number(end["kl_nats"]),
            points(end["peak_correct_pp"]),
            number(end["peak_kl_nats"]),
            signed_pp(end["correct_since_peak_pp"]),
            f"{end['proxy_since_peak_sd']:+z.2f}",
            f"{end['n_overoptimised']} of {end['n']}",
        ]
        for arm in report["arms"]
        if (end := arm["proxy_and_truth"]) is not None
    ])  # fmt: skip


def _sharpening_table(analysis: Analysis, report: Report) -> Table:
    """Of the arms that have pass@k before and after training."""
    gains = {arm["arm"]: arm["sharpening"] for arm in report["arms"] if arm["sharpening"]}
    first = next(iter(gains.values()))
    columns = ["arm", f"gain at k = {first['smallest_k']} (pp)", f"gain at k = {first['largest_k']} (pp)"]
    columns += ["crossover k", "interval", "seeds"]
    return Table("Gain over the model before training", columns, [
        [
            arm,
            signed_pp(gain["gain_at_smallest_pp"]),
            signed_pp(gain["gain_at_largest_pp"]),
            number(gain["crossover_k"]),
            _crossover_interval(gain),
            str(gain["n"]),
        ]
        for arm, gain in gains.items()
    ], SHARPENING_NOTE + _ceiling_sentence(analysis, gains))  # fmt: skip


def _ceiling_sentence(analysis: Analysis, gains: dict[str, dict[str, Any]]) -> str:
    """Says in which arms nothing could be lost at the largest k, as pass@k is at 100 % before and after training."""
    ceiling = {
        arm: gain["largest_k"]
        for arm, gain in gains.items()
        if analysis.base_metrics.get(f"pass@{gain['largest_k']}") == 1 and gain["gain_at_largest_pp"] == 0
    }
    if not ceiling:
        return ""
    return (
        f" At k = {max(ceiling.values())}, pass@k is 100 % before and after training ({', '.join(ceiling)}): a gain of"
        " 0 there is a tie and no crossover; harder problems would show whether the gain falls below 0."
    )


def _crossover_interval(gain: dict[str, Any]) -> str:
    """Open where the band holds 0 as far as k was evaluated."""
    low, high = gain["crossover_low"], gain["crossover_high"]
    if gain["crossover_k"] is None or gain["n"] < MIN_PAIRS:
        return number(None)
    below = f"< {gain['smallest_k']}" if low is None else number(low)
    above = f"> {gain['largest_k']}" if high is None else number(high)
    return f"[{below}, {above}]"


def _knob_table(analysis: Analysis) -> Table:
    """A column for each knob; where they are many, an arm's difference from the baseline in words."""
    sweep, varied = analysis.sweep, analysis.sweep.varied
    knobs = sorted({knob for values in varied.values() for knob in values})
    if len(knobs) <= MOST_KNOB_COLUMNS:
        rows = [[arm, *(str(varied.get(arm, {}).get(knob, "")) for knob in knobs)] for arm in sweep.arms]
        return Table("Knobs that differ", ["arm", *knobs], rows)
    baseline = varied.get(sweep.baseline, {})
    rows = []
    for arm in sweep.arms:
        changed = {knob: value for knob, value in varied.get(arm, {}).items() if value != baseline.get(knob)}
        there = ", ".join(f"{knob}={value}" for knob, value in changed.items() if value != ABSENT)
        rows.append([arm, "baseline" if arm == sweep.baseline else there])
    return Table("Knobs that differ", ["arm", f"knobs that are not as in {sweep.baseline}"], rows)


_COST_COLUMNS: dict[str, tuple[str, Callable[[float | None], str]]] = {
    "step_s": ("step", duration),
    "rollout_s": ("rollout", duration),
    "sync_s": ("of it sync", duration),
    "prefill_s": ("of it prefill", duration),
    "decode_s": ("of it decode", duration),
    "reward_s": ("reward", duration),
    "logprob_s": ("log-probs", duration),
    "update_s": ("update", duration),
    "backward_s": ("of it backward", duration),
    "tokens_per_s": ("tokens/s", tokens),
    "occupancy_frac": ("occupancy", percent),
    "padding_frac": ("padding", percent),
    "micro_batch_tokens": ("tokens a pass", tokens),
    "peak_memory_mb": ("peak memory", megabytes),
    "evaluation_s": ("evaluations", duration),
}


def _cost_table(report: Report) -> Table:
    """What was recorded for any arm; older records hold less."""
    costs = [arm["cost"] for arm in report["arms"]]
    shown = [key for key in _COST_COLUMNS if any(cost[key] is not None for cost in costs)]
    columns = ["arm", *(_COST_COLUMNS[key][0] for key in shown), "training in all"]
    rows = [
        [
            arm["arm"],
            *(_COST_COLUMNS[key][1](arm["cost"][key]) for key in shown),
            seconds(arm["phase_s"]["total_s"]),
        ]
        for arm in report["arms"]
    ]
    return Table("Cost", columns, rows, COST_NOTE)


def _provenance_table(analysis: Analysis) -> Table:
    """Provenance of the sweep and its finished cells; a field in which cells differ lists every value."""
    values: dict[str, list[str]] = {}
    sources = [m.cell.provenance for cells in analysis.measurements.values() for m in cells]
    for source in sources:
        for key, value in _flat(source):
            if value not in values.setdefault(key, []):
                values[key].append(value)
    rows = [["command", analysis.sweep.command], ["profile", analysis.sweep.profile]]
    return Table("Provenance", ["field", "value"], rows + [[key, "; ".join(values[key])] for key in sorted(values)])


def _flat(value: Any, prefix: str = "") -> list[tuple[str, str]]:
    if isinstance(value, dict):
        return [item for key in value for item in _flat(value[key], f"{prefix}.{key}" if prefix else str(key))]
    return [(prefix, str(value))]
