"""One arm over its seeds: final score with interval, length, gradient norms, tokens, and what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from reports.measure.measurements import Measurement, mean_of
from reports.statistics import MIN_PAIRS, FloatArray, cluster_values, t_interval

STEP_KEYS = {"step_s": "total_s"}
"""Fields that have another name in timing.jsonl."""
OF_CELL = ("evaluation_s", "peak_memory_mb", "micro_batch_tokens")
"""Fields that are not medians over steps."""


@dataclass(frozen=True)
class Cost:
    """What an arm cost: medians over the steps of a cell, then means over cells; None where nothing was recorded.

    Seconds of a step: step_s for all of it; rollout_s, which includes sync_s, prefill_s and decode_s; reward_s;
    logprob_s; update_s, which includes backward_s. tokens_per_s: tokens generated over the whole step. occupancy_frac:
    the share of decoding slots that held a completion. padding_frac: the share of padding in the tokens of training
    passes.

    Over a whole cell: evaluation_s, the time of all evaluations; peak_memory_mb, the highest (on a CPU that of the
    cell's process); micro_batch_tokens, the smallest budget in force.
    """

    step_s: float | None
    rollout_s: float | None
    sync_s: float | None
    prefill_s: float | None
    decode_s: float | None
    reward_s: float | None
    logprob_s: float | None
    update_s: float | None
    backward_s: float | None
    tokens_per_s: float | None
    occupancy_frac: float | None
    padding_frac: float | None
    evaluation_s: float | None
    peak_memory_mb: float | None
    micro_batch_tokens: float | None


def summarise_cost(measurements: Sequence[Measurement]) -> Cost:
    """The cost of one arm, from its finished cells. It is descriptive; none of it is tested."""
    medians = {
        field.name: mean_of(_median(m, STEP_KEYS.get(field.name, field.name)) for m in measurements)
        for field in fields(Cost)
        if field.name not in OF_CELL
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


# Clipping at most a tenth of the steps more, or less than twice as many, is too little to act as a second knob.
HIDDEN_KNOB_CLIPPED_FRAC = 0.1
HIDDEN_KNOB_RATIO = 2.0

PHASES = ("rollout_s", "reward_s", "logprob_s", "update_s", "eval_s", "total_s")


@dataclass(frozen=True)
class ArmSummary:
    """Means over the finished seeds of an arm; None where nothing was recorded.

    low_pp, high_pp: the t(n-1) interval of the mean score over training seeds; over problems, with a problem's samples
    and seeds as its cluster, where a checkpoint is evaluated. ece: the expected calibration error of
    the final evaluation. entropy_nats: the mean over training. length_slope_tokens: how many tokens the mean completion
    grew by in 100 steps. overshoot_frac: generated tokens above the budget, relative to it. phase_s: wall-clock seconds
    of a cell in each phase.
    """

    arm: str
    seeds: list[int]
    scores_pp: list[float]
    mean_pp: float | None
    low_pp: float | None
    high_pp: float | None
    mean_tokens: float | None
    truncated_frac: float | None
    faulty_steps_frac: float | None
    ece: float | None
    grad_norm: float | None
    grad_clipped_frac: float | None
    entropy_nats: float | None
    length_slope_tokens: float | None
    generated_tokens: float | None
    overshoot_frac: float | None
    grader_disagreement_frac: float | None
    phase_s: dict[str, float | None]
    cost: Cost

    @property
    def n(self) -> int:
        return len(self.scores_pp)


def summarise_arm(
    arm: str, measurements: Sequence[Measurement], *, alpha: float, budget_tokens: int | None
) -> ArmSummary:
    """Summarise the finished cells of one arm. Intervals are at level 1 - alpha and take at least three seeds."""
    scored = [(m.cell.seed, m.score_pp) for m in measurements if m.score_pp is not None]
    scores = [score for _, score in scored]
    replicates = _by_problem(measurements) if any(m.evaluates_checkpoint for m in measurements) else scores
    low, high = t_interval(replicates, alpha) if len(replicates) >= MIN_PAIRS else (None, None)
    generated = mean_of(m.cell.generated_tokens for m in measurements if not m.evaluates_checkpoint)
    return ArmSummary(
        arm=arm,
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
        grad_clipped_frac=mean_of(m.step_mean("grad_clipped_frac") for m in measurements),
        entropy_nats=mean_of(m.step_mean("entropy/full") for m in measurements),
        length_slope_tokens=mean_of(m.length_slope_tokens for m in measurements),
        generated_tokens=generated,
        overshoot_frac=generated / budget_tokens - 1 if generated is not None and budget_tokens else None,
        grader_disagreement_frac=mean_of(m.grader_disagreement_frac for m in measurements),
        phase_s={phase: mean_of(m.seconds(phase) for m in measurements) for phase in PHASES},
        cost=summarise_cost(measurements),
    )


def _by_problem(measurements: Sequence[Measurement]) -> Sequence[float] | FloatArray:
    """A value for each problem, over the samples and seeds of all evaluations; none without scores of problems."""
    scores = [(problem, score) for m in measurements for problem, score in m.problem_scores_pp.items()]
    return cluster_values([score for _, score in scores], [problem for problem, _ in scores]) if scores else []


def hidden_knob_warnings(arm: ArmSummary, baseline: ArmSummary) -> list[str]:
    """A warning of shares of clipped steps so different that `train.max_grad_norm` acts as a second knob.

    The gradient's size alone is no reason to warn: AdamW and Muon divide by it, so that a constant factor moves no
    weight.
    """
    clipped, reference = arm.grad_clipped_frac, baseline.grad_clipped_frac
    if (
        clipped is not None
        and reference is not None
        and abs(clipped - reference) > HIDDEN_KNOB_CLIPPED_FRAC
        and max(clipped, reference) > HIDDEN_KNOB_RATIO * min(clipped, reference)
    ):
        return [
            f"{arm.arm} clips the gradient in {clipped:.0%} of its steps, {baseline.arm} in {reference:.0%}. A clipped "
            "step counts for less in the optimiser's running means, so some of the difference may come from "
            "train.max_grad_norm. To tell, repeat both arms with a bound that neither reaches"
        ]
    return []
