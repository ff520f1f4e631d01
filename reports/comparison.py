"""Two groups of finished runs that no sweep put side by side: `bench compare`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from reports.arms import hidden_knob_warnings, summarise_arm
from reports.contrasts import (
    Pair,
    absence,
    contrast_of,
    equal_tokens,
    missing_pairs,
    pair_by_seed,
    token_ratio,
)
from reports.document import contrast_row, without_nan
from reports.formats import interval, p_value, percent, signed_pp
from reports.measurements import Measurement, Metric
from reports.statistics import MIN_PAIRS, UnpairedComparison, compare_unpaired
from reports.summary import detectable_clause, metric_name, token_clause, verdict_details, verdict_sentence

if TYPE_CHECKING:
    from harness.records import CellRecord


@dataclass(frozen=True)
class Group:
    """The cells of one setting, a seed each, whatever became of them; those that are done measured by one metric."""

    label: str
    cells: Sequence[CellRecord]
    metric: Metric

    @cached_property
    def measurements(self) -> list[Measurement]:
        return [Measurement(cell, self.metric) for cell in self.cells if cell.state == "done"]

    @property
    def scored(self) -> list[Measurement]:
        return [measurement for measurement in self.measurements if measurement.score_pp is not None]

    @property
    def flagged_seeds(self) -> list[int]:
        return [m.cell.seed for m in self.scored if m.cell.flags]

    def scores_pp(self, *, flagged: bool = True) -> list[float]:
        """Of its runs, or of those without a flag."""
        return [m.score_pp for m in self.scored if m.score_pp is not None and (flagged or not m.cell.flags)]


def compare_groups(
    treatment: Group, baseline: Group, *, metric: str, alpha: float, margin_pp: float, unlike: str | None
) -> dict[str, Any]:
    """A contrast as in report.json, with `paired` and `why_unpaired`; `p_holm` is p, since there is one contrast.

    metric: as in a sweep's `compare.metric`. unlike: why a seed does not mean the same draws in both groups; None if
    it does. Groups that share no seed do not pair either. Unpaired, `n_pairs` is None, `n_treatment` and `n_baseline`
    count the runs, `flagged_treatment` and `flagged_baseline` are seeds, and each of `missing` names its `arm`. Raises
    ValueError if a group has no score.
    """
    for group in (treatment, baseline):
        if not group.scored:
            raise ValueError(f"{group.label} has no finished run with {metric}: both sides need one")
    pairs = pair_by_seed(treatment.measurements, baseline.measurements)
    why_unpaired = unlike or (None if pairs else "no seed is in both")
    row = (
        _paired(treatment, baseline, pairs, metric, alpha, margin_pp)
        if why_unpaired is None
        else _unpaired(treatment, baseline, metric, alpha, margin_pp)
    )
    return dict(without_nan(row | {"paired": why_unpaired is None, "why_unpaired": why_unpaired}))


def comparison_sentence(row: dict[str, Any]) -> str:
    """The verdict of `compare_groups` in words."""
    if row["paired"]:
        return verdict_sentence(row)
    names, counts = f"{row['arm']} against {row['baseline']}", f"{row['n_treatment']} and {row['n_baseline']} runs"
    effect = f"{signed_pp(row['difference_pp'])} pp {metric_name(row)}"
    if row["verdict"] == "no_test":
        return (
            f"{names}: no test below {MIN_PAIRS} runs on a side; {effect}; {counts}, unpaired because "
            f"{row['why_unpaired']}, {token_clause(row)}."
        )
    verdict = {
        "better": f"{row['arm']} is better than {row['baseline']}",
        "worse": f"{row['arm']} is worse than {row['baseline']}",
        "equivalent": f"{row['arm']} is equivalent to {row['baseline']} within {row['margin_pp']:g} pp",
        "inconclusive": f"{names} is inconclusive",
    }[row["verdict"]]
    return (
        f"{verdict}: {effect}, {percent(row['level'])} interval {interval(row['low_pp'], row['high_pp'])}, "
        f"p {p_value(row['p'])} by Welch's test, {counts}, unpaired because {row['why_unpaired']}, "
        f"{token_clause(row)}; {detectable_clause(row)}."
    )


def comparison_details(row: dict[str, Any]) -> list[str]:
    """What qualifies the sentence, as `verdict_details` says it of a report."""
    if row["paired"]:
        return verdict_details(row)
    details = [f"{run['arm']} seed {run['seed']} is left out: {run['reason']}." for run in row["missing"]]
    sides = {row["arm"]: row["flagged_treatment"], row["baseline"]: row["flagged_baseline"]}
    if any(sides.values()):
        runs = "; ".join(f"{label} {', '.join(map(str, seeds))}" for label, seeds in sides.items() if seeds)
        details.append(f"Without the flagged seeds ({runs}): {_without_flagged(row['without_flagged'])}.")
    if row["verdict"] == "equivalent":
        level = percent((1 - row["level"]) / 2)
        details.append(f"Equivalence: two one-sided tests at {level}, which is conservative.")
    return details + [f"{warning}." for warning in row["warnings"]]


def _without_flagged(row: dict[str, Any] | None) -> str:
    if row is None:
        return "one side has no run left"
    tested = "" if row["low_pp"] is None else f" {interval(row['low_pp'], row['high_pp'])}"
    return (
        f"{signed_pp(row['difference_pp'])} pp{tested}, {row['verdict'].replace('_', ' ')}, {row['n_treatment']} and "
        f"{row['n_baseline']} runs"
    )


def _paired(
    treatment: Group, baseline: Group, pairs: Sequence[Pair], metric: str, alpha: float, margin_pp: float
) -> dict[str, Any]:
    groups = (treatment, baseline)
    cells = {(group.label, cell.seed): cell for group in groups for cell in group.cells}
    seeds = sorted({seed for _, seed in cells})
    missing = missing_pairs(cells, [group.label for group in groups], seeds, pairs)
    contrast = contrast_of(treatment.label, baseline.label, pairs, missing, alpha=alpha, margin_pp=margin_pp)
    if contrast.comparison is not None:
        contrast = replace(contrast, p_holm=contrast.comparison.p_value)
    warnings = _warnings(treatment, baseline, alpha)
    row = contrast_row(contrast, metric=metric, margin_pp=margin_pp, n_contrasts=1, warnings=warnings)
    return row | {"new_problems": None}


def _unpaired(treatment: Group, baseline: Group, metric: str, alpha: float, margin_pp: float) -> dict[str, Any]:
    groups = (treatment, baseline)
    result = compare_unpaired(treatment.scores_pp(), baseline.scores_pp(), alpha=alpha, margin=margin_pp)
    kept, others_kept = (group.scores_pp(flagged=False) for group in groups)
    flagged = any(group.flagged_seeds for group in groups)
    without = compare_unpaired(kept, others_kept, alpha=alpha, margin=margin_pp) if kept and others_kept else None
    tokens = token_ratio(treatment.scored, baseline.scored)
    return {
        "arm": treatment.label,
        "baseline": baseline.label,
        "metric": metric,
        **_unpaired_numbers(result),
        "n_pairs": None,
        "margin_pp": margin_pp,
        "missing": [
            {"arm": group.label, "seed": cell.seed, "reason": why}
            for group in groups
            for cell in group.cells
            if (why := absence(cell)) is not None
        ],
        "flagged_treatment": treatment.flagged_seeds,
        "flagged_baseline": baseline.flagged_seeds,
        "without_flagged": _unpaired_numbers(without) if flagged and without is not None else None,
        "token_ratio": tokens,
        "equal_tokens": equal_tokens([] if tokens is None else [tokens]),
        "warnings": _warnings(treatment, baseline, alpha),
    }


def _unpaired_numbers(result: UnpairedComparison) -> dict[str, Any]:
    return {
        "difference_pp": result.difference,
        "low_pp": result.low,
        "high_pp": result.high,
        "level": 1 - result.alpha,
        "p": result.p_value,
        "verdict": result.verdict,
        "note": result.note,
        "n_treatment": result.n_treatment,
        "n_baseline": result.n_baseline,
        "median_pp": result.median,
        "iqm_pp": result.iqm,
        "detectable_pp": result.detectable,
    }


def _warnings(treatment: Group, baseline: Group, alpha: float) -> list[str]:
    arms = [
        summarise_arm(one.label, one.measurements, alpha=alpha, budget_tokens=None) for one in (treatment, baseline)
    ]
    return hidden_knob_warnings(*arms)
