"""`bench compare`: two groups of finished runs, whether or not they belong to one sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

from harness.words import said
from reports.measure.arms import clipped_frac, hidden_knob_warnings
from reports.measure.contrasts import (
    SCORE_LIMITS_PP,
    Pair,
    absence,
    contrast_of,
    equal_tokens,
    missing_pairs,
    pair_by_seed,
    token_ratio,
)
from reports.measure.made_alike import outside_warnings
from reports.measure.measurements import Measurement, TaskMetric
from reports.page.document import comparison_numbers, contrast_fields
from reports.report import ContrastRow, MatchedProblems, Missing, Numbers
from reports.statistics import compare_unpaired

if TYPE_CHECKING:
    from harness.records import CellRecord
    from harness.records.scores import Matching


@dataclass(frozen=True)
class Group:
    """The cells of one configuration, one per seed, in any state. Only finished cells have measurements."""

    label: str
    cells: Sequence[CellRecord]
    metric: TaskMetric
    names: Mapping[str, str] | None = None
    """Restricts and renames problems, as in `Measurement`."""

    @cached_property
    def measurements(self) -> list[Measurement]:
        return [Measurement(cell, self.metric, self.names) for cell in self.cells if cell.state == "done"]

    @property
    def scored(self) -> list[Measurement]:
        return [measurement for measurement in self.measurements if measurement.score_pp is not None]

    @property
    def flagged_seeds(self) -> list[int]:
        return [m.cell.seed for m in self.scored if m.cell.flags]

    def scores_pp(self, *, flagged: bool = True) -> list[float]:
        """Return the scores of the group's runs. flagged: whether to include flagged runs."""
        return [m.score_pp for m in self.scored if m.score_pp is not None and (flagged or not m.cell.flags)]


def compare_groups(
    treatment: Group,
    baseline: Group,
    *,
    metric: str,
    alpha: float,
    margin_pp: float,
    unlike: str | None,
    matching: Matching | None = None,
) -> ContrastRow:
    """Compare two groups and return a row like those of `contrasts` in report.json, with `paired` and `why_unpaired`.

    metric: as in a sweep's `compare.metric`.
    unlike: why equal seeds do not mean equal samples in the two groups; None if they do. Groups without a common seed
    are not paired either.
    matching: how problems were matched, if other tools named them.

    There is one contrast, so `p_holm` equals p. An unpaired row counts its runs in `n_treatment` and `n_baseline`, and
    its `n_pairs` is None. Its flagged seeds are in `flagged_treatment` and `flagged_baseline`, and each of `missing`
    names its arm.

    Raises ValueError if a group has no score.
    """
    for group in (treatment, baseline):
        if not group.scored:
            raise ValueError(f"{group.label} has no finished run with {metric}: both sides need one")
    pairs = pair_by_seed(treatment.measurements, baseline.measurements)
    why_unpaired = unlike or (None if pairs else said("reports.no_seed_both"))
    row = (
        _paired(treatment, baseline, pairs, metric, alpha, margin_pp)
        if why_unpaired is None
        else _unpaired(treatment, baseline, metric, alpha, margin_pp)
    )
    matched = {} if matching is None else {"problems": MatchedProblems(**matching.as_row())}
    return row.model_copy(update={**matched, "paired": why_unpaired is None, "why_unpaired": why_unpaired})


def _paired(
    treatment: Group, baseline: Group, pairs: Sequence[Pair], metric: str, alpha: float, margin_pp: float
) -> ContrastRow:
    groups = (treatment, baseline)
    cells = {(group.label, cell.seed): cell for group in groups for cell in group.cells}
    seeds = sorted({seed for _, seed in cells})
    missing = missing_pairs(cells, [group.label for group in groups], seeds, {pair.seed for pair in pairs})
    contrast = contrast_of(treatment.label, baseline.label, pairs, missing, alpha=alpha, margin_pp=margin_pp)
    if contrast.comparison is not None:
        # There is one contrast, so Holm's correction leaves p as it is.
        contrast = replace(contrast, p_holm=contrast.comparison.p_value)
    return ContrastRow(
        **contrast_fields(contrast, metric, margin_pp, n_contrasts=1),
        warnings=_warnings(treatment, baseline),
        new_problems=None,
        variance=None,
    )


def _unpaired(treatment: Group, baseline: Group, metric: str, alpha: float, margin_pp: float) -> ContrastRow:
    groups = (treatment, baseline)
    quantum = max(m.quantum_pp for group in groups for m in group.scored)
    compare = partial(compare_unpaired, alpha=alpha, margin=margin_pp, quantum=quantum, limits=SCORE_LIMITS_PP)
    result = compare(treatment.scores_pp(), baseline.scores_pp())
    # The comparison without flagged runs needs at least one run on each side.
    kept, others_kept = (group.scores_pp(flagged=False) for group in groups)
    flagged = any(group.flagged_seeds for group in groups)
    without = compare(kept, others_kept) if kept and others_kept else None
    tokens = token_ratio(treatment.scored, baseline.scored)
    return ContrastRow(
        arm=treatment.label,
        baseline=baseline.label,
        metric=metric,
        **comparison_numbers(result),
        n_pairs=None,
        margin_pp=margin_pp,
        missing=[
            Missing(arm=group.label, seed=cell.seed, reason=why)
            for group in groups
            for cell in group.cells
            if (why := absence(cell)) is not None
        ],
        flagged_treatment=treatment.flagged_seeds,
        flagged_baseline=baseline.flagged_seeds,
        without_flagged=Numbers(**comparison_numbers(without)) if flagged and without is not None else None,
        token_ratio=tokens,
        equal_tokens=equal_tokens([] if tokens is None else [tokens]),
        tokens_known=all(m.spent_tokens is not None for group in groups for m in group.scored),
        warnings=_warnings(treatment, baseline),
    )


def _warnings(treatment: Group, baseline: Group) -> list[str]:
    groups = (treatment, baseline)
    return [
        *hidden_knob_warnings([(one.label, clipped_frac(one.measurements)) for one in groups]),
        *outside_warnings({one.label: one.measurements for one in groups}),
    ]
