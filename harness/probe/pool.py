"""Completions that gradient estimates are made of, drawn once for all objectives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from evals.tasks.base import Problem
from harness.errors import RefusedError
from harness.models.language_model import LanguageModel
from harness.probe.token_weights import WeighedRollout
from harness.rollouts.choice import make_engine
from harness.rollouts.keys import random_key
from harness.run.experience import scored
from harness.run.rollout_batch import RolloutBatch, grade_and_reward, roll_out
from harness.spec.run_spec import RunSpec
from harness.training.rollout_scores import RolloutScores, Scorer
from harness.training.sequences import Sequences


@dataclass(frozen=True)
class Pool:
    """N completions, those of a prompt next to each other, with the log-probs and entropies of the frozen policy."""

    batch: RolloutBatch
    sequences: Sequences
    scores: RolloutScores
    step: int

    def rewarded(self, spec: RunSpec, language_model: LanguageModel) -> WeighedRollout:
        """All completions with the rewards that they earn under this spec's objective."""
        tried, rewards = grade_and_reward(self.batch, spec, language_model, self.step)
        return WeighedRollout.of(scored(self.batch, rewards, tried), self.scores.logps, self.scores.entropy)

    @property
    def truncated(self) -> Tensor:
        return self.batch.completions.truncated


def draw_pool(spec: RunSpec, prompts: int, step: int, problems: Sequence[Problem], policy: LanguageModel) -> Pool:
    """Draw the completions of some prompts, and these from the problems with replacement, so that any two prompts are
    independent, and batches of them are independent draws from one distribution.

    `step` keys the draws: the first samples of the first prompts of two pools of one step are the same.
    """
    engine = make_engine(spec.rollout, policy)
    keys = [random_key(spec.seed, "data", step, prompt) for prompt in range(prompts)]
    drawn = [problems[key % len(problems)] for key in keys]
    batch = roll_out(drawn, spec, step, policy, engine, spec.rollout.max_completion_tokens)
    if not torch.isfinite(batch.completions.logps).all():
        raise RefusedError(f"model.source {spec.model.source}: its log-probs are not finite. Probe another model.")
    sequences = batch.sequences
    scores = RolloutScores.empty(sequences)
    Scorer(policy.model, None, spec, policy.pad_token_id).fill(scores, sequences, torch.arange(len(sequences.lengths)))
    return Pool(batch, sequences, scores, step)
