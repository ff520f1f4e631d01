"""Reward that was learned from pairs of completions: a proxy of the verdict, which is recorded beside it."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from harness.rewards import Attempt, RewardContext, RewardPart


class LearnedReward(RewardPart):
    """The score of a Bradley-Terry model of the verdict, in standard deviations of what the starting weights get.

    The model is trained once, on completions of the starting weights, and shared by all arms and seeds. The options say
    how; see `harness.training.reward_model`.
    """

    name = "reward_model"
    needs_reward_model = True

    prompts: int = Field(512, ge=10, description="training prompts whose completions it learns from; a tenth held out")
    samples_per_prompt: int = Field(8, ge=2, le=100_000, description="completions per prompt, drawn as in training")
    label_noise_rate: float = Field(0.0, ge=0, lt=0.5, description="share of pairs whose better side is mistaken")
    steps: int = Field(200, ge=1, le=10_000_000, description="optimiser steps")
    batch_size: int = Field(32, ge=1, le=1_000_000, description="pairs per optimiser step")
    learning_rate: float = Field(1e-3, gt=0, description="peak; warms up over 5 % of the steps, then falls to 2 %")
    seed: int = Field(0, ge=0, description="fixes the order of pairs, their labels and which of them are kept")

    def rewards(self, group: Sequence[Attempt], context: RewardContext) -> list[float]:
        return [attempt.reward_model_score for attempt in group]
