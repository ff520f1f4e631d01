from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from harness.config.rollout import PolicyPairs
from harness.run.learning.pairs import pair_up
from harness.training.batch import Batch
from harness.training.sequences import Sequences

BEST_WORST = PolicyPairs()


def rollout(rewards: list[list[float]], completions: list[list[int]] | None = None) -> Batch:
    """Groups of rewards; completions default to all different ones of one token."""
    flat = [reward for group in rewards for reward in group]
    tokens = completions or [[row] for row in range(len(flat))]
    longest = max(map(len, tokens))
    sequences = Sequences(
        [[0]] * len(flat),
        torch.tensor([[*row, *[0] * (longest - len(row))] for row in tokens]),
        torch.tensor([len(row) for row in tokens]),
    )
    return Batch(
        sequences=sequences,
        sampler_logps=torch.zeros(len(flat), longest),
        rewards=torch.tensor(flat),
        groups=torch.tensor([index for index, group in enumerate(rewards) for _ in group]),
        max_completion_tokens=longest,
        truncated=torch.zeros(len(flat), dtype=torch.bool),
        correct=torch.zeros(len(flat), dtype=torch.bool),
    )


def rows(paired: tuple[Tensor, dict[str, Any]]) -> list[tuple[int, int]]:
    return [(chosen, rejected) for chosen, rejected in paired[0].tolist()]


def test_the_best_of_a_group_meets_its_worst() -> None:
    paired = pair_up(rollout([[0.1, 0.9, 0.5], [1, 1, 1], [0, 1, 0]]), BEST_WORST, seed=0, step=1)
    assert rows(paired) == [(1, 0), (7, 6)]
    assert paired[1] == {
        "pairs/count": 2,
        "pairs/groups_without_pair": 1,
        "pairs/equal_sides": 0,
        "pairs/over_cap": 0,
    }


@pytest.mark.parametrize(
    ("rewards", "pairing", "expected"),
    [
        ([0, 1, 0, 1], "best_worst", {(1, 0)}),  # among equals, the first drawn
        ([1, 0, 1, 0, 0], "all", {(right, wrong) for right in (0, 2) for wrong in (1, 3, 4)}),
        ([0.3, 0.1, 0.2], "all", {(0, 1), (0, 2), (2, 1)}),
        ([math.nan, 1, 0, math.nan], "best_worst", {(1, 2)}),  # what could not be scored takes no part
        ([math.nan, 1], "all", set()),
    ],
)
def test_who_is_paired_with_whom(rewards: list[float], pairing: str, expected: set[tuple[int, int]]) -> None:
    paired = pair_up(rollout([rewards]), PolicyPairs.model_validate({"pairing": pairing}), seed=0, step=1)
    assert set(rows(paired)) == expected and len(rows(paired)) == len(expected)


def test_a_prompt_has_no_more_pairs_than_allowed() -> None:
    batch = rollout([[1, 1, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0]])
    capped = PolicyPairs(pairing="all", max_per_prompt=4)
    paired = pair_up(batch, capped, seed=0, step=1)
    groups = batch.groups[paired[0][:, 0]].tolist()
    assert (groups.count(0), groups.count(1)) == (4, 4)
    assert paired[1]["pairs/over_cap"] == 5 + 1
    everything = set(rows(pair_up(batch, PolicyPairs(pairing="all", max_per_prompt=99), seed=0, step=1)))
    assert set(rows(paired)) < everything
    assert rows(paired) == rows(pair_up(batch, capped, seed=0, step=1))
    assert len({tuple(rows(pair_up(batch, capped, seed=seed, step=1))) for seed in range(5)}) > 1
    assert len({tuple(rows(pair_up(batch, capped, seed=0, step=step))) for step in range(5)}) > 1


@pytest.mark.parametrize("pairing", ["best_worst", "all"])
def test_equal_completions_are_no_pair(pairing: str) -> None:
    pairs = PolicyPairs.model_validate({"pairing": pairing})
    paired = pair_up(rollout([[1, 0]], [[3, 4], [3, 4]]), pairs, seed=0, step=1)
    assert rows(paired) == []
    assert (paired[1]["pairs/equal_sides"], paired[1]["pairs/groups_without_pair"]) == (1, 0)
    assert paired[0].shape == (0, 2) and paired[0].dtype == torch.int64
    # One that begins like the other is another.
    assert len(rows(pair_up(rollout([[1, 0]], [[3, 4], [3]]), pairs, seed=0, step=1))) == 1


@given(
    st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0, math.nan]), min_size=1, max_size=6), min_size=1, max_size=4),
    st.sampled_from(["best_worst", "all"]),
)
def test_chosen_earned_more_than_rejected_of_the_same_prompt(rewards: list[list[float]], pairing: str) -> None:
    batch = rollout(rewards)
    pairs, metrics = pair_up(
        batch,
        PolicyPairs.model_validate({"pairing": pairing, **({"max_per_prompt": 3} if pairing == "all" else {})}),
        0,
        1,
    )
    chosen, rejected = pairs.T
    assert (batch.rewards[chosen] > batch.rewards[rejected]).all()
    assert (batch.groups[chosen] == batch.groups[rejected]).all()
    known = [{reward for reward in group if reward == reward} for group in rewards]
    assert metrics["pairs/groups_without_pair"] == sum(len(values) < 2 for values in known)
    assert len(set(batch.groups[chosen].tolist())) == sum(len(values) > 1 for values in known)
