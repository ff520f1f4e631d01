"""The policy as it was at the start of the round: it draws the completions of iterative methods."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

from harness.training.reference import frozen_copy


class RoundStart:
    """A frozen copy, renewed at the first of every `round_steps` steps."""

    def __init__(self, model: PreTrainedModel, round_steps: int) -> None:
        self.policy = frozen_copy(model)
        self._round_steps = round_steps

    def begin(self, step: int, model: PreTrainedModel) -> None:
        """Called before each step (from 1) with the trained policy."""
        if (step - 1) % self._round_steps == 0:
            self.policy.load_state_dict(model.state_dict())

    def state_dict(self) -> dict[str, Any]:
        return dict(self.policy.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.policy.load_state_dict(state)
