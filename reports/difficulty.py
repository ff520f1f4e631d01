"""What each arm learns from: advantages and lengths by how often a prompt is solved, from the rollouts.

The pass rate of a prompt is that of its own group in its own step: a noisy one, with as many values as samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from reports.measurements import Measurement, finite
from reports.statistics import FloatArray

if TYPE_CHECKING:
    import pyarrow

BINS = ("0", "below_quarter", "below_half", "below_three_quarters", "below_1", "1")
"""Names in steps.jsonl: a pass rate of 0; in (0, 1/4), [1/4, 1/2), [1/2, 3/4), [3/4, 1); 1."""

BIN_LABELS = ("0", "<¼", "<½", "<¾", "<1", "1")

MOST_FILES = 8
"""Of rollouts, of a cell: enough for means over training, and few enough to read."""


@dataclass(frozen=True)
class Difficulty:
    """One cell, by bin of pass rate [bins]; NaN where no prompt was in a bin or nothing was recorded.

    advantage: mean |A| of a token. share: of the sum of |A| over all tokens, which the size of the
    gradient goes with. tokens: mean length of a completion. prompts: share of all prompts.
    """

    seed: int
    advantage: FloatArray
    share: FloatArray
    tokens: FloatArray
    prompts: FloatArray


def difficulty(measurement: Measurement) -> Difficulty | None:
    """From up to MOST_FILES of the cell's files of rollouts, spread over training; None where none can be read."""
    n_bins = len(BINS)
    completions, prompts, tokens, weight = np.zeros((4, n_bins))
    advantages = _advantages_by_step(measurement)
    summed = np.zeros(n_bins)
    for step, rate, lengths, groups in _batches(measurement):
        inside = bin_of(rate)
        prompts += np.bincount(bin_of(groups), minlength=n_bins)
        completions += np.bincount(inside, minlength=n_bins)
        step_tokens = np.bincount(inside, weights=lengths, minlength=n_bins)
        tokens += step_tokens
        if step in advantages:
            known = ~np.isnan(advantages[step])
            weight[known] += step_tokens[known]
            summed[known] += (step_tokens * advantages[step])[known]
    if not completions.any():
        return None
    return Difficulty(
        seed=measurement.cell.seed,
        advantage=_ratio(summed, weight),
        share=_ratio(summed, np.full(n_bins, summed.sum())),
        tokens=_ratio(tokens, completions),
        prompts=_ratio(prompts, np.full(n_bins, prompts.sum())),
    )


def bin_of(rate: FloatArray) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """The bin of each pass rate in [0, 1]."""
    inner = 1 + np.floor(4 * rate).astype(np.intp)
    return np.where(rate >= 1, len(BINS) - 1, np.where(rate <= 0, 0, inner))


def spread(paths: Sequence[Path], most: int) -> list[Path]:
    """Up to `most` of them at even distances, the first and the last among them."""
    if len(paths) <= most:
        return list(paths)
    return [paths[i] for i in np.linspace(0, len(paths) - 1, most).round().astype(int)]


def _batches(measurement: Measurement) -> Iterator[tuple[int, FloatArray, FloatArray, FloatArray]]:
    """Of each step that is read: step, pass rate and length of every completion, pass rate of every group."""
    import pyarrow.compute as pc
    import pyarrow.parquet

    columns = ["step", "problem_id", "correct", "tokens"]
    for path in spread(sorted(measurement.cell.rollouts.glob("*.parquet")), MOST_FILES):
        if not set(columns) <= set(pyarrow.parquet.read_schema(path).names):
            continue
        table: pyarrow.Table = pyarrow.parquet.read_table(path, columns=columns).combine_chunks()
        steps = table["step"].to_numpy()
        problems = table["problem_id"].combine_chunks().dictionary_encode().indices.to_numpy(zero_copy_only=False)
        correct = table["correct"].to_numpy().astype(np.float64)
        lengths = pc.list_value_length(table["tokens"]).to_numpy().astype(np.float64)
        for step in np.unique(steps):
            rows = np.flatnonzero(steps == step)
            _, group = np.unique(problems[rows], return_inverse=True)
            rates = np.bincount(group, weights=correct[rows]) / np.bincount(group)
            yield int(step), rates[group], lengths[rows], rates


def _advantages_by_step(measurement: Measurement) -> dict[int, FloatArray]:
    """Of each step that recorded them the mean |A| by bin [bins], NaN in a bin without tokens."""
    keys = [f"adv/abs_mean_at_rate_{name}" for name in BINS]
    return {
        row["step"]: np.array([np.nan if (v := finite(row.get(key))) is None else v for key in keys])
        for row in measurement.steps
        if any(key in row for key in keys)
    }


def _ratio(numerator: FloatArray, denominator: FloatArray) -> FloatArray:
    ratio: FloatArray = np.divide(numerator, denominator, out=np.full(len(numerator), np.nan), where=denominator > 0)
    return ratio
