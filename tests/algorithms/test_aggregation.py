from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from algorithms.aggregation import aggregate
from algorithms.objective import Aggregation
from tests.algorithms.cases import random_batch

LOSSES = torch.tensor([[1.0, 2.0, 3.0], [10.0, 90.0, 90.0], [90.0, 90.0, 90.0]])
BATCH = replace(
    random_batch(0, rows=3, width=3), mask=torch.tensor([[1, 1, 1], [1, 0, 0], [0, 0, 0]]), max_completion_tokens=5
)
STEP = replace(BATCH, step_sequences=12, step_tokens=40)


@pytest.mark.parametrize(
    ("aggregation", "alone", "in_step"),
    [
        ("token_mean", 16 / 4, 16 / 40),
        ("seq_mean_token_mean", (2 + 10) / 3, (2 + 10) / 12),
        ("seq_mean_token_sum", 16 / 3, 16 / 12),
        ("constant_length", 16 / (3 * 5), 16 / (12 * 5)),
    ],
)
def test_by_hand(aggregation: Aggregation, alone: float, in_step: float) -> None:
    """The masked 90s do not count; the fully masked completion counts among completions only."""
    assert aggregate(LOSSES, aggregation, BATCH).item() == pytest.approx(alone)
    assert aggregate(LOSSES, aggregation, STEP).item() == pytest.approx(in_step)
