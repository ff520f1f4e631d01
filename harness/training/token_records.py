"""What an update saw of every token, for whoever asks later: the report on single words, and replays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from algorithms import Loss
from algorithms.token_treatment import treatment
from harness.training.rollout_scores import RolloutScores
from harness.training.scored_rollout import ScoredRollout


class MicroLoss(NamedTuple):
    """The loss of a micro-batch, and its rows (int64 [B]) in the rollout batch."""

    rows: Tensor
    loss: Loss


class OptimizerPass(NamedTuple):
    """One optimiser step: its rows (int64 indices), and the losses of those among them that could act."""

    rows: Tensor
    parts: list[MicroLoss]


def token_columns(
    rollout: ScoredRollout, scores: RolloutScores, advantage: Tensor, passes: Sequence[OptimizerPass]
) -> list[dict[str, Any]]:
    """For each of the N rows its columns of rollouts/*.parquet; see `harness.records.rollouts`.

    scores: before the first optimiser step; advantage [N, T]: of the first pass over the rows; passes: all optimiser
    steps, in their order.
    """
    lengths = rollout.sequences.lengths.tolist()
    columns: list[dict[str, Any]] = [
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
    for update, taken in enumerate(passes):
        acted = {row: seen for part in taken.parts for row, seen in _seen(part, rollout).items()}
        for row in taken.rows.tolist():
            columns[row]["token/update"].append(update)
            # A row that cannot act is not scored again: what it would have shown is not known.
            for name, values in acted.get(row, _NOT_SEEN).items():
                columns[row][name].append(None if values is None else values[: lengths[row]])
    return columns


_NOT_SEEN = dict.fromkeys(("token/log_ratio", "token/clipped", "token/masked"))


def _seen(part: MicroLoss, rollout: ScoredRollout) -> dict[int, dict[str, Any]]:
    """By row, what the loss saw of its tokens: arrays that are at least as long as the completion."""
    trace, treated = part.loss.trace, treatment(part.loss.trace)
    width = trace.mask.shape[1]
    # Tokens of a completion that were out of the loss from the beginning are masked like those that it took out.
    masked = treated.masked.cpu() | ~rollout.loss_mask[part.rows, :width]
    arrays = zip(
        part.rows.tolist(),
        trace.log_ratio.float().cpu().numpy(),
        treated.clipped.cpu().numpy(),
        masked.numpy(),
        strict=True,
    )
    return {row: dict(zip(_NOT_SEEN, values, strict=True)) for row, *values in arrays}
