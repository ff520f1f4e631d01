"""The tables of a report: results, contrasts, tasks, arms, proxy against true reward, judges, problems.

Tables of settings, costs and records are in `record_tables`; shelves add theirs as a `Section`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias, TypeVar

from harness.words import said
from reports.figures import Group
from reports.formats import (
    MISSING,
    Table,
    in_words,
    interval,
    number,
    number_interval,
    p_value,
    percent,
    points,
    ratio,
    signed_pp,
    tokens,
    whole_percent,
    with_interval,
)
from reports.measure import Analysis
from reports.measure.coverage import arms_without_gain
from reports.measure.problems import problem_scores
from reports.page.coverage import coverage_table
from reports.page.effects import difference_pp
from reports.page.next_step import p_note
from reports.page.record_tables import cost_table, provenance_table, tuning_table
from reports.page.section import SECTIONS
from reports.report import (
    AcrossTasksRow,
    ArmRow,
    ContrastRow,
    JudgeAndTruth,
    JudgeVerdicts,
    ModeScore,
    Report,
    VerdictRow,
)
from reports.statistics import MIN_RUNS_FOR_IMPROVEMENT

Line = TypeVar("Line")
Columns: TypeAlias = Sequence[tuple[str, Callable[[Line], str]]]
"""Pairs of a column's heading and the function that formats a row's value for it."""

ACROSS_TASKS_NOTE = said("reports.iqm_mean_middle_half", min_runs_for_improvement=MIN_RUNS_FOR_IMPROVEMENT)
MODE_NOTE = said("reports.direct_prompt_asks_for")
JUDGE_NOTE = said("reports.pair_completion_reference_its")
REPLY_NOTE = said("reports.costs_those_original_requests")


def report_tables(analysis: Analysis, report: Report) -> dict[Group, list[Table]]:
    """Return the tables shown below the figures of each group, leaving out empty ones."""
    tables: dict[Group, list[Table | None]] = {
        "Result": [
            contrast_table(report.contrasts),
            tuning_table(report),
            across_tasks_table(report.across_tasks),
            mode_table(report.modes),
            coverage_table(report.coverage, arms_without_gain(analysis)),
        ],
        "Learning": [
            arm_table(report.arms, slope_note(report)),
            proxy_table(report.arms),
            judge_table(report.arms),
            reply_table(report.arms),
        ],
        "Policy": _of_shelves(analysis) if analysis.trains else [],
        "Cost": [cost_table(report)],
        "Records": [provenance_table(analysis)],
    }
    return {group: [table for table in some if table is not None] for group, some in tables.items()}


def _of_shelves(analysis: Analysis) -> list[Table | None]:
    return [table for section in SECTIONS.all().values() for table in section.tables(analysis)]


def result_table(report: Report) -> Table:
    """Return a row for each arm, best first: final score and difference from the baseline, each with its interval."""
    arms, contrasts = report.arms, {contrast.arm: contrast for contrast in report.contrasts}
    first = arms[0]
    equal = [contrast.equal_tokens for contrast in report.contrasts if contrast.n_pairs]
    # An evaluated checkpoint generates no tokens in training, so equal tokens would be an empty claim.
    equal = equal if first.checkpoint is None else []
    budget = f" (about {tokens(first.generated_tokens)} per run)" if first.generated_tokens else ""
    at_equal_tokens = said("reports.at_equal_training_tokens", budget=budget) if equal and all(equal) else ""
    title = f"{first.metric_name} on {first.task}{at_equal_tokens}"

    def against_baseline(write: Callable[[ContrastRow], str], of_baseline: str = "") -> Callable[[ArmRow], str]:
        return lambda arm: write(contrasts[arm.arm]) if arm.arm in contrasts else of_baseline

    # False sorts before True, so arms without a rank come last.
    return _table(title, sorted(arms, key=lambda arm: (arm.rank is None, arm.rank)), [
        ("arm", lambda arm: arm.arm),
        (f"{first.metric_name} (%), {percent(first.level)} interval", _score),
        *_wrong_steps(arms),
        (f"difference (pp), {_level_heading(report.contrasts)}", against_baseline(difference_pp, "baseline")),
        ("p (Holm)", against_baseline(lambda c: _p(c.p_holm))),
        ("seeds", lambda arm: str(arm.n)),
        ("verdict", against_baseline(lambda c: c.verdict.replace("_", " "))),
    ], p_note(report.contrasts))  # fmt: skip


def contrast_table(contrasts: Sequence[ContrastRow]) -> Table | None:
    """Return all numbers of the contrasts, or None if there are no contrasts."""
    if not contrasts:
        return None
    return _table(f"Differences from {contrasts[0].baseline}", contrasts, [
        ("arm", lambda c: c.arm),
        ("difference (pp)", lambda c: signed_pp(c.difference_pp)),
        (_level_heading(contrasts), lambda c: interval(c.low_pp, c.high_pp)),
        ("median", lambda c: signed_pp(c.median_pp)),
        ("IQM", lambda c: signed_pp(c.iqm_pp)),
        ("p", lambda c: _p(c.p)),
        ("p (Holm)", lambda c: _p(c.p_holm)),
        ("p (sign flip)", _sign_flip),
        ("problems" if contrasts[0].is_over_problems else "pairs", lambda c: str(c.n_pairs)),
        ("ρ", lambda c: number(c.correlation, 2)),
        (f"{_level_heading(contrasts)} of ρ", lambda c: number_interval(c.correlation_low, c.correlation_high)),
        ("variance ratio", lambda c: number(c.variance_ratio, 2)),
        ("detectable (pp)", lambda c: points(c.detectable_pp)),
        ("tokens, arm / baseline", lambda c: ratio(c.token_ratio)),
    ], p_note(contrasts))  # fmt: skip


def across_tasks_table(arms: Sequence[AcrossTasksRow]) -> Table | None:
    """Return each arm's results over all tasks, or None for fewer than three tasks."""
    if not arms:
        return None
    level = f"{percent(arms[0].level)} interval"
    return _table("Across tasks", arms, [
        ("arm", lambda arm: arm.arm),
        ("IQM (%)", lambda arm: points(arm.iqm_pp)),
        (level, lambda arm: interval(arm.iqm_low_pp, arm.iqm_high_pp, signed=False)),
        ("P(improvement)", lambda arm: "" if arm.improvement is None else f"{arm.improvement:.2f}"),
        (level, _improvement_interval),
        ("runs", lambda arm: str(len(arm.seeds))),
    ], ACROSS_TASKS_NOTE)  # fmt: skip


def mode_table(scores: Sequence[ModeScore]) -> Table | None:
    """Return accuracy and tokens of each arm in each mode, or None if the sweep evaluates in one mode only."""
    if not scores:
        return None
    by_arm: dict[tuple[str, str], dict[str, ModeScore]] = {}
    for score in scores:
        by_arm.setdefault((score.arm, score.task), {})[_mode_heading(score)] = score
    headings = dict.fromkeys(_mode_heading(score) for score in scores)
    several = len({task for _, task in by_arm}) > 1
    rows = [
        [f"{arm}, {task}" if several else arm, *(_mode_cell(found.get(heading)) for heading in headings)]
        for (arm, task), found in by_arm.items()
    ]
    return Table(said("reports.modes_thinking_score_tokens"), ["arm", *headings], rows, MODE_NOTE)


def _mode_heading(score: ModeScore) -> str:
    budget = score.budget_tokens
    asked = score.mode if budget is None else f"{score.mode}, at most {budget}"
    return f"{asked} ({percent(score.level)} interval)"


def _mode_cell(score: ModeScore | None) -> str:
    return MISSING if score is None else f"{_score(score)} / {number(score.tokens)}"


def slope_note(report: Report) -> str:
    """Warn that runs shorter than the 100 steps of a slope do not show it; "" otherwise."""
    ends = [cell.step for cell in report.cells if cell.state == "done" and cell.step]
    known = any(arm.length_slope_tokens is not None for arm in report.arms)
    return said("reports.slope_extrapolates", steps=max(ends)) if known and ends and max(ends) < 100 else ""


def arm_table(arms: Sequence[ArmRow], note: str = "") -> Table:
    """Return what was measured of each arm; without the empty columns of training if a checkpoint is evaluated."""
    trained = arms[0].checkpoint is None
    columns: Columns[ArmRow] = [
        ("arm", lambda arm: arm.arm),
        ("before training (%)", lambda arm: points(arm.before_pp)),
        ("after (%)" if trained else "score (%)", lambda arm: points(arm.mean_pp)),
        ("ECE before", lambda arm: ratio(arm.before_ece)),
        ("ECE after" if trained else "ECE", lambda arm: ratio(arm.ece)),
        ("tokens per answer", lambda arm: number(arm.mean_tokens)),
        (said("reports.length_slope_tokens_per"), lambda arm: number(arm.length_slope_tokens)),
        ("truncated", lambda arm: percent(arm.truncated_frac)),
        *_wrong_steps(arms),
        ("entropy", lambda arm: number(arm.entropy_nats)),
        ("gradient norm", lambda arm: number(arm.grad_norm)),
        ("clipped steps", lambda arm: percent(arm.grad_clipped_frac)),
        ("generated tokens", lambda arm: tokens(arm.generated_tokens)),
        ("over budget", lambda arm: percent(arm.overshoot_frac)),
    ]
    if not trained:
        columns = [(name, write) for name, write in columns if any(write(arm) != MISSING for arm in arms)]
    return _table("Arms", arms, columns, note)


def _wrong_steps(arms: Sequence[ArmRow]) -> Columns[ArmRow]:
    """Return the column "right answer, wrong step", or no column if no task could check steps."""
    if all(arm.faulty_steps_frac is None for arm in arms):
        return []
    return [("right answer, wrong step", lambda arm: percent(arm.faulty_steps_frac))]


def proxy_table(arms: Sequence[ArmRow]) -> Table | None:
    """Compare the end of training with the peak of the true reward; None if no arm recorded a proxy."""
    return _by_arm(said("reports.proxy_truth_end_training"), {arm.arm: arm.proxy_and_truth for arm in arms}, [
        ("proxy (sd)", lambda end: number(end.proxy_sd)),
        ("truth (%)", lambda end: points(end.correct_pp)),
        ("KL (nats)", lambda end: number(end.kl_nats)),
        ("peak of the truth (%)", lambda end: points(end.peak_correct_pp)),
        (said("reports.kl_peak_nats"), lambda end: number(end.peak_kl_nats)),
        (said("reports.truth_since_peak_pp"), lambda end: signed_pp(end.correct_since_peak_pp)),
        (said("reports.proxy_since_peak_sd"), lambda end: f"{end.proxy_since_peak_sd:+z.2f}"),
        (said("reports.seeds_truth_down_proxy"), lambda end: f"{end.n_overoptimised} of {end.n}"),
    ])  # fmt: skip


def judge_table(arms: Sequence[ArmRow]) -> Table | None:
    """Return the verdicts of pairwise judges at the start and end of training, or None if no arm had a judge."""

    def both(share: Callable[[JudgeVerdicts], float | None]) -> Callable[[JudgeAndTruth], str]:
        return lambda found: f"{percent(share(found.start))} → {percent(share(found.end))}"

    return _by_arm(said("reports.judge_truth_first_tenth"), {arm.arm: arm.judge for arm in arms}, [
        (said("reports.verdict_flips_order"), both(lambda verdicts: verdicts.flip_frac)),
        ("prefers the first shown", both(lambda verdicts: verdicts.first_frac)),
        ("ties", both(lambda verdicts: verdicts.tie_frac)),
        ("no scores", both(lambda verdicts: verdicts.no_scores_frac)),
        ("prefers right over wrong", both(lambda verdicts: verdicts.right_frac)),
        ("right completions", both(lambda verdicts: verdicts.correct)),
    ], JUDGE_NOTE)  # fmt: skip


def reply_table(arms: Sequence[ArmRow]) -> Table | None:
    """Return the replies of judges that graded rollouts, and their cost; None if no arm had such a judge."""
    return _by_arm(said("reports.judges_as_graders_training"), {arm.arm: arm.judge_replies for arm in arms}, [
        ("questions per cell", lambda found: number(found.questions)),
        ("prompt tokens", lambda found: tokens(found.prompt_tokens)),
        ("reply tokens", lambda found: tokens(found.completion_tokens)),
        ("no verdict", lambda found: percent(found.undecided_frac)),
        ("right by the judge", lambda found: percent(found.correct)),
        ("right by the rule", lambda found: percent(found.rule_correct)),
        ("agreement", lambda found: percent(found.agreement_frac)),
        ("Cohen's κ", lambda found: number(found.kappa, 2)),
    ], REPLY_NOTE)  # fmt: skip


def problem_table(analysis: Analysis, report: Report) -> Table | None:
    """Return the problems on which arms differ most, or None if chance alone gives ranges as wide."""
    if not report.problem_ranges or not report.problem_ranges[0].beyond_chance:
        return None
    (ranges,) = report.problem_ranges
    scores = problem_scores(analysis)
    arms = {arm: scores.mean(arm) for arm in scores.by_arm}
    counts = [f"{arm} (n = {len(by_seed)})" for arm, by_seed in scores.by_arm.items()]
    rows = [
        [
            problem.problem_id,
            f"{problem.range_pp:.1f}",
            f"{problem.permuted_pp:.1f}",
            *(percent(float(shares[scores.problems.index(problem.problem_id)])) for shares in arms.values()),
        ]
        for problem in ranges.widest
    ]
    columns = ["problem", "range (pp)", "by chance (pp)", *counts]
    widest = ranges.widest[0].range_pp
    note = said("reports.problem_note", n=ranges.n_problems, widest=widest, p=number(ranges.p, 2))
    return Table(said("reports.problems_changed_most", task=ranges.task), columns, rows, note)


def chance_sentence(report: Report) -> str:
    """Explain why there is no `problem_table`; "" if there is one, or if nothing could be compared."""
    if not report.problem_ranges or report.problem_ranges[0].beyond_chance:
        return ""
    (ranges,) = report.problem_ranges
    first = ranges.widest[:3]
    widest = in_words(f"{row.range_pp:.1f}" for row in first)
    permuted = in_words(f"{row.permuted_pp:.1f}" for row in first)
    return said(
        "reports.no_problem_clearly_separates",
        task=ranges.task,
        widest=widest,
        permuted=permuted,
        p=whole_percent(ranges.p),
    )


def flips_note(report: Report, *, is_imported: bool) -> str:
    """Explain the list of flips; "" without any. How much of a change is chance depends on `chance_sentence`."""
    if not report.flips:
        return ""
    ranges = report.problem_ranges
    return said(
        "reports.flips_note",
        baseline=report.flips[0].baseline,
        same_noise="" if is_imported else said("reports.drawn_with_same_numbers"),
        n_problems=f"{ranges[0].n_problems:,}" if ranges else "many",
        how_much="part" if ranges and ranges[0].beyond_chance else "some or all",
    )


def _table(title: str, rows: Iterable[Line], columns: Columns[Line], note: str = "") -> Table:
    written = [[write(row) for _, write in columns] for row in rows]
    return Table(title, [heading for heading, _ in columns], written, note)


def _by_arm(title: str, found: Mapping[str, Line | None], columns: Columns[Line], note: str = "") -> Table | None:
    """Return a row for each arm with a value, or None if no arm has one."""
    rows = [[arm, *(write(one) for _, write in columns)] for arm, one in found.items() if one is not None]
    return Table(title, ["arm", *(heading for heading, _ in columns)], rows, note) if rows else None


def _level_heading(rows: Sequence[VerdictRow]) -> str:
    """Return the heading of a column of intervals, which states the level of its rows."""
    levels = {percent(row.level) for row in rows if row.level is not None}
    return f"{' or '.join(sorted(levels))} interval" if levels else "interval"


def _p(value: float | None) -> str:
    return p_value(value).removeprefix("= ")


def _score(arm: ArmRow | ModeScore) -> str:
    return with_interval(points(arm.mean_pp), arm.low_pp, arm.high_pp, signed=False)


def _sign_flip(contrast: ContrastRow) -> str:
    """Format the p value together with the lowest p that this number of pairs can reach."""
    p = contrast.p_sign_flip
    # n pairs have 2^n sign patterns, and even the most extreme pattern has a mirror image, so p is at least 2^(1-n).
    return number(p) if p is None else f"{number(p)} (floor {2.0 ** (1 - (contrast.n_pairs or 0)):.2g})"


def _improvement_interval(arm: AcrossTasksRow) -> str:
    if arm.improvement is None:
        return ""
    low, high = arm.improvement_low, arm.improvement_high
    return interval(low, high, signed=False, decimals=2)
