"""What an arm cost: time by phase, speed, how well batches were used, memory. Descriptive: nothing of it is tested."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from reports.measurements import Measurement, mean_of

STEP_KEYS = {"step_s": "total_s"}
"""Fields whose key in timing.jsonl is another."""


@dataclass(frozen=True)
class Cost:
    """Medians over the steps of a cell, then means over the cells of an arm; None where nothing was recorded.

    Seconds of a step: step_s of it all; rollout_s with its parts sync_s, prefill_s and decode_s; reward_s; logprob_s;
    update_s with its part backward_s. tokens_per_s: generated, over the whole step. occupancy_frac: of the slots that
    decoding computed, those that a completion was in. padding_frac: padding among the tokens of training passes.

    Of a whole cell: evaluation_s, all its evaluations; peak_memory_mb, the highest (on a CPU of the cell's
    process); micro_batch_tokens, the lowest budget in force.
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


_OF_CELL = ("evaluation_s", "peak_memory_mb", "micro_batch_tokens")


def summarise_cost(measurements: Sequence[Measurement]) -> Cost:
    """The cost of one arm from its finished cells."""
    medians = {
        field.name: mean_of(_median(m, STEP_KEYS.get(field.name, field.name)) for m in measurements)
        for field in fields(Cost)
        if field.name not in _OF_CELL
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
