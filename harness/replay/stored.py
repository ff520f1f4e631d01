"""A cell's recorded rollouts, as the tensors that an update learns from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from harness.errors import RefusedError
from harness.records import CellRecord
from harness.spec.run_spec import RunSpec
from harness.training.scored_rollout import ScoredRollout
from harness.training.sequences import Sequences

COLUMNS = ("step", "sample", "logps", "reward", "correct", "truncated")
TOKEN_COLUMNS = ("token/logp", "token/log_ratio")


@dataclass(frozen=True)
class StoredStep:
    """Everything that one step drew: N completions of at most T tokens, in E epochs of updates."""

    step: int
    rollout: ScoredRollout
    """Without prompts and token ids, which no objective looks at."""
    truncated: Tensor
    """Bool [N]."""
    old_logps: Tensor
    """[N, T] before the update: the trainer's where they are recorded, else the sampler's."""
    log_ratios: Tensor
    """[E, N, T] log pi - log pi_old when the epoch's optimiser step scored the completion; 0 where it did not."""
    scored: Tensor
    """Bool [E, N]: whether it did, and that is recorded."""
    recorded: bool
    """Whether the step's tokens were recorded."""


def read_steps(cell: CellRecord, spec: RunSpec, chosen: Sequence[int] | None) -> Iterator[StoredStep]:
    """The recorded steps of a cell, or the chosen ones among them.

    Raises RefusedError for a cell without rollouts, and for a chosen step that has none.
    """
    import pyarrow.compute

    table = cell.read_rollouts([*COLUMNS, *TOKEN_COLUMNS])
    if table is None:
        raise RefusedError(
            f"{cell.path.name}: no rollouts are stored, so there is nothing to replay. They are written with each "
            "checkpoint of a cell that draws completions; training on given pairs draws none."
        )
    limits = {int(row["step"]): int(row["len/limit"]) for row in cell.read_steps()}
    there = sorted(table["step"].unique().to_pylist())
    missing = sorted(set(chosen or ()) - set(there))
    if missing:
        raise RefusedError(
            f"{cell.path.name}: has no rollouts of step {missing[0]}; stored are steps {there[0]} to {there[-1]}."
        )
    for step in chosen or there:
        rows = table.filter(pyarrow.compute.equal(table["step"], step)).to_pylist()
        yield _stored(step, rows, limits[step], spec.train.epochs)


def _stored(step: int, rows: Sequence[dict[str, Any]], limit: int, epochs: int) -> StoredStep:
    lengths = torch.tensor([len(row["logps"]) for row in rows])
    shape = (len(rows), int(lengths.max()))
    sampler_logps = _padded([row["logps"] for row in rows], shape)
    # A step's groups are drawn one after the other, each from its sample 0 on.
    groups = torch.tensor([row["sample"] == 0 for row in rows]).cumsum(0) - 1
    later = [[(row["token/log_ratio"] or [None] * epochs)[epoch] for row in rows] for epoch in range(epochs)]
    sequences = Sequences([[]] * len(rows), torch.zeros(shape, dtype=torch.long), lengths)
    return StoredStep(
        step=step,
        rollout=ScoredRollout(
            sequences=sequences,
            sampler_logps=sampler_logps,
            rewards=torch.tensor([math.nan if row["reward"] is None else row["reward"] for row in rows]),
            groups=groups,
            max_completion_tokens=limit,
            loss_mask=sequences.mask,
            correct=torch.tensor([row["correct"] for row in rows]),
        ),
        truncated=torch.tensor([row["truncated"] for row in rows]),
        old_logps=_padded([row["token/logp"] or row["logps"] for row in rows], shape),
        log_ratios=torch.stack([_padded([values or [] for values in epoch], shape) for epoch in later]),
        scored=torch.tensor([[values is not None for values in epoch] for epoch in later]),
        recorded=any(row["token/logp"] is not None for row in rows),
    )


def _padded(rows: Sequence[Sequence[float]], shape: tuple[int, int]) -> Tensor:
    """[N, T] float32, 0 behind each row's end."""
    tensor = torch.zeros(shape)
    for place, values in enumerate(rows):
        tensor[place, : len(values)] = torch.tensor(values)
    return tensor
