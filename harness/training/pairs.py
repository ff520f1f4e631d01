"""What a preference update learns from: pairs of a chosen and a rejected completion of one prompt. And KTO's zero
point: how far the policy is from the reference on completions that have nothing to do with the prompt."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from transformers import PreTrainedModel

from harness.training.optimizer import grouped_micro_batches, micro_batches
from harness.training.sequences import Scorer, Sequences


@dataclass(frozen=True)
class PairBatch:
    """P pairs. Row i of either side is a completion of the same prompt."""

    chosen: Sequences
    rejected: Sequences
    groups: Tensor
    """[P] int64, equal for pairs of one prompt."""
    ref_chosen_logps: Tensor | None = None
    """Log-probs of the chosen tokens under the reference policy, shaped as `chosen.completions`; None: not known
    yet."""
    ref_rejected_logps: Tensor | None = None
    """The same for the rejected tokens; None if the other is."""

    def __len__(self) -> int:
        return len(self.groups)

    @cached_property
    def sequences(self) -> Sequences:
        """Both sides as one batch of 2P rows, all chosen ones first."""
        return Sequences(
            [*self.chosen.prompts, *self.rejected.prompts],
            _stacked(self.chosen.completions, self.rejected.completions),
            torch.cat([self.chosen.lengths, self.rejected.lengths]),
        )

    @cached_property
    def ref_logps(self) -> Tensor | None:
        """The reference's log-probs, shaped as the completions of `sequences`; None where the batch brings none."""
        if self.ref_chosen_logps is None or self.ref_rejected_logps is None:
            return None
        return _stacked(self.ref_chosen_logps, self.ref_rejected_logps)

    def rows(self, pairs: Tensor) -> Tensor:
        """The rows of `sequences` (int64 indices) of some pairs: their chosen sides, then their rejected ones."""
        return torch.cat([pairs, pairs + len(self)])

    def micro_batches(self, pairs: Tensor, budget_tokens: int, shared: bool = False) -> list[Tensor]:
        """Split pairs (int64 indices) into micro-batches; see `Sequences.micro_batches`.

        The tokens of both sides are within the budget, unless a single pair exceeds it.
        """
        if len(pairs) and shared:
            prompts = self.sequences.distinct_prompts
            both = (self.chosen.lengths + self.rejected.lengths).tolist()
            return grouped_micro_batches(pairs, prompts.of_row.tolist(), prompts.lengths.tolist(), both, budget_tokens)
        widths = list(map(len, self.chosen.prompts))
        longer = torch.maximum(self.chosen.lengths, self.rejected.lengths).tolist()
        return micro_batches(pairs, widths, longer, budget_tokens // 2)


def _stacked(first: Tensor, second: Tensor) -> Tensor:
    """[P + Q, max(T, U)] of [P, T] and [Q, U], padded with 0 on the right."""
    longest = max(first.shape[1], second.shape[1])
    return torch.cat([torch.nn.functional.pad(side, (0, longest - side.shape[1])) for side in (first, second)])


def zero_point(pairs: PairBatch, step_pairs: Tensor, scorer: Scorer, reference: PreTrainedModel | None) -> Tensor:
    """z [] in nats at the current weights, on the CPU: estimated on the pairs of one optimiser step, without gradient.

    The mean log-ratio of policy to reference over completions that do not belong to their prompts (2402.01306, section
    4.1; see `unrelated`), each a number as the objective's `logp` says. 0 if there are no such completions.

    step_pairs: int64 indices. ValueError without a reference: no batch brings its log-probs of these completions.
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
    """The prompt of each of these pairs (int64 indices) with the chosen completion of another prompt.

    The completion is that of the next pair with another prompt; after the last pair comes the first. None if all pairs
    have one prompt: nothing is unrelated then.
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
