"""How many tokens pass through a model at once, and what happens where the device's memory does not hold them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from algorithms import Objective
from harness.errors import RefusedError
from harness.spec.run_spec import RunSpec

T = TypeVar("T")


class TokenBudget:
    """`train.micro_batch_tokens`, halved whenever a pass runs out of memory, for the rest of the cell."""

    def __init__(self, tokens: int, divisible: bool = True) -> None:
        """divisible: whether the results stay the same, up to rounding, however rows are split."""
        self.tokens = tokens
        self._divisible = divisible
        self._notes: list[str] = []

    @classmethod
    def of(cls, spec: RunSpec) -> TokenBudget:
        objective = spec.objective
        micro = isinstance(objective, Objective) and objective.aggregation == "micro_token_mean"
        return cls(spec.train.micro_batch_tokens, divisible=not micro)

    def run(self, split: Callable[[int], list[Tensor]], work: Callable[[list[Tensor]], T]) -> T:
        """work(split(tokens)); from its beginning again, with half the tokens, as often as memory runs out.

        `split` gives the micro-batches for a budget, and `work` must not depend on what an earlier try of it left
        behind. Raises RefusedError where smaller micro-batches cannot be had, or would change the objective.
        """
        while True:
            micro_batches = split(self.tokens)
            try:
                return work(micro_batches)
            except torch.OutOfMemoryError as error:
                reason = str(error).splitlines()[0] if str(error) else "out of memory"
            # Out of the handler, whose traceback keeps the tensors of the failed pass alive.
            self._halve(split, len(micro_batches), reason)
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    def notes(self) -> list[str]:
        """A line for each halving since the last call."""
        notes, self._notes = self._notes, []
        return notes

    def state_dict(self) -> dict[str, int]:
        return {"micro_batch_tokens": self.tokens}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.tokens = state["micro_batch_tokens"]

    def _halve(self, split: Callable[[int], list[Tensor]], count: int, reason: str) -> None:
        """Take the next lower half of the budget that gives more micro-batches."""
        if not self._divisible:
            raise RefusedError(
                f"out of memory with train.micro_batch_tokens={self.tokens} ({reason}). Under "
                "objective.aggregation=micro_token_mean the budget is part of the objective and is not lowered by "
                "itself. Set a lower train.micro_batch_tokens, for all arms alike."
            )
        tokens = self.tokens // 2
        while tokens > 0 and len(split(tokens)) <= count:
            tokens //= 2
        if tokens == 0:
            raise RefusedError(
                f"out of memory in a pass that cannot be split further ({reason}). Use shorter completions "
                "(rollout.max_completion_tokens), train.activation_checkpointing, a smaller train.logits_chunk_tokens, "
                "or a device with more memory."
            )
        self._notes.append(
            f"out of memory with {self.tokens} tokens a pass ({reason}): going on with {tokens} of them, which changes "
            "results by no more than rounding"
        )
        self.tokens = tokens
