"""The training step on pairs: takes optimiser steps on one batch of pairs.

The denominators of an optimiser step count all its pairs, so the result does not depend on the split into
micro-batches. KTO also needs a zero point: the mean log-ratio of policy to reference on completions that are unrelated
to their prompt.

Shapes: P pairs, T tokens of the longest completion. Of 2P rows, the first P are the chosen completions, and the last P
the rejected completions.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor
from transformers import PreTrainedModel

from algorithms.preference import (
    PreferenceLoss,
    combine_preference_metrics,
    couples_pairs,
    preference_loss,
    preference_metric_names,
)
from harness.config.run_spec import RunSpec
from harness.processes import Processes, RowShare, by_all
from harness.training.optimizer import (
    ClippedOptimizer,
    OptimizerStep,
    grouped_micro_batches,
    micro_batches,
    mini_batches,
    summed,
)
from harness.training.prefix_attention import shares_prompts
from harness.training.reference import measure_start, start_metrics
from harness.training.sequences import Scores, Sequences, SequenceScorer, rows_to_measure
from harness.training.split import split_for_training
from harness.training.states import UpdateState
from harness.training.torch_optimizers import layer_matrices
from harness.training.update_report import GradientPasses, StepReport, entropy_metrics, everyones, step_metrics


@dataclass(frozen=True)
class PairBatch:
    """P pairs. `chosen` and `rejected` have the same prompt at each index."""

    chosen: Sequences
    rejected: Sequences
    groups: Tensor
    """[P] int64, equal for pairs of the same prompt."""
    ref_logps: Tensor | None = None
    """[2P, T] the reference's log-probs of the completions of `sequences`; None if they are not known yet."""

    @classmethod
    def of_rows(cls, sequences: Sequences, groups: Tensor, pairs: Tensor) -> PairBatch:
        """Build a batch from `pairs` of rows [P, 2] (int64), the chosen row first. groups [N]: each row's group."""
        chosen, rejected = pairs.T
        return cls(sequences.rows(chosen), sequences.rows(rejected), groups[chosen])

    def __len__(self) -> int:
        return len(self.groups)

    @cached_property
    def sequences(self) -> Sequences:
        """All completions as one batch of 2P rows: the chosen completions, then the rejected completions."""
        return Sequences.joined([self.chosen, self.rejected])

    def rows(self, pairs: Tensor) -> Tensor:
        """Return the rows (int64 indices) of some pairs in `sequences`: the chosen rows, then the rejected rows."""
        return torch.cat([pairs, pairs + len(self)])

    def micro_batches(self, pairs: Tensor, budget_tokens: int, shared: bool = False) -> list[Tensor]:
        """Split pairs (int64 indices) into micro-batches; see `Sequences.micro_batches`.

        A micro-batch has at most `budget_tokens` tokens on both sides together, unless a single pair exceeds that.
        """
        if len(pairs) and shared:
            prompts = self.sequences.distinct_prompts
            both = (self.chosen.lengths + self.rejected.lengths).tolist()
            return grouped_micro_batches(pairs, prompts.of_row.tolist(), prompts.lengths.tolist(), both, budget_tokens)
        # Both sides go through the model together, so each pair counts twice, at the width of its longer side.
        widths = list(map(len, self.chosen.prompts))
        longer = torch.maximum(self.chosen.lengths, self.rejected.lengths).tolist()
        return micro_batches(pairs, widths, longer, budget_tokens // 2)


def zero_point(
    pairs: PairBatch, step_pairs: Tensor, scorer: SequenceScorer, reference: PreTrainedModel | None
) -> Tensor:
    """Estimate KTO's z [] in nats at the current weights, from one optimiser step's pairs (int64 indices).

    z is the mean log-ratio of policy to reference over completions with another problem's prompt (2402.01306, section
    4.1; see `unrelated`). Each log-ratio is a sum or mean over tokens, as the objective's `logp` says. If there are no
    such completions, z is 0. The result is on the CPU and has no gradient.
    Raises ValueError if reference is None, because a batch does not contain log-probs of these completions.
    """
    if reference is None:
        raise ValueError("link=kto without a reference policy, which its zero point is measured against: give one")
    sequences = unrelated(pairs, step_pairs)
    if sequences is None:
        return torch.zeros(())
    log_ratios = (scorer.logps_of(scorer.policy, sequences) - scorer.logps_of(reference, sequences)).sum(1)
    if scorer.spec.preference.logp == "mean":
        log_ratios = log_ratios / sequences.lengths
    return log_ratios.mean()


def unrelated(pairs: PairBatch, step_pairs: Tensor) -> Sequences | None:
    """Return the prompt of each of these pairs (int64 indices) with the chosen completion of another prompt.

    The completion comes from the next pair with another prompt, where the first pair follows the last. Returns None if
    all pairs have the same prompt.
    """
    groups, count = pairs.groups[step_pairs].tolist(), len(step_pairs)
    if len(set(groups)) < 2:
        return None
    others = torch.tensor(
        [
            next(place % count for place in range(start, start + count) if groups[place % count] != group)
            for start, group in enumerate(groups)
        ]
    )
    prompts, completions = pairs.chosen.rows(step_pairs), pairs.chosen.rows(step_pairs[others])
    return Sequences(prompts.prompts, completions.completions, completions.lengths)


@dataclass
class PreferenceUpdate:
    """Optimises a policy on batches of pairs. Each process of a cell computes some of the pairs.

    initial: a frozen copy of the starting weights, if the KL to them is measured.
    reference: the frozen policy whose log-probs the objective subtracts; the caller may renew it between batches. It
    may be None if the objective has no reference, or if every batch has `PairBatch.ref_logps` and the link is not kto.
    """

    model: PreTrainedModel
    spec: RunSpec
    pad_token_id: int
    initial: PreTrainedModel | None = None
    reference: PreTrainedModel | None = None
    optimizer: ClippedOptimizer = field(init=False)

    def __post_init__(self) -> None:
        self._scorer = SequenceScorer(self.model, None, self.spec, self.pad_token_id)
        # Splitting replaces the weights, so the optimiser must be built after it.
        split_for_training(self.spec.train, self.model, self.initial, self.reference)
        self.optimizer = ClippedOptimizer(
            self.spec.train, {"policy": self.model.parameters()}, layer_matrices(self.model)
        )
        Processes.here().share(self)

    def state_dict(self) -> UpdateState:
        """Return everything that a checkpoint needs, other than the weights of policy and reference."""
        return {"optimizer": self.optimizer.state_dict(), "budget": self._scorer.budget.state_dict()}

    def load_state_dict(self, state: UpdateState) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        self._scorer.budget.load_state_dict(state["budget"])

    @by_all
    def run(self, pairs: PairBatch, step: int, drawn: Sequences | None = None) -> StepReport:
        """Take all optimiser steps on one batch of pairs, and return the report.

        step: the number of the batch, from 1. If there are no pairs, there is no optimiser step.
        drawn: the completions from which the pairs were formed. The KL to the start is measured on them, as it is for
        arms without pairs. If None, it is measured on the pairs.
        Raises DivergedError if a loss or gradient is not finite. The weights are then those of the previous optimiser
        step.
        """
        spec = self.spec
        learning_rate = self.optimizer.begin(step)["policy"]
        report = StepReport(metrics={})

        started_s = time.perf_counter()
        sequences = pairs.sequences
        scores = Scores.empty(sequences)
        if not self._scored_while_training():
            self._scorer.fill(scores, sequences, torch.arange(len(sequences.lengths)))
        ref_logps = self._ref_logps(pairs)
        # Measured here, because it needs the policy as it was before the first optimiser step.
        measured = measure_start(self._scorer, self.initial, drawn or sequences)
        measured_logps = scores.logps if drawn is None else self._logps_of_measured(drawn)
        report.logprob_s = time.perf_counter() - started_s

        started_s = time.perf_counter()
        losses: list[PreferenceLoss] = []
        taken: list[OptimizerStep] = []
        passed = GradientPasses()
        for epoch in range(spec.train.epochs):
            for step_pairs in mini_batches(pairs.groups, spec, step, epoch):
                parts = self._gradient(pairs, step_pairs, ref_logps, scores, passed)
                taken.append(self.optimizer.step(summed([part.value for part in parts])))
                losses += everyones(parts)
        report.update_s = time.perf_counter() - started_s
        passed.write(report)
        report.trained_tokens = spec.train.epochs * int(sequences.lengths.sum())
        report.micro_batch_tokens, report.notes = self._scorer.budget.tokens, self._scorer.budget.notes()

        report.metrics = {
            **step_metrics(spec.train, taken),
            # None is the default, so that a batch without pairs has the same metrics.
            **dict.fromkeys(preference_metric_names(spec.preference)),
            **combine_preference_metrics(losses, len(taken)),
            "learning_rate": learning_rate,
            "tokens_in_loss": int(sequences.lengths.sum()),
            **entropy_metrics(scores.logps[sequences.mask], scores.entropy[sequences.mask]),
        }
        if self.initial is not None and spec.train.reference_rows:
            report.metrics |= start_metrics(measured_logps, measured)
        return report

    def _logps_of_measured(self, drawn: Sequences) -> Tensor:
        """Return the policy's log-probs [N, T] in the rows that measure the KL to the start, 0 in other rows."""
        scores = Scores.empty(drawn)
        if self.initial is not None:
            rows = rows_to_measure(len(drawn.lengths), self.spec.train.reference_rows)
            self._scorer.fill(scores, drawn, rows)
        return scores.logps

    def _scored_while_training(self) -> bool:
        """Return whether the forward pass of the only optimiser step gives the policy's log-probs before that step."""
        return self.spec.optimizer_steps_per_rollout == 1

    def _ref_logps(self, pairs: PairBatch) -> Tensor | None:
        """Return the reference's log-probs [2P, T], or None if the objective has no reference."""
        if self.spec.preference.reference == "none":
            return None
        if pairs.ref_logps is not None or self.reference is None:
            return pairs.ref_logps
        return self._scorer.logps_of(self.reference, pairs.sequences)

    def _gradient(
        self,
        pairs: PairBatch,
        step_pairs: Tensor,
        ref_logps: Tensor | None,
        scores: Scores,
        passed: GradientPasses,
    ) -> list[PreferenceLoss]:
        """Compute the gradient of one optimiser step over some pairs (int64 indices), without changing the weights.

        The pairs go through the model in micro-batches.
        """
        spec, sequences = self.spec, pairs.sequences
        shared = shares_prompts(self.model.get_decoder())
        z = None
        if spec.preference.link == "kto":
            z = zero_point(pairs, step_pairs, self._scorer, self.reference).to(self.model.device)

        # A loss that couples pairs is not a sum over pairs, so all of them must go through the model together.
        coupled = couples_pairs(spec.preference)
        share = RowShare.of(step_pairs, pairs.chosen.lengths + pairs.rejected.lengths, divisible=not coupled)

        def micro_batches(own: Tensor, budget_tokens: int) -> list[Tensor]:
            return [own] * bool(len(own)) if coupled else pairs.micro_batches(own, budget_tokens, shared)

        def micro_loss(micro: Tensor) -> tuple[PreferenceLoss, tuple[Tensor, tuple[Tensor, Tensor]]]:
            rows = pairs.rows(micro)
            part = self._scorer.part(sequences, rows, ref_logp=ref_logps)
            logps, entropy = self._scorer.score(part, part.hidden(self.model))
            # `pairs.rows` returns all chosen rows before all rejected rows.
            chosen_logps, rejected_logps = logps.chunk(2)
            chosen_mask, rejected_mask = part.mask.chunk(2)
            ref_chosen, ref_rejected = (None, None) if ref_logps is None else part.rows["ref_logp"].chunk(2)
            loss = preference_loss(
                spec.preference,
                chosen_logps,
                rejected_logps,
                chosen_mask,
                rejected_mask,
                ref_chosen,
                ref_rejected,
                kl_reference=z,
                step_pairs=len(step_pairs),
                step_chosen_tokens=int(pairs.chosen.lengths[step_pairs].sum()),
            )
            passed.backward(share.counted(loss.value, micro), sequences.pass_tokens(rows, shared))
            return loss, (rows, (logps.detach(), entropy.detach()))

        def whole_step(micros: list[Tensor]) -> list[PreferenceLoss]:
            # This is inside the retried work, because a run that ran out of memory leaves part of a gradient behind.
            self.optimizer.zero_grad()
            done = [micro_loss(micro) for micro in micros]
            if self._scored_while_training():
                scores.put([scored for _, scored in done])
            return [loss for micro, (loss, _) in zip(micros, done, strict=True) if share.has(micro)]

        def split(tokens: int) -> list[Tensor]:
            return share.micro_batches(lambda own: micro_batches(own, tokens))

        parts = self._scorer.budget.run(split, whole_step)
        if self._scored_while_training():
            # The share is over pairs, but scores have two rows per pair. So each half is exchanged separately.
            share.exchange_(*(side for scored in (scores.logps, scores.entropy) for side in scored.chunk(2)))
        return parts
