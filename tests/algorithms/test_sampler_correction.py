from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from algorithms import Objective, TokenBatch, policy_loss, with_overrides
from algorithms.diagnostics import treatment
from algorithms.sampler_correction import NoCorrection, corrected
from tests.algorithms.cases import GRPO, gradients, random_batch

# Raw weights of tokens 0.5, 3, (masked) and 1.2, 1.1, 0.9; of completions 1.5 and 1.188.
LOG_RATIO = torch.tensor([[0.5, 3.0, 1.0], [1.2, 1.1, 0.9]], dtype=torch.float64).log()
MASK = torch.tensor([[1, 1, 0], [1, 1, 1]]).bool()


def with_correction(**knobs: object) -> Objective:
    return with_overrides(GRPO, {f"sampler_correction.{knob}": value for knob, value in knobs.items()})


def weights(log_ratio: Tensor = LOG_RATIO, **knobs: object) -> list[list[float]]:
    correction = with_correction(**knobs).sampler_correction
    assert not isinstance(correction, NoCorrection)
    found, behind = corrected(correction, log_ratio, 0 * log_ratio, MASK)
    assert found is not None and behind is log_ratio
    return [[round(weight, 9) for weight in row] for row in (MASK * found.weights).tolist()]


def test_by_hand() -> None:
    assert weights(type="token_unbounded") == [[0.5, 3, 0], [1.2, 1.1, 0.9]]
    assert weights(type="token_truncate", weight_max=1.15) == [[0.5, 1.15, 0], [1.15, 1.1, 0.9]]
    assert weights(type="sequence_truncate", weight_max=1.25) == [[1.25, 1.25, 0], [1.188, 1.188, 1.188]]
    assert weights(type="token_band", weight_min=0.6, weight_max=1.15) == [[0, 0, 0], [0, 1.1, 0.9]]
    assert weights(type="sequence_band", weight_min=0.6, weight_max=1.25) == [[0, 0, 0], [1.188] * 3]
    assert weights(type="sequence_band", weight_min=1.3, weight_max=2.0) == [[1.5, 1.5, 0], [0, 0, 0]]


def test_a_geometric_mean_rejects_completions_and_so_does_one_token() -> None:
    """The means are 1.5 ** (1/2) = 1.22 and 1.188 ** (1/3) = 1.06: a token's own ratio does not count for them."""
    assert weights(type="geometric_veto", mean_max=1.1) == [[0, 0, 0], [1, 1, 1]]
    assert weights(type="geometric_veto", mean_max=1.3) == [[1, 1, 0], [1, 1, 1]]
    assert weights(type="geometric_veto", mean_max=1.3, veto_below=0.6) == [[0, 0, 0], [1, 1, 1]]
    assert weights(type="geometric_veto", mean_max=1.3, veto_below=0.95) == [[0, 0, 0], [0, 0, 0]]
    low = -LOG_RATIO.where(MASK, 0)
    assert weights(low, type="geometric_veto", mean_min=0.9, veto_below=0.0) == [[0, 0, 0], [1, 1, 1]]


def test_the_bounds_of_a_band_belong_to_it() -> None:
    band = with_correction(type="token_band", weight_min=0.5, weight_max=2.0).sampler_correction
    log_ratio = torch.tensor([[0.49, 0.5, 2.0, 2.01]], dtype=torch.float64).log()
    assert not isinstance(band, NoCorrection)
    found, _ = corrected(band, log_ratio, 0 * log_ratio, torch.ones(1, 4, dtype=torch.bool))
    assert found is not None and found.weights.tolist() == [[0, 0.5, 2.0, 0]]
    assert found.bounded.tolist() == [[True, False, False, True]]


@pytest.mark.parametrize(
    "kind",
    ["token_unbounded", "token_truncate", "sequence_truncate", "token_band", "sequence_band", "geometric_veto"],
)
def test_an_exact_sampler_has_weight_one(kind: str) -> None:
    assert weights(0 * LOG_RATIO, type=kind) == MASK.tolist()


def clipped(ratio: Tensor, advantages: Tensor) -> Tensor:
    return -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)


def batch_of(seed: int) -> TokenBatch:
    batch = random_batch(seed, drift=0.5)
    assert batch.sampler_logp is not None and (batch.sampler_logp - batch.old_logp).abs().max() > 0.1
    return batch


def by_hand(batch: TokenBatch, losses: Tensor) -> Tensor:
    """GRPO's aggregation."""
    mask = batch.mask.bool()
    return (losses.where(mask, 0).sum(1) / mask.sum(1).clamp(min=1)).mean()


@pytest.mark.parametrize("seed", range(3))
def test_areals_decoupled_objective_token_by_token(seed: int) -> None:
    """2505.24298 after 2110.00641: clipped around the proximal policy, weighted by proximal over behaviour; and
    its coupled counterpart, which is clipped around the behaviour policy. Values and gradients."""
    batch = batch_of(seed)
    advantages = batch.advantages if batch.advantages.ndim == 2 else batch.advantages[:, None]
    behaviour, proximal = batch.sampler_logp, batch.old_logp
    assert behaviour is not None
    decoupled = (proximal - behaviour).exp() * clipped((batch.logp - proximal).exp(), advantages)
    coupled = clipped((batch.logp - behaviour).exp(), advantages)
    found = []
    for kind, expected in (("token_unbounded", decoupled), ("in_ratio", coupled)):
        loss = policy_loss(with_correction(type=kind), batch)
        naive = by_hand(batch, expected)
        torch.testing.assert_close(loss.value, naive)
        torch.testing.assert_close(gradients(loss.value, batch)[0], torch.autograd.grad(naive, batch.logp)[0])
        found.append(gradients(loss.value, batch)[0])
    assert not torch.allclose(found[0], found[1], rtol=1e-2)


def test_what_a_geometric_mean_rejects_is_masked_and_counted() -> None:
    batch = batch_of(0)
    loss = policy_loss(with_correction(type="geometric_veto", mean_min=0.8, mean_max=1.25), batch)
    assert loss.trace.weights is not None
    rejected = (loss.trace.weights.weights == 0) & loss.trace.mask
    assert 0 < rejected.sum() < loss.trace.mask.sum() and torch.equal(treatment(loss.trace).masked, rejected)
    frac = rejected.sum() / loss.trace.mask.sum()
    assert loss.metrics["sampler/frac_clipped"] == pytest.approx(frac.item())
    assert loss.metrics["sampler/weight_mean"] == pytest.approx(1 - frac.item())


def test_a_ratio_to_the_sampler_is_what_its_metrics_show() -> None:
    batch = batch_of(1)
    mask = batch.mask.bool()
    assert batch.sampler_logp is not None
    metrics = policy_loss(with_correction(type="in_ratio"), batch).metrics
    ratio = (batch.logp - batch.sampler_logp).exp()[mask].mean().item()
    assert metrics["ratio/mean"] == pytest.approx(ratio) and not math.isclose(ratio, 1, rel_tol=1e-3)
    assert "sampler/weight_mean" not in metrics
