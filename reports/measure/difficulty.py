"""Gradient, advantages and lengths of each arm by the pass rate of the prompt, from rollouts.

A prompt's pass rate is the share of correct completions in its group at one step. It is therefore noisy, and can take
only as many values as the group size allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from algorithms.aggregation import AGGREGATIONS, Count
from harness.records.rollouts import spread
from harness.records.tables import as_array, read_parquet, require_values
from reports.measure import Analysis, derived
from reports.measure.measurements import Measurement
from reports.processes import each_in_processes
from reports.statistics import FloatArray

if TYPE_CHECKING:
    import pyarrow

BINS = ("0", "below_quarter", "below_half", "below_three_quarters", "below_1", "1")
"""The names of the bins in steps.jsonl: pass rates of 0, (0, 1/4), [1/4, 1/2), [1/2, 3/4), [3/4, 1) and 1."""

BIN_LABELS = ("0", "<¼", "<½", "<¾", "<1", "1")

MOST_FILES = 3
"""The most rollout files read per cell, spread over training."""
MOST_CELLS = 200
"""The most cells read, spread over all arms and seeds. Reading a thousand would take most of a report's time."""


@dataclass(frozen=True)
class Difficulty:
    """The statistics of one cell by pass-rate bin [bins]; NaN if a bin has no prompt or nothing was recorded."""

    seed: int
    advantage: FloatArray
    """The mean |A| over the bin's tokens."""
    share: FloatArray
    """The bin's share of the sum over all tokens of |A| times the token's weight in the loss.

    The weight follows from the objective's aggregation. If all ratios are 1, the sum equals the sum of the absolute
    derivatives of the policy loss with respect to the tokens' log-probs.
    """
    tokens: FloatArray
    """The mean length of a completion, in tokens."""
    prompts: FloatArray
    """The bin's share of all prompts."""


@derived
def difficulties(analysis: Analysis) -> dict[str, dict[int, Difficulty]]:
    """Compute the `difficulty` of at most MOST_CELLS cells, and return it by arm and seed."""
    every = [m for cells in analysis.measurements.values() for m in cells]
    read = spread(every, MOST_CELLS)
    found: dict[str, dict[int, Difficulty]] = {}
    for m, one in zip(read, each_in_processes(difficulty, read, analysis.processes), strict=True):
        if one is not None:
            found.setdefault(m.cell.arm, {})[one.seed] = one
    return found


def difficulty(measurement: Measurement) -> Difficulty | None:
    """Compute the statistics of one cell from at most MOST_FILES of its rollout files, spread over training.

    None if no file contains the needed columns. Raises DamagedRecordError for a file that has gaps or cannot be read.
    """
    by_step = _advantages_by_step(measurement)
    limits = dict(zip(measurement.steps["step"].tolist(), measurement.steps["len/limit"].tolist(), strict=True))
    objective = measurement.cell.spec.get("objective") or {}
    completions, prompts, tokens, weight, summed, gradient = np.zeros((6, len(BINS)))
    for rows in _rollouts(measurement):
        steps, at = np.unique(rows.step, return_inverse=True)
        recorded = np.array([by_step.get(step, _UNKNOWN) for step in steps])[at, rows.bin]
        known = ~np.isnan(recorded)
        completions += rows.by_bin()
        tokens += rows.by_bin(rows.tokens)
        prompts += np.bincount(rows.bin[rows.first_of_group], minlength=len(BINS))
        weight += rows.by_bin(np.where(known, rows.tokens, 0.0))
        summed += rows.by_bin(np.where(known, rows.tokens * np.nan_to_num(recorded), 0.0))
        # A large step does not record its tokens' advantages. There the bin's mean |A| stands in.
        sizes = np.where(rows.has_token_records, rows.summed_advantage, rows.tokens * recorded)
        limit = np.array([limits.get(step, np.nan) for step in steps])[at]
        with np.errstate(divide="ignore", invalid="ignore"):  # A group without a token in the loss has divisor 0.
            shares = np.nan_to_num(sizes / loss_divisors(objective, rows, limit), posinf=0.0)
        gradient += rows.by_bin(np.where(rows.in_loss(objective), shares, 0.0))
    if not completions.any():
        return None
    return Difficulty(
        seed=measurement.cell.seed,
        advantage=_ratio(summed, weight),
        share=_ratio(gradient, np.full(len(BINS), gradient.sum())),
        tokens=_ratio(tokens, completions),
        prompts=_ratio(prompts, np.full(len(BINS), prompts.sum())),
    )


def bin_of(rate: FloatArray) -> npt.NDArray[np.intp]:
    """Return the bin of each pass rate in [0, 1]."""
    # Bins 1 to 4 are quarters. Rates of exactly 0 and 1 have bins of their own.
    inner = 1 + np.floor(4 * rate).astype(np.intp)
    bins: npt.NDArray[np.intp] = np.where(rate >= 1, len(BINS) - 1, np.where(rate <= 0, 0, inner))
    return bins


_UNKNOWN = np.full(len(BINS), np.nan)


@dataclass(frozen=True)
class RolloutColumns:
    """The completions of one file: arrays [n_rows]."""

    step: npt.NDArray[np.int64]
    group: npt.NDArray[np.intp]
    """The index of the row's group, which is one prompt in one step."""
    bin: npt.NDArray[np.intp]
    tokens: FloatArray
    truncated: npt.NDArray[np.bool_]
    update: npt.NDArray[np.int64]
    """The optimiser step that used the row in the first pass over the batch of `step`; 0 if it was not recorded."""
    learned: npt.NDArray[np.bool_]
    """True if the row stayed in the batch after filtering."""
    has_token_records: npt.NDArray[np.bool_]
    """True if the row's step recorded the advantages of its tokens."""
    summed_advantage: FloatArray
    """The sum of |A| over the row's tokens."""

    def by_bin(self, values: FloatArray | None = None) -> FloatArray:
        """Sum values [n_rows] in each bin [bins]; without values, count the rows."""
        return np.bincount(self.bin, values, len(BINS)).astype(np.float64)

    @property
    def first_of_group(self) -> npt.NDArray[np.intp]:
        return np.unique(self.group, return_index=True)[1]

    def in_loss(self, objective: Mapping[str, object]) -> npt.NDArray[np.bool_]:
        """Return whether each row's tokens enter the loss, given the filters and masks of the objective."""
        kept = self.learned
        overlong = objective.get("overlong")
        if isinstance(overlong, dict) and overlong.get("type") in ("mask_after", "mask_before"):
            kept = kept & ~self.truncated
        if objective.get("zero_std") == "mask":
            kept = kept & (np.bincount(self.group, self.summed_advantage)[self.group] > 0)
        return kept


def loss_divisors(objective: Mapping[str, object], rows: RolloutColumns, limit: FloatArray) -> FloatArray:
    """Return the divisor of the loss of each row's tokens [n_rows], as in `algorithms.loss`.

    limit [n_rows]: the completion limit, in tokens.
    NaN if the objective has no known aggregation. A step counts as one micro-batch, because its split is not recorded.
    """
    weight = AGGREGATIONS.get(str(objective.get("aggregation")))
    if weight is None:
        return np.full(len(rows.step), np.nan)
    # One integer per (step, update), so that np.unique can number the optimiser steps.
    _, batch = np.unique(rows.step * (rows.update.max() + 1) + rows.update, return_inverse=True)
    loss_tokens = np.where(rows.in_loss(objective), rows.tokens, 0.0)
    pairs = np.unique(np.column_stack([batch, rows.group])[rows.learned], axis=0)
    tokens = np.bincount(batch, loss_tokens)[batch]
    counts: dict[Count, object] = {
        "tokens": tokens,
        "micro_batches": 1,
        "micro_batch_tokens": tokens,
        "groups": np.bincount(pairs[:, 0], minlength=batch.max() + 1)[batch],
        "group_tokens": np.bincount(rows.group, loss_tokens)[rows.group],
        "sequences": np.bincount(batch, rows.learned)[batch],
        "limit": limit,
    }
    return np.asarray(weight.divisor(counts.__getitem__, rows.tokens), dtype=np.float64)


def _rollouts(measurement: Measurement) -> Iterator[RolloutColumns]:
    needed = ["step", "problem_id", "correct", "tokens"]
    columns = [*needed, "truncated", "token/advantage", "token/update"]
    for path in spread(measurement.cell.rollout_files(), MOST_FILES):
        table = read_parquet(path, columns).combine_chunks()
        if len(table) == 0 or not set(needed) <= set(table.column_names):
            continue
        require_values(path, table, needed)
        yield rollouts_of(table)


def rollouts_of(table: pyarrow.Table) -> RolloutColumns:
    """Extract the columns of a rollout table. `truncated` and the token columns may be missing."""
    import pyarrow.compute as pc

    step = as_array(table["step"])
    coded = table["problem_id"].combine_chunks().dictionary_encode()
    problem = as_array(coded.indices)
    # One integer per (step, problem), because a prompt may recur in a later step.
    _, group = np.unique(step * len(coded.dictionary) + problem, return_inverse=True)
    rates = np.bincount(group, weights=as_array(table["correct"])) / np.bincount(group)
    n = len(table)
    learned, update = np.zeros(n, dtype=np.bool_), np.zeros(n, dtype=np.int64)
    summed: FloatArray = np.zeros(n)
    if {"token/advantage", "token/update"} <= set(table.column_names):
        advantages, updates = (table[name].combine_chunks() for name in ("token/advantage", "token/update"))
        learned = as_array(advantages.is_valid())
        parents = as_array(pc.list_parent_indices(advantages))
        sizes = np.abs(as_array(pc.list_flatten(advantages)).astype(np.float64))
        summed = np.bincount(parents, sizes, n).astype(np.float64)
        row, first = np.unique(as_array(pc.list_parent_indices(updates)), return_index=True)
        update[row] = as_array(pc.list_flatten(updates))[first]
    recorded = np.isin(step, step[learned])
    return RolloutColumns(
        step=step,
        group=group,
        bin=bin_of(rates)[group],
        tokens=as_array(pc.list_value_length(table["tokens"])).astype(np.float64),
        truncated=(
            np.nan_to_num(as_array(table["truncated"])).astype(np.bool_)
            if "truncated" in table.column_names
            else np.zeros(n, dtype=np.bool_)
        ),
        update=update,
        # In a step without token records, dropped rows are unknown, so every row counts as trained on.
        learned=learned | ~recorded,
        has_token_records=recorded,
        summed_advantage=summed,
    )


def _advantages_by_step(measurement: Measurement) -> dict[int, FloatArray]:
    """Return the mean |A| by bin [bins] of every step. NaN if a bin has no tokens or the step did not record it."""
    steps = measurement.steps
    advantages = np.column_stack([steps[f"adv/abs_mean_at_rate_{name}"] for name in BINS])
    return dict(zip(steps["step"].astype(int).tolist(), advantages, strict=True))


def _ratio(numerator: FloatArray, denominator: FloatArray) -> FloatArray:
    """Divide elementwise, with NaN where the denominator is 0."""
    ratio: FloatArray = np.divide(numerator, denominator, out=np.full(len(numerator), np.nan), where=denominator > 0)
    return ratio
