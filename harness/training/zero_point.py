"""KTO's zero point: how far the policy is from the reference, whatever completion it is that one looks at."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from harness.training.pair_batch import PairBatch
from harness.training.rollout_scores import Scorer
from harness.training.sequences import Sequences


def zero_point(pairs: PairBatch, step_pairs: Tensor, scorer: Scorer, reference: PreTrainedModel | None) -> Tensor:
    """z [] in nats at the current weights, on the CPU: estimated on the pairs of one optimiser step, without gradient.

    The mean log-ratio of policy to reference, as the objective's `logp` makes it one number a completion, of
    completions that do not belong to their prompts (2402.01306, section 4.1); see `unrelated`. 0 where there is none.
    step_pairs: int64 indices. ValueError without a reference, as no batch brings its log-probs of these completions.
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

    That of the next pair with a different prompt, where the first pair follows the last. None if all pairs are of one
    prompt: nothing is unrelated then.
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
