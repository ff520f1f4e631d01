from __future__ import annotations

from dataclasses import asdict

import pytest
import torch

from harness.shelves.replay.summary import Bins, summarise, token_shares
from harness.shelves.replay.weights import StoredTokenWeights
from tests.harness.shelves.replay.toy import stored

WEIGHTS = [[4.0], [-1.0, -1.0, -2.0], [0.0, 0.0], [1.0, 1.0]]


def weights() -> StoredTokenWeights:
    weight = torch.zeros(1, 4, 3)
    for row, values in enumerate(WEIGHTS):
        weight[0, row, : len(values)] = torch.tensor(values)
    nothing = torch.zeros_like(weight, dtype=torch.bool)
    clipped, masked = nothing.clone(), nothing.clone()
    clipped[0, 1, 0] = True
    masked[0, 2, :2] = True
    return StoredTokenWeights(weight, clipped, masked, nothing, [])


def test_bins_of_length_hold_equally_many_completions() -> None:
    """Lengths 1, 3, 2, 2: the quarters end at 2, 2, 2 and 3."""
    bins = Bins.of([stored(1)])
    assert bins.names["length_tokens"] == ["1-2", "3-3"]
    assert {kind: places.tolist() for kind, places in bins.places(stored(1)).items()} == {
        "length_tokens": [0, 1, 0, 0],
        "correct": [1, 0, 1, 1],
        "pass_rate": [3, 3, 5, 5],
    }


def test_by_hand() -> None:
    """Six tokens in the loss, of eight; ten in weight."""
    step = stored(1)
    got = summarise([weights()], [step], Bins.of([step]))
    assert got.tokens == 8
    assert got.weight_mean == pytest.approx(2 / 6)
    assert got.weight_abs_mean == pytest.approx(10 / 6)
    assert (got.weight_p5, got.weight_p50, got.weight_p95) == (-2.0, -1.0, 4.0)
    assert (got.clipped_frac, got.masked_frac, got.guessed_frac) == (1 / 8, 2 / 8, 0.0)
    share = got.gradient_share
    assert share is not None
    assert share["length_tokens"] == pytest.approx({"1-2": 0.6, "3-3": 0.4})
    assert share["correct"] == pytest.approx({"wrong": 0.4, "right": 0.6})
    assert share["pass_rate"]["below_three_quarters"] == pytest.approx(0.8)
    assert share["pass_rate"]["1"] == pytest.approx(0.2)
    assert token_shares([step], Bins.of([step]))["correct"] == pytest.approx({"wrong": 3 / 8, "right": 5 / 8})


def test_without_any_weight_there_are_no_shares() -> None:
    step = stored(1)
    made = weights()
    idle = StoredTokenWeights(
        torch.zeros_like(made.weight), made.clipped, torch.ones_like(made.masked), made.guessed, []
    )
    got = summarise([idle], [step], Bins.of([step]))
    assert (got.gradient_share, got.weight_mean, got.weight_p50) == (None, None, None)


def test_steps_are_taken_together() -> None:
    step = stored(1)
    bins = Bins.of([step])
    one, two = summarise([weights()], [step], bins), summarise([weights()] * 2, [step] * 2, bins)
    assert two.tokens == 2 * one.tokens
    assert one.gradient_share is not None and two.gradient_share is not None
    for kind, shares in one.gradient_share.items():
        assert two.gradient_share[kind] == pytest.approx(shares)
    for name, value in asdict(one).items():
        if name not in ("tokens", "gradient_share"):
            assert getattr(two, name) == pytest.approx(value), name
