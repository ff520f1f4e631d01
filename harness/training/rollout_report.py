"""What the completions of a step measured: rewards, lengths, turns, staleness and the cost of judges."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import torch

from evals.grading.asked_model import reply_costs
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
        "reward/mean": _mean_of_known(total),
        "reward/std": statistics.stdev(known) if len(known) > 1 else None,
        "reward/unscored": len(total) - len(known),
        "reward/correct": _mean_of_known([true_verdict(attempt) for attempt in batch.attempts]),
        **{name: _mean_of_known(values) for name, values in batch.reward_columns.items() if name != "reward"},
        **(reply_metrics(verdicts) if any(verdict.reply for verdict, _ in verdicts) else {}),
        "reward/frac_zero_std": _mean_of_known([len(values) == 1 for values in distinct_by_group if values]),
        "reward/frac_all_0": _frac([not any(group) for group in right_by_group]),
        "reward/frac_all_1": _frac([all(group) for group in right_by_group]),
        "len/mean": float(lengths.mean()),
        "len/p95": float(lengths.quantile(0.95)),
        "len/correct": float(lengths[right].mean()) if right.any() else None,
        "len/incorrect": float(lengths[~right].mean()) if not right.all() else None,
        "len/truncated_frac": float(batch.truncated.float().mean()),
        "len/difficulty_slope": _difficulty_slope(batch.attempts),
        **_turn_metrics(batch),
        **_staleness(batch),
        **(judge_metrics(batch.attempts) if any(attempt.comparison for attempt in batch.attempts) else {}),
        **_cost_of_judges(batch),
    }


def _turn_metrics(batch: Batch) -> dict[str, float | None]:
    if not batch.turns:
        return {}
    said = [one.tokens for of_row in batch.sequences.interjections for one in of_row]
    return {
        "turns/mean": statistics.fmean(map(len, batch.turns)),
        "turns/environment_tokens": sum(map(len, said)),
    }


def _cost_of_judges(batch: Batch) -> dict[str, float | None]:
    """All replies, of a grader that asks a model and of a pairwise judge; {} without any."""
    replies = [attempt.verdict.reply for attempt in batch.attempts if attempt.verdict.reply is not None]
    for attempt in batch.attempts:
        replies += attempt.comparison.preference.replies if attempt.comparison is not None else ()
    return reply_costs(replies) if replies else {}


def _staleness(batch: Batch) -> dict[str, float | None]:
    if batch.steps_old is None:
        return {}
    steps = batch.steps_old[batch.sequences.mask].float()
    return {"staleness/steps_mean": float(steps.mean()), "staleness/steps_max": float(steps.max())}


def _mean_of_known(values: Sequence[float]) -> float | None:
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
