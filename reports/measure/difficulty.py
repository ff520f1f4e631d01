"""What each arm learns from: advantages and lengths by the pass rate of a prompt, from the rollouts.

The pass rate of a prompt is that of its group in its step, so it is noisy and takes only as many values as the group
has samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.records.rollouts import spread
from harness.records.tables import read_parquet, require_values
from reports.measure.measurements import Measurement
from reports.statistics import FloatArray

BINS = ("0", "below_quarter", "below_half", "below_three_quarters", "below_1", "1")
"""The names of bins in steps.jsonl: a pass rate of 0; in (0, 1/4), [1/4, 1/2), [1/2, 3/4), [3/4, 1); 1."""

BIN_LABELS = ("0", "<¼", "<½", "<¾", "<1", "1")

MOST_FILES = 3
"""How many files of rollouts are read of a cell: from the beginning, the middle and the end of training."""


@dataclass(frozen=True)
class Difficulty:
    """One cell by bins of pass rate [bins]; NaN if no prompt was in a bin or nothing was recorded.

    advantage: the mean |A| of a token. share: the bin's share of the sum of |A| over all tokens, to which the size of
    the gradient is roughly proportional. tokens: the mean length of a completion. prompts: the share of all prompts.
    """

    seed: int
    advantage: FloatArray
    share: FloatArray
    tokens: FloatArray
    prompts: FloatArray


def difficulty(measurement: Measurement) -> Difficulty | None:
    """Reads up to MOST_FILES of the cell's files of rollouts, spread over training; None if none holds what it takes.
    Raises DamagedRecordError for a file that has gaps or cannot be read."""
    by_step = _advantages_by_step(measurement)
    completions, prompts, tokens, weight, summed = np.zeros((5, len(BINS)))
    for batch in _batches(measurement):
        completions += batch.completions.sum(axis=0)
        prompts += batch.prompts
        tokens += batch.tokens.sum(axis=0)
        unknown = np.full(len(BINS), np.nan)
        advantages = np.array([by_step.get(int(step), unknown) for step in batch.steps])
        known = ~np.isnan(advantages)
        weight += np.where(known, batch.tokens, 0.0).sum(axis=0)
        summed += np.where(known, batch.tokens * np.nan_to_num(advantages), 0.0).sum(axis=0)
    if not completions.any():
        return None
    return Difficulty(
        seed=measurement.cell.seed,
        advantage=_ratio(summed, weight),
        share=_ratio(summed, np.full(len(BINS), summed.sum())),
        tokens=_ratio(tokens, completions),
        prompts=_ratio(prompts, np.full(len(BINS), prompts.sum())),
    )


def bin_of(rate: FloatArray) -> npt.NDArray[np.intp]:
    """The bin of each pass rate in [0, 1]."""
    inner = 1 + np.floor(4 * rate).astype(np.intp)
    bins: npt.NDArray[np.intp] = np.where(rate >= 1, len(BINS) - 1, np.where(rate <= 0, 0, inner))
    return bins


@dataclass(frozen=True)
class _Batch:
    """One file of rollouts: steps [n_steps]; the number of completions and of their tokens by step and bin
    [n_steps, bins]; the number of prompts [bins]."""

    steps: npt.NDArray[np.int64]
    completions: FloatArray
    tokens: FloatArray
    prompts: FloatArray


def _batches(measurement: Measurement) -> Iterator[_Batch]:
    import pyarrow.compute as pc

    columns = ["step", "problem_id", "correct", "tokens"]
    for path in spread(measurement.cell.rollout_files(), MOST_FILES):
        table = read_parquet(path, columns).combine_chunks()
        if len(table) == 0 or not set(columns) <= set(table.column_names):
            continue
        require_values(path, table, columns)
        steps, step = np.unique(table["step"].to_numpy(), return_inverse=True)
        coded = table["problem_id"].combine_chunks().dictionary_encode()
        problem = coded.indices.to_numpy(zero_copy_only=False)
        # A group is one problem in one step.
        _, group = np.unique(step * len(coded.dictionary) + problem, return_inverse=True)
        rates = np.bincount(group, weights=table["correct"].to_numpy().astype(np.float64)) / np.bincount(group)
        cell, n_cells = step * len(BINS) + bin_of(rates)[group], len(steps) * len(BINS)
        lengths = pc.list_value_length(table["tokens"]).to_numpy().astype(np.float64)
        yield _Batch(
            steps=steps,
            completions=np.bincount(cell, minlength=n_cells).astype(np.float64).reshape(-1, len(BINS)),
            tokens=np.bincount(cell, lengths, n_cells).astype(np.float64).reshape(-1, len(BINS)),
            prompts=np.bincount(bin_of(rates), minlength=len(BINS)).astype(np.float64),
        )


def _advantages_by_step(measurement: Measurement) -> dict[int, FloatArray]:
    """The mean |A| by bin [bins] of each step that recorded it; NaN in a bin without tokens."""
    steps = measurement.steps
    advantages = np.column_stack([steps[f"adv/abs_mean_at_rate_{name}"] for name in BINS])
    return dict(zip(steps["step"].astype(int).tolist(), advantages, strict=True))


def _ratio(numerator: FloatArray, denominator: FloatArray) -> FloatArray:
    ratio: FloatArray = np.divide(numerator, denominator, out=np.full(len(numerator), np.nan), where=denominator > 0)
    return ratio
