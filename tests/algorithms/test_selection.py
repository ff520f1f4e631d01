from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from algorithms import Objective, TokenBatch, select_tokens, with_overrides
from tests.algorithms.cases import GRPO, random_batch
from tests.refusals import refuses

SELECTIONS: tuple[dict[str, object], ...] = (
    {"select.type": "kl_cov"},
    {"select.type": "clip_cov", "select.cov_low": -0.1, "select.cov_high": 1.0},
    {"select.type": "top_entropy"},
)
EVERY_SELECTION = pytest.mark.parametrize("selection", SELECTIONS, ids=lambda each: each["select.type"])
MASK = torch.tensor([[1, 1], [1, 1]])
ADVANTAGES = torch.tensor([2.0, -1.0])
LOGP = torch.tensor([[-1.0, -2.0], [-3.5, -1.5]])


def objective(**knobs: object) -> Objective:
    return with_overrides(GRPO, {f"select.{knob}": value for knob, value in knobs.items()})


def select(point: Objective, batch: TokenBatch, key: int = 0) -> Tensor:
    return select_tokens(point, batch.logp, batch.old_logp, batch.advantages, batch.mask, batch.entropy, key)


def covariances(batch: TokenBatch) -> Tensor:
    mask, logp = batch.mask, batch.logp.detach()
    advantages = batch.advantages[:, None].expand_as(logp)
    return (advantages - advantages[mask].mean()) * (logp - logp[mask].mean())


def test_kl_cov_by_hand() -> None:
    """A - mean = +-1.5 and log pi - mean = 1, 0, -1.5, 0.5: covariances 1.5, 0, 2.25, -0.75."""
    chosen = [
        select_tokens(objective(type="kl_cov", fraction=fraction), LOGP, LOGP, ADVANTAGES, MASK).tolist()
        for fraction in (0.1, 0.25, 0.5, 0.75, 0.99, 1.0)
    ]
    first, second, third = [[False] * 2, [True, False]], [[True, False]] * 2, [[True, True], [True, False]]
    assert chosen == [first, first, second, third, third, [[True] * 2] * 2]


def test_clip_cov_by_hand() -> None:
    def drawn(low: float, high: float, old_logp: Tensor = LOGP) -> list[list[bool]]:
        point = objective(type="clip_cov", fraction=1.0, cov_low=low, cov_high=high)
        return select_tokens(point, LOGP, old_logp, ADVANTAGES, MASK).tolist()

    assert drawn(1.0, 5.0) == [[True, False], [True, False]]
    assert drawn(1.0, 2.0) == [[True, False], [False, False]]
    assert drawn(1.5, 2.25) == [[False] * 2] * 2  # The bounds do not belong to the interval.
    # The first token is e^0.3 times likelier than before and A > 0, so PPO's clip has taken its gradient already; the
    # third is likelier too, but its A < 0 pulls it back into the range.
    assert drawn(1.0, 5.0, LOGP - torch.tensor([[0.3, 0.0], [0.3, 0.0]])) == [[False, False], [True, False]]
    assert drawn(1.0, 5.0, LOGP + torch.tensor([[0.3, 0.0], [0.3, 0.0]])) == [[True, False], [False, False]]


@EVERY_SELECTION
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31), key=st.integers(-(2**63), 2**63 - 1), fraction=st.floats(0.01, 1.0))
def test_the_choice_is_the_extreme_of_its_candidates(
    selection: dict[str, object], seed: int, key: int, fraction: float
) -> None:
    batch = random_batch(seed)
    point = with_overrides(GRPO, selection | {"select.fraction": fraction})
    chosen = select(point, batch, key)
    candidates, scores = batch.mask, covariances(batch)
    if point.select.type == "clip_cov":
        ratio, advantages = (batch.logp - batch.old_logp).exp(), batch.advantages[:, None]
        clipped = torch.where(advantages > 0, ratio > 1.2, ratio < 0.8)
        candidates = batch.mask & (scores > -0.1) & (scores < 1.0) & ~clipped
    elif point.select.type == "top_entropy":
        assert batch.entropy is not None
        scores = batch.entropy
    assert chosen.sum() == min(candidates.sum(), max(int(fraction * int(batch.mask.sum())), 1))
    assert not (chosen & ~candidates).any()
    if point.select.type != "clip_cov" and chosen.any() and (candidates & ~chosen).any():
        assert scores[chosen].min() > scores[candidates & ~chosen].max()
    assert not chosen.requires_grad


def test_clip_cov_draws_by_key() -> None:
    batch = random_batch(1, rows=50)
    point = objective(type="clip_cov", fraction=0.05, cov_low=-1.0, cov_high=1.0)
    draws = [select(point, batch, key) for key in (1, 1, 2)]
    assert (draws[0] == draws[1]).all()
    assert (draws[0] != draws[2]).any()
    frequency = torch.stack([select(point, batch, key) for key in range(400)]).double().mean(0)
    ever = frequency[frequency > 0]
    # Each of the candidates is drawn equally often, give or take 4 standard errors of 400 draws.
    assert len(ever) > 50
    expected = float(ever.mean())
    assert (ever - expected).abs().max() < 4 * math.sqrt(expected * (1 - expected) / 400)


def test_a_drawn_place_does_not_depend_on_the_other_candidates() -> None:
    """A token that leaves the candidates, undrawn, changes nothing."""
    batch = random_batch(2, rows=50)
    point = objective(type="clip_cov", fraction=0.05, cov_low=-1.0, cov_high=1.0)
    chosen = select(point, batch)
    row, column = (batch.mask & ~chosen & (covariances(batch).abs() < 1)).nonzero()[0].tolist()
    old_logp = batch.old_logp.clone()
    old_logp[row, column] = batch.logp.detach()[row, column] - math.copysign(5.0, batch.advantages[row].item())
    assert (select(point, replace(batch, old_logp=old_logp)) == chosen).all()


@EVERY_SELECTION
def test_padding_never_leaks(selection: dict[str, object]) -> None:
    batch = random_batch(3)
    assert batch.entropy is not None
    point = with_overrides(GRPO, selection | {"select.fraction": 0.3})
    soiled = replace(
        batch,
        logp=torch.where(batch.mask, batch.logp, math.nan),
        old_logp=torch.where(batch.mask, batch.old_logp, math.inf),
        advantages=torch.where(batch.mask, batch.advantages[:, None], -math.inf),
        entropy=torch.where(batch.mask, batch.entropy, math.inf),
    )
    assert (select(point, soiled) == select(point, batch)).all()


@EVERY_SELECTION
def test_a_step_without_tokens(selection: dict[str, object]) -> None:
    batch = random_batch(4)
    batch = replace(batch, mask=torch.zeros_like(batch.mask))
    assert not select(with_overrides(GRPO, selection), batch).any()


def test_a_rule_without_bounds_leaves_all_candidates() -> None:
    point = objective(type="clip_cov", fraction=1.0, cov_low=-9.0, cov_high=9.0)
    far = LOGP - 3 * ADVANTAGES[:, None]
    assert not select_tokens(point, LOGP, far, ADVANTAGES, MASK).any()
    for rule in ("weighted", "policy_gradient"):
        unbounded = with_overrides(point, {"rule.type": rule})
        assert select_tokens(unbounded, LOGP, far, ADVANTAGES, MASK).all()


@pytest.mark.parametrize("ratio", ["token", "sequence_mean", "sequence_product"])
def test_clip_cov_looks_at_the_ratio_of_the_objective(ratio: str) -> None:
    """Token ratios e^0.3 and e^-0.25: the first is beyond the bound 1.2, the completion is not."""
    logp, mask = torch.tensor([[-1.0, -2.0]]), torch.ones(1, 2)
    old_logp = logp - torch.tensor([[0.3, -0.25]])
    point = objective(type="clip_cov", fraction=1.0, cov_low=-9.0, cov_high=9.0)
    point = with_overrides(point, {"rule.type": "cispo", "rule.weight_max": 1.2, "ratio": ratio})
    chosen = select_tokens(point, logp, old_logp, torch.ones(1), mask)
    assert chosen.tolist() == [[ratio != "token", True]]


def test_no_selection_chooses_nothing() -> None:
    assert not select(GRPO, random_batch(5)).any()


def test_top_entropy_needs_the_entropy() -> None:
    with refuses(ValueError, "algorithms.entropy_missing"):
        select_tokens(objective(type="top_entropy"), LOGP, LOGP, ADVANTAGES, MASK)
