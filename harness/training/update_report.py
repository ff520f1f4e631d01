"""The measurements of a step: metrics of its completions and its update, time per phase, and records of its tokens.

Shapes: N rows (completions), T tokens of the longest completion.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from algorithms import Coefficients, Loss, Objective, combine_metrics, update_metric_names
from algorithms.diagnostics import treatment
from algorithms.rules import LOG_RATIO_LIMIT
from evals.grading import JudgeReply
from evals.grading.asked_model import reply_costs, reply_metrics
from evals.tasks.base import Problem
from harness.config.train import TrainSpec
from harness.processes import Processes
from harness.rewards import Attempt
from harness.rewards.parts.correct import true_verdict
from harness.training.batch import Batch
from harness.training.optimizer import OptimizerStep
from harness.training.sequences import PassTokens, rows_to_measure
from harness.training.tensors import with_tensors

T = TypeVar("T")
Metrics = dict[str, float | None]

IDLE_ROWS = 64
"""Number of rows without a gradient whose log-probs are computed only for metrics."""

PASS_RATE_BINS = ("0", "below_quarter", "below_half", "below_three_quarters", "below_1", "1")
"""Bins of a prompt's fraction of correct completions: 0; (0, 1/4), [1/4, 1/2), [1/2, 3/4), [3/4, 1); 1."""

MISMATCH_TAIL = 2.0
"""A ratio of trainer to sampler outside [1 / MISMATCH_TAIL, MISMATCH_TAIL] is in the tail: more than rounding."""


@dataclass
class StepReport:
    """The results of one step: metrics, which are reproducible, and wall-clock times in seconds, which are not.

    The update fills in its own fields, and the learner the others.

    The metrics ratio/*, kl/*_old, kl/*_ref and clip/* are over the tokens that entered the loss. (A row of advantage 0
    enters it only if a term does not depend on the advantage.) All other metrics are over the rows that no filter
    dropped. Of these, entropy/* and mismatch/* may be estimated from a sample of `scored_rows` rows (`row_weights`).
    All steps of a run have the same metrics. A metric that could not be measured in a step is None.
    """

    metrics: Metrics
    """Fields of steps.jsonl, except the step and the number of tokens so far."""
    phases: dict[str, object] = field(default_factory=dict)
    """Fields of timing.jsonl for the phases before the update."""
    logprob_s: float = 0.0
    update_s: float = 0.0
    """Time of the optimiser steps, including backward passes."""
    backward_s: float = 0.0
    padding_frac: float | None = None
    """Fraction of padding among the tokens of passes with gradient; None if there were no such passes."""
    micro_batch_tokens: int = 0
    """The token budget after the update."""
    notes: list[str] = field(default_factory=list)
    """Messages for the log about deviations from the configuration."""
    teacher_tokens: int = 0
    """Number of completion tokens that a teacher scored."""
    trained_tokens: int = 0
    """Number of tokens in completions that could change a weight, counted once per pass over the batch."""
    tokens: list[dict[str, object]] | None = None
    """Per row, the recorded columns of its tokens; None if they are not recorded."""
    generated_tokens: int = 0
    """Number of tokens generated in this step."""
    reward: float | None = None
    """The number shown as progress: the mean reward, or without rewards the fraction of pairs ranked as labelled."""
    problems: Sequence[Problem] = ()
    """The distinct problems of the training task that the step sampled."""
    rollouts: list[dict[str, object]] = field(default_factory=list)
    """Rows of rollouts/*.parquet."""

    @property
    def timing(self) -> dict[str, object]:
        """The fields of timing.jsonl: seconds per phase, and the use of the hardware."""
        return {
            **self.phases,
            "logprob_s": self.logprob_s,
            "update_s": self.update_s,
            "backward_s": self.backward_s,
            "padding_frac": self.padding_frac,
            "micro_batch_tokens": self.micro_batch_tokens,
        }


def step_metrics(train: TrainSpec, taken: Sequence[OptimizerStep]) -> Metrics:
    """Return the loss and the policy's gradient metrics, as means over the optimiser steps."""
    norms = [step.grad_norms["policy"] for step in taken]
    return {
        "loss": _mean_over_steps([step.loss for step in taken]),
        "grad_norm": _mean_over_steps(norms),
        "grad_clipped_frac": _mean_over_steps([float(norm > train.max_grad_norm) for norm in norms]),
        "optimizer_steps": len(taken),
    }


def loss_metrics(
    objective: Objective, train: TrainSpec, losses: Sequence[Loss], taken: Sequence[OptimizerStep]
) -> Metrics:
    """Return the metrics of the loss over all micro-batches and optimiser steps."""
    metrics: Metrics = {
        **step_metrics(train, taken),
        # None is the default, so that a batch without optimiser steps has the same metrics.
        **dict.fromkeys(update_metric_names(objective)),
        **combine_metrics(losses, len(taken)),
    }
    if objective.baseline == "critic":
        metrics["value/grad_norm"] = _mean_over_steps([step.grad_norms["critic"] for step in taken])
    return metrics


def entropy_metrics(logps: Tensor, entropy: Tensor, weights: Tensor | None = None) -> Metrics:
    """Return the mean entropy of a batch before its first optimiser step, in full and from the sampled tokens.

    logps, entropy [tokens]: of the policy, in nats.
    weights [tokens]: the weight of each token in the means; default: 1.
    """
    return {"entropy/full": _mean(entropy, weights), "entropy/sampled": _mean(-logps, weights)}


def row_weights(acting: Tensor) -> Tensor:
    """Return the weight of each row in metrics of log-probs: [N] float32.

    Rows that contribute a gradient (`acting`, bool [N]) have log-probs anyway, and their weight is 1. The other rows
    are represented by a sample of IDLE_ROWS rows, whose weights add up to their number. The rest have weight 0.
    """
    weights = acting.float()
    idle = (~acting).nonzero()[:, 0]
    sample = idle[rows_to_measure(len(idle), IDLE_ROWS)]
    weights[sample] = len(idle) / max(1, len(sample))
    return weights


def batch_metrics(batch: Batch, advantage: Tensor, acting: Tensor, weights: Tensor) -> Metrics:
    """Return the metrics of the batch before its first optimiser step.

    advantage [N, T]. acting: bool [N], true for rows that contribute a gradient.
    weights [N]: the weight of each row in metrics of log-probs; 0 for rows without log-probs.
    """
    mask, trainer_logps = batch.sequences.mask, batch.scores.logps
    scored = mask & (weights > 0)[:, None]
    token_weights = weights[:, None].expand(mask.shape)[scored]
    # Given completions have no sampler, so there are no log-probs to compare.
    drawn = batch.drawn[:, None].expand(mask.shape)[scored]
    return {
        **entropy_metrics(trainer_logps[scored], batch.scores.entropy[scored], token_weights),
        "scored_rows": int((weights > 0).sum()),
        "tokens_in_loss": int(batch.loss_mask[acting].sum()),
        "groups_skipped": len(set(batch.groups.tolist()) - set(batch.groups[acting].tolist())),
        "adv/mean": _mean(advantage[mask]),
        # torch returns NaN for the standard deviation of a single number.
        "adv/std": float(advantage[mask].std()) if int(mask.sum()) > 1 else None,
        "adv/abs_mean": _mean(advantage[mask].abs()),
        **_advantage_by_pass_rate(batch, advantage),
        **_teacher_metrics(batch),
        **mismatch_metrics(trainer_logps[scored][drawn], batch.sampler_logps[scored][drawn], token_weights[drawn]),
    }


def coefficient_metrics(objective: Objective, coefficients: Coefficients) -> Metrics:
    """Return the coefficients that can change from batch to batch."""
    metrics: Metrics = {}
    if objective.entropy.adaptive.type != "none":
        metrics["entropy/coefficient"] = coefficients.entropy
    if objective.kl.where != "none" and objective.kl.control == "adaptive":
        metrics["kl/coefficient"] = coefficients.kl
    return metrics


def mismatch_metrics(trainer_logps: Tensor, sampler_logps: Tensor, weights: Tensor | None = None) -> Metrics:
    """Return how far sampler and trainer disagree on the sampled tokens: probability ratios, and KL estimates in nats.

    The ratio is trainer / sampler. It is 1 everywhere if the engine is exact and samples from the current policy.
    tail_frac is the fraction of tokens with a ratio outside [1 / MISMATCH_TAIL, MISMATCH_TAIL].

    trainer_logps, sampler_logps [tokens]. weights [tokens]: the weight of each token, above 0; default: 1.
    """
    if len(trainer_logps) == 0:
        names = ("ratio_mean", "ratio_p99", "ratio_max", "tail_frac", "k1", "k2", "k3")
        return dict.fromkeys(f"mismatch/{name}" for name in names)
    weights = torch.ones_like(trainer_logps) if weights is None else weights
    difference = (trainer_logps - sampler_logps).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    ratio = difference.exp()
    ordered, order = ratio.sort()
    below = weights[order].double().cumsum(0)
    return {
        "mismatch/ratio_mean": _mean(ratio, weights),
        # Nearest rank: the first ratio with at least 99 % of the weight at or below it. The factor 1 - 1e-9 absorbs the
        # rounding of the cumulative sum.
        "mismatch/ratio_p99": float(ordered[torch.searchsorted(below, 0.99 * below[-1] * (1 - 1e-9))]),
        "mismatch/ratio_max": float(ordered[-1]),
        "mismatch/tail_frac": _mean((difference.abs() > math.log(MISMATCH_TAIL)).float(), weights),
        "mismatch/k1": _mean(-difference, weights),
        "mismatch/k2": _mean(0.5 * difference**2, weights),
        "mismatch/k3": _mean(torch.expm1(difference) - difference, weights),
    }


def _teacher_metrics(batch: Batch) -> Metrics:
    """Return teacher/log_ratio, an estimate of the reverse KL, or nothing unless distill.where=reward.

    It is the mean of log p_student - log p_teacher over the sampled tokens, in nats.
    """
    if batch.teacher_logps is None:
        return {}
    return {"teacher/log_ratio": _mean((batch.scores.logps - batch.teacher_logps)[batch.sequences.mask])}


def _advantage_by_pass_rate(batch: Batch, advantage: Tensor) -> Metrics:
    """Return adv/abs_mean_at_rate_*: for each bin of pass rates, the mean |A| over the tokens of its prompts."""
    bins = pass_rate_bin(batch.groups, batch.correct)
    mask = batch.sequences.mask
    return {
        f"adv/abs_mean_at_rate_{name}": _mean(advantage[mask & (bins == index)[:, None]].abs())
        for index, name in enumerate(PASS_RATE_BINS)
    }


def pass_rate_bin(groups: Tensor, correct: Tensor) -> Tensor:
    """Return the index in PASS_RATE_BINS of each row's prompt: [N] int64. groups [N]: integers. correct: bool [N]."""
    group = torch.unique(groups, return_inverse=True)[1]
    count = int(group.max()) + 1 if len(group) else 0
    sizes = torch.zeros(count).index_add(0, group, torch.ones(len(group)))
    rate = (torch.zeros(count).index_add(0, group, correct.float()) / sizes)[group]
    # Bins 1 to 4 are quarters. The exact rates 0 and 1 have their own bins.
    return torch.where(rate == 1, 5, torch.where(rate == 0, 0, (4 * rate).floor().long() + 1))


def _mean(values: Tensor, weights: Tensor | None = None) -> float | None:
    if len(values) == 0:
        return None
    return float(values.mean() if weights is None else values @ weights / weights.sum())


def _mean_over_steps(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


@dataclass
class GradientPasses:
    """Counts and times the gradient passes of one update, including those of a run that ran out of memory."""

    _tokens: list[PassTokens] = field(default_factory=list)
    _times: list[tuple[_Moment, _Moment]] = field(default_factory=list)

    def backward(self, loss: Tensor, tokens: PassTokens) -> None:
        """Add the gradient of a micro-batch's loss to the weights' gradients."""
        began = _Moment(loss)
        loss.backward()  # type: ignore[no-untyped-call]
        self._times.append((began, _Moment(loss)))
        self._tokens.append(tokens)

    def write(self, report: StepReport) -> None:
        computed = sum(tokens.computed for tokens in self._tokens)
        report.backward_s = sum(ended.since(began) for began, ended in self._times)
        report.padding_frac = sum(tokens.padding for tokens in self._tokens) / computed if computed else None


class _Moment:
    """The time at which a tensor's device has finished its work so far.

    A GPU runs asynchronously, and the host does not wait for it here.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._host_s = time.perf_counter()
        self._events = [torch.cuda.Event(enable_timing=True)] if tensor.is_cuda else []  # type: ignore[no-untyped-call]
        for event in self._events:
            event.record()

    def since(self, earlier: _Moment) -> float:
        """Wait for this moment, and return the seconds since an earlier one."""
        for began, ended in zip(earlier._events, self._events, strict=True):
            ended.synchronize()
            return float(began.elapsed_time(ended)) / 1e3
        return self._host_s - earlier._host_s


class MicroLoss(NamedTuple):
    """The loss of a micro-batch."""

    rows: Tensor
    """[B] int64: the micro-batch's rows in the batch."""
    loss: Loss


def everyones(losses: list[T]) -> list[T]:
    """Return the detached losses of all processes, for metrics.

    Only the first process gets all losses; the others get their own. If there is a single process, its losses are
    returned unchanged.
    """
    processes = Processes.here()
    if processes.size == 1:
        return losses
    on_host: list[T] = with_tensors(losses, lambda tensor: tensor.detach().cpu())
    return [loss for one in processes.to_first(on_host) for loss in one]


StepLosses = tuple[Tensor, list[MicroLoss]]
"""(all rows of an optimiser step as int64 indices, the losses of its micro-batches). Not all rows are in a loss."""


def token_columns(batch: Batch, advantage: Tensor, steps: Sequence[StepLosses]) -> list[dict[str, object]]:
    """Return the columns token/* of rollouts/*.parquet for each of the N rows (see `harness.records.rollouts`).

    advantage [N, T]: the advantages of the first pass over the batch.
    steps: all optimiser steps, in order.
    """
    scores, lengths = batch.scores, batch.sequences.lengths.tolist()
    columns: list[dict[str, object]] = [
        {
            "token/logp": logp[:length],
            "token/entropy": entropy[:length],
            "token/advantage": advantages[:length],
            "token/update": [],
            "token/log_ratio": [],
            "token/clipped": [],
            "token/masked": [],
        }
        for logp, entropy, advantages, length in zip(
            scores.logps.numpy(), scores.entropy.numpy(), advantage.cpu().numpy(), lengths, strict=True
        )
    ]
    for update, (rows, parts) in enumerate(steps):
        acted = {row: seen for part in parts for row, seen in _seen(part, batch).items()}
        for row in rows.tolist():
            columns[row]["token/update"].append(update)
            # A row without a gradient is not scored again, so its values are unknown.
            for name, values in acted.get(row, _NOT_SEEN).items():
                columns[row][name].append(None if values is None else values[: lengths[row]])
    return columns


_NOT_SEEN = dict.fromkeys(("token/log_ratio", "token/clipped", "token/masked"))


def _seen(part: MicroLoss, batch: Batch) -> dict[int, dict[str, object]]:
    """Map each row to its arrays of the columns _NOT_SEEN. An array may be longer than the completion."""
    trace, treated = part.loss.trace, treatment(part.loss.trace)
    # Stacked, because each transfer from the device makes the host wait.
    seen = torch.stack([trace.log_ratio.float(), treated.clipped.float(), treated.masked.float()]).cpu()
    # Tokens that were never in the loss count as masked, like tokens that the loss left out.
    masked = seen[2].bool() | ~batch.loss_mask[part.rows, : trace.mask.shape[1]]
    arrays = zip(part.rows.tolist(), seen[0].numpy(), seen[1].bool().numpy(), masked.numpy(), strict=True)
    return {row: dict(zip(_NOT_SEEN, values, strict=True)) for row, *values in arrays}


def rollout_metrics(batch: Batch, replies: Sequence[JudgeReply] = ()) -> Metrics:
    """Return the metrics of the rollouts for steps.jsonl: reward/*, gold/*, len/* and others.

    judge/* exists only with a judge, turns/* only with an environment, and staleness/* only if weights of earlier steps
    sampled. Means of rewards and of parts are over the attempts that have a value. A mean over no values is None.
    reward/correct is the true verdict, even if training sees another. reward/frac_zero_std is the fraction of groups
    with equal rewards, among the groups that have any reward.

    replies: replies of judges other than the grader, whose cost is counted too.
    """
    total = batch.reward_columns["reward"]
    known = [reward for reward in total if not math.isnan(reward)]
    distinct_by_group = [{reward for reward in group if not math.isnan(reward)} for group in batch.by_group(total)]
    lengths, right = batch.sequences.lengths.float(), batch.correct
    verdicts = [(attempt.verdict, attempt.rule_verdict) for attempt in batch.attempts]
    replies = [*(verdict.reply for verdict, _ in verdicts if verdict.reply is not None), *replies]
    return {
        "reward/mean": _mean_of_known(total),
        # NaN marks attempts without a reward. They are left out, not counted as 0.
        "reward/std": statistics.stdev(known) if len(known) > 1 else None,
        "reward/unscored": len(total) - len(known),
        "reward/correct": _mean_of_known([true_verdict(attempt) for attempt in batch.attempts]),
        **{name: _mean_of_known(values) for name, values in batch.reward_columns.items() if name != "reward"},
        **(reply_metrics(verdicts) if any(verdict.reply for verdict, _ in verdicts) else {}),
        "reward/frac_zero_std": _mean_of_known([len(values) == 1 for values in distinct_by_group if values]),
        "reward/frac_all_0": _frac([not any(group) for group in batch.by_group(right.tolist())]),
        "reward/frac_all_1": _frac([all(group) for group in batch.by_group(right.tolist())]),
        "len/mean": float(lengths.mean()),
        "len/p95": float(lengths.quantile(0.95)),
        "len/correct": float(lengths[right].mean()) if right.any() else None,
        "len/incorrect": float(lengths[~right].mean()) if not right.all() else None,
        "len/truncated_frac": float(batch.truncated.float().mean()),
        "len/difficulty_slope": _difficulty_slope(batch.attempts),
        **_turn_metrics(batch),
        **_staleness(batch),
        **(reply_costs(replies) if replies else {}),
    }


def _turn_metrics(batch: Batch) -> dict[str, float | None]:
    if not batch.turns:
        return {}
    said = [one.tokens for of_row in batch.sequences.interjections for one in of_row]
    return {
        "turns/mean": statistics.fmean(map(len, batch.turns)),
        "turns/environment_tokens": sum(map(len, said)),
    }


def _staleness(batch: Batch) -> dict[str, float | None]:
    if batch.steps_old is None:
        return {}
    steps = batch.steps_old[batch.sequences.mask].float()
    return {"staleness/steps_mean": float(steps.mean()), "staleness/steps_max": float(steps.max())}


def _mean_of_known(values: Sequence[float]) -> float | None:
    """Return the mean of the values that are not NaN, or None if there are none."""
    numbers = [value for value in values if not math.isnan(value)]
    return math.fsum(numbers) / len(numbers) if numbers else None


def _frac(holds: Sequence[bool]) -> float:
    """Return the fraction of True values, computed in float32."""
    return float(torch.tensor(holds).float().mean())


def _difficulty_slope(attempts: Sequence[Attempt]) -> float | None:
    """Return the least-squares slope of completion length in tokens over the problem's difficulty.

    Returns None if no difficulty is known or all are equal.
    """
    known = [(attempt.problem.difficulty, attempt.n_tokens) for attempt in attempts]
    points = [(difficulty, n_tokens) for difficulty, n_tokens in known if difficulty is not None]
    if len({difficulty for difficulty, _ in points}) < 2:
        return None
    return statistics.linear_regression(*zip(*points, strict=True)).slope
