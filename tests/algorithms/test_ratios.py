from __future__ import annotations

import math

import pytest
import torch

from algorithms.objective import Ratio
from algorithms.ratios import bounded_exp, importance_ratio

LOG_RATIO = torch.tensor([[0.1, 0.5, 0.0], [-0.2, 0.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
MASK = torch.tensor([[True, True, False], [True, False, False], [False, False, False]])


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("none", [[0.0] * 3] * 3),
        ("token", LOG_RATIO.tolist()),
        ("sequence_mean", [[0.3] * 3, [-0.2] * 3, [0.0] * 3]),
        ("sequence_product", [[0.6] * 3, [-0.2] * 3, [0.0] * 3]),
    ],
)
def test_by_hand(kind: Ratio, expected: list[list[float]]) -> None:
    ratio = importance_ratio(kind, LOG_RATIO, MASK)
    torch.testing.assert_close(ratio.log(), torch.tensor(expected, dtype=torch.float64))


def test_a_whole_completion_is_bounded_after_its_tokens_are_combined() -> None:
    """Token log-ratios of 30 and -25 have the product e^5, and the mean e^2.5."""
    log_ratio, mask = torch.tensor([[30.0, -25.0]], dtype=torch.float64), torch.ones(1, 2, dtype=torch.bool)
    assert importance_ratio("sequence_product", log_ratio, mask)[0, 0].item() == pytest.approx(math.exp(5))
    assert importance_ratio("sequence_mean", log_ratio, mask)[0, 0].item() == pytest.approx(math.exp(2.5))
    assert importance_ratio("token", log_ratio, mask)[0, 0].item() == pytest.approx(math.exp(20))


def test_bounded_exp() -> None:
    values = bounded_exp(torch.tensor([-1e9, -1.0, 0.0, 1.0, 1e9], dtype=torch.float64)).tolist()
    assert values == pytest.approx([math.exp(x) for x in (-20, -1, 0, 1, 20)])
