"""The validity strip of the page: checks without which the verdicts mean little, computed from report.json."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from harness.words import said
from reports.formats import count, in_words, number, number_interval, percent, ratio
from reports.measure import Analysis
from reports.measure.contrasts import EQUAL_TOKENS_TOLERANCE
from reports.measure.interactions import factorial_of
from reports.measure.made_alike import Unlike, made_unlike
from reports.page.next_step import looks_taken
from reports.report import ContrastRow, Report

if TYPE_CHECKING:
    from harness.records import SweepRecord

MOST_CORRELATIONS = 3
"""The most correlations that are listed individually."""

MOST_TRUNCATED_FRAC = 0.05
"""If a larger share of the final samples is truncated, the score also measures the length of answers."""

MOST_DISAGREEMENT_FRAC = 0.02
"""If graders disagree on a larger share, the choice of grader can decide a difference of a point or two."""


@dataclass(frozen=True)
class ValidityCheck:
    """One entry of the validity strip."""

    label: str
    value: str
    ok: bool = True
    """False if the reader should pay attention to it."""
    limit: str = ""
    """The threshold, in words."""


def validity_checks(analysis: Analysis, report: Report) -> list[ValidityCheck]:
    """Return the checks that must pass for the verdicts to mean something."""
    sweep = analysis.sweep
    states = Counter(cell.state for cell in report.cells)
    flagged = sum(bool(cell.flags) for cell in report.cells)
    others = [f"{count} {state}" for state, count in sorted(states.items()) if state != "done"]
    cells = ", ".join([f"{states['done']} of {len(report.cells)} cells done", *others, f"{flagged} flagged"])
    crossed = factorial_of(sweep)
    checks = [
        _gate(sweep),
        ValidityCheck("Runs", cells, states["done"] == len(report.cells) and flagged == 0, "all done, none flagged"),
    ]
    truncated = [arm.truncated_frac for arm in report.arms]
    if any(value is not None for value in truncated):
        checks.append(_share("Truncated", truncated, MOST_TRUNCATED_FRAC))
    if crossed is not None and crossed.n_absent:
        absent = said("reports.grid_left_out_no", n_absent=count(crossed.n_absent, "arm"))
        checks.append(ValidityCheck("Factorial", absent, ok=False))
    if report.contrasts:
        ratios = [ratio for row in report.contrasts for ratio in row.token_ratios]
        equal = all(row.equal_tokens for row in report.contrasts if row.n_pairs)
        within = said("reports.within_every_pair", equal_tokens_tolerance=percent(EQUAL_TOKENS_TOLERANCE))
        tokens = ValidityCheck("Tokens, arm / baseline", _range(ratio, ratios), equal, within)
        # Evaluating a checkpoint trains nothing, so the ratio is that of tokens per answer.
        if sweep.checkpoint is not None:
            tokens = ValidityCheck(said("reports.tokens_per_answer_arm"), _range(ratio, ratios), equal)
        elif not any(arm.generated_tokens for arm in report.arms):
            is_known = all(row.tokens_known for row in report.contrasts)
            unknown = said("reports.unknown_how_many_each")
            tokens = ValidityCheck(
                "Tokens", said("reports.none_generated_training_any") if is_known else unknown, is_known
            )
        checks += [tokens, _pairing(report.contrasts)]
        look = report.contrasts[0].look
        checks += [] if look is None else [ValidityCheck("Looks", looks_taken(look))]
    disagreement = [arm.grader_disagreement_frac for arm in report.arms]
    if any(value is not None for value in disagreement):
        found = _share("Graders disagree", disagreement, MOST_DISAGREEMENT_FRAC)
        samples = [m.final_samples for some in analysis.measurements.values() for m in some]
        graders = dict.fromkeys(name for one in samples if one is not None for name in one.graders)
        by = f", graded by {in_words(graders)}" if graders else ""
        checks.append(replace(found, value=f"{found.value}{by}"))
    return [*checks, *_made_differently(analysis), *map(_contamination, sweep.contamination)]


def _gate(sweep: SweepRecord) -> ValidityCheck:
    if sweep.gate.ok is None:
        return ValidityCheck("Settings", said("reports.unknown_not_all_settings"), ok=False)
    differs = ", ".join(sweep.gate.differs) or "nothing"
    return ValidityCheck(
        "Settings", said("reports.ok_arms_differ_only", differs=differs) if sweep.gate.ok else "refused", sweep.gate.ok
    )


def _made_differently(analysis: Analysis) -> list[ValidityCheck]:
    """Return a failed check for each contrast whose cells were made differently, with the fields and their values."""
    fields: dict[tuple[str, str], list[str]] = {}
    for unlike in made_unlike(analysis):
        fields.setdefault((unlike.arm, unlike.baseline), []).append(_unlike_field(unlike))
    return [
        ValidityCheck(f"{arm} and {baseline} made differently", "; ".join(words), ok=False)
        for (arm, baseline), words in fields.items()
    ]


def _unlike_field(unlike: Unlike) -> str:
    ours, theirs = ", then ".join(unlike.values), ", then ".join(unlike.baseline_values)
    values = f"{ours} in both" if ours == theirs else f"{ours} against {theirs}"
    return f"{unlike.field} {values} (seed{'s' if len(unlike.seeds) > 1 else ''} {', '.join(map(str, unlike.seeds))})"


def _share(label: str, fracs: Sequence[float | None], most: float) -> ValidityCheck:
    """Check that a share of each arm's final samples is small."""
    value = _range(_tenths, fracs)
    is_small = all(frac <= most for frac in fracs if frac is not None)
    return ValidityCheck(label, f"{value} of final samples", is_small, f"at most {percent(most)}")


def _pairing(contrasts: Sequence[ContrastRow]) -> ValidityCheck:
    """Check that no contrast's scores are negatively correlated: pairing would then widen its interval."""
    harmed = [
        # variance_ratio compares variances; the width of an interval grows with the root.
        (row.arm, math.sqrt(row.variance_ratio))
        for row in contrasts
        if row.correlation_high is not None and row.correlation_high < 0 and row.variance_ratio is not None
    ]
    limit = "no interval wholly below 0"
    if not harmed:
        return ValidityCheck("Pairing ρ", _correlations(contrasts), limit=limit)
    wider = ", ".join(f"{arm} {times:.1f} ×" for arm, times in harmed)
    value = said("reports.pairing_did_not_help", correlations=_correlations(contrasts), wider=wider)
    return ValidityCheck("Pairing ρ", value, ok=False, limit=limit)


def _correlations(contrasts: Sequence[ContrastRow]) -> str:
    """Return every correlation with its interval, or, if there are many, how many clearly differ from 0.

    A correlation without its interval would mislead.
    """
    known = [row for row in contrasts if row.correlation_low is not None]
    if len(known) > MOST_CORRELATIONS:
        return said(
            "reports.clearly_not_0_contrasts", is_correlated=sum(row.is_correlated for row in known), n_known=len(known)
        )
    written = [
        f"{row.arm} {number(row.correlation, 2)} {number_interval(row.correlation_low, row.correlation_high)}"
        for row in known
    ]
    return f"{'; '.join(written)} ({percent(known[0].level)} intervals)" if written else number(None)


def _contamination(row: Mapping[str, object]) -> ValidityCheck:
    """Check the problems of one evaluation task against all prompts that were trained on."""
    value = said(
        "reports.held_out_problems_training", exact=row["exact"], problems=row["problems"], n_gram=row["n_gram"]
    )
    return ValidityCheck(f"Contamination of {row['task']}", value, ok=not row.get("contaminated", row["exact"]))


def _range(write: Callable[[float], str], values: Sequence[float | None]) -> str:
    present = sorted(value for value in values if value is not None)
    if not present:
        return number(None)
    low, high = write(present[0]), write(present[-1])
    return low if low == high else f"{low} to {high}"


def _tenths(fraction: float) -> str:
    """Format a fraction with one decimal, 0.00313 -> 0.3%, so that both ends of a range look alike."""
    return "<0.1%" if 0 < fraction < 0.0005 else f"{100 * fraction:.1f}%"
