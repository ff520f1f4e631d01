from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from algorithms.aggregation import aggregate
from algorithms.objective import Aggregation
from tests.algorithms.cases import random_batch

LOSSES = torch.tensor([[1.0, 2.0, 3.0], [10.0, 90.0, 90.0], [90.0, 90.0, 90.0], [7.0, 5.0, 90.0]])
BATCH = replace(
    random_batch(0, rows=4, width=3),
    mask=torch.tensor([[1, 1, 1], [1, 0, 0], [0, 0, 0], [1, 1, 0]]),
    groups=torch.tensor([8, 5, 3, 8]),
    max_completion_tokens=5,
)
STEP = replace(
    BATCH,
    step_sequences=12,
    step_tokens=40,
    step_groups=6,
    step_micro_batches=4,
    group_tokens=torch.tensor([10, 1, 0, 10]),
)


@pytest.mark.parametrize(
    ("aggregation", "alone", "in_step"),
    [
        ("token_mean", 28 / 6, 28 / 40),
        ("micro_token_mean", 28 / 6, 28 / 6 / 4),
        ("group_token_mean", ((6 + 12) / 5 + 10) / 3, ((6 + 12) / 10 + 10) / 6),
        ("seq_mean_token_mean", (2 + 10 + 6) / 4, (2 + 10 + 6) / 12),
        ("seq_mean_token_sum", 28 / 4, 28 / 12),
        ("constant_length", 28 / (4 * 5), 28 / (12 * 5)),
    ],
)
def test_by_hand(aggregation: Aggregation, alone: float, in_step: float) -> None:
    """The masked 90s do not count; the fully masked completion counts among completions, and its group among groups."""
    assert aggregate(LOSSES, aggregation, BATCH).item() == pytest.approx(alone)
    assert aggregate(LOSSES, aggregation, STEP).item() == pytest.approx(in_step)
