from __future__ import annotations

import pytest
import torch
from torch import Tensor

from algorithms import with_overrides
from algorithms.sampler_correction import TokenBand, bounded_weights, raw_weights
from tests.algorithms.cases import GRPO

# Raw weights of tokens 0.5, 3, (masked) and 1.2, 1.1, 0.9; of completions 1.5 and 1.188.
LOG_RATIO = torch.tensor([[0.5, 3.0, 1.0], [1.2, 1.1, 0.9]], dtype=torch.float64).log()
MASK = torch.tensor([[1, 1, 0], [1, 1, 1]]).bool()


def weights(log_ratio: Tensor = LOG_RATIO, **knobs: object) -> list[list[float]]:
    correction = with_overrides(
        GRPO, {f"sampler_correction.{knob}": value for knob, value in knobs.items()}
    ).sampler_correction
    raw = raw_weights(correction, log_ratio.clone().requires_grad_(), MASK)
    assert not raw.requires_grad
    return [[round(weight, 9) for weight in row] for row in (MASK * bounded_weights(correction, raw)).tolist()]


def test_by_hand() -> None:
    assert weights(type="none") == [[1, 1, 0], [1, 1, 1]]
    assert weights(type="token_truncate", weight_max=1.15) == [[0.5, 1.15, 0], [1.15, 1.1, 0.9]]
    assert weights(type="sequence_truncate", weight_max=1.25) == [[1.25, 1.25, 0], [1.188, 1.188, 1.188]]
    assert weights(type="token_band", weight_min=0.6, weight_max=1.15) == [[0, 0, 0], [0, 1.1, 0.9]]
    assert weights(type="sequence_band", weight_min=0.6, weight_max=1.25) == [[0, 0, 0], [1.188] * 3]
    assert weights(type="sequence_band", weight_min=1.3, weight_max=2.0) == [[1.5, 1.5, 0], [0, 0, 0]]


def test_the_bounds_of_a_band_belong_to_it() -> None:
    band = TokenBand(weight_min=0.5, weight_max=2.0)
    raw = torch.tensor([0.49, 0.5, 2.0, 2.01], dtype=torch.float64)
    assert bounded_weights(band, raw).tolist() == [0, 0.5, 2.0, 0]


@pytest.mark.parametrize("kind", ["token_truncate", "sequence_truncate", "token_band", "sequence_band"])
def test_an_exact_sampler_has_weight_one(kind: str) -> None:
    assert weights(0 * LOG_RATIO, type=kind) == MASK.tolist()
