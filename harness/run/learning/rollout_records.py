"""What a step's completions leave in the records: metrics of steps.jsonl and rows of rollouts/*.parquet."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import torch

from evals.grading.model_judge import reply_metrics
from harness.rewards import Attempt
from harness.rewards.judging import judge_metrics
from harness.rewards.parts.correct import true_verdict
from harness.training.batch import Batch


def rollout_metrics(batch: Batch) -> dict[str, float | None]:
    """reward/*, gold/* and len/* of steps.jsonl; judge/* where a judge compares, staleness/* where weights of earlier
    steps may draw; None for an average of nothing.

    Means of rewards and of parts are over the attempts that have one; reward/correct is the true verdict, whatever
    training sees. reward/frac_zero_std is the share of groups whose rewards are all equal, of the groups with any.
    """
    total = batch.reward_columns["reward"]
    known = [reward for reward in total if not math.isnan(reward)]
    distinct_by_group = [{reward for reward in group if not math.isnan(reward)} for group in batch.by_group(total)]
    lengths, right = batch.sequences.lengths.float(), batch.correct
    verdicts = [(attempt.verdict, attempt.rule_verdict) for attempt in batch.attempts]
    right_by_group = batch.by_group(right.tolist())
    return {
        "reward/mean": _mean(total),
        "reward/std": statistics.stdev(known) if len(known) > 1 else None,
        "reward/unscored": len(total) - len(known),
        "reward/correct": _mean([true_verdict(attempt) for attempt in batch.attempts]),
        **{name: _mean(values) for name, values in batch.reward_columns.items() if name != "reward"},
        **(reply_metrics(verdicts) if any(verdict.reply for verdict, _ in verdicts) else {}),
        "reward/frac_zero_std": _mean([len(values) == 1 for values in distinct_by_group if values]),
        "reward/frac_all_0": _frac([not any(group) for group in right_by_group]),
        "reward/frac_all_1": _frac([all(group) for group in right_by_group]),
        "len/mean": float(lengths.mean()),
        "len/p95": float(lengths.quantile(0.95)),
        "len/correct": float(lengths[right].mean()) if right.any() else None,
        "len/incorrect": float(lengths[~right].mean()) if not right.all() else None,
        "len/truncated_frac": float(batch.truncated.float().mean()),
        "len/difficulty_slope": _difficulty_slope(batch.attempts),
        **_staleness(batch),
        **(judge_metrics(batch.attempts) if any(attempt.comparison for attempt in batch.attempts) else {}),
    }


def _staleness(batch: Batch) -> dict[str, float | None]:
    if batch.steps_old is None:
        return {}
    steps = batch.steps_old[batch.sequences.mask].float()
    return {"staleness/steps_mean": float(steps.mean()), "staleness/steps_max": float(steps.max())}


def _mean(values: Sequence[float]) -> float | None:
    """Mean of what is not NaN."""
    numbers = [value for value in values if not math.isnan(value)]
    return math.fsum(numbers) / len(numbers) if numbers else None


def _frac(holds: Sequence[bool]) -> float:
    """The share of cases in which it holds, in float32."""
    return float(torch.tensor(holds).float().mean())


def _difficulty_slope(attempts: Sequence[Attempt]) -> float | None:
    """Least-squares slope of completion tokens on the problem's difficulty; None where that is unknown or constant."""
    known = [(attempt.problem.difficulty, attempt.n_tokens) for attempt in attempts]
    points = [(difficulty, n_tokens) for difficulty, n_tokens in known if difficulty is not None]
    if len({difficulty for difficulty, _ in points}) < 2:
        return None
    return statistics.linear_regression(*zip(*points, strict=True)).slope


def rollout_rows(batch: Batch, step: int) -> list[dict[str, Any]]:
    """A row of rollouts/*.parquet for each completion; a reward that is NaN is None."""
    tokens, logps = batch.sequences.completions.tolist(), batch.sampler_logps.tolist()
    return [
        {
            "step": step,
            "problem_id": attempt.problem.id,
            "sample": attempt.sample,
            "text": attempt.text,
            "tokens": tokens[row][: attempt.n_tokens],
            "logps": logps[row][: attempt.n_tokens],
            **{name: _or_none(values[row]) for name, values in batch.reward_columns.items()},
            "correct": attempt.verdict.correct,
            "truncated": attempt.truncated,
            **({"origin": batch.origins[row]} if batch.origins else {}),
            **({} if attempt.rule_verdict is None else {"rule_correct": attempt.rule_verdict.correct}),
        }
        for row, attempt in enumerate(batch.attempts)
    ]


def _or_none(reward: float) -> float | None:
    return None if math.isnan(reward) else reward
