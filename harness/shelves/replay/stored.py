"""A cell's recorded rollouts, as the tensors that an update trains on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from harness.config.run_spec import RunSpec
from harness.errors import RefusedError
from harness.records import CellRecord
from harness.records.files import DamagedRecordError
from harness.training.batch import Batch
from harness.training.sequences import Sequences

NEEDED = ("step", "sample", "logps", "correct", "truncated")
COLUMNS = (*NEEDED, "reward")
TOKEN_COLUMNS = ("token/logp", "token/log_ratio")
LENGTHS = ("token/chars", "token/update")
"""Columns that show whether the others belong to the row's tokens."""


@dataclass(frozen=True)
class StoredStep:
    """All completions of one step: N of at most T tokens, in E epochs of updates."""

    step: int
    rollout: Batch
    """Without prompts and token ids, which no objective reads."""
    old_logps: Tensor
    """[N, T] before the update: the trainer's if recorded, else the sampler's."""
    log_ratios: Tensor
    """[E, N, T] log pi - log pi_old when the epoch's optimiser step scored the completion; 0 if it did not."""
    scored: Tensor
    """Bool [E, N]: True if it did, and that is recorded."""
    recorded: bool
    """True if the step's tokens were recorded."""


def read_steps(cell: CellRecord, spec: RunSpec, chosen: Sequence[range] | None) -> Iterator[StoredStep]:
    """Yield the recorded steps of a cell, or the chosen ones among them.

    Raises RefusedError for a cell without rollouts, and for a chosen step without any; DamagedRecordError for rows with
    gaps.
    """
    import pyarrow.compute

    table = cell.read_rollouts([*COLUMNS, *TOKEN_COLUMNS, *LENGTHS], needed=NEEDED)
    if table is None or not len(table):
        raise RefusedError("shelves.replay.no_rollouts", cell=cell.path.name)
    limits = {row.get("step"): row.get("len/limit") for row in cell.read_steps()}
    stored_steps = sorted(table["step"].unique().to_pylist())
    for part in chosen or ():
        # A range may be far longer than the record. The search stops at the first step that is not stored.
        if (missing := next((step for step in part if step not in stored_steps), None)) is not None:
            raise RefusedError(
                "shelves.replay.step_not_stored",
                cell=cell.path.name,
                step=missing,
                first=stored_steps[0],
                last=stored_steps[-1],
            )
    for step in stored_steps:
        if chosen is None or any(step in part for part in chosen):
            if not isinstance(limit := limits.get(step), int):
                raise DamagedRecordError("shelves.replay.limit_missing", path=cell.path / "steps.jsonl", step=step)
            rows = table.filter(pyarrow.compute.equal(table["step"], step)).to_pylist()
            yield _stored(step, rows, limit, spec.train.epochs)


def _stored(step: int, rows: Sequence[dict[str, Any]], limit: int, epochs: int) -> StoredStep:
    """Build the tensors of one step from its rows. limit: the completion limit."""
    lengths = torch.tensor([len(row["logps"]) for row in rows])
    shape = (len(rows), int(lengths.max()))
    sampler_logps = _padded([row["logps"] for row in rows], shape)
    # A step's groups are sampled one after the other, each from its sample 0 on.
    groups = torch.tensor([row["sample"] == 0 for row in rows]).cumsum(0) - 1
    later = [[(row["token/log_ratio"] or [None] * epochs)[epoch] for row in rows] for epoch in range(epochs)]
    sequences = Sequences([[]] * len(rows), torch.zeros(shape, dtype=torch.long), lengths)
    return StoredStep(
        step=step,
        rollout=Batch(
            sequences=sequences,
            sampler_logps=sampler_logps,
            rewards=torch.tensor([math.nan if row["reward"] is None else row["reward"] for row in rows]),
            groups=groups,
            max_completion_tokens=limit,
            truncated=torch.tensor([row["truncated"] for row in rows]),
            correct=torch.tensor([row["correct"] for row in rows]),
        ),
        old_logps=_padded([row["token/logp"] or row["logps"] for row in rows], shape),
        log_ratios=torch.stack([_padded([values or [] for values in epoch], shape) for epoch in later]),
        scored=torch.tensor([[values is not None for values in epoch] for epoch in later]),
        recorded=any(row["token/logp"] is not None for row in rows),
    )


def _padded(rows: Sequence[Sequence[float]], shape: tuple[int, int]) -> Tensor:
    """Stack rows into [N, T] float32, with 0 after each row's end."""
    tensor = torch.zeros(shape)
    for place, values in enumerate(rows):
        tensor[place, : len(values)] = torch.tensor(values)
    return tensor
