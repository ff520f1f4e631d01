"""The head of the page: verdicts in sentences, and their caveats."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from harness.records.sweep import ENDED
from reports.formats import count, interval, number, p_value, percent, points, signed_pp
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
"""A sign for each verdict, for readers and printers without colour."""

CHECKPOINT_SENTENCE = (
    "Every arm evaluates {checkpoint} as it is: nothing is trained, and seeds vary only sampling. The unit of "
    "replication is the problem; its samples over all seeds form a cluster. So intervals and p values are about new "
    "problems of this kind and new samples."
)

SEED_SENTENCE = "A seed varies data order and sampling; all seeds start from the same weights."

IMPORTED_SENTENCE = (
    "These runs were made elsewhere. Pairs share the number of a seed; whether that means the same data order or the "
    "same sampling noise is unknown."
)

COLLAPSE_SENTENCE = (
    "If an arm collapses in a tenth of its seeds, by 20 standard deviations of the difference, a 95% t interval holds "
    "the true mean in only about 65%, 48% and 64% of sweeps with 3, 6 and 10 seeds: look at every seed's dot."
)


@dataclass(frozen=True)
class Statement:
    """A sentence of the head, with its caveats."""

    verdict: str
    """A key of SIGNS."""
    sentence: str
    details: list[str]
    word: str = ""
    """The text of the badge, if it is not the verdict."""

    @property
    def sign(self) -> str:
        return SIGNS[self.verdict]


def statements(report: Report) -> list[Statement]:
    """Return a statement for each declared contrast, or a single one if there is nothing to compare.

    In a factorial they are about its effects. Otherwise they are about the arms from best to worst, as in the table and
    the forest plot.
    """
    if report.screening:
        return _screening_statements(report.screening[0])
    if not report.contrasts:
        return [Statement("no_test", f"One arm, {report.arms[0].arm}: nothing to compare.", [])]
    rows = report.declared
    if not report.interactions:
        rows.sort(key=_from_the_best)
    return [_statement(row) for row in rows]


def _from_the_best(row: VerdictRow) -> float:
    return math.inf if row.difference_pp is None else -row.difference_pp


def secondary_statements(report: Report) -> list[Statement]:
    """Return a statement for each arm against the baseline in a factorial; [] in other sweeps."""
    return [_statement(row) for row in report.contrasts] if report.interactions else []


def _statement(row: VerdictRow) -> Statement:
    return Statement(row.verdict, verdict_sentence(row), verdict_details(row), verdict_word(row))


def _screening_statements(row: ScreeningRow) -> list[Statement]:
    """Return the best arms of a screening and, once they exist, the verdicts on them with fresh seeds."""
    best, n_seeds = row.best, count(row.n_seeds, "seed")
    ranked = Statement(
        "careful",
        f"Screening: {row.n_arms} arms with {n_seeds} each are ranked, not judged. Highest mean"
        f" {row.metric_name} apart from {row.baseline}: {', '.join(best)}.",
        [
            f"The highest of {row.n_arms - 1} means is partly luck. The intervals in the tables below do not account"
            " for the choice."
        ],
    )
    if row.confirmed_in is None:
        ranked.details.append(f"{row.command} confirms them on {row.seeds} fresh seeds.")
        return [ranked]
    fresh = count(row.seeds, "fresh seed")
    verdicts = [
        replace(_statement(found), sentence=f"With {fresh}: {verdict_sentence(found)}") for found in row.contrasts
    ]
    return [*verdicts, ranked]


def interim_sentence(report: Report) -> str | None:
    """Return the warning for a look before the end, or None once every cell has ended."""
    ended = sum(cell.state in ENDED for cell in report.cells)
    total = len(report.cells)
    if ended == total:
        return None
    return (
        f"Unfinished sweep: {ended} of {total} cells have ended. Intervals and p values hold for the planned number of "
        "seeds, looked at once. If you stop at a verdict that pleases you, you are wrong more often than they say."
    )


def seed_sentence(report: Report, is_imported: bool = False) -> str:
    """Say what a seed varies and, if a run is flagged, that a t interval over seeds may miss a collapse."""
    if checkpoint := report.arms[0].checkpoint:
        return CHECKPOINT_SENTENCE.format(checkpoint=checkpoint)
    if is_imported:
        return IMPORTED_SENTENCE
    flagged = any(row.flagged_seeds for row in report.contrasts)
    return f"{SEED_SENTENCE} {COLLAPSE_SENTENCE}" if flagged else SEED_SENTENCE


def verdict_sentence(row: VerdictRow) -> str:
    """Return effect, interval, p, verdict, number of runs, tokens and detectable effect of a row.

    The row is a contrast or an effect of report.json, or a row of `bench compare`, which may be unpaired.
    """
    if row.verdict == "identical":
        what = "all answers and their verdicts on" if row.is_over_problems else "the final weights of all"
        return f"{_verdict_clause(row)}: {what} {_runs(row)} are equal, {_token_clause(row)}."
    if row.n_pairs == 0:
        return (
            f"{row.name}: no test, no seed has a score in {'every arm' if isinstance(row, EffectRow) else 'both arms'}."
        )
    effect = f"{signed_pp(row.difference_pp)} pp {row.metric_name}"
    if row.verdict == "no_test":
        too_few = f"{MIN_PAIRS} {row.unit}s" if row.paired else f"{MIN_PAIRS} runs on a side"
        return f"{row.name}: no test below {too_few}; {effect}{_noise_clause(row)}; {_runs(row)}, {_token_clause(row)}."
    if row.low_pp is None:
        return f"{_verdict_clause(row)}: {effect}{_noise_clause(row)}; {row.note}; {_runs(row)}, {_token_clause(row)}."
    return (
        f"{_verdict_clause(row)}{_tuned_clause(row)}: {effect}, {percent(row.level)} interval{_over_what(row)}"
        f" {interval(row.low_pp, row.high_pp)}{look_clause(row)},"
        f" {_p_clause(row)}, {_runs(row)}, {_token_clause(row)}; detectable effect {points(row.detectable_pp)} pp."
    )


def verdict_details(row: VerdictRow) -> list[str]:
    """Return the caveats of the sentence: missing runs, the contrast without flagged cells, notes and warnings."""
    details = [_missing_sentence(row, missing) for missing in row.missing]
    if row.look is not None and row.low_pp is not None:
        details.append(look_sentence(row.look, row.level))
    if flagged := _flagged_seeds(row):
        details.append(f"Without the flagged seeds ({flagged}): {_without_flagged(row)}.")
    if row.verdict in {"inconclusive", "equivalent"} and row.p_holm is not None:
        # The interval's alpha is Bonferroni's share. Rounding removes the error of 1 - level, so 0.05 compares as 0.05.
        alpha = round(row.alpha * row.n_contrasts, 9)
        if row.p_holm < alpha:
            details.append(
                f"p is below {alpha:.3g} after Holm, whose later steps are less strict than the interval. The interval "
                "contains 0, and the verdict follows the interval."
            )
    if row.verdict == "equivalent":
        level = percent(row.alpha / 2)
        details.append(f"Equivalence: two one-sided tests at {level}, which is conservative.")
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
    return " over new problems of this kind and new samples" if row.is_over_problems else ""


def _verdict_clause(row: VerdictRow) -> str:
    if isinstance(row, EffectRow):
        return effect_clause(row)
    arm, baseline = row.arm, row.baseline
    clauses = {
        "better": f"{arm} is better than {baseline}",
        "worse": f"{arm} is worse than {baseline}",
        "equivalent": f"{arm} is equivalent to {baseline} within {row.margin_pp:g} pp",
        "inconclusive": f"{arm} against {baseline} is inconclusive",
        "identical": f"{arm} is identical to {baseline}",
    }
    return clauses[row.verdict]


def _tuned_clause(row: VerdictRow) -> str:
    """Name the search behind each arm, if the arms were tuned first."""
    bests = row.bests
    return "" if bests is None else f", each at its best of {bests.trials} trials of {', '.join(bests.knobs)}"


def _between_bests(bests: BestDifference, verdict: Verdict) -> str:
    """Say what the searches of tuned arms leave open, and how the difference looks between their bests."""
    sentence = (
        f"{bests.trials} trials may stop short of an arm's best. Judging by their scores, the arms at their true"
        f" best differ by {signed_pp(bests.difference_pp)} pp {interval(bests.low_pp, bests.high_pp)}"
    )
    if not bests.settles:
        return f"{sentence}. So the observed difference may come from the search, not the arms: raise tune.trials."
    return f"{sentence}{'' if verdict == 'inconclusive' else ', and the verdict holds there too'}."


def _noise_clause(row: VerdictRow) -> str:
    if row.noise_low_pp is None:
        return ""
    return (
        f", 95% interval {interval(row.noise_low_pp, row.noise_high_pp)} from evaluation noise"
        " alone, which does not include training variance"
    )


def _p_clause(row: VerdictRow) -> str:
    if not row.paired:
        return f"p {p_value(row.p)} by Welch's test"
    one_look = "" if row.look is None else " (one look)"
    return f"p {p_value(row.p_holm)}{' after Holm' if row.n_contrasts > 1 else ''}{one_look}"


def _runs(row: VerdictRow) -> str:
    if not row.paired:
        return f"{row.n_treatment} and {row.n_baseline} runs, unpaired because {row.why_unpaired}"
    n, missing = row.n_pairs or 0, len(row.missing)
    if row.is_over_problems:
        n_seeds = len(row.seeds) + missing
        of_all = f" of {n_seeds}" if missing else ""
        return count(n, "problem") + (f" × {len(row.seeds)}{of_all} seeds" if n_seeds > 1 else "")
    noun = "seed" if isinstance(row, EffectRow) else "pair"
    return f"n = {n}{f' of {n + missing}' if missing else ''} {noun if n + missing == 1 else f'{noun}s'}"


def _token_clause(row: VerdictRow) -> str:
    """Say whether both arms generated equally many tokens: in every pair, or on average in unpaired rows."""
    if row.is_over_problems:
        return _answer_tokens_clause(row)
    if not row.tokens_known:
        return "tokens not compared: their number is unknown"
    if row.token_ratio is None:
        return f"tokens not compared: {row.baseline} generated none"
    ratios = row.token_ratios or [row.token_ratio]
    if row.equal_tokens:
        return f"at equal tokens (within {max(abs(ratio - 1) for ratio in ratios):.1%})"
    low, high = (f"{abs(end - 1):.1%} {'more' if end > 1 else 'fewer'}" for end in (min(ratios), max(ratios)))
    difference = low if low == high else f"pairs from {low} to {high}"
    return f"NOT at equal tokens ({difference} than {row.baseline})"


def _answer_tokens_clause(row: VerdictRow) -> str:
    """Return the tokens per answer, because a decoding that takes more tokens is not free."""
    if row.answer_tokens is None:
        return "tokens per answer not recorded"
    arm, baseline = row.answer_tokens
    # A smaller difference would be written as 0.0% more.
    if not baseline or abs(arm / baseline - 1) < 0.0005:
        return f"{points(arm)} tokens per answer in both"
    change = f"{abs(arm / baseline - 1):.1%} {'more' if arm > baseline else 'fewer'}"
    return f"{points(arm)} tokens per answer against {points(baseline)} ({change})"


def _missing_sentence(row: VerdictRow, missing: Missing) -> str:
    if isinstance(row, EffectRow):
        return f"Seed {missing.seed} is left out: {missing.reason}."
    if row.paired:
        return f"Seed {missing.seed} has no pair: {missing.reason}."
    return f"{missing.arm} seed {missing.seed} is left out: {missing.reason}."


def _flagged_seeds(row: VerdictRow) -> str:
    if row.paired:
        return "" if row.without_flagged is None else ", ".join(map(str, row.flagged_seeds))
    sides = {row.arm: row.flagged_treatment, row.baseline: row.flagged_baseline}
    return "; ".join(f"{label} {', '.join(map(str, seeds))}" for label, seeds in sides.items() if seeds)


def _without_flagged(row: VerdictRow) -> str:
    rest, paired = row.without_flagged, row.paired
    if rest is None:
        return "one side has no run left"
    if rest.n_pairs == 0:
        return "no pair is left"
    effect = f"{signed_pp(rest.difference_pp)} pp"
    runs = f"n = {rest.n_pairs}" if paired else f"{rest.n_treatment} and {rest.n_baseline} runs"
    if rest.verdict == "no_test":
        return f"{effect}, no test below {MIN_PAIRS} seeds, {runs}" if paired else f"{effect}, no test, {runs}"
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
        f"{part.share:.0%} {PART_NAMES[name]} [{100 * part.share_low:.0f}, {100 * part.share_high:.0f}]"
        for name, part in parts
    )
    ends = interval(budget.error_low_pp, budget.error_high_pp, signed=False, decimals=2)
    error = f"{budget.error_pp:.2f} pp {ends}"
    level = percent(variance.level)
    joined = "" if variance.sampling_known else "; one sample per problem leaves its noise in seed x problem"
    return f"Noise: a standard error of {error}; its variance is {shares} ({level} intervals{joined})."


def _pairing_sentence(row: VerdictRow) -> str:
    """Say what pairing did, as far as the interval of the correlation shows; "" for an interaction.

    The two sides of an interaction are not scores.
    """
    low, high = row.correlation_low, row.correlation_high
    if low is None or high is None or row.verdict == "identical" or row.is_interaction:
        return ""
    sides = "levels" if isinstance(row, EffectRow) else "arms"
    ends = interval(low, high, signed=False, decimals=2)
    rho = f"ρ = {row.correlation:.2f}, {percent(row.level)} interval {ends}"
    # An interval that contains 0 does not even show the sign, so no gain is quoted.
    if low <= 0 <= high or row.variance_ratio is None:
        return f"{count(row.n_pairs or 0, row.unit)} are too few to tell what pairing does: {rho}."
    worth = f"which is worth {float(number(1 / row.variance_ratio, 2)):g} times the {row.unit}s"
    if high < 0:
        return f"The {sides}' scores move apart over {row.unit}s: {rho}, {worth}: pairing loses precision."
    noise = None if row.variance is None else row.variance.shared_noise_share
    cause = ""
    if noise is not None:
        who = "evaluation noise that both share" if noise > 0.5 else "what a seed does to the training of both"
        cause = f"; most of that ({max(noise, 1 - noise):.0%}) is {who}"
    return f"The {sides}' scores move together over {row.unit}s: {rho}, {worth}{cause}."


def _over_new_problems(row: NewProblems) -> str:
    if row.refused:
        return f"Over new problems: refused, {row.refused}."
    effect = f"Over new problems of this kind as well as new seeds: {signed_pp(row.difference_pp)} pp"
    layout = f"{count(row.n_seeds, 'seed')} and {count(row.n_problems, 'problem')}"
    if row.low_pp is None:
        too_few = row.n_seeds < MIN_PAIRS
        why = (
            f"no interval below {MIN_PAIRS} seeds"
            if too_few
            else "all differences are equal, so their spread is unknown"
        )
        return f"{effect}, {why} ({layout})."
    return (
        f"{effect}, {percent(row.level)} interval {interval(row.low_pp, row.high_pp)}, by random effects of {layout}."
    )
