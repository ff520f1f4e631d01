"""Two groups of finished runs that no sweep put side by side: `bench compare`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from reports.arms import hidden_knob_warnings, summarise_arm
from reports.contrasts import MissingPair, Pair, contrast_of, pair_by_seed
from reports.document import contrast_row, without_nan
from reports.formats import interval, p_value, percent, points, signed_pp
from reports.measurements import Measurement, mean_of
from reports.statistics import MIN_PAIRS, compare_unpaired
from reports.summary import metric_name, verdict_sentence


@dataclass(frozen=True)
class Group:
    """Finished cells of one setting, a seed each, measured by one metric."""

    label: str
    measurements: Sequence[Measurement]

    @property
    def scored(self) -> list[Measurement]:
        return [measurement for measurement in self.measurements if measurement.score_pp is not None]


def compare_groups(
    treatment: Group, baseline: Group, *, metric: str, alpha: float, margin_pp: float, unlike: str | None
) -> dict[str, Any]:
    """A contrast as in report.json, with `paired` and `why_unpaired`; `p_holm` is p, since there is one contrast.

    metric: as in a sweep's `compare.metric`. unlike: why a seed does not mean the same draws in both groups; None if
    it does. Groups that share no seed do not pair either. Unpaired, `n_pairs` is None and `n_treatment`, `n_baseline`
    count the runs. Raises ValueError if a group has no score.
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
        return f"{names}: no test below {MIN_PAIRS} runs on a side; {effect}; {counts}, unpaired."
    verdict = {
        "better": f"{row['arm']} is better than {row['baseline']}",
        "worse": f"{row['arm']} is worse than {row['baseline']}",
        "equivalent": f"{row['arm']} is equivalent to {row['baseline']} within {row['margin_pp']:g} pp",
        "inconclusive": f"{names} is inconclusive",
    }[row["verdict"]]
    return (
        f"{verdict}: {effect}, {percent(row['level'])} interval {interval(row['low_pp'], row['high_pp'])}, "
        f"p {p_value(row['p'])} by Welch's test, {counts}, unpaired because {row['why_unpaired']}; "
        f"detectable effect {points(row['detectable_pp'])} pp."
    )


def _paired(
    treatment: Group, baseline: Group, pairs: Sequence[Pair], metric: str, alpha: float, margin_pp: float
) -> dict[str, Any]:
    paired = {pair.seed for pair in pairs}
    seeds = {m.cell.seed for group in (treatment, baseline) for m in group.measurements}
    missing = [MissingPair(seed, "no score on one side") for seed in sorted(seeds - paired)]
    contrast = contrast_of(treatment.label, baseline.label, pairs, missing, alpha=alpha, margin_pp=margin_pp)
    if contrast.comparison is not None:
        contrast = replace(contrast, p_holm=contrast.comparison.p_value)
    warnings = _warnings(treatment, baseline, alpha)
    return contrast_row(contrast, metric=metric, margin_pp=margin_pp, n_contrasts=1, warnings=warnings)


def _unpaired(treatment: Group, baseline: Group, metric: str, alpha: float, margin_pp: float) -> dict[str, Any]:
    scores, others = ([m.score_pp for m in group.scored if m.score_pp is not None] for group in (treatment, baseline))
    result = compare_unpaired(scores, others, alpha=alpha, margin=margin_pp)
    tokens, other_tokens = (mean_of(m.cell.generated_tokens for m in group.scored) for group in (treatment, baseline))
    return {
        "arm": treatment.label,
        "baseline": baseline.label,
        "metric": metric,
        "difference_pp": result.difference,
        "low_pp": result.low,
        "high_pp": result.high,
        "level": 1 - alpha,
        "p": result.p_value,
        "verdict": result.verdict,
        "note": result.note,
        "n_pairs": None,
        "n_treatment": result.n_treatment,
        "n_baseline": result.n_baseline,
        "median_pp": result.median,
        "iqm_pp": result.iqm,
        "detectable_pp": result.detectable,
        "margin_pp": margin_pp,
        "token_ratio": tokens / other_tokens if tokens and other_tokens else None,
        "warnings": _warnings(treatment, baseline, alpha),
    }


def _warnings(treatment: Group, baseline: Group, alpha: float) -> list[str]:
    arms = [
        summarise_arm(one.label, one.measurements, alpha=alpha, budget_tokens=None) for one in (treatment, baseline)
    ]
    return hidden_knob_warnings(*arms)
