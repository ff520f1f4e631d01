"""What an arm cost: time by phase, speed, how full batches were, memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from reports.measure.measurements import Measurement, mean_of

STEP_KEYS = {"step_s": "total_s"}
"""Fields that have another name in timing.jsonl."""
OF_CELL = ("evaluation_s", "peak_memory_mb", "micro_batch_tokens")
"""Fields that are not medians over steps."""


@dataclass(frozen=True)
class Cost:
    """What an arm cost: medians over the steps of a cell, then means over cells; None where nothing was recorded.

    Seconds of a step: step_s for all of it; rollout_s, which includes sync_s, prefill_s and decode_s; reward_s;
    logprob_s; update_s, which includes backward_s. tokens_per_s: tokens generated over the whole step. occupancy_frac:
    the share of decoding slots that held a completion. padding_frac: the share of padding in the tokens of training
    passes.

    Of a whole cell: evaluation_s, the time of all evaluations; peak_memory_mb, the highest (on a CPU that of the cell's
    process); micro_batch_tokens, the smallest budget in force.
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


def summarise_cost(measurements: Sequence[Measurement]) -> Cost:
    """The cost of one arm, from its finished cells. It describes; nothing of it is tested."""
    medians = {
        field.name: mean_of(_median(m, STEP_KEYS.get(field.name, field.name)) for m in measurements)
        for field in fields(Cost)
        if field.name not in OF_CELL
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
