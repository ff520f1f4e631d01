"""The tables of a report: results, contrasts, effects, tasks, arms, proxy and truth, gains, problems.

Those of what was set, spent and recorded are in `record_tables`, those of laws and reflection words in
`reports.extras`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from reports.extras.law_tables import law_tables
from reports.extras.reflection import read_reflection, reflection_table
from reports.formats import MISSING, Table, count, interval, number, p_value, percent, points, ratio, signed_pp, tokens
from reports.measure import Analysis
from reports.measure.problems import problem_scores
from reports.page.document import Report
from reports.page.record_tables import cost_table, knob_table, provenance_table
from reports.page.verdict import metric_name
from reports.statistics import MIN_PAIRS, MIN_RUNS_FOR_IMPROVEMENT

Row = dict[str, Any]
Columns = Sequence[tuple[str, Callable[[Row], str]]]
"""The heading of each column, and how a row is written in it."""

MOST_PROBLEMS = 12

INTERACTION_NOTE = (
    "A main effect is averaged over the values of all other knobs. An interaction is how much larger the first "
    "knob's effect is at the second's value than at its reference; 0 if the two add up. Paired by seed, over {seeds} "
    "with a score in every arm. Each interval is that of one effect on its own. q is p after Benjamini and Hochberg "
    "over all {m} effects: of those with q at most 0.05, 5% are expected to be false."
)
ACROSS_TASKS_NOTE = (
    "IQM: the mean of the middle half of all scores, of runs and tasks together. P(improvement): the probability "
    "that a run of the arm beats a run of the baseline on a random task, ties counting half; it does not say by how "
    "much. Intervals: Student's t over runs, each with all its tasks. A probability of improvement has none below "
    f"{MIN_RUNS_FOR_IMPROVEMENT} runs, because so few can win every comparison by chance."
)
SHARPENING_NOTE = (
    "pass@k after training minus pass@k before it, mean over seeds. Crossover: the k at which the gain, once above 0,"
    " first falls below 0. Its interval holds all k around it at which the t interval over training seeds holds 0; the"
    " model before training is evaluated once, and its noise is not included. A dash: the gain does not fall below 0"
    " among the evaluated k."
)
PROBLEM_NOTE = (
    "The share of right samples in the final evaluation, over the seeds of an arm, for the problems with the widest"
    " range between arms. They are the extremes of many problems: part of their range is chance, and would be smaller"
    " another time."
)


def report_tables(analysis: Analysis, report: Report) -> list[Table]:
    """The tables below the figures, without those that have nothing to show."""
    tables = [
        contrast_table(report["contrasts"]),
        interaction_table(report["interactions"]),
        across_tasks_table(report["across_tasks"]),
        arm_table(report["arms"]),
        proxy_table(report["arms"]),
        sharpening_table(analysis, report["arms"]),
        *law_tables(report["laws"]),
        knob_table(analysis),
        cost_table(report),
        provenance_table(analysis),
        reflection_table(read_reflection(analysis)) if analysis.trains else None,
    ]
    return [table for table in tables if table is not None]


def result_table(report: Report) -> Table:
    """A row for each arm, the best first: rank, final score with interval, difference from the baseline with its
    own."""
    arms, contrasts = report["arms"], {contrast["arm"]: contrast for contrast in report["contrasts"]}
    first = arms[0]
    equal = [contrast["equal_tokens"] for contrast in report["contrasts"] if contrast["n_pairs"]]
    equal = equal if first.get("checkpoint") is None else []
    budget = f" ({tokens(first['generated_tokens'])} generated)" if first["generated_tokens"] else ""
    title = f"{metric_name(first)} of {first['task']}" + (f" at equal tokens{budget}" if equal and all(equal) else "")

    def against_baseline(write: Callable[[Row], str], of_baseline: str = "") -> Callable[[Row], str]:
        return lambda arm: write(contrasts[arm["arm"]]) if arm["arm"] in contrasts else of_baseline

    return _table(title, sorted(arms, key=lambda arm: (arm["rank"] is None, arm["rank"])), [
        ("arm", lambda arm: arm["arm"]),
        ("rank", lambda arm: number(arm["rank"])),
        (f"{metric_name(first)} (%)", lambda arm: points(arm["mean_pp"])),
        (f"{percent(first['level'])} interval", lambda arm: interval(arm["low_pp"], arm["high_pp"], signed=False)),
        ("seeds", lambda arm: str(arm["n"])),
        ("difference (pp)", against_baseline(lambda c: signed_pp(c["difference_pp"]), "baseline")),
        ("interval", against_baseline(_interval)),
        ("p (Holm)", against_baseline(lambda c: _p(c["p_holm"]))),
        ("verdict", against_baseline(lambda c: c["verdict"].replace("_", " "))),
    ])  # fmt: skip


def contrast_table(contrasts: Sequence[Row]) -> Table | None:
    """Contrasts in full; None without any."""
    if not contrasts:
        return None
    return _table(f"Differences from {contrasts[0]['baseline']}", contrasts, [
        ("arm", lambda c: c["arm"]),
        ("difference (pp)", lambda c: signed_pp(c["difference_pp"])),
        ("interval", _interval),
        ("median", lambda c: signed_pp(c["median_pp"])),
        ("IQM", lambda c: signed_pp(c["iqm_pp"])),
        ("p", lambda c: _p(c["p"])),
        ("p (Holm)", lambda c: _p(c["p_holm"])),
        ("p (sign flip)", _sign_flip),
        ("problems" if contrasts[0].get("unit") == "problem" else "pairs", lambda c: str(c["n_pairs"])),
        ("ρ", lambda c: number(c["correlation"], 2)),
        ("interval of ρ", _correlation_interval),
        ("variance ratio", lambda c: number(c["variance_ratio"], 2)),
        ("detectable (pp)", lambda c: points(c["detectable_pp"])),
        ("tokens, arm / baseline", lambda c: ratio(c["token_ratio"])),
    ])  # fmt: skip


def interaction_table(effects: Sequence[Row]) -> Table | None:
    """The effects of a factorial, or why there are none to show; None if the sweep is not a factorial."""
    if not effects:
        return None
    title, first = "Main effects and interactions", effects[0]
    if first["refused"]:
        return Table(title, ["effects"], [["none"]], f"Refused: {first['refused']}.")
    note = INTERACTION_NOTE.format(seeds=count(len(first["seeds"]), "seed"), m=len(effects))
    return _table(title, effects, [
        ("effect", effect_name),
        ("difference (pp)", lambda effect: signed_pp(effect["difference_pp"])),
        (f"{percent(first['level'])} interval", _interval),
        ("p", lambda effect: _p(effect["p"])),
        ("q", lambda effect: _p(effect["q"])),
        ("detectable (pp)", lambda effect: points(effect["detectable_pp"])),
    ], note)  # fmt: skip


def effect_name(effect: Row) -> str:
    """`clip_high 0.28 against 0.2`, `clip_high 0.28 × beta 0.1`: knobs by their last segments."""
    named = [
        f"{knob.rsplit('.', 1)[-1]} {value}" for knob, value in zip(effect["knobs"], effect["values"], strict=True)
    ]
    return f"{named[0]} against {effect['reference'][0]}" if effect["kind"] == "main" else " × ".join(named)


def across_tasks_table(arms: Sequence[Row]) -> Table | None:
    """Arms over all tasks; None with fewer than three tasks."""
    if not arms:
        return None
    level = f"{percent(arms[0]['level'])} interval"
    return _table("Across tasks", arms, [
        ("arm", lambda arm: arm["arm"]),
        ("IQM (%)", lambda arm: points(arm["iqm_pp"])),
        (level, lambda arm: interval(arm["iqm_low_pp"], arm["iqm_high_pp"], signed=False)),
        ("P(improvement)", lambda arm: "" if arm["improvement"] is None else f"{arm['improvement']:.2f}"),
        (level, _improvement_interval),
        ("runs", lambda arm: str(len(arm["seeds"]))),
    ], ACROSS_TASKS_NOTE)  # fmt: skip


def arm_table(arms: Sequence[Row]) -> Table:
    """Where a checkpoint is evaluated, without the columns of training, which are empty."""
    trained = arms[0].get("checkpoint") is None
    columns: Columns = [
        ("arm", lambda arm: arm["arm"]),
        ("before training (%)", lambda arm: points(arm["before_pp"])),
        ("after (%)" if trained else "score (%)", lambda arm: points(arm["mean_pp"])),
        ("ECE before", lambda arm: ratio(arm["before_ece"])),
        ("ECE after" if trained else "ECE", lambda arm: ratio(arm["ece"])),
        ("tokens per answer", lambda arm: number(arm["mean_tokens"])),
        ("length slope", lambda arm: number(arm["length_slope_tokens"])),
        ("truncated", lambda arm: percent(arm["truncated_frac"])),
        ("faulty steps", lambda arm: percent(arm["faulty_steps_frac"])),
        ("entropy", lambda arm: number(arm["entropy_nats"])),
        ("gradient norm", lambda arm: number(arm["grad_norm"])),
        ("clipped steps", lambda arm: percent(arm["grad_clipped_frac"])),
        ("generated tokens", lambda arm: tokens(arm["generated_tokens"])),
        ("over budget", lambda arm: percent(arm["overshoot_frac"])),
    ]
    if not trained:
        columns = [(name, write) for name, write in columns if any(write(arm) != MISSING for arm in arms)]
    return _table("Arms", arms, columns)


def proxy_table(arms: Sequence[Row]) -> Table | None:
    """The end of training against the peak of the truth; None if no arm recorded a proxy."""
    ends = [{"arm": arm["arm"], **arm["proxy_and_truth"]} for arm in arms if arm["proxy_and_truth"] is not None]
    if not ends:
        return None
    return _table("Proxy and truth at the end of training", ends, [
        ("arm", lambda end: end["arm"]),
        ("proxy (sd)", lambda end: number(end["proxy_sd"])),
        ("truth (%)", lambda end: points(end["correct_pp"])),
        ("KL (nats)", lambda end: number(end["kl_nats"])),
        ("peak of the truth (%)", lambda end: points(end["peak_correct_pp"])),
        ("KL at the peak (nats)", lambda end: number(end["peak_kl_nats"])),
        ("truth since the peak (pp)", lambda end: signed_pp(end["correct_since_peak_pp"])),
        ("proxy since the peak (sd)", lambda end: f"{end['proxy_since_peak_sd']:+z.2f}"),
        ("seeds with truth down, proxy up", lambda end: f"{end['n_overoptimised']} of {end['n']}"),
    ])  # fmt: skip


def sharpening_table(analysis: Analysis, arms: Sequence[Row]) -> Table | None:
    """What training gained at small and at large k; None if no arm has pass@k before and after training."""
    gains = [{"arm": arm["arm"], **arm["sharpening"]} for arm in arms if arm["sharpening"]]
    if not gains:
        return None
    return _table("Gain over the model before training", gains, [
        ("arm", lambda gain: gain["arm"]),
        (f"gain at k = {gains[0]['smallest_k']} (pp)", lambda gain: signed_pp(gain["gain_at_smallest_pp"])),
        (f"gain at k = {gains[0]['largest_k']} (pp)", lambda gain: signed_pp(gain["gain_at_largest_pp"])),
        ("crossover k", lambda gain: number(gain["crossover_k"])),
        ("interval", _crossover_interval),
        ("seeds", lambda gain: str(gain["n"])),
    ], SHARPENING_NOTE + _ceiling_sentence(analysis, gains))  # fmt: skip


def problem_table(analysis: Analysis) -> Table | None:
    """The problems on which arms differ most; None with fewer than two arms that kept their samples, or if all arms
    solve every problem equally often."""
    scores = problem_scores(analysis)
    if len(scores.by_arm) < 2:
        return None
    accuracy = np.array([scores.mean(arm) for arm in scores.by_arm])
    known = np.isfinite(accuracy).all(axis=0)
    spread = np.where(known, np.ptp(np.nan_to_num(accuracy), axis=0), 0.0)
    widest = [int(i) for i in np.argsort(-spread, kind="stable")[:MOST_PROBLEMS] if spread[i] > 0]
    if not widest:
        return None
    seeds = {arm: len(by_seed) for arm, by_seed in scores.by_arm.items()}
    columns = ["problem", "range (pp)", *(f"{arm} (n = {n})" for arm, n in seeds.items())]
    rows = [
        [scores.problems[i], f"{100 * spread[i]:.0f}", *(percent(float(share)) for share in accuracy[:, i])]
        for i in widest
    ]
    return Table(f"Problems of {analysis.metric.task} that changed most", columns, rows, PROBLEM_NOTE)


def _table(title: str, rows: Iterable[Row], columns: Columns, note: str = "") -> Table:
    written = [[write(row) for _, write in columns] for row in rows]
    return Table(title, [heading for heading, _ in columns], written, note)


def _p(value: float | None) -> str:
    return p_value(value).removeprefix("= ")


def _interval(row: Row) -> str:
    return interval(row["low_pp"], row["high_pp"])


def _sign_flip(contrast: Row) -> str:
    """The p value, beside the lowest one that so few pairs can have."""
    p = contrast["p_sign_flip"]
    return number(p) if p is None else f"{number(p)} (floor {2.0 ** (1 - contrast['n_pairs']):.2g})"


def _correlation_interval(contrast: Row) -> str:
    low, high = contrast["correlation_low"], contrast["correlation_high"]
    return number(None) if low is None else f"[{number(low, 2)}, {number(high, 2)}]"


def _improvement_interval(arm: Row) -> str:
    if arm["improvement"] is None:
        return ""
    low, high = arm["improvement_low"], arm["improvement_high"]
    return number(None) if low is None else f"[{low:.2f}, {high:.2f}]"


def _crossover_interval(gain: Row) -> str:
    """The interval, open on a side where the band holds 0 as far as k was evaluated."""
    low, high = gain["crossover_low"], gain["crossover_high"]
    if gain["crossover_k"] is None or gain["n"] < MIN_PAIRS:
        return number(None)
    below = f"< {gain['smallest_k']}" if low is None else number(low)
    above = f"> {gain['largest_k']}" if high is None else number(high)
    return f"[{below}, {above}]"


def _ceiling_sentence(analysis: Analysis, gains: Sequence[Row]) -> str:
    """Names the arms that could lose nothing at the largest k, since pass@k is at 100 % before and after training."""
    ceiling = {
        gain["arm"]: gain["largest_k"]
        for gain in gains
        if analysis.base_metrics.get(f"pass@{gain['largest_k']}") == 1 and gain["gain_at_largest_pp"] == 0
    }
    if not ceiling:
        return ""
    return (
        f" At k = {max(ceiling.values())}, pass@k is 100% before and after training ({', '.join(ceiling)}): a gain of"
        " 0 there is a tie, not a crossover. Harder problems would show whether the gain falls below 0."
    )
