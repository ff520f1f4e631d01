"""The top of the page: verdicts in sentences, and their caveats."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from harness.records.sweep import ENDED
from harness.words import said
from reports.formats import count, interval, number, p_value, percent, points, signed_pp, whole_percent
from reports.measure.variance import PART_NAMES
from reports.page.effects import effect_clause, verdict_word, within_sentences
from reports.page.next_step import look_clause, look_sentence, next_step_sentence
from reports.report import BestDifference, EffectRow, Missing, NewProblems, Report, ScreeningRow, VerdictRow
from reports.statistics import MIN_PAIRS, Verdict

SIGNS = {
    "better": "▲",
    "worse": "▼",
    "equivalent": "≈",
    "identical": "=",
    "inconclusive": "?",
    "no_test": "∅",
    "best": "★",
    "careful": "⚠",
}
"""A symbol for each verdict, for readers and printers without colour."""


SEED_SENTENCE = said("reports.seed_varies_data_order")

IMPORTED_SENTENCE = said("reports.these_runs_were_made")

COLLAPSE_SENTENCE = said("reports.if_arm_collapses_tenth")


@dataclass(frozen=True)
class Statement:
    """A sentence at the top of the page, with its caveats."""

    verdict: str
    """A key of SIGNS."""
    sentence: str
    details: list[str]
    word: str = ""
    """The text of the badge, or "" to show the verdict."""

    @property
    def sign(self) -> str:
        return SIGNS[self.verdict]


def statements(report: Report) -> list[Statement]:
    """Return a statement for each declared contrast, or a single statement if there is nothing to compare.

    In a factorial the statements are about its effects. Otherwise they are about the arms, from best to worst, as in
    the table and the forest plot.
    """
    if report.screening:
        return _screening_statements(report.screening[0])
    if not report.contrasts:
        return [Statement("no_test", said("reports.one_arm_nothing_compare", arm=report.arms[0].arm), [])]
    rows = report.declared
    if not report.interactions:
        rows.sort(key=_from_the_best)
    return [_statement(row) for row in rows]


def _from_the_best(row: VerdictRow) -> float:
    return math.inf if row.difference_pp is None else -row.difference_pp


def secondary_statements(report: Report) -> list[Statement]:
    """Return a statement for each arm's comparison with the baseline in a factorial; [] in other sweeps."""
    return [_statement(row) for row in report.contrasts] if report.interactions else []


def _statement(row: VerdictRow) -> Statement:
    return Statement(row.verdict, verdict_sentence(row), verdict_details(row), verdict_word(row))


def _screening_statements(row: ScreeningRow) -> list[Statement]:
    """Return a statement on a screening's best arms and, once they exist, their verdicts with fresh seeds."""
    best, n_seeds = row.best, count(row.n_seeds, "seed")
    ranked = Statement(
        "careful",
        said(
            "reports.screening_arms_each_ranked",
            n_arms=row.n_arms,
            n_seeds=n_seeds,
            metric_name=row.metric_name,
            baseline=row.baseline,
            best=", ".join(best),
        ),
        [said("reports.highest_means_partly_luck", n_arms=row.n_arms - 1)],
    )
    if row.confirmed_in is None:
        ranked.details.append(
            said("reports.confirms_them_on_fresh_screening_statements", command=row.command, seeds=row.seeds)
        )
        return [ranked]
    fresh = count(row.seeds, "fresh seed")
    verdicts = [
        replace(_statement(found), sentence=f"With {fresh}: {verdict_sentence(found)}") for found in row.contrasts
    ]
    return [*verdicts, ranked]


def interim_sentence(report: Report) -> str | None:
    """Return the warning of an interim look, or None once every cell has ended."""
    ended = sum(cell.state in ENDED for cell in report.cells)
    total = len(report.cells)
    if ended == total:
        return None
    return said("reports.unfinished_sweep_cells_have", ended=ended, total=total)


def seed_sentence(report: Report, is_imported: bool = False) -> str:
    """Say what a seed varies. If a run is flagged, add that a t interval over seeds may miss a collapse."""
    if checkpoint := report.arms[0].checkpoint:
        return said("reports.checkpoint_is_evaluated", checkpoint=checkpoint)
    if is_imported:
        return IMPORTED_SENTENCE
    flagged = any(row.flagged_seeds for row in report.contrasts)
    return f"{SEED_SENTENCE} {COLLAPSE_SENTENCE}" if flagged else SEED_SENTENCE


def verdict_sentence(row: VerdictRow) -> str:
    """Return the verdict in a sentence: effect, interval, p, number of runs, tokens and detectable effect.

    row: a contrast or an effect of report.json, or a row of `bench compare`, which may be unpaired.
    """
    if row.verdict == "identical":
        what = said("reports.all_answers_their_verdicts") if row.is_over_problems else said("reports.final_weights_all")
        return f"{_verdict_clause(row)}: {what} {_runs(row)} are equal, {_token_clause(row)}."
    if row.n_pairs == 0:
        return said(
            "reports.no_test_no_seed", name=row.name, words="every arm" if isinstance(row, EffectRow) else "both arms"
        )
    effect = f"{signed_pp(row.difference_pp)} pp {row.metric_name}"
    if row.verdict == "no_test":
        too_few = f"{MIN_PAIRS} {row.unit}s" if row.paired else said("reports.runs_on_side", min_pairs=MIN_PAIRS)
        return f"{row.name}: no test below {too_few}; {effect}{_noise_clause(row)}; {_runs(row)}, {_token_clause(row)}."
    if row.low_pp is None:
        return f"{_verdict_clause(row)}: {effect}{_noise_clause(row)}; {row.note}; {_runs(row)}, {_token_clause(row)}."
    return said(
        "reports.interval_detectable_effect_pp",
        verdict_clause=_verdict_clause(row),
        tuned_clause=_tuned_clause(row),
        effect=effect,
        level=percent(row.level),
        over_what=_over_what(row),
        interval=interval(row.low_pp, row.high_pp),
        look_clause=look_clause(row),
        p_clause=_p_clause(row),
        runs=_runs(row),
        token_clause=_token_clause(row),
        detectable_pp=points(row.detectable_pp),
    )


def verdict_details(row: VerdictRow) -> list[str]:
    """Return the caveats of the verdict: missing runs, the result without flagged cells, notes and warnings."""
    details = [_missing_sentence(row, missing) for missing in row.missing]
    if row.look is not None and row.low_pp is not None:
        details.append(look_sentence(row.look, row.level))
    if flagged := _flagged_seeds(row):
        details.append(said("reports.without_flagged_seeds", flagged=flagged, without_flagged=_without_flagged(row)))
    if row.verdict in {"inconclusive", "equivalent"} and row.p_holm is not None:
        # The interval's alpha is a Bonferroni share of the total. Rounding removes the error of computing 1 - level.
        alpha = round(row.alpha * row.n_contrasts, 9)
        if row.p_holm < alpha:
            details.append(said("reports.p_below_after_holm", alpha=alpha))
    if row.verdict == "equivalent":
        level = percent(row.alpha / 2)
        details.append(said("reports.equivalence_two_one_sided", level=level, alpha=percent(row.alpha)))
    if row.bests is not None and row.bests.low_pp is not None:
        details.append(_between_bests(row.bests, row.verdict))
    if row.new_problems is not None:
        details.append(_over_new_problems(row.new_problems))
    if isinstance(row, EffectRow):
        details += within_sentences(row)
    if row.note and row.verdict != "inconclusive":
        details.append(f"Note: {row.note}.")
    details += [] if row.problems is None else [row.problems.sentence]
    details += [f"{warning}." for warning in row.warnings]
    details += [sentence for sentence in (_variance_sentence(row), _pairing_sentence(row)) if sentence]
    return details if row.next_step is None else [*details, next_step_sentence(row, row.next_step)]


def _over_what(row: VerdictRow) -> str:
    return said("reports.over_new_problems_this_over_what") if row.is_over_problems else ""


def _verdict_clause(row: VerdictRow) -> str:
    if isinstance(row, EffectRow):
        return effect_clause(row)
    arm, baseline = row.arm, row.baseline
    clauses = {
        "better": f"{arm} is better than {baseline}",
        "worse": f"{arm} is worse than {baseline}",
        "equivalent": said(
            "reports.equivalent_within_pp_verdict_clause", arm=arm, baseline=baseline, margin_pp=row.margin_pp
        ),
        "inconclusive": f"{arm} against {baseline} is inconclusive",
        "identical": f"{arm} is identical to {baseline}",
    }
    return clauses[row.verdict]


def _tuned_clause(row: VerdictRow) -> str:
    """Name the search behind each arm if the arms were tuned first; otherwise ""."""
    bests = row.bests
    return (
        "" if bests is None else said("reports.each_its_best_trials", trials=bests.trials, knobs=", ".join(bests.knobs))
    )


def _between_bests(bests: BestDifference, verdict: Verdict) -> str:
    """Say how uncertain the searches of tuned arms leave the verdict, and give the difference between their bests."""
    sentence = said(
        "reports.trials_may_stop_short",
        trials=bests.trials,
        difference_pp=signed_pp(bests.difference_pp),
        interval=interval(bests.low_pp, bests.high_pp),
    )
    if not bests.settles:
        return said("reports.so_observed_difference_may", sentence=sentence)
    return f"{sentence}{'' if verdict == 'inconclusive' else ', and the verdict holds there too'}."


def _noise_clause(row: VerdictRow) -> str:
    if row.noise_low_pp is None:
        return ""
    return said(
        "reports.noise_clause_95_interval_from_evaluation", interval=interval(row.noise_low_pp, row.noise_high_pp)
    )


def _p_clause(row: VerdictRow) -> str:
    if not row.paired:
        return said("reports.p_welchs_test", p=p_value(row.p))
    one_look = "" if row.look is None else " (one look)"
    return f"p {p_value(row.p_holm)}{' after Holm' if row.n_contrasts > 1 else ''}{one_look}"


def _runs(row: VerdictRow) -> str:
    if not row.paired:
        return said(
            "reports.runs_unpaired_because",
            n_treatment=row.n_treatment,
            n_baseline=row.n_baseline,
            why_unpaired=row.why_unpaired,
        )
    n, missing = row.n_pairs or 0, len(row.missing)
    if row.is_over_problems:
        n_seeds = len(row.seeds) + missing
        of_all = f" of {n_seeds}" if missing else ""
        return count(n, "problem") + (f" × {len(row.seeds)}{of_all} seeds" if n_seeds > 1 else "")
    noun = "seed" if isinstance(row, EffectRow) else "pair"
    return f"n = {n}{f' of {n + missing}' if missing else ''} {noun if n + missing == 1 else f'{noun}s'}"


def _token_clause(row: VerdictRow) -> str:
    """Say whether both arms generated the same number of tokens: in every pair, or on average if unpaired."""
    if row.is_over_problems:
        return _answer_tokens_clause(row)
    if not row.tokens_known:
        return said("reports.tokens_not_compared_their")
    if row.token_ratio is None:
        return said("reports.tokens_not_compared_generated", baseline=row.baseline)
    ratios = row.token_ratios or [row.token_ratio]
    if row.equal_tokens:
        return said("reports.equal_tokens_within", ratios=max(abs(ratio - 1) for ratio in ratios))
    low, high = (f"{abs(end - 1):.1%} {'more' if end > 1 else 'fewer'}" for end in (min(ratios), max(ratios)))
    difference = low if low == high else f"pairs from {low} to {high}"
    return said("reports.not_equal_tokens_than", difference=difference, baseline=row.baseline)


def _answer_tokens_clause(row: VerdictRow) -> str:
    """Compare the tokens per answer, because a decoding method that takes more tokens is not free."""
    if row.answer_tokens is None:
        return said("reports.tokens_per_answer_not")
    arm, baseline = row.answer_tokens
    # A smaller difference would round to 0.0% more.
    if not baseline or abs(arm / baseline - 1) < 0.0005:
        return said("reports.tokens_per_answer_both", arm=points(arm))
    change = f"{abs(arm / baseline - 1):.1%} {'more' if arm > baseline else 'fewer'}"
    return said("reports.tokens_per_answer_against", arm=points(arm), baseline=points(baseline), change=change)


def _missing_sentence(row: VerdictRow, missing: Missing) -> str:
    if isinstance(row, EffectRow):
        return said("reports.seed_left_out", seed=missing.seed, reason=missing.reason)
    if row.paired:
        return said("reports.seed_has_no_pair", seed=missing.seed, reason=missing.reason)
    return said("reports.seed_left_out_missing_sentence", arm=missing.arm, seed=missing.seed, reason=missing.reason)


def _flagged_seeds(row: VerdictRow) -> str:
    if row.paired:
        return "" if row.without_flagged is None else ", ".join(map(str, row.flagged_seeds))
    sides = {row.arm: row.flagged_treatment, row.baseline: row.flagged_baseline}
    return "; ".join(f"{label} {', '.join(map(str, seeds))}" for label, seeds in sides.items() if seeds)


def _without_flagged(row: VerdictRow) -> str:
    rest, paired = row.without_flagged, row.paired
    if rest is None:
        return said("reports.one_side_has_no")
    if rest.n_pairs == 0:
        return "no pair is left"
    effect = f"{signed_pp(rest.difference_pp)} pp"
    runs = f"n = {rest.n_pairs}" if paired else f"{rest.n_treatment} and {rest.n_baseline} runs"
    if rest.verdict == "no_test":
        return (
            said("reports.no_test_below_seeds", effect=effect, min_pairs=MIN_PAIRS, runs=runs)
            if paired
            else f"{effect}, no test, {runs}"
        )
    if rest.low_pp is None:
        return f"{effect}, {rest.verdict} ({rest.note}), {runs}"
    return f"{effect} {interval(rest.low_pp, rest.high_pp)}, {rest.verdict}, {runs}"


def _variance_sentence(row: VerdictRow) -> str:
    """Say where the noise of a difference comes from, the largest part first."""
    variance = row.variance
    budget = None if variance is None else variance.over(new_problems=row.is_over_problems)
    if variance is None or budget is None:
        return ""
    parts = sorted(budget.parts.items(), key=lambda part: -part[1].share)
    shares = ", ".join(
        f"{PART_NAMES[name]} {whole_percent(part.share)} [{100 * part.share_low:.0f}, {100 * part.share_high:.0f}]"
        for name, part in parts
    )
    ends = interval(budget.error_low_pp, budget.error_high_pp, signed=False, decimals=2)
    error = f"{budget.error_pp:.2f} pp {ends}"
    level = percent(variance.level)
    joined = "" if variance.sampling_known else said("reports.one_sample_per_problem_variance_sentence")
    return said("reports.noise_standard_error_its", error=error, shares=shares, level=level, joined=joined)


def _pairing_sentence(row: VerdictRow) -> str:
    """Describe the effect of pairing, if the interval of the correlation shows one; "" for an interaction.

    The two sides of an interaction are weighted sums, not scores.
    """
    low, high = row.correlation_low, row.correlation_high
    if low is None or high is None or row.verdict == "identical" or row.is_interaction:
        return ""
    sides = "levels" if isinstance(row, EffectRow) else "arms"
    ends = interval(low, high, signed=False, decimals=2)
    rho = f"ρ = {row.correlation:.2f}, {percent(row.level)} interval {ends}"
    # An interval that contains 0 does not even show the sign, so no gain is quoted.
    if low <= 0 <= high or row.variance_ratio is None:
        return said("reports.too_few_tell_what", n_pairs=count(row.n_pairs or 0, row.unit), rho=rho)
    worth = said("reports.which_worth_times_s", times=float(number(1 / row.variance_ratio, 2)), unit=row.unit)
    if high < 0:
        return said("reports.scores_move_apart_over", sides=sides, unit=row.unit, rho=rho, worth=worth)
    noise = None if row.variance is None else row.variance.shared_noise_share
    cause = ""
    if noise is not None:
        who = (
            said("reports.evaluation_noise_both_share", sides=sides)
            if noise > 0.5
            else said("reports.what_seed_does_training")
        )
        cause = said("reports.most", noise=whole_percent(max(noise, 1 - noise)), who=who)
    return said("reports.scores_move_together_over", sides=sides, unit=row.unit, rho=rho, worth=worth, cause=cause)


def _over_new_problems(row: NewProblems) -> str:
    if row.refused:
        return said("reports.over_new_problems_refused", refused=row.refused)
    effect = said("reports.over_new_problems_this_over_new_problems", difference_pp=signed_pp(row.difference_pp))
    layout = f"{count(row.n_seeds, 'seed')} and {count(row.n_problems, 'problem')}"
    if row.low_pp is None:
        too_few = row.n_seeds < MIN_PAIRS
        why = (
            said("reports.no_interval_below_seeds", min_pairs=MIN_PAIRS)
            if too_few
            else said("reports.all_differences_equal_so")
        )
        return f"{effect}, {why} ({layout})."
    return said(
        "reports.interval_random_effects",
        effect=effect,
        level=percent(row.level),
        interval=interval(row.low_pp, row.high_pp),
        layout=layout,
    )
