from __future__ import annotations

import math

import pytest
import torch

from algorithms import sampler_weights, with_overrides
from algorithms.knobs.sampler_correction import TokenBand
from algorithms.sampler_correction import bounded_weights
from tests.algorithms.cases import GRPO

# Raw weights of tokens 0.5, 3, (masked) and 1.2, 1.1, 0.9; of completions 1.5 and 1.188.
SAMPLER_LOGP = torch.full((2, 3), -1.0, dtype=torch.float64)
OLD_LOGP = SAMPLER_LOGP + torch.tensor([[0.5, 3.0, 9.0], [1.2, 1.1, 0.9]], dtype=torch.float64).log()
MASK = torch.tensor([[1, 1, 0], [1, 1, 1]])


def weights(**knobs: object) -> list[list[float]]:
    objective = with_overrides(GRPO, {f"sampler_correction.{knob}": value for knob, value in knobs.items()})
    sampler_logp = torch.where(MASK.bool(), SAMPLER_LOGP, math.nan)
    result = sampler_weights(objective, OLD_LOGP.requires_grad_(), sampler_logp, MASK)
    assert not result.requires_grad
    return [[round(weight, 9) for weight in row] for row in result.tolist()]


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
    objective = with_overrides(GRPO, {"sampler_correction.type": kind})
    assert (sampler_weights(objective, OLD_LOGP, OLD_LOGP, MASK) == MASK).all()
