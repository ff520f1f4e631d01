"""The compute law of every arm, score against generated tokens, compared with the baseline's.

The comparison has two verdicts: one on the ceiling (the asymptote), one on the efficiency (the exponent).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from reports.measure import Analysis, derived
from reports.measure.contrasts import SCORE_LIMITS_PP, alpha_of_each
from reports.measure.measurements import Measurement, finite
from reports.shelves.laws import (
    MIN_POINTS,
    ComputeLaw,
    LawInterval,
    LawRefusedError,
    compare_compute_laws,
    fit_compute_law,
)
from reports.shelves.laws.law_fits import or_reason, scores_before_pp
from reports.statistics import MIN_PAIRS, Verdict

if TYPE_CHECKING:
    from harness.records import SweepRecord


@dataclass(frozen=True)
class LawContrast:
    """The comparison of an arm's compute law with the baseline's, both fitted to the seeds that the two arms share."""

    n_seeds: int
    differences: dict[str, LawInterval] | None
    """The results of `compare_compute_laws`, at the level of the arm's other verdicts; None if not comparable."""
    ceiling: Verdict
    """The verdict on the asymptote."""
    efficiency: Verdict
    """The verdict on the exponent."""
    undecided: str
    """Why the laws cannot be compared, or ""."""


@dataclass(frozen=True)
class ComputeFit:
    """The compute law of an arm on a task, in percent."""

    arm: str
    task: str
    metric: str
    n_runs: int
    n_points: int
    law: ComputeLaw | None
    """None if the fit is refused."""
    refused: str
    """Why the fit is refused, or ""."""
    contrast: LawContrast | None
    """None for the baseline."""
    alpha: float
    """The sweep's alpha. Intervals have level 1 - alpha."""

    @property
    def target(self) -> str:
        return f"{self.metric} of {self.task}"

    def interval(self, name: str) -> LawInterval | None:
        """Return `asymptote`, `exponent` or `midpoint_tokens` with its interval, or None if the fit is refused."""
        return None if self.law is None else LawInterval(getattr(self.law, name), *self.law.interval(name, self.alpha))


Evaluations = dict[int, list[tuple[float, float]]]
"""Maps each seed to the pairs (generated tokens, score in percent) of its run's evaluations."""


@derived
def compute_fits(analysis: Analysis) -> list[ComputeFit]:
    """Fit every arm on every task. The curve starts at the score before training, if that was measured."""
    name, before = analysis.metric.name, scores_before_pp(analysis)
    fits = []
    for task in analysis.sweep.tasks:
        runs = {arm: _evaluations(cells, task, name) for arm, cells in analysis.measurements.items()}
        for arm, of_arm in runs.items():
            if of_arm:
                law, refused = or_reason(partial(_compute_law, of_arm, [*of_arm], before.get(task)))
                contrast = _law_contrast(analysis.sweep, arm, runs, before.get(task))
                n_points = sum(map(len, of_arm.values()))
                alpha = analysis.sweep.alpha
                fits.append(ComputeFit(arm, task, name, len(of_arm), n_points, law, refused, contrast, alpha))
    return fits


def _evaluations(cells: Sequence[Measurement], task: str, metric: str) -> Evaluations:
    """Return the evaluations of each cell that has any. Those of imported cells without token counts are left out."""
    found = {
        m.cell.seed: [
            (float(tokens), 100 * score)
            for row in m.scores
            if row["task"] == task
            and (tokens := row["generated_tokens"]) is not None
            and (score := finite(row["metrics"].get(metric))) is not None
        ]
        for m in cells
    }
    return {seed: points for seed, points in found.items() if points}


def _compute_law(runs: Evaluations, seeds: Sequence[int], start: float | None) -> ComputeLaw:
    tokens, scores = zip(*(point for seed in seeds for point in runs[seed]), strict=True)
    most = max(len(runs[seed]) for seed in seeds)
    if most < MIN_POINTS:  # The same few checkpoints of many seeds do not make a better curve.
        raise LawRefusedError("reports.shelves.laws.few_evaluations", n_evaluations=most, min_points=MIN_POINTS)
    return fit_compute_law(tokens, scores, start, run_lengths=[len(runs[seed]) for seed in seeds])


def _law_contrast(
    sweep: SweepRecord, arm: str, runs: Mapping[str, Evaluations], start: float | None
) -> LawContrast | None:
    """Compare an arm's law with the baseline's; None for the baseline."""
    if arm == sweep.baseline:
        return None
    shared = [seed for seed in runs[arm] if seed in runs[sweep.baseline]]
    found, undecided = or_reason(partial(_compared, sweep, arm, runs, shared, start))
    if found is None:
        return LawContrast(len(shared), None, "inconclusive", "inconclusive", undecided)
    ceiling = _verdict(found["asymptote"], 0.0, sweep.margin_pp)
    return LawContrast(len(shared), found, ceiling, _verdict(found["exponent"], 1.0), "")


def _compared(
    sweep: SweepRecord, arm: str, runs: Mapping[str, Evaluations], seeds: Sequence[int], start: float | None
) -> dict[str, LawInterval]:
    if len(seeds) < MIN_PAIRS:
        raise LawRefusedError("reports.shelves.laws.few_common_seeds", n_seeds=len(seeds), min_pairs=MIN_PAIRS)
    law, other = (_identified_law(sweep, one, runs[one], seeds, start) for one in (arm, sweep.baseline))
    return compare_compute_laws(law, other, alpha_of_each(sweep, len(sweep.arms) - 1))


def _identified_law(
    sweep: SweepRecord, arm: str, runs: Evaluations, seeds: Sequence[int], start: float | None
) -> ComputeLaw:
    """Fit the law of an arm over these seeds. Raises LawRefusedError, naming the arm.

    An asymptote that exceeds the possible scores by more than the margin is refused: the curve does not bend enough to
    show where it ends.
    """
    try:
        law = _compute_law(runs, seeds, start)
    except LawRefusedError as error:
        raise LawRefusedError("reports.shelves.laws.of_arm", arm=arm, error=error) from None
    lowest, highest = SCORE_LIMITS_PP
    if not lowest - sweep.margin_pp <= law.asymptote <= highest + sweep.margin_pp:
        raise LawRefusedError("reports.shelves.laws.asymptote_out_of_reach", arm=arm, asymptote=law.asymptote)
    return law


def _verdict(difference: LawInterval, equal: float, margin: float | None = None) -> Verdict:
    if difference.low > equal:
        return "better"
    if difference.high < equal:
        return "worse"
    if margin is not None and equal - margin <= difference.low and difference.high <= equal + margin:
        return "equivalent"
    return "inconclusive"
