"""A rollout batch with all that must be known of it before its first optimiser step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from algorithms import Coefficients, Objective, advantages, kl_estimate, kl_penalties, value_targets
from harness.rollouts.keys import permutation, random_key
from harness.spec.run_spec import RunSpec
from harness.training.coefficients import ControlledCoefficients
from harness.training.reference import KlReference
from harness.training.rollout_scores import RolloutScores, Scorer
from harness.training.scored_rollout import ScoredRollout


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
