"""The training step: one batch becomes optimiser steps.

Shapes: N rows (completions), T longest completion. An optimiser step's denominators are those of all its rows, so it
does not matter how the rows are split into micro-batches, nor that rows which cannot act are left out of them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from algorithms import Coefficients, Loss, StepSize, TokenBatch, acts_without_advantage, policy_loss, select_tokens
from harness.config.run_spec import RunSpec
from harness.random_keys import random_key
from harness.training.batch import (
    Batch,
    ControlledCoefficients,
    pass_advantages,
    policy_waits,
    prepare,
    scored_while_training,
)
from harness.training.critic import Critic
from harness.training.optimizer import ClippedAdamW, OptimizerStep, TokenBudget, mini_batches
from harness.training.prefix_attention import shares_prompts
from harness.training.reference import KlReference, measure_start, start_metrics
from harness.training.sequences import Part, Scorer, Scores, completion_hidden, score_hidden
from harness.training.update_report import (
    GradientPasses,
    MicroLoss,
    StepLosses,
    UpdateReport,
    batch_metrics,
    coefficient_metrics,
    loss_metrics,
    token_columns,
)


@dataclass
class PolicyUpdate:
    """Optimises a policy, and its critic, on batches of completions. The model must hold the starting weights.

    initial: a frozen copy of them, if the KL to them is to be measured. `state_dict` is all that a checkpoint needs
    besides the policy's weights.
    """

    model: PreTrainedModel
    spec: RunSpec
    pad_token_id: int
    initial: PreTrainedModel | None = None
    critic: Critic | None = field(init=False, default=None)
    optimizer: ClippedAdamW = field(init=False)

    def __post_init__(self) -> None:
        objective = self._objective = self.spec.policy_gradient
        self._scored_while_training = scored_while_training(self.spec)
        if objective.baseline == "critic":
            self.critic = Critic(self.model, objective.critic.trunk)
        self._acts_without_advantage = acts_without_advantage(objective)
        self._budget = TokenBudget.of(self.spec)
        self._scorer = Scorer(self.model, self.critic, self.spec, self.pad_token_id, self._budget)
        self._reference = KlReference(objective.kl, self.model, self.initial)
        self._coefficients = ControlledCoefficients(objective)
        groups = {"policy": self.model.parameters()}
        if self.critic is not None:
            groups["critic"] = self.critic.parameters()
        self.optimizer = ClippedAdamW(self.spec.train, groups)

    def state_dict(self) -> dict[str, Any]:
        return {
            "optimizer": self.optimizer.state_dict(),
            "critic": {} if self.critic is None else self.critic.state_dict(),
            "reference": self._reference.state_dict(),
            "coefficients": self._coefficients.state_dict(),
            "budget": self._budget.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        if self.critic is not None:
            self.critic.load_state_dict(state["critic"])
        self._reference.load_state_dict(state["reference"])
        self._coefficients.load_state_dict(state["coefficients"])
        self._budget.load_state_dict(state["budget"])

    def run(self, batch: Batch, step: int) -> UpdateReport:
        """All optimiser steps on one filtered batch; `step` counts batches from 1.

        A batch that holds no row, because all were dropped, takes no optimiser step.

        Raises DivergedError as soon as a loss or gradient is not finite; the weights are then those of the last
        optimiser step before it.
        """
        spec, objective = self.spec, self._objective
        waits = policy_waits(objective, step)
        # While only the critic learns, nothing else moves: not by weight decay, and not as the trunk of its values.
        learning_rates = self.optimizer.begin(
            step,
            policy=0.0 if waits else 1.0,
            critic=objective.critic.learning_rate_factor,
        )
        self._reference.begin(step, self.model)
        report = UpdateReport(metrics={})

        started_s = time.perf_counter()
        batch, coefficients = prepare(
            batch, objective, self._scorer, self._reference, self._coefficients, self._scored_while_training
        )
        measured = measure_start(self.model, self.initial, batch.sequences, spec, self.pad_token_id, self._budget)
        passes = []
        for epoch in range(spec.train.epochs):
            steps = mini_batches(batch.groups, spec, step, epoch)
            passes.append((steps, pass_advantages(batch, objective, steps, spec.seed, step)))
        advantage = passes[0][1]
        acting = self._acting(batch, advantage)
        if self._scored_while_training:
            self._scorer.fill(batch.scores, batch.sequences, (~acting).nonzero()[:, 0])
        report.logprob_s = time.perf_counter() - started_s

        started_s = time.perf_counter()
        done: list[StepLosses] = []
        taken: list[OptimizerStep] = []
        passed = GradientPasses()
        in_loss = Coefficients(0.0, 0.0) if waits else coefficients
        for steps, pass_advantage in passes:
            for rows in steps:
                selected = self._selected(batch, rows, pass_advantage, step, update=len(taken))
                parts = self._gradient(batch, rows, pass_advantage, selected, in_loss, passed)
                taken.append(self.optimizer.step(sum(float(part.loss.value.detach()) for part in parts)))
                done.append(StepLosses(rows, parts))
        report.update_s = time.perf_counter() - started_s
        passed.write(report)
        report.micro_batch_tokens, report.notes = self._budget.tokens, self._budget.notes()

        report.metrics = {
            **loss_metrics(objective, spec.train, [part.loss for step_done in done for part in step_done.parts], taken),
            "learning_rate": learning_rates["policy"],
            **batch_metrics(batch, advantage, acting),
            **coefficient_metrics(objective, coefficients),
        }
        if self.initial is not None and spec.train.reference_rows:
            report.metrics |= start_metrics(batch.scores.logps, measured)
        if 0 < batch.generated_tokens <= spec.train.token_records_max_tokens:
            report.tokens = token_columns(batch, advantage, done)
        return report

    def _acting(self, batch: Batch, advantage: Tensor) -> Tensor:
        """Bool [N]: the rows that can add to a gradient. The others are in the denominators all the same."""
        if self._acts_without_advantage:
            return batch.loss_mask.any(1)
        # Every term of the loss is multiplied by the advantage, so rows without one add exactly nothing.
        return ((advantage != 0) & batch.loss_mask).any(1)

    def _selected(self, batch: Batch, rows: Tensor, advantage: Tensor, step: int, update: int) -> Tensor | None:
        """Bool [N, T]: the tokens that `select` picks among those of one optimiser step, at the current weights."""
        objective = self._objective
        if objective.select.type == "none":
            return None
        current = batch.scores
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
        """The gradient of one optimiser step over the rows, in micro-batches; the weights stay."""
        acting = rows[self._acting(batch, advantage)[rows]]
        shared = shares_prompts(self.model.get_decoder())
        size = StepSize(len(rows), max(1, int(batch.loss_mask[rows].sum())), len(torch.unique(batch.groups[rows])))
        group_tokens = _group_tokens(batch.groups, batch.loss_mask)

        def micro_loss(micro: Tensor, micro_batches: int) -> Loss:
            logps, entropy, values = self._forward(batch, micro, entropy_grad=coefficients.entropy > 0)
            part = Part(micro, logps.shape[1], logps.device)
            tokens = TokenBatch(
                logp=logps,
                old_logp=part.of(batch.scores.logps),
                mask=part.of(batch.loss_mask),
                advantages=part.of(advantage),
                ref_logp=part.if_any(batch.ref_logps),
                sampler_logp=part.of(batch.sampler_logps),
                entropy=entropy,
                selected=part.if_any(selected),
                values=values,
                old_values=None if values is None else part.of(batch.scores.values),
                returns=part.if_any(batch.returns),
                groups=batch.groups[micro].to(logps.device),
                group_tokens=group_tokens[micro].to(logps.device),
                max_completion_tokens=batch.max_completion_tokens,
                step=size._replace(micro_batches=micro_batches),
            )
            loss = policy_loss(self._objective, tokens, coefficients)
            passed.backward(loss.value, batch.sequences.pass_tokens(micro, shared))
            return loss

        def whole_step(micros: list[Tensor]) -> list[MicroLoss]:
            self.optimizer.zero_grad()
            return [MicroLoss(micro, micro_loss(micro, len(micros))) for micro in micros]

        return self._budget.run(lambda tokens: batch.sequences.micro_batches(acting, tokens, shared), whole_step)

    def _forward(self, batch: Batch, micro: Tensor, entropy_grad: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        """Log-probs, entropies and, with a critic, values of some rows, with gradient."""
        spec, sequences, scores = self.spec, batch.sequences, batch.scores
        hidden, completions, mask = completion_hidden(self.model, sequences, micro, self.pad_token_id)
        logps, entropy = score_hidden(
            self.model,
            hidden,
            completions,
            mask,
            spec.rollout.temperature,
            spec.train.logits_chunk_tokens,
            entropy_grad,
        )
        if self._scored_while_training:
            scores.logps[micro, : logps.shape[1]] = logps.detach().cpu()
            scores.entropy[micro, : logps.shape[1]] = entropy.detach().cpu()
        values = None
        if self.critic is not None:
            values = self.critic.values(sequences, micro, hidden, self.pad_token_id)
        return logps, entropy, values


def _group_tokens(groups: Tensor, loss_mask: Tensor) -> Tensor:
    """[N] int64: loss tokens in each row's whole group."""
    group = torch.unique(groups, return_inverse=True)[1]
    tokens = loss_mask.sum(1)
    return torch.zeros_like(tokens).index_add(0, group, tokens)[group]
