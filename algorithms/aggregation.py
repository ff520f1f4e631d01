"""`aggregation`: how the losses of tokens become one number over the whole optimiser step.

A value of the knob is one entry of `AGGREGATIONS`, and no other module treats any of them specially.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

Count = Literal["tokens", "micro_batches", "micro_batch_tokens", "groups", "group_tokens", "sequences", "limit"]
"""Counts over an optimiser step, each at least 1. tokens, micro_batch_tokens, group_tokens: mask-1 tokens of the step,
of the row's micro-batch, of its group. groups, sequences: fully masked ones included. limit: the completion limit."""


@dataclass(frozen=True)
class TokenWeight:
    """The weight of a token's loss in the loss of the step: 1 / (product of the counts x n_i^length_power)."""

    about: str
    """The words of the knob's description for the value."""
    formula: str
    counts: tuple[Count, ...]
    length_power: int = 0
    """The power of n_i, the mask-1 tokens of the token's completion."""

    @property
    def depends_on_split(self) -> bool:
        """True if the loss of a step depends on how it is split into micro-batches."""
        return "micro_batch_tokens" in self.counts

    def divisor(self, count: Callable[[Count], Any], lengths: Any) -> Any:
        """Return the divisor of each row's token losses, in the type of its counts and of the lengths n_i of rows."""
        over = math.prod(map(count, self.counts))
        return over * lengths**self.length_power if self.length_power else over


AGGREGATIONS: Mapping[str, TokenWeight] = {
    "token_mean": TokenWeight(
        "their mean (DAPO, 2503.14476, eq. 8)",
        "1/N sum_i sum_t; denominator N = tokens in the optimiser step's loss",
        ("tokens",),
    ),
    "micro_token_mean": TokenWeight(
        "the mean over micro-batches of each one's mean, which depends on how the step is split (bnpo in TRL)",
        "mean over micro-batches of 1/N_m sum_i sum_t; denominator N_m = tokens in the micro-batch's loss, so it "
        "depends on how the step is split",
        ("micro_batches", "micro_batch_tokens"),
    ),
    "group_token_mean": TokenWeight(
        "the mean over prompts of the mean over their tokens (CISPO)",
        "1/P sum_groups 1/N_g sum_i sum_t; denominators P = prompts of the step, N_g = group's tokens",
        ("groups", "group_tokens"),
    ),
    "seq_mean_token_mean": TokenWeight(
        "the mean over completions of the mean over their tokens (GRPO, eq. 3)",
        "1/B sum_i 1/n_i sum_t; denominators B = completions of the step, n_i = their tokens",
        ("sequences",),
        length_power=1,
    ),
    "seq_mean_token_sum": TokenWeight(
        "the mean over completions of the sum over their tokens (the exact policy gradient)",
        "1/B sum_i sum_t; denominator B = completions of the step",
        ("sequences",),
    ),
    "constant_length": TokenWeight(
        "the same, divided by max_completion_tokens (Dr. GRPO)",
        "1/(B L) sum_i sum_t; denominator B L = completions of the step x rollout.max_completion_tokens",
        ("sequences", "limit"),
    ),
}

if TYPE_CHECKING:
    Aggregation = str
else:
    # pydantic checks the knob against these names; a type checker could not know them.
    Aggregation = Literal[tuple(AGGREGATIONS)]
