"""How long completions of training may be: the limit of the present stage, where the context is staged."""

from __future__ import annotations

import math
from typing import Any

from harness.spec.sections.rollout import RolloutSpec, StagedAtStep, StagedOnConvergence


class CompletionLimit:
    """`tokens` is the limit of the coming step. It rises once, from first_tokens to max_completion_tokens, and never
    falls; without stages it is max_completion_tokens throughout."""

    def __init__(self, spec: RolloutSpec) -> None:
        self._staged = spec.staged
        self._last_tokens = spec.max_completion_tokens
        self._recent_rewards: list[float] = []
        self.tokens = spec.max_completion_tokens if spec.staged.type == "none" else spec.staged.first_tokens

    def observe(self, step: int, mean_reward: float) -> None:
        """Called after every step (from 1) with the mean reward of its completions. A mean that is NaN, of a step in
        which nothing could be scored, does not count for convergence."""
        if self.tokens == self._last_tokens:
            return
        match self._staged:
            case StagedAtStep():
                is_over = step + 1 >= self._staged.step
            case StagedOnConvergence():
                is_over = self._has_converged(self._staged, mean_reward)
        if is_over:
            self.tokens = self._last_tokens
            self._recent_rewards = []

    def _has_converged(self, rule: StagedOnConvergence, mean_reward: float) -> bool:
        window = rule.window_steps
        if not math.isnan(mean_reward):
            self._recent_rewards = [*self._recent_rewards, mean_reward][-2 * window :]
        if len(self._recent_rewards) < 2 * window:
            return False
        before, last = self._recent_rewards[:window], self._recent_rewards[window:]
        return (math.fsum(last) - math.fsum(before)) / window < rule.min_gain

    def state_dict(self) -> dict[str, Any]:
        return {"tokens": self.tokens, "recent_rewards": list(self._recent_rewards)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.tokens, self._recent_rewards = state["tokens"], list(state["recent_rewards"])
