"""Every arm against the baseline, in percentage points, paired by seed.

If arms evaluate one checkpoint, no seed is a training seed, and pairs are formed by problem. A collapsed cell is an
outcome: it stays in the comparison, which is shown once more without it. Only unmeasured cells are missing, and the
contrast names the pairs that this costs.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from harness.words import said
from reports.measure.looks import looking
from reports.measure.measurements import Measurement, MetricError, mean_of
from reports.measure.tuning import judge_bests
from reports.report import BestDifference, Missing
from reports.statistics import FloatArray, PairedComparison, Verdict, cluster_values, compare_paired, holm

if TYPE_CHECKING:
    from harness.records import CellRecord, SweepRecord

# A cell ends at the first step boundary after its budget, so each arm overshoots it by up to the tokens of a step.
EQUAL_TOKENS_TOLERANCE = 0.05
SCORE_LIMITS_PP = (0.0, 100.0)
EQUAL_COMPLETIONS = said("reports.every_completion_final_evaluations")
NORMAL_95 = 1.959964


@dataclass(frozen=True)
class Contrast:
    """An arm minus the baseline. Over one checkpoint, its tokens are those per answer."""

    arm: str
    baseline: str
    weights: Mapping[str, float]
    """The factor of each arm's score in the difference: 1 and -1, or those of a factorial's effect."""
    seeds: list[int]
    differences_pp: list[float]
    missing: list[Missing]
    flagged_seeds: list[int]
    comparison: PairedComparison | None
    """None without a single pair. Its intervals are at the level at which `looks` lets a verdict stand."""
    without_flagged: PairedComparison | None
    p_holm: float
    """Its p value after Holm."""
    token_ratios: list[float]
    """Per pair, the tokens of the arm over the baseline's; [] if a run of the baseline trained on data alone."""
    token_ratio: float | None
    """The same for the means over pairs; None if token_ratios is empty."""
    noise_low_pp: float
    """The lower end of the 95% interval from evaluation noise alone; NaN if the comparison has an interval."""
    noise_high_pp: float
    """Its upper end."""
    by_problem_pp: Sequence[float] = ()
    """The difference on each problem, for arms of one checkpoint; otherwise empty.

    A problem's samples and seeds are its cluster. seeds and differences_pp are still those of evaluations.
    """
    answer_tokens: tuple[float, float] | None = None
    """The mean tokens of an answer of the arm and of the baseline, if a checkpoint is evaluated."""
    bests: BestDifference | None = None
    """For arms that were tuned first."""
    tokens_known: bool = True
    """True if every cell says how many tokens it generated."""

    @property
    def verdict(self) -> Verdict:
        return "no_test" if self.comparison is None else self.comparison.verdict

    @property
    def equal_tokens(self) -> bool | None:
        """True if the tokens of every pair are equal: means can agree where no pair does."""
        return equal_tokens(self.token_ratios)

    @property
    def over_problems(self) -> bool:
        return len(self.by_problem_pp) > 0

    @property
    def replicates_pp(self) -> Sequence[float]:
        """The differences that enter the comparison: of seeds, or of problems."""
        return self.by_problem_pp or self.differences_pp


@dataclass(frozen=True)
class Pair:
    seed: int
    treatment: Measurement
    baseline: Measurement

    @property
    def difference_pp(self) -> float:
        return _score(self.treatment) - _score(self.baseline)

    @property
    def flagged(self) -> bool:
        return bool(self.treatment.cell.flags or self.baseline.cell.flags)

    @property
    def same_weights(self) -> bool:
        return self.treatment.cell.digest is not None and self.treatment.cell.digest == self.baseline.cell.digest

    @property
    def evaluates_checkpoint(self) -> bool:
        return self.treatment.evaluates_checkpoint and self.baseline.evaluates_checkpoint

    @property
    def known_weights(self) -> bool:
        return self.treatment.cell.digest is not None and self.baseline.cell.digest is not None

    def same_completions(self) -> bool:
        """Return whether every sample of the final evaluation has the same text in both; False if a cell kept none."""
        columns = ["problem_id", "sample", "text"]
        one, other = (m.read_final_samples(columns) for m in (self.treatment, self.baseline))
        return one is not None and other is not None and "text" in one.column_names and bool(one.equals(other))


def compare_arms(sweep: SweepRecord, measurements: Mapping[str, Sequence[Measurement]]) -> list[Contrast]:
    """Compare every other arm with the baseline, in the order of the sweep file, with Holm over all of them.

    Raises MetricError if arms of one checkpoint have no scores of single problems.
    """
    others = [arm for arm in sweep.arms if arm != sweep.baseline]
    alpha = alpha_of_each(sweep, len(others))
    contrasts = with_holm([_contrast(sweep, measurements, arm, alpha) for arm in others])
    # Verdicts on bests come last: they can only turn a verdict into an inconclusive one.
    return [judge_bests(contrast, sweep.tuning, sweep.margin_pp) for contrast in contrasts]


def alpha_of_each(sweep: SweepRecord, n_contrasts: int) -> float:
    """Return the two-sided level of each of the contrasts that share the sweep's alpha, at this look."""
    return looking(sweep, max(1, n_contrasts)).alpha


def with_holm(contrasts: Sequence[Contrast]) -> list[Contrast]:
    """Return the contrasts with `p_holm`, adjusted over all of them."""
    # A contrast without a test still counts as one of the m that the sweep asked for.
    adjusted = holm([1.0 if math.isnan(p := _p_value(contrast)) else p for contrast in contrasts])
    return [
        contrast if math.isnan(_p_value(contrast)) else replace(contrast, p_holm=float(p))
        for contrast, p in zip(contrasts, adjusted, strict=True)
    ]


def _contrast(
    sweep: SweepRecord, measurements: Mapping[str, Sequence[Measurement]], arm: str, alpha: float
) -> Contrast:
    pairs = pair_by_seed(measurements[arm], measurements[sweep.baseline])
    cells = {(cell.arm, cell.seed): cell for cell in sweep.cells}
    missing = missing_pairs(cells, (arm, sweep.baseline), sweep.seeds, {pair.seed for pair in pairs})
    return contrast_of(arm, sweep.baseline, pairs, missing, alpha=alpha, margin_pp=sweep.margin_pp)


def contrast_of(
    arm: str, baseline: str, pairs: Sequence[Pair], missing: list[Missing], *, alpha: float, margin_pp: float
) -> Contrast:
    """Compare these pairs at level 1 - alpha, with `p_holm` still to be filled in."""
    kept = [pair for pair in pairs if not pair.flagged]
    comparison = _compare(pairs, alpha, margin_pp)
    noise = _evaluation_noise_pp(pairs)
    # Evaluation noise is shown only where no interval over pairs exists.
    tested = comparison is None or not math.isnan(comparison.low)
    token_ratios = _token_ratios(pairs)
    return Contrast(
        arm=arm,
        baseline=baseline,
        weights={arm: 1.0, baseline: -1.0},
        seeds=[pair.seed for pair in pairs],
        differences_pp=[pair.difference_pp for pair in pairs],
        missing=missing,
        flagged_seeds=[pair.seed for pair in pairs if pair.flagged],
        comparison=comparison,
        without_flagged=_compare(kept, alpha, margin_pp) if len(kept) < len(pairs) else None,
        p_holm=math.nan,
        token_ratios=token_ratios,
        token_ratio=token_ratio([p.treatment for p in pairs], [p.baseline for p in pairs]) if token_ratios else None,
        noise_low_pp=math.nan if tested or comparison is None else comparison.difference - noise,
        noise_high_pp=math.nan if tested or comparison is None else comparison.difference + noise,
        by_problem_pp=differences_by_problem(pairs) if _over_problems(pairs) else (),
        answer_tokens=_answer_tokens(pairs) if _over_problems(pairs) else None,
        tokens_known=all(m.spent_tokens is not None for pair in pairs for m in (pair.treatment, pair.baseline)),
    )


def pair_by_seed(treatment: Sequence[Measurement], baseline: Sequence[Measurement]) -> list[Pair]:
    """Pair the seeds that have a score in both arms, in the order of the treatment."""
    partners = {m.cell.seed: m for m in baseline if m.score_pp is not None}
    return [
        Pair(m.cell.seed, m, partners[m.cell.seed])
        for m in treatment
        if m.score_pp is not None and m.cell.seed in partners
    ]


def _compare(pairs: Sequence[Pair], alpha: float, margin_pp: float) -> PairedComparison | None:
    if not pairs:
        return None
    identical = all(pair.same_weights for pair in pairs)
    treated, control = _by_problem(pairs) if _over_problems(pairs) else _by_seed(pairs)
    comparison = compare_paired(
        treated,
        control,
        alpha=alpha,
        margin=margin_pp,
        identical=identical,
        quantum=max(m.quantum_pp for pair in pairs for m in (pair.treatment, pair.baseline)),
        limits=SCORE_LIMITS_PP,
    )
    if not identical and _same_completions(pairs):
        return replace(comparison, note="; ".join(filter(None, (comparison.note, EQUAL_COMPLETIONS))))
    return comparison


def _over_problems(pairs: Sequence[Pair]) -> bool:
    return bool(pairs) and all(pair.evaluates_checkpoint for pair in pairs)


def _by_seed(pairs: Sequence[Pair]) -> tuple[list[float], list[float]]:
    return [_score(pair.treatment) for pair in pairs], [_score(pair.baseline) for pair in pairs]


def _by_problem(pairs: Sequence[Pair]) -> tuple[FloatArray, FloatArray]:
    """Return a value for each problem in both arms, over the evaluations in which both have a score on it.

    Raises MetricError if the records hold no scores of single problems.
    """
    found = [
        (problem, score, pair.baseline.problem_scores_pp[problem])
        for pair in pairs
        for problem, score in pair.treatment.problem_scores_pp.items()
        if problem in pair.baseline.problem_scores_pp
    ]
    if not found:
        raise MetricError("reports.no_scores_by_problem", metric=pairs[0].treatment.metric.name)
    problems, treated, control = zip(*found, strict=True)
    return cluster_values(treated, problems), cluster_values(control, problems)


def differences_by_problem(pairs: Sequence[Pair]) -> list[float]:
    """Compute arm minus baseline on each problem, over all samples and seeds. Raises as `compare_arms`."""
    treated, control = _by_problem(pairs)
    return [float(difference) for difference in treated - control]


def _answer_tokens(pairs: Sequence[Pair]) -> tuple[float, float] | None:
    means = (mean_of(p.treatment.spent_tokens for p in pairs), mean_of(p.baseline.spent_tokens for p in pairs))
    return None if means[0] is None or means[1] is None else (means[0], means[1])


def _same_completions(pairs: Sequence[Pair]) -> bool:
    """Return whether all pairs have equal scores and equal completions, while their weights are known.

    False for arms of one checkpoint. Texts are read only if all scores are equal, which is rare.
    """
    possible = all(pair.known_weights and pair.difference_pp == 0 for pair in pairs)
    possible = possible and not _over_problems(pairs)
    return possible and all(pair.same_completions() for pair in pairs)


def _score(measurement: Measurement) -> float:
    if measurement.score_pp is None:
        raise ValueError(f"{measurement.cell.arm} seed {measurement.cell.seed} has no score: it cannot be paired")
    return measurement.score_pp


def missing_pairs(
    cells: Mapping[tuple[str, int], CellRecord], arms: Sequence[str], seeds: Iterable[int], paired: Collection[int]
) -> list[Missing]:
    """Return the seeds that are not `paired`, each with the reason.

    cells: those of the arms by arm and seed, in any state.
    """
    return [
        Missing(seed=seed, reason="; ".join(_absences(cells, arms, seed)) or "no final score")
        for seed in seeds
        if seed not in paired
    ]


def _absences(cells: Mapping[tuple[str, int], CellRecord], arms: Sequence[str], seed: int) -> list[str]:
    absent = {arm: absence(cells.get((arm, seed))) for arm in arms}
    return [f"{arm} {why}" for arm, why in absent.items() if why is not None]


def absence(cell: CellRecord | None) -> str | None:
    """Return why a cell has no score, in one line; None if it is done."""
    if cell is None:
        return "absent"
    if cell.state == "done":
        return None
    first, *_ = (cell.reason or "").splitlines() or [""]  # a program's last lines may follow
    return cell.state + (f" ({first.rstrip('.')})" if first else "")


def token_ratio(treatment: Sequence[Measurement], baseline: Sequence[Measurement]) -> float | None:
    """Return the mean tokens of these runs over those of the baseline.

    None without runs, or if the baseline generated none.
    """
    treated, control = (mean_of(m.spent_tokens for m in runs) for runs in (treatment, baseline))
    return treated / control if treated is not None and control else None


def _token_ratios(pairs: Sequence[Pair]) -> list[float]:
    """Return the ratio of each pair; [] if one pair has none."""
    ratios = [token_ratio([pair.treatment], [pair.baseline]) for pair in pairs]
    known = [ratio for ratio in ratios if ratio is not None]
    return known if len(known) == len(ratios) else []


def equal_tokens(ratios: Sequence[float]) -> bool | None:
    """Return whether all ratios are within the tolerance; None without any."""
    return all(abs(ratio - 1) <= EQUAL_TOKENS_TOLERANCE for ratio in ratios) if ratios else None


def _evaluation_noise_pp(pairs: Sequence[Pair]) -> float:
    """Return the half-width of the mean difference's 95% interval from the samples per problem alone.

    NaN if it is unknown, or if samples that all agree show no noise.
    """
    errors = [m.final_value("se_samples_pp") for pair in pairs for m in (pair.treatment, pair.baseline)]
    if any(error is None for error in errors):
        return math.nan
    # The errors add in quadrature, as if the evaluations were independent. The mean over pairs divides by their number.
    total = math.hypot(*(error for error in errors if error is not None))
    return NORMAL_95 * total / len(pairs) if total > 0 else math.nan


def _p_value(contrast: Contrast) -> float:
    return math.nan if contrast.comparison is None else contrast.comparison.p_value
