"""The summary of one arm over its seeds: final score with its interval, length, gradient norms, tokens and cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from harness.words import said
from reports.formats import percent
from reports.measure.measurements import Measurement, finite, mean_of
from reports.measure.overoptimisation import judge_and_truth, judge_replies, proxy_and_truth
from reports.report import ArmRow, Cost
from reports.statistics import MIN_PAIRS, FloatArray, cluster_values, t_interval

if TYPE_CHECKING:
    from reports.measure import Analysis

STEP_KEYS = {"step_s": "total_s"}
"""Fields of `Cost` that have another name in timing.jsonl."""
OF_CELL = ("evaluation_s", "peak_memory_mb", "micro_batch_tokens")
"""Fields of `Cost` that hold one value per cell instead of a median over steps."""


def summarise_cost(measurements: Sequence[Measurement]) -> Cost:
    """Summarise the cost of one arm's finished cells. The figures are descriptive, not tested."""
    medians = {
        field: mean_of(_median(m, STEP_KEYS.get(field, field)) for m in measurements)
        for field in Cost.model_fields
        if field not in OF_CELL
    }
    return Cost(
        **medians,
        evaluation_s=mean_of(m.seconds("eval_s") for m in measurements),
        peak_memory_mb=mean_of(max(m.timing.known("peak_memory_mb"), default=None) for m in measurements),
        micro_batch_tokens=mean_of(min(m.timing.known("micro_batch_tokens"), default=None) for m in measurements),
    )


def _median(measurement: Measurement, key: str) -> float | None:
    values = measurement.timing.known(key)
    return float(np.median(values)) if len(values) else None


# Arms may differ in clipping by up to a tenth of the steps, or by up to a factor of two, without a warning. Less than
# that is too little to act like a second knob.
HIDDEN_KNOB_CLIPPED_FRAC = 0.1
HIDDEN_KNOB_RATIO = 2.0

PHASES = ("rollout_s", "reward_s", "logprob_s", "update_s", "eval_s", "total_s")


def summarise_arms(analysis: Analysis) -> list[ArmRow]:
    """Summarise the finished cells of every arm, in the order of the sweep file."""
    arms = [_summarise_arm(analysis, arm, cells) for arm, cells in analysis.measurements.items()]
    means = [arm.mean_pp for arm in arms if arm.mean_pp is not None]
    ranks = [None if arm.mean_pp is None else 1 + sum(mean > arm.mean_pp for mean in means) for arm in arms]
    return [arm.model_copy(update={"rank": rank}) for arm, rank in zip(arms, ranks, strict=True)]


def _summarise_arm(analysis: Analysis, arm: str, measurements: Sequence[Measurement]) -> ArmRow:
    """Summarise one arm; `rank` is filled in later. Intervals need at least three seeds."""
    sweep, metric = analysis.sweep, analysis.metric
    scored = [(m.cell.seed, m.score_pp) for m in measurements if m.score_pp is not None]
    scores = [score for _, score in scored]
    # Over one checkpoint nothing is trained, so problems are the replicates instead of seeds.
    replicates = _by_problem(measurements) if any(m.evaluates_checkpoint for m in measurements) else scores
    low, high = t_interval(replicates, sweep.alpha) if len(replicates) >= MIN_PAIRS else (None, None)
    generated = mean_of(m.cell.generated_tokens for m in measurements if not m.evaluates_checkpoint)
    budget, base_metrics = sweep.budget_tokens, analysis.base_metrics(arm)
    before = finite(base_metrics.get(metric.name))
    of_judges = {"judge": judge_and_truth(measurements), "judge_replies": judge_replies(measurements)}
    return ArmRow(
        arm=arm,
        metric=sweep.metric,
        task=metric.task,
        n=len(scores),
        level=1 - sweep.alpha,
        checkpoint=sweep.checkpoint,
        before_pp=None if before is None else 100 * before,
        before_ece=finite(base_metrics.get("ece")),
        budget_tokens=budget,
        seeds=[seed for seed, _ in scored],
        scores_pp=scores,
        mean_pp=mean_of(scores),
        low_pp=low,
        high_pp=high,
        mean_tokens=mean_of(m.final_value("mean_tokens") for m in measurements),
        truncated_frac=mean_of(m.final_value("truncated_frac") for m in measurements),
        faulty_steps_frac=mean_of(m.final_value("faulty_steps_frac") for m in measurements),
        ece=mean_of(m.final_value("ece") for m in measurements),
        grad_norm=mean_of(m.step_mean("grad_norm") for m in measurements),
        grad_clipped_frac=clipped_frac(measurements),
        entropy_nats=mean_of(m.step_mean("entropy/full") for m in measurements),
        length_slope_tokens=mean_of(m.length_slope_tokens for m in measurements),
        generated_tokens=generated,
        overshoot_frac=generated / budget - 1 if generated is not None and budget else None,
        grader_disagreement_frac=mean_of(m.grader_disagreement_frac for m in measurements),
        phase_s={phase: mean_of(m.seconds(phase) for m in measurements) for phase in PHASES},
        cost=summarise_cost(measurements),
        proxy_and_truth=proxy_and_truth(measurements),
        **{name: found for name, found in of_judges.items() if found is not None},
    )


def clipped_frac(measurements: Sequence[Measurement]) -> float | None:
    """Return the fraction of steps in which the gradient was clipped, averaged over cells."""
    return mean_of(m.step_mean("grad_clipped_frac") for m in measurements)


def _by_problem(measurements: Sequence[Measurement]) -> Sequence[float] | FloatArray:
    """Return the score of each problem, averaged over samples and seeds; [] if there are no per-problem scores."""
    scores = [(problem, score) for m in measurements for problem, score in m.problem_scores_pp.items()]
    return cluster_values([score for _, score in scores], [problem for problem, _ in scores]) if scores else []


def hidden_knob_warnings(clipped: Sequence[tuple[str, float | None]]) -> list[str]:
    """Warn if the arms' shares of clipped steps differ so much that `train.max_grad_norm` acts as a second knob.

    clipped: (arm, its `clipped_frac`), then the same pair for the baseline.
    The gradient's norm alone is no reason to warn. AdamW and Muon divide by it, so a constant factor changes no weight.
    """
    (arm, frac), (baseline, reference) = clipped
    if (
        frac is not None
        and reference is not None
        and abs(frac - reference) > HIDDEN_KNOB_CLIPPED_FRAC
        and max(frac, reference) > HIDDEN_KNOB_RATIO * min(frac, reference)
    ):
        mine, other = percent(frac), percent(reference)
        return [said("reports.clips_gradient_its_steps", arm=arm, frac=mine, baseline=baseline, reference=other)]
    return []
