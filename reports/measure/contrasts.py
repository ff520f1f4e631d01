"""The comparison of every arm with the baseline, in percentage points, paired by seed.

If all arms evaluate one checkpoint, there are no training seeds, and pairs are formed by problem instead. A collapsed
cell is a result: it stays in the comparison, which is then repeated without it. Only cells without a score are missing,
and the contrast lists the pairs lost through them.
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

# A cell stops at the first step boundary after its budget, so it overshoots by up to one step's tokens.
EQUAL_TOKENS_TOLERANCE = 0.05
SCORE_LIMITS_PP = (0.0, 100.0)
EQUAL_COMPLETIONS = said("reports.every_completion_final_evaluations")
NORMAL_95 = 1.959964


@dataclass(frozen=True)
class Contrast:
    """The difference between an arm and the baseline. For a checkpoint, tokens are those per answer."""

    arm: str
    baseline: str
    weights: Mapping[str, float]
    """The factor of each arm's score in the difference: 1 and -1, or the weights of a factorial effect."""
    seeds: list[int]
    differences_pp: list[float]
    missing: list[Missing]
    flagged_seeds: list[int]
    comparison: PairedComparison | None
    """The paired test, at a level that accounts for all looks so far (see `looks`); None if there is no pair."""
    without_flagged: PairedComparison | None
    p_holm: float
    """The p value after Holm's correction."""
    token_ratios: list[float]
    """The arm's tokens divided by the baseline's, per pair; [] if any of these ratios is undefined."""
    token_ratio: float | None
    """The ratio of the mean tokens over all pairs; None if `token_ratios` is empty."""
    noise_low_pp: float
    """The lower end of a 95% interval that covers evaluation noise only; NaN if `comparison` has an interval."""
    noise_high_pp: float
    """The upper end of the same interval."""
    by_problem_pp: Sequence[float] = ()
    """The difference on each problem if the arms evaluate one checkpoint; otherwise empty.

    Each problem is a cluster of its samples and seeds. `seeds` and `differences_pp` still refer to evaluations.
    """
    answer_tokens: tuple[float, float] | None = None
    """The mean tokens per answer of the arm and of the baseline, if a checkpoint is evaluated."""
    bests: BestDifference | None = None
    """The difference between the arms' best settings, if each arm was tuned before the comparison."""
    tokens_known: bool = True
    """True if every cell recorded how many tokens it generated."""

    @property
    def verdict(self) -> Verdict:
        return "no_test" if self.comparison is None else self.comparison.verdict

    @property
    def equal_tokens(self) -> bool | None:
        """True if the tokens agree in every pair (equal means can hide unequal pairs); None if a count is unknown."""
        return equal_tokens(self.token_ratios)

    @property
    def over_problems(self) -> bool:
        return len(self.by_problem_pp) > 0

    @property
    def replicates_pp(self) -> Sequence[float]:
        """The differences that the test treats as independent: one per seed, or one per problem."""
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
        """Return whether the final completions of both cells are identical; False if a cell kept no samples."""
        columns = ["problem_id", "sample", "text"]
        one, other = (m.read_final_samples(columns) for m in (self.treatment, self.baseline))
        return one is not None and other is not None and "text" in one.column_names and bool(one.equals(other))


def compare_arms(sweep: SweepRecord, measurements: Mapping[str, Sequence[Measurement]]) -> list[Contrast]:
    """Compare every other arm with the baseline, in the order of the sweep file, with Holm's correction over all arms.

    Raises MetricError if arms of one checkpoint have no per-problem scores.
    """
    others = [arm for arm in sweep.arms if arm != sweep.baseline]
    alpha = alpha_of_each(sweep, len(others))
    contrasts = with_holm([_contrast(sweep, measurements, arm, alpha) for arm in others])
    # `judge_bests` comes last, because it can only turn a verdict into an inconclusive one.
    return [judge_bests(contrast, sweep.tuning, sweep.margin_pp) for contrast in contrasts]


def alpha_of_each(sweep: SweepRecord, n_contrasts: int) -> float:
    """Return the two-sided level at this look for each of the n contrasts that share the sweep's alpha."""
    return looking(sweep, max(1, n_contrasts)).alpha


def with_holm(contrasts: Sequence[Contrast]) -> list[Contrast]:
    """Fill in `p_holm` of each contrast, corrected over all of them."""
    # A contrast without a test still counts among the m that the sweep declared.
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
    """Compare these pairs at level 1 - alpha. `p_holm` is filled in later."""
    kept = [pair for pair in pairs if not pair.flagged]
    comparison = _compare(pairs, alpha, margin_pp)
    noise = _evaluation_noise_pp(pairs)
    # Evaluation noise is shown only if there is no interval over pairs.
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
    """Return the score of each problem in both arms, over the evaluations in which both have a score on it.

    Raises MetricError if the records contain no per-problem scores.
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
    """Return whether all pairs have equal scores and identical completions, although their weights are known.

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
    """Return the seeds that have no pair, each with the reason.

    cells: the cells of these arms, in any state, by arm and seed.
    paired: the seeds that have a pair.
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
    """Return in one line why a cell has no score, or None if it is done."""
    if cell is None:
        return "absent"
    if cell.state == "done":
        return None
    first, *_ = (cell.reason or "").splitlines() or [""]  # a program's last lines may follow
    return cell.state + (f" ({first.rstrip('.')})" if first else "")


def token_ratio(treatment: Sequence[Measurement], baseline: Sequence[Measurement]) -> float | None:
    """Return the mean tokens of the treatment runs divided by those of the baseline runs.

    None if either side has no known tokens, or if the baseline generated none.
    """
    treated, control = (mean_of(m.spent_tokens for m in runs) for runs in (treatment, baseline))
    return treated / control if treated is not None and control else None


def _token_ratios(pairs: Sequence[Pair]) -> list[float]:
    """Return the token ratio of each pair; [] if it is unknown for any pair."""
    ratios = [token_ratio([pair.treatment], [pair.baseline]) for pair in pairs]
    known = [ratio for ratio in ratios if ratio is not None]
    return known if len(known) == len(ratios) else []


def equal_tokens(ratios: Sequence[float]) -> bool | None:
    """Return whether all ratios are within the tolerance of 1; None if there are no ratios."""
    return all(abs(ratio - 1) <= EQUAL_TOKENS_TOLERANCE for ratio in ratios) if ratios else None


def _evaluation_noise_pp(pairs: Sequence[Pair]) -> float:
    """Return the half-width of the mean difference's 95% interval due to sampling of completions alone.

    NaN if the noise is unknown or zero. It is zero if all samples of each problem agree.
    """
    errors = [m.final_value("se_samples_pp") for pair in pairs for m in (pair.treatment, pair.baseline)]
    if any(error is None for error in errors):
        return math.nan
    # The errors add in quadrature, as if the evaluations were independent. The mean over pairs divides them by the
    # number of pairs.
    total = math.hypot(*(error for error in errors if error is not None))
    return NORMAL_95 * total / len(pairs) if total > 0 else math.nan


def _p_value(contrast: Contrast) -> float:
    return math.nan if contrast.comparison is None else contrast.comparison.p_value
