"""What the policy update learns from: completions with their rewards.

Which completions of a rollout batch are learned from: the knobs `overlong` and `zero_std`.

A rollout batch with all that must be known of it before its first optimiser step.

Coefficients that follow a measurement from rollout batch to rollout batch: of the entropy bonus and of the KL.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from algorithms import (
    Coefficients,
    Objective,
    advantages,
    applied_entropy_coefficient,
    kl_estimate,
    kl_penalties,
    next_entropy_coefficient,
    next_kl_coefficient,
    value_targets,
)
from harness.config.run_spec import RunSpec
from harness.random_keys import permutation, random_key
from harness.training.reference import KlReference
from harness.training.sequences import RolloutScores, Scorer, Sequences


@dataclass(frozen=True)
class ScoredRollout:
    """A rollout batch of N completions of at most T tokens, with its rewards."""

    sequences: Sequences
    sampler_logps: Tensor
    """[N, T] log-probs that the sampler reported."""
    rewards: Tensor
    """[N] float; NaN: could not be scored."""
    groups: Tensor
    """[N] int64, equal for completions of one prompt."""
    max_completion_tokens: int
    """The limit under which they were drawn."""
    loss_mask: Tensor
    """Bool [N, T]: completion tokens that enter the loss."""
    correct: Tensor
    """Bool [N]: the grader's verdict, for metrics only."""
    token_rewards: Tensor | None = None
    """[N, T] rewards of steps within completions; see `algorithms.advantages`."""

    def rows(self, kept: Tensor) -> ScoredRollout:
        """The rows where `kept` (bool [N]) is true, in their order."""
        chosen = kept.nonzero()[:, 0]
        return replace(
            self,
            sequences=self.sequences.rows(chosen),
            sampler_logps=self.sampler_logps[chosen],
            rewards=self.rewards[chosen],
            groups=self.groups[chosen],
            loss_mask=self.loss_mask[chosen],
            correct=self.correct[chosen],
            token_rewards=None if self.token_rewards is None else self.token_rewards[chosen],
        )


class Filtered(NamedTuple):
    """The batch to learn from (it can be empty) and what was taken out of it."""

    rollout: ScoredRollout
    rows_dropped: int
    groups_dropped: int
    kept: Tensor
    """Int64: the rows of the whole batch that are left, in their order."""


def filter_rows(objective: Objective, rollout: ScoredRollout, truncated: Tensor) -> Filtered:
    """Apply `overlong` and then `zero_std` to a batch; truncated [N] bool: cut at the completion limit.

    overlong: `mask_after` takes truncated completions out of the loss only; `mask_before` also makes their reward NaN,
    so that no baseline or std sees it; `drop` removes them. zero_std: groups whose scored rewards are all equal are
    kept, masked out of the loss, or removed (`drop`; `refill`, whose other half is to draw more, see
    `harness.run.rollout`).
    """
    kept = torch.ones_like(truncated)
    match objective.overlong.type:
        case "mask_after":
            rollout = replace(rollout, loss_mask=rollout.loss_mask & ~truncated[:, None])
        case "mask_before":
            rollout = replace(
                rollout,
                loss_mask=rollout.loss_mask & ~truncated[:, None],
                rewards=rollout.rewards.masked_fill(truncated, torch.nan),
            )
        case "drop":
            kept = ~truncated
    alike = zero_std_rows(rollout.rewards.masked_fill(~kept, torch.nan), rollout.groups)
    if objective.zero_std == "mask":
        rollout = replace(rollout, loss_mask=rollout.loss_mask & ~alike[:, None])
    elif objective.zero_std != "keep":
        kept = kept & ~alike
    if kept.all():
        return Filtered(rollout, 0, 0, torch.arange(len(kept)))
    before = len(torch.unique(rollout.groups))
    rollout = rollout.rows(kept)
    groups_dropped = before - len(torch.unique(rollout.groups))
    return Filtered(rollout, int((~kept).sum()), groups_dropped, kept.nonzero()[:, 0])


def zero_std_rows(rewards: Tensor, groups: Tensor) -> Tensor:
    """Bool [N]: rows of groups whose scored rewards [N] are all equal, so also of groups with none or one."""
    group = torch.unique(groups, return_inverse=True)[1]
    scored = ~rewards.isnan()
    count = int(group.max()) + 1 if len(group) else 0

    def extreme(fill: float, reduce: str) -> Tensor:
        values = rewards.masked_fill(~scored, fill)
        return torch.full((count,), fill, dtype=rewards.dtype).scatter_reduce(0, group, values, reduce)[group]

    return extreme(torch.inf, "amin") >= extreme(-torch.inf, "amax")


@dataclass(frozen=True)
class PreparedRollout:
    """Tensors [N, T] on the CPU."""

    rollout: ScoredRollout
    scores: RolloutScores
    """Old log-probs, entropies and values; filled in while training where `scored_while_training`."""
    ref_logps: Tensor | None
    token_rewards: Tensor | None
    """Rewards of steps and the KL in the reward."""
    returns: Tensor | None
    coefficients: Coefficients
    policy_waits: bool
    """The critic's warm-up: no gradient for the policy."""

    def advantages(self, spec: RunSpec, batches: list[Tensor], step: int) -> Tensor:
        """[N, T] for a pass that is split into these optimiser steps (row indices)."""
        objective, rollout = spec.policy_gradient, self.rollout
        if self.policy_waits:
            return torch.zeros(rollout.sequences.completions.shape)
        split = torch.zeros(len(rollout.groups), dtype=torch.long)
        for index, rows in enumerate(batches):
            split[rows] = index
        return advantages(
            objective,
            rollout.rewards,
            rollout.groups,
            rollout.sequences.mask,
            values=self.scores.values if objective.baseline == "critic" else None,
            token_rewards=self.token_rewards,
            peers=peers_of(rollout.groups, spec.seed, step) if objective.baseline == "random_peer" else None,
            mini_batches=split,
        )


def scored_while_training(spec: RunSpec) -> bool:
    """Whether old log-probs can be those of the only optimiser step's own forward pass, so that one pass is saved."""
    objective = spec.policy_gradient
    return (
        spec.optimizer_steps_per_rollout == 1
        and objective.baseline != "critic"
        and objective.kl.where != "reward"
        and (objective.kl.where == "none" or objective.kl.control == "fixed")
        and objective.select.type == "none"
        and objective.entropy.adaptive.type == "none"
    )


def prepare(
    rollout: ScoredRollout,
    spec: RunSpec,
    step: int,
    scorer: Scorer,
    reference: KlReference,
    controlled: ControlledCoefficients,
) -> PreparedRollout:
    """Score the batch, put the KL into its rewards, let the controllers see it."""
    objective, mask = spec.policy_gradient, rollout.sequences.mask
    scores = RolloutScores.empty(rollout.sequences)
    if not scored_while_training(spec):
        scorer.fill(scores, rollout.sequences, torch.arange(len(mask)))
    ref_logps = None if reference.policy is None else scorer.logps_of(reference.policy, rollout.sequences)
    coefficients = controlled.in_force(_entropy_nats(objective, scores, mask))
    token_rewards = rollout.token_rewards
    if objective.kl.where != "none" and ref_logps is not None:
        if objective.kl.where == "reward":
            penalties = kl_penalties(objective.kl, scores.logps, ref_logps, coefficients.kl, mask)
            # NaN marks tokens where no step ends; the penalty is due at them too.
            token_rewards = penalties if token_rewards is None else token_rewards.nan_to_num(0.0) + penalties
        if objective.kl.control == "adaptive" and mask.any():
            estimates = kl_estimate(objective.kl.estimator, scores.logps, ref_logps, scores.logps)
            controlled.observe_kl(float(estimates[mask].mean()), len(mask))
    returns = None
    if objective.baseline == "critic":
        returns = value_targets(objective, rollout.rewards, mask, scores.values, token_rewards)
    waits = policy_waits(objective, step)
    return PreparedRollout(rollout, scores, ref_logps, token_rewards, returns, coefficients, waits)


def policy_waits(objective: Objective, step: int) -> bool:
    """Whether rollout batch `step` is of the critic's warm-up, in which only the critic's own weights move."""
    return objective.baseline == "critic" and step <= objective.critic.warmup_steps


def _entropy_nats(objective: Objective, scores: RolloutScores, mask: Tensor) -> float:
    """The entropy that the adaptive bonus is steered by, a mean over tokens; 0 of an empty batch."""
    adaptive = objective.entropy.adaptive
    if adaptive.type == "none" or not mask.any():
        return 0.0
    per_token = scores.entropy if adaptive.estimator == "full" else -scores.logps
    return float(per_token[mask].mean())


def peers_of(groups: Tensor, seed: int, step: int) -> Tensor:
    """[N] for each row the row of its group that the whole group is compared with."""
    peers = torch.zeros_like(groups)
    for name in torch.unique(groups).tolist():
        rows = (groups == name).nonzero()[:, 0]
        key = random_key(seed, "select", step=step, example=name)
        peers[rows] = rows[permutation(len(rows), key)[0]]
    return peers


@dataclass
class ControlledCoefficients:
    """The coefficients in force; fixed ones stay where the objective puts them."""

    objective: Objective
    entropy: float = field(init=False)
    kl: float = field(init=False)

    def __post_init__(self) -> None:
        self.entropy = self.objective.entropy.bonus
        self.kl = 0.0 if self.objective.kl.where == "none" else self.objective.kl.beta

    def in_force(self, entropy_nats: float) -> Coefficients:
        """For a batch whose policy has this entropy; the entropy controller's step comes after it."""
        adaptive = self.objective.entropy.adaptive
        if adaptive.type == "none":
            return Coefficients(entropy=self.entropy, kl=self.kl)
        applied = applied_entropy_coefficient(adaptive, self.entropy, entropy_nats)
        self.entropy = next_entropy_coefficient(adaptive, self.entropy, entropy_nats)
        return Coefficients(entropy=applied, kl=self.kl)

    def observe_kl(self, kl_nats: float, completions: int) -> None:
        """Take the KL controller's step after a batch of so many completions with this KL a token."""
        kl = self.objective.kl
        if kl.where != "none" and kl.control == "adaptive":
            self.kl = next_kl_coefficient(kl, self.kl, kl_nats, completions)

    def state_dict(self) -> dict[str, float]:
        return {"entropy": self.entropy, "kl": self.kl}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.entropy, self.kl = state["entropy"], state["kl"]
