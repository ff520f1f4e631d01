"""The training step: one rollout batch becomes optimiser steps.

Shapes: N rows (completions), T longest completion. An optimiser step's denominators are those of all its rows, so it
does not matter how the rows are split into micro-batches, nor that rows without advantage are left out of them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from algorithms import TokenBatch, advantages, combine_metrics, policy_loss, update_metric_names
from harness.rollouts.keys import permutation, random_key
from harness.spec.run_spec import RunSpec
from harness.spec.sections.train import TrainSpec
from harness.training.sequences import Sequences, score_completions

ADAM_BETAS = (0.9, 0.999)


class DivergedError(Exception):
    """Loss, gradient or weights are no longer finite: a result, not a fault (the cell is scored and flagged)."""


@dataclass(frozen=True)
class ScoredRollout:
    """A rollout batch with its rewards: sequences of N rows, sampler_logps [N, T], rewards [N], groups [N] int64."""

    sequences: Sequences
    sampler_logps: Tensor
    rewards: Tensor
    groups: Tensor


@dataclass
class UpdateReport:
    """What one rollout batch's updates measured. Wall-clock by phase in seconds; the metrics are reproducible."""

    metrics: dict[str, float | None]
    logprob_s: float = 0.0
    update_s: float = 0.0


@dataclass
class PolicyUpdate:
    """Optimises a policy on rollout batches; `state_dict` is all that a checkpoint needs besides the weights."""

    model: PreTrainedModel
    spec: RunSpec
    pad_token_id: int
    optimizer: torch.optim.Optimizer = field(init=False)

    def __post_init__(self) -> None:
        self.optimizer = self._new_optimizer()
        # Never None: AdamW passes over weights without a gradient, so a step whose groups are all skipped would differ
        # between a process that has trained before and one that has just resumed.
        for weight in self._weights():
            weight.grad = torch.zeros_like(weight)

    def state_dict(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state)

    def run(self, rollout: ScoredRollout, step: int) -> UpdateReport:
        """All optimiser steps on one rollout batch; `step` counts rollout batches from 1.

        Of the metrics, ratio/*, kl/*_old and clip/* are over the tokens of rows with an advantage (None if there is no
        such row), all others over the whole batch.

        Raises DivergedError as soon as a loss or gradient is not finite; the weights are then those of the last
        optimiser step before it.
        """
        spec, sequences = self.spec, rollout.sequences
        if spec.train.optimizer_reset == "per_rollout":
            self.optimizer = self._new_optimizer()
        learning_rate = spec.train.learning_rate * schedule(step, spec.train)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate

        mask = sequences.mask
        advantage = advantages(spec.objective, rollout.rewards, rollout.groups, mask)
        # Every term of the loss is multiplied by the advantage, so such rows add exactly nothing to the gradient.
        has_advantage = (advantage != 0).any(1)

        report = UpdateReport(metrics={})
        old_logps = torch.zeros(mask.shape)
        entropy = torch.zeros(mask.shape)
        on_policy = spec.optimizer_steps_per_rollout == 1
        started_s = time.perf_counter()
        # With one step per rollout the old log-probs of trained rows are those of the step's own forward pass.
        self._score(sequences, (~has_advantage if on_policy else torch.ones_like(has_advantage)), old_logps, entropy)
        report.logprob_s = time.perf_counter() - started_s

        started_s = time.perf_counter()
        parts = []
        grad_norms = []
        for rows in self._mini_batches(rollout.groups, step):
            self.optimizer.zero_grad(set_to_none=False)
            for micro in sequences.micro_batches(rows[has_advantage[rows]], spec.train.micro_batch_tokens):
                logps, micro_entropy = score_completions(
                    self.model, sequences, micro, spec.rollout.temperature, self.pad_token_id
                )
                longest = logps.shape[1]
                if on_policy:
                    old_logps[micro, :longest] = logps.detach().cpu()
                    entropy[micro, :longest] = micro_entropy.cpu()
                device = logps.device
                loss = policy_loss(
                    spec.objective,
                    TokenBatch(
                        logp=logps,
                        old_logp=old_logps[micro, :longest].to(device),
                        mask=mask[micro, :longest].to(device),
                        groups=rollout.groups[micro].to(device),
                        advantages=advantage[micro, :longest].to(device),
                        max_completion_tokens=spec.rollout.max_completion_tokens,
                        step_sequences=len(rows),
                        step_tokens=int(mask[rows].sum()),
                    ),
                )
                loss.value.backward()  # type: ignore[no-untyped-call]
                parts.append(loss)
            grad_norms.append(self._clip_gradient())
            self.optimizer.step()
        report.update_s = time.perf_counter() - started_s

        report.metrics = {
            "loss": sum(float(part.value.detach()) for part in parts) / len(grad_norms),
            **dict.fromkeys(update_metric_names(spec.objective.rule)),
            **combine_metrics(parts),
            "grad_norm": sum(grad_norms) / len(grad_norms),
            "grad_clipped_frac": sum(norm > spec.train.max_grad_norm for norm in grad_norms) / len(grad_norms),
            "learning_rate": learning_rate,
            "entropy/full": float(entropy[mask].mean()),
            "tokens_in_loss": int(mask[has_advantage].sum()),
            "groups_skipped": len(set(rollout.groups.tolist()) - set(rollout.groups[has_advantage].tolist())),
            "adv/mean": float(advantage[mask].mean()),
            "adv/std": float(advantage[mask].std()),
            "adv/abs_mean": float(advantage[mask].abs().mean()),
            **mismatch_metrics(old_logps[mask], rollout.sampler_logps[mask]),
        }
        return report

    def _score(self, sequences: Sequences, wanted: Tensor, old_logps: Tensor, entropy: Tensor) -> None:
        """Fill in old_logps and entropy [N, T] of the wanted rows (bool [N]), without gradient."""
        rows = wanted.nonzero()[:, 0]
        with torch.inference_mode():
            for micro in sequences.micro_batches(rows, self.spec.train.micro_batch_tokens):
                logps, micro_entropy = score_completions(
                    self.model, sequences, micro, self.spec.rollout.temperature, self.pad_token_id
                )
                old_logps[micro, : logps.shape[1]] = logps.cpu()
                entropy[micro, : logps.shape[1]] = micro_entropy.cpu()

    def _mini_batches(self, groups: Tensor, step: int) -> list[Tensor]:
        """Rows of each optimiser step: whole groups, in a new order each epoch where there is more than one step."""
        spec = self.spec
        names = sorted(set(groups.tolist()))
        size = len(names) // spec.train.updates_per_rollout
        batches = []
        for epoch in range(spec.train.epochs):
            order = names
            if spec.optimizer_steps_per_rollout > 1:
                key = random_key(spec.seed, "shuffle", step=step, example=epoch)
                order = [names[index] for index in permutation(len(names), key)]
            for start in range(0, len(names), size):
                chosen = torch.tensor(order[start : start + size])
                batches.append(torch.isin(groups, chosen).nonzero()[:, 0])
        return batches

    def _clip_gradient(self) -> float:
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.spec.train.max_grad_norm))
        if not math.isfinite(norm):
            raise DivergedError(f"the gradient's norm is {norm}")
        return norm

    def _weights(self) -> list[torch.nn.Parameter]:
        return [weight for weight in self.model.parameters() if weight.requires_grad]

    def _new_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(
            self._weights(),
            lr=self.spec.train.learning_rate,
            betas=ADAM_BETAS,
            weight_decay=self.spec.train.weight_decay,
        )


def schedule(step: int, train: TrainSpec) -> float:
    """Learning-rate factor of rollout batch `step` (from 1): linear warm-up, then the named decay to 0 at the end."""
    if step <= train.warmup_steps:
        return step / train.warmup_steps
    decays: dict[str, Callable[[float], float]] = {
        "constant": lambda done: 1.0,
        "linear": lambda done: 1.0 - done,
        "cosine": lambda done: 0.5 * (1.0 + math.cos(math.pi * done)),
    }
    return decays[train.lr_schedule]((step - 1 - train.warmup_steps) / max(1, train.steps - train.warmup_steps))


def mismatch_metrics(trainer_logps: Tensor, sampler_logps: Tensor) -> dict[str, float]:
    """How far sampler and trainer disagree on the sampled tokens: raw probability ratios, and k1 in nats.

    Both [tokens]. The ratio is trainer over sampler; 1 everywhere for an exact engine.
    """
    difference = trainer_logps - sampler_logps
    ratio = difference.exp()
    return {
        "mismatch/ratio_mean": float(ratio.mean()),
        "mismatch/ratio_p99": float(ratio.quantile(0.99)),
        "mismatch/ratio_max": float(ratio.max()),
        "mismatch/k1": float(-difference.mean()),
    }
