"""Completions of one prompt become pairs of a chosen and a rejected one."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.rollouts.keys import permutation, random_key
from harness.spec.sections.pairs import PolicyPairs
from harness.training.scored_rollout import ScoredRollout


@dataclass(frozen=True)
class Paired:
    """Rows of a rollout batch that make pairs, and what made none."""

    chosen: Tensor
    """[P] int64."""
    rejected: Tensor
    """[P] int64."""
    groups_without_pair: int
    """Prompts whose completions earned all the same, or could not be scored."""
    equal_sides: int
    """Pairs left out because both completions are token for token the same (they can earn differently by noise)."""
    over_cap: int
    """Pairs left out because their prompt had more than `max_per_prompt`."""

    @property
    def metrics(self) -> dict[str, float | None]:
        return {
            "pairs/count": len(self.chosen),
            "pairs/groups_without_pair": self.groups_without_pair,
            "pairs/equal_sides": self.equal_sides,
            "pairs/over_cap": self.over_cap,
        }


def pair_up(rollout: ScoredRollout, pairs: PolicyPairs, seed: int, step: int) -> Paired:
    """Rank the completions of each prompt by their reward (NaN: left out) and pair them as `pairs.pairing` says.

    `best_worst` breaks ties by the order in which completions were drawn. `all` goes through every two of unequal
    reward; of more than max_per_prompt a subset is drawn, keyed by seed, step and prompt, so that arms share it.
    """
    chosen: list[int] = []
    rejected: list[int] = []
    without = equal_sides = over_cap = 0
    rewards = rollout.rewards.tolist()
    for group in torch.unique(rollout.groups).tolist():
        rows = [row for row in (rollout.groups == group).nonzero()[:, 0].tolist() if rewards[row] == rewards[row]]
        unequal = [(a, b) for a, b in itertools.permutations(rows, 2) if rewards[a] > rewards[b]]
        if not unequal:
            without += 1
            continue
        if pairs.pairing == "best_worst":
            best = max(rows, key=lambda row: (rewards[row], -row))
            worst = min(rows, key=lambda row: (rewards[row], row))
            unequal = [(best, worst)]
        told_apart = [pair for pair in unequal if not _same_tokens(rollout, *pair)]
        equal_sides += len(unequal) - len(told_apart)
        if len(told_apart) > pairs.max_per_prompt:
            over_cap += len(told_apart) - pairs.max_per_prompt
            key = random_key(seed, "select", step=step, example=f"pairs/{group}")
            told_apart = [told_apart[index] for index in permutation(len(told_apart), key)[: pairs.max_per_prompt]]
        chosen += [a for a, _ in told_apart]
        rejected += [b for _, b in told_apart]
    return Paired(
        torch.tensor(chosen, dtype=torch.long), torch.tensor(rejected, dtype=torch.long), without, equal_sides, over_cap
    )


def _same_tokens(rollout: ScoredRollout, a: int, b: int) -> bool:
    sequences = rollout.sequences
    length = int(sequences.lengths[a])
    return length == int(sequences.lengths[b]) and bool(
        (sequences.completions[a, :length] == sequences.completions[b, :length]).all()
    )
