"""The training step: one batch becomes optimiser steps.

Shapes: N rows (completions), T longest completion. An optimiser step's denominators are those of all its rows. So the
result depends neither on the split into micro-batches nor on leaving out rows that cannot act.
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
from harness.training.reference import KlReference, Teacher, measure_start, start_metrics
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
    """The critic of PPO: a linear head on hidden states, which values every token before it is sampled.

    The trunk that computes the hidden states is its own, which starts as a copy of the policy, or the policy's. The
    head starts at 0, so that all values do.
    """

    def __init__(self, policy: PreTrainedModel, trunk: str) -> None:
        """Build the critic on a policy that holds its starting weights; trunk: `own` or `shared`."""
        super().__init__()
        self.trunk = copy.deepcopy(policy) if trunk == "own" else None
        self.head = nn.Linear(policy.config.get_text_config().hidden_size, 1, device=policy.device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        # A trunk's output embedding predicts nothing here. If it is tied it is also the input embedding, and must
        # learn.
        if self.trunk is not None and not policy.config.get_text_config().tie_word_embeddings:
            self.trunk.get_output_embeddings().requires_grad_(False)

    def models(self, policy: PreTrainedModel) -> list[PreTrainedModel]:
        """Return the models whose hidden states give the policy's log-probs and the values."""
        return [policy] if self.trunk is None else [policy, self.trunk]

    def values(self, part: BatchPart, policy_hidden: Tensor) -> Tensor:
        """Return the value [n, T'] of each completion token's state, before the token is sampled; 0 in padding.

        policy_hidden [n, T', D]: the policy's hidden states at these rows, used if the trunk is shared.
        """
        hidden = policy_hidden if self.trunk is None else part.hidden(self.trunk)
        values: Tensor = self.head(hidden.to(self.head.weight.dtype))[:, :, 0]
        return values.float().where(part.mask, 0.0)


@dataclass
class PolicyUpdate:
    """Optimises a policy and its critic on batches of completions, in all processes of a cell.

    Each process passes over a share of the rows. The model must hold the starting weights. initial: a frozen copy of
    them, if the KL to them is to be measured. teacher: needed if the objective distils. `state_dict` is all that a
    checkpoint needs besides the policy's weights.
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
        self._reference = KlReference(objective.kl, self.model, self.initial)
        self._coefficients = ControlledCoefficients(objective)
        trunk, head = (None, None) if self.critic is None else (self.critic.trunk, self.critic.head)
        self._teacher = self._asked_teacher()
        frozen = (self.initial, self._reference.policy, None if self._teacher is None else self._teacher.model)
        # Splitting replaces the weights, so the optimiser must be built after it; all copies above were made before it.
        split_for_training(self.spec.train, self.model, *frozen, trunk, head=head)
        groups = {"policy": self.model.parameters()}
        if self.critic is not None:
            groups["critic"] = self.critic.parameters()
        self.optimizer = ClippedOptimizer(self.spec.train, groups, layer_matrices(self.model, trunk))
        Processes.here().share(self)

    def _asked_teacher(self) -> Teacher | None:
        """Return the teacher if the objective distils, else None; raise ValueError if it is needed and missing."""
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
            "reference": self._reference.state_dict(),
            "coefficients": self._coefficients.state_dict(),
            "budget": self._scorer.budget.state_dict(),
        }

    def load_state_dict(self, state: UpdateState) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        if self.critic is not None:
            self.critic.load_state_dict(parts_of(self.critic, state["critic"]))
        self._reference.load_state_dict(state["reference"])
        self._coefficients.load_state_dict(state["coefficients"])
        self._scorer.budget.load_state_dict(state["budget"])
        self._has_stepped = bool(state["optimizer"]["state"])

    @by_all
    def run(self, batch: Batch, step: int) -> StepReport:
        """Take all optimiser steps on one filtered batch; `step` counts batches from 1.

        A batch without rows, because all were dropped, takes no optimiser step. Raises DivergedError as soon as a loss
        or gradient is not finite; the weights are then those of the last optimiser step before it. Raises RefusedError
        for a rule that returns anything but one number per token, or that is not finite in the first step.
        """
        spec, objective = self.spec, self._objective
        waits = policy_waits(objective, step)
        # While only the critic learns, nothing else moves. A rate of 0 also rules out weight decay, and moves by way of
        # a trunk that the critic shares.
        learning_rates = self.optimizer.begin(
            step,
            policy=0.0 if waits else 1.0,
            critic=objective.critic.learning_rate_factor,
        )
        if waits:
            batch = replace(batch, answers=None)
        self._reference.begin(step, self.model)
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
        # All mini-batches and advantages are fixed before the first optimiser step: the counts and the scoring below
        # need them.
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
            # Rows that act are scored by the training pass itself; the idle ones that metrics or records need are
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
                # `update` counts optimiser steps within the batch: later steps select tokens at the weights they have
                # by then.
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
            # None by default, so that a step without optimiser steps has the same metrics.
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
        """Count the completion tokens that the teacher scored: once for a reward, in each pass for the loss."""
        match self._objective.distill.where:
            case "none":
                return 0
            case "reward":
                return int(batch.sequences.lengths.sum())
            case "loss":
                acting = batch.loss_mask.any(1)
                return sum(int(batch.sequences.lengths[rows[acting[rows]]].sum()) for rows, _ in done)

    def _acting(self, batch: Batch, advantage: Tensor) -> Tensor:
        """Return a bool [N] mask of the rows that can add to a gradient.

        The others count in the denominators all the same.
        """
        # Unless a term acts without an advantage, each is multiplied by it, so rows without one add exactly nothing.
        counts = batch.loss_mask if self._acts_without_advantage else (advantage != 0) & batch.loss_mask
        return counts.any(1) if batch.answers is None else counts.any(1) | (batch.answers.weights != 0)

    def _selected(self, batch: Batch, rows: Tensor, advantage: Tensor, step: int, update: int) -> Tensor | None:
        """Return a bool [N, T] mask of the tokens that `select` picks for one optimiser step, at the current weights.

        None if the objective does not select. rows: the rows of the step.
        """
        objective = self._objective
        if objective.select.type == "none":
            return None
        current = batch.scores
        # The weights of the first step are those that the batch was scored with.
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
        """Compute the gradient of one optimiser step over the rows, in micro-batches; the weights stay.

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
            # Scored while training, old and current log-probs are the same numbers, and only the current ones carry a
            # gradient.
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
            loss = policy_loss(self._objective, tokens, coefficients, is_first=not self._has_stepped)
            passed.backward(acting.counted(loss.value, micro), batch.sequences.pass_tokens(micro, shared))
            if batch.answers is not None:
                divisors = row_divisors(self._objective.aggregation, tokens).cpu()
                share = batch.answers.add_gradient(self._scorer, micro, divisors, passed.backward)
                loss = loss.with_share("answer", share)
            return loss, (logps.detach(), entropy.detach())

        def whole_step(micros: list[Tensor]) -> list[MicroLoss]:
            # Inside the retried work: a try that ran out of memory has left part of a gradient behind.
            self.optimizer.zero_grad()
            done = [micro_loss(micro, len(micros)) for micro in micros]
            if self._scored_while_training:
                batch.scores.put([(micro, scored) for micro, (_, scored) in zip(micros, done, strict=True)])
            # If weights are split, micro-batches of another process fill up the list. That process reports their
            # losses.
            return [MicroLoss(micro, loss) for micro, (loss, _) in zip(micros, done, strict=True) if acting.has(micro)]

        def split(tokens: int) -> list[Tensor]:
            return acting.micro_batches(lambda own: batch.sequences.micro_batches(own, tokens, shared))

        parts = self._scorer.budget.run(split, whole_step)
        if self._scored_while_training:
            acting.exchange_(batch.scores.logps, batch.scores.entropy)
        return parts


def scored_while_training(spec: RunSpec) -> bool:
    """Return whether the only optimiser step's own forward pass can give the old log-probs, which saves a pass.

    It cannot if anything needs log-probs before that pass: a critic, a KL or teacher in the reward, a controller, or a
    selection of tokens.
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
    """Return the number of loss tokens in each row's whole group, [N] int64."""
    group = torch.unique(groups, return_inverse=True)[1]
    tokens = loss_mask.sum(1)
    return torch.zeros_like(tokens).index_add(0, group, tokens)[group]
