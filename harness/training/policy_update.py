"""The training step: takes optimiser steps on one batch of completions.

The denominators of an optimiser step count all its rows. So the result depends neither on the split into micro-batches
nor on leaving out rows that cannot contribute a gradient.

Shapes: N rows (completions), T tokens of the longest completion.
"""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from algorithms import (
    Coefficients,
    Loss,
    StepSize,
    TokenBatch,
    acts_without_advantage,
    policy_loss,
    policy_waits,
    select_tokens,
)
from algorithms.distillation import NoDistillation
from algorithms.loss import row_divisors
from harness.config.run_spec import RunSpec
from harness.processes import Processes, RowShare, by_all
from harness.random_keys import random_key
from harness.training.batch import Batch, ControlledCoefficients, pass_advantages, prepare
from harness.training.optimizer import ClippedOptimizer, OptimizerStep, mini_batches, summed
from harness.training.prefix_attention import shares_prompts
from harness.training.reference import RenewedCopy, Teacher, kl_reference, measure_start, start_metrics
from harness.training.sequences import BatchPart, Scores, SequenceScorer
from harness.training.split import parts_of, split_for_training
from harness.training.states import UpdateState
from harness.training.torch_optimizers import layer_matrices
from harness.training.update_report import (
    GradientPasses,
    MicroLoss,
    StepLosses,
    StepReport,
    batch_metrics,
    coefficient_metrics,
    everyones,
    loss_metrics,
    row_weights,
    token_columns,
)


class CriticModel(nn.Module):
    """PPO's critic: a linear head that computes a value from the hidden state before each token.

    The hidden states come from the critic's own trunk, initialised as a copy of the policy, or from the policy itself.
    The head is zero-initialised, so all values start at 0.
    """

    def __init__(self, policy: PreTrainedModel, trunk: str) -> None:
        """Build the critic from a policy with its starting weights. trunk: "own" or "shared"."""
        super().__init__()
        self.trunk = copy.deepcopy(policy) if trunk == "own" else None
        self.head = nn.Linear(policy.config.get_text_config().hidden_size, 1, device=policy.device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        # The trunk's output embedding is unused, so it is frozen. If it is tied, it is also the input embedding and
        # must be trained.
        if self.trunk is not None and not policy.config.get_text_config().tie_word_embeddings:
            self.trunk.get_output_embeddings().requires_grad_(False)

    def models(self, policy: PreTrainedModel) -> list[PreTrainedModel]:
        """Return the models whose hidden states are needed for the policy's log-probs and the values."""
        return [policy] if self.trunk is None else [policy, self.trunk]

    def values(self, part: BatchPart, policy_hidden: Tensor) -> Tensor:
        """Return the value [n, T'] of the state before each completion token, 0 in padding.

        policy_hidden [n, T', D]: the policy's hidden states of these rows, used if the trunk is shared.
        """
        hidden = policy_hidden if self.trunk is None else part.hidden(self.trunk)
        values: Tensor = self.head(hidden.to(self.head.weight.dtype))[:, :, 0]
        return values.float().where(part.mask, 0.0)


@dataclass
class PolicyUpdate:
    """Optimises a policy and its critic on batches of completions. Each process of a cell computes some of the rows.

    model: must have the starting weights.
    initial: a frozen copy of the starting weights, if the KL to them is measured.
    teacher: needed if the objective distils.

    Together with the policy's weights, `state_dict` is everything that a checkpoint needs.
    """

    model: PreTrainedModel
    spec: RunSpec
    pad_token_id: int
    initial: PreTrainedModel | None = None
    teacher: PreTrainedModel | None = None
    critic: CriticModel | None = field(init=False, default=None)
    optimizer: ClippedOptimizer = field(init=False)

    def __post_init__(self) -> None:
        objective = self._objective = self.spec.policy_gradient
        self._scored_while_training = scored_while_training(self.spec)
        self._has_stepped = False
        if objective.baseline == "critic":
            self.critic = CriticModel(self.model, objective.critic.trunk)
        self._acts_without_advantage = acts_without_advantage(objective)
        self._scorer = SequenceScorer(self.model, self.critic, self.spec, self.pad_token_id)
        reference = kl_reference(objective.kl, self.model, self.initial)
        self._renewed = reference if isinstance(reference, RenewedCopy) else None
        self._reference = reference.policy if isinstance(reference, RenewedCopy) else reference
        self._coefficients = ControlledCoefficients(objective)
        trunk, head = (None, None) if self.critic is None else (self.critic.trunk, self.critic.head)
        self._teacher = self._asked_teacher()
        frozen = (self.initial, self._reference, None if self._teacher is None else self._teacher.model)
        # Splitting replaces the weights, so the optimiser is built after it and the copies above are made before it.
        split_for_training(self.spec.train, self.model, *frozen, trunk, head=head)
        groups = {"policy": self.model.parameters()}
        if self.critic is not None:
            groups["critic"] = self.critic.parameters()
        self.optimizer = ClippedOptimizer(self.spec.train, groups, layer_matrices(self.model, trunk))
        Processes.here().share(self)

    def _asked_teacher(self) -> Teacher | None:
        """Return the teacher, or None if the objective does not distil. Raises ValueError if it is missing."""
        distill = self._objective.distill
        if isinstance(distill, NoDistillation):
            return None
        if self.teacher is None:
            raise ValueError(f"distill.where={distill.where}, but no teacher is given")
        return Teacher(self.teacher, distill, self.pad_token_id, self.spec.train.logits_chunk_tokens)

    def state_dict(self) -> UpdateState:
        return {
            "optimizer": self.optimizer.state_dict(),
            "critic": {} if self.critic is None else self.critic.state_dict(),
            # A fixed reference is the starting policy, which is loaded from elsewhere.
            "reference": {} if self._renewed is None else self._renewed.state_dict(),
            "coefficients": self._coefficients.state_dict(),
            "budget": self._scorer.budget.state_dict(),
        }

    def load_state_dict(self, state: UpdateState) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        if self.critic is not None:
            self.critic.load_state_dict(parts_of(self.critic, state["critic"]))
        if self._renewed is not None:
            self._renewed.load_state_dict(state["reference"])
        self._coefficients.load_state_dict(state["coefficients"])
        self._scorer.budget.load_state_dict(state["budget"])
        self._has_stepped = bool(state["optimizer"]["state"])

    @by_all
    def run(self, batch: Batch, step: int) -> StepReport:
        """Take all optimiser steps on one filtered batch, and return the report.

        step: the number of the batch, from 1. If all rows were dropped, there is no optimiser step.
        Raises DivergedError if a loss or gradient is not finite. The weights are then those of the previous optimiser
        step. Raises RefusedError if the rule's loss is unusable; see `token_losses`.
        """
        spec, objective = self.spec, self._objective
        waits = policy_waits(objective, step)
        # While only the critic is trained, the policy must not change. A rate of 0 also prevents weight decay, and
        # changes through a trunk that the critic shares.
        learning_rates = self.optimizer.begin(
            step,
            policy=0.0 if waits else 1.0,
            critic=objective.critic.learning_rate_factor,
        )
        if waits:
            batch = replace(batch, answers=None)
        if self._renewed is not None:
            self._renewed.begin(step, self.model)
        report = StepReport(metrics={})

        started_s = time.perf_counter()
        batch, coefficients = prepare(
            batch,
            objective,
            self._scorer,
            self._reference,
            self._coefficients,
            self._scored_while_training,
            self._teacher,
        )
        # Measured here, because it needs the policy as it was before the first optimiser step.
        measured = measure_start(self._scorer, self.initial, batch.sequences)
        # All mini-batches and advantages are computed before the first optimiser step, because the counts and the
        # scoring below need them.
        passes = []
        for epoch in range(spec.train.epochs):
            steps = mini_batches(batch.groups, spec, step, epoch)
            passes.append((steps, pass_advantages(batch, objective, steps, spec.seed, step)))
        advantage = passes[0][1]
        lengths = batch.sequences.lengths
        report.trained_tokens = sum(int(lengths[self._acting(batch, one)].sum()) for _, one in passes)
        acting = self._acting(batch, advantage)
        weights = torch.ones(len(batch))
        records_tokens = 0 < int(batch.sequences.lengths.sum()) <= spec.train.token_records_max_tokens
        if self._scored_while_training:
            weights = row_weights(acting)
            # The training pass scores the rows that contribute a gradient. Other rows that metrics or records need are
            # scored here.
            needed = (weights > 0) | records_tokens
            if measured is not None:
                needed |= measured.mask.any(1)
            self._scorer.fill(batch.scores, batch.sequences, (needed & ~acting).nonzero()[:, 0])
        report.logprob_s = time.perf_counter() - started_s

        started_s = time.perf_counter()
        done: list[StepLosses] = []
        taken: list[OptimizerStep] = []
        passed = GradientPasses()
        in_loss = Coefficients(0.0, 0.0) if waits else coefficients
        for steps, pass_advantage in passes:
            for rows in steps:
                # `update` counts the optimiser steps on this batch. Each step selects tokens at its current weights.
                selected = self._selected(batch, rows, pass_advantage, step, update=len(taken))
                parts = self._gradient(batch, rows, pass_advantage, selected, in_loss, passed)
                taken.append(self.optimizer.step(summed([part.loss.value for part in parts])))
                self._has_stepped = True
                done.append((rows, everyones(parts)))
        report.update_s = time.perf_counter() - started_s
        passed.write(report)
        report.micro_batch_tokens, report.notes = self._scorer.budget.tokens, self._scorer.budget.notes()

        report.teacher_tokens = self._tokens_taught(batch, done)
        report.metrics = {
            # None is the default, so that a batch without optimiser steps has the same metrics.
            **({} if batch.answers is None else {"loss/answer": None}),
            **loss_metrics(objective, spec.train, [part.loss for _, parts in done for part in parts], taken),
            "learning_rate": learning_rates["policy"],
            **batch_metrics(batch, advantage, acting, weights),
            **coefficient_metrics(objective, coefficients),
        }
        if self.initial is not None and spec.train.reference_rows:
            report.metrics |= start_metrics(batch.scores.logps, measured)
        if records_tokens:
            report.tokens = token_columns(batch, advantage, done)
        return report

    def _tokens_taught(self, batch: Batch, done: list[StepLosses]) -> int:
        """Count the completion tokens that the teacher scored: once for a reward, or in each pass for the loss."""
        match self._objective.distill.where:
            case "none":
                return 0
            case "reward":
                return int(batch.sequences.lengths.sum())
            case "loss":
                acting = batch.loss_mask.any(1)
                return sum(int(batch.sequences.lengths[rows[acting[rows]]].sum()) for rows, _ in done)

    def _acting(self, batch: Batch, advantage: Tensor) -> Tensor:
        """Return a bool mask [N] of the rows that can contribute a gradient. All rows count in the denominators."""
        # Unless `_acts_without_advantage`, every term is multiplied by the advantage, so rows of advantage 0 add
        # exactly nothing.
        counts = batch.loss_mask if self._acts_without_advantage else (advantage != 0) & batch.loss_mask
        return counts.any(1) if batch.answers is None else counts.any(1) | (batch.answers.weights != 0)

    def _selected(self, batch: Batch, rows: Tensor, advantage: Tensor, step: int, update: int) -> Tensor | None:
        """Return a bool mask [N, T] of the tokens that `select` chooses for one optimiser step, at the current weights.

        Returns None if the objective does not select tokens. rows: the rows of the optimiser step.
        """
        objective = self._objective
        if objective.select.type == "none":
            return None
        current = batch.scores
        # The first optimiser step has the weights with which the batch was scored.
        if update > 0:
            current = Scores.empty(batch.sequences)
            self._scorer.fill(current, batch.sequences, rows)
        selected = torch.zeros_like(batch.loss_mask)
        selected[rows] = select_tokens(
            objective,
            current.logps[rows],
            batch.scores.logps[rows],
            advantage[rows],
            batch.loss_mask[rows],
            entropy=current.entropy[rows],
            key=random_key(self.spec.seed, "select", step=step, example="tokens", sample=update),
        )
        return selected

    def _gradient(
        self,
        batch: Batch,
        rows: Tensor,
        advantage: Tensor,
        selected: Tensor | None,
        coefficients: Coefficients,
        passed: GradientPasses,
    ) -> list[MicroLoss]:
        """Compute the gradient of one optimiser step over `rows`, in micro-batches, without changing the weights.

        Raises RefusedError as `policy_loss` does.
        """
        acting = RowShare.of(rows[self._acting(batch, advantage)[rows]], batch.sequences.lengths)
        shared = shares_prompts(self.model.get_decoder())
        size = StepSize(len(rows), max(1, int(batch.loss_mask[rows].sum())), len(torch.unique(batch.groups[rows])))
        given = {
            "mask": batch.loss_mask,
            "advantages": advantage,
            "old_logp": None if self._scored_while_training else batch.scores.logps,
            "ref_logp": batch.ref_logps,
            "sampler_logp": batch.sampler_logps,
            "selected": selected,
            "old_values": None if self.critic is None else batch.scores.values,
            "returns": batch.returns,
            "groups": batch.groups,
            "group_tokens": _group_tokens(batch.groups, batch.loss_mask),
        }

        def micro_loss(micro: Tensor, micro_batches: int) -> tuple[Loss, tuple[Tensor, Tensor]]:
            part = self._scorer.part(batch.sequences, micro, **given)
            hidden = part.hidden(self.model)
            logps, entropy = self._scorer.score(part, hidden, entropy_grad=coefficients.entropy > 0)
            divergence = None
            if self._objective.distill.where == "loss" and self._teacher is not None:
                divergence = self._teacher.divergence(batch.for_teacher, micro, self.model, part, hidden)
            # If the batch is scored while training, old and current log-probs are equal, but only the current ones have
            # a gradient.
            of_rows: dict[str, Any] = {"old_logp": logps.detach()} | part.rows
            tokens = TokenBatch(
                logp=logps,
                entropy=entropy,
                divergence=divergence,
                values=None if self.critic is None else self.critic.values(part, hidden),
                max_completion_tokens=batch.max_completion_tokens,
                step=size._replace(micro_batches=micro_batches),
                **of_rows,
            )
            is_first = not self._has_stepped
            loss = policy_loss(self._objective, tokens, coefficients, is_first)
            passed.backward(acting.counted(loss.value, micro), batch.sequences.pass_tokens(micro, shared))
            if batch.answers is not None:
                divisors = row_divisors(self._objective.aggregation, tokens).cpu()
                share = batch.answers.add_gradient(self._scorer, micro, divisors, passed.backward)
                loss = loss.with_share("answer", share)
            return loss, (logps.detach(), entropy.detach())

        def whole_step(micros: list[Tensor]) -> list[MicroLoss]:
            # This is inside the retried work, because a run that ran out of memory leaves part of a gradient behind.
            self.optimizer.zero_grad()
            done = [micro_loss(micro, len(micros)) for micro in micros]
            if self._scored_while_training:
                batch.scores.put([(micro, scored) for micro, (_, scored) in zip(micros, done, strict=True)])
            # If weights are split, the list is filled up with micro-batches of another process, which reports their
            # losses.
            return [MicroLoss(micro, loss) for micro, (loss, _) in zip(micros, done, strict=True) if acting.has(micro)]

        def split(tokens: int) -> list[Tensor]:
            return acting.micro_batches(lambda own: batch.sequences.micro_batches(own, tokens, shared))

        parts = self._scorer.budget.run(split, whole_step)
        if self._scored_while_training:
            acting.exchange_(batch.scores.logps, batch.scores.entropy)
        return parts


def scored_while_training(spec: RunSpec) -> bool:
    """Return whether the old log-probs can come from the forward pass of the only optimiser step, which saves a pass.

    They cannot if there are several optimiser steps, or if anything needs log-probs before that pass: a critic, a KL or
    teacher in the reward, a controller, or a selection of tokens.
    """
    objective = spec.policy_gradient
    return (
        spec.optimizer_steps_per_rollout == 1
        and objective.baseline != "critic"
        and objective.kl.where != "reward"
        and objective.distill.where != "reward"
        and (objective.kl.where == "none" or objective.kl.control == "fixed")
        and objective.select.type == "none"
        and objective.entropy.adaptive.type == "none"
    )


def _group_tokens(groups: Tensor, loss_mask: Tensor) -> Tensor:
    """Return the number of loss tokens in each row's complete group: [N] int64."""
    group = torch.unique(groups, return_inverse=True)[1]
    tokens = loss_mask.sum(1)
    return torch.zeros_like(tokens).index_add(0, group, tokens)[group]
