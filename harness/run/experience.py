"""A step's experience: completions drawn until the batch is full, and rewarded."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from algorithms import Objective
from harness.models.language_model import LanguageModel
from harness.rewards import Attempt, Rewards
from harness.rollouts.engine import Engine
from harness.run.prompt_order import PromptOrder
from harness.run.rollout_batch import RolloutBatch, grade_and_reward, roll_out
from harness.spec.run_spec import RunSpec
from harness.training.optimizer import DivergedError
from harness.training.reward_model import RewardModel
from harness.training.row_filters import Filtered, filter_rows, zero_std_rows
from harness.training.scored_rollout import ScoredRollout


@dataclass(frozen=True)
class Experience:
    """Everything that was drawn in a step, with its rewards."""

    batch: RolloutBatch
    tried: list[Attempt]
    rewards: Rewards
    refill_rounds: int
    rollout_s: float
    reward_s: float

    def filtered(self, objective: Objective) -> Filtered:
        """What of it a policy-gradient objective learns from."""
        return filter_rows(objective, scored(self.batch, self.rewards, self.tried), self.batch.completions.truncated)


def gather(
    step: int,
    progress: float,
    spec: RunSpec,
    order: PromptOrder,
    max_completion_tokens: int,
    language_model: LanguageModel,
    engine: Engine,
    reward_model: RewardModel | None = None,
) -> Experience:
    """Draw, grade and reward a step's completions; with zero_std=refill until enough groups have unequal rewards.

    progress: share of the run that is done. Refilling ends after `refill_max_rounds`, or where no prompt is left that
    the step has not seen; the batch is then as full as it is.

    Raises DivergedError if the policy's log-probs are not finite: such completions are noise, and if all of them earned
    the same, no loss would ever tell.
    """
    refill = _refill(spec)
    rounds: list[tuple[RolloutBatch, list[Attempt], Rewards]] = []
    wanted, rollout_s, reward_s = spec.rollout.prompts_per_step, 0.0, 0.0
    while True:
        seen = [problem.id for batch, _, _ in rounds for problem in batch.problems]
        problems = order.draw(step, wanted, progress, round=len(rounds), exclude=seen)
        if not problems:
            break
        started_s = time.perf_counter()
        batch = roll_out(problems, spec, step, language_model, engine, max_completion_tokens, first_example=len(seen))
        if not torch.isfinite(batch.completions.logps).all():
            raise DivergedError("the policy's log-probs are not finite")
        rolled_out_s = time.perf_counter()
        tried, rewards = grade_and_reward(batch, spec, language_model, step, reward_model)
        rounds.append((batch, tried, rewards))
        rollout_s += rolled_out_s - started_s
        reward_s += time.perf_counter() - rolled_out_s
        if refill is None or len(rounds) > refill.refill_max_rounds:
            break
        wanted -= _useful_groups(batch, refill, rewards)
        if wanted == 0:
            break
    batches, tries, earned = zip(*rounds, strict=True)
    batch, tried, rewards = (
        RolloutBatch.joined(batches),
        [attempt for some in tries for attempt in some],
        _joined(earned),
    )
    return Experience(batch, tried, rewards, len(rounds) - 1, rollout_s, reward_s)


def scored(batch: RolloutBatch, rewards: Rewards, tried: Sequence[Attempt]) -> ScoredRollout:
    """The batch in the form that the policy update takes: one row a completion."""
    rows = range(len(batch.completions.lengths))
    sequences = batch.sequences
    return ScoredRollout(
        sequences=sequences,
        sampler_logps=batch.completions.logps,
        rewards=torch.tensor(rewards.total),
        groups=torch.tensor([row // batch.samples for row in rows]),
        max_completion_tokens=batch.max_completion_tokens,
        loss_mask=sequences.mask,
        correct=torch.tensor([attempt.verdict.correct for attempt in tried]),
        token_rewards=rewards.token_rewards,
    )


def _refill(spec: RunSpec) -> Objective | None:
    """The objective, if it wants batches refilled."""
    objective = spec.objective
    return objective if isinstance(objective, Objective) and objective.zero_std == "refill" else None


def _useful_groups(batch: RolloutBatch, objective: Objective, rewards: Rewards) -> int:
    """Groups whose rewards differ, among those rows that overlong leaves to be rewarded."""
    total, truncated = torch.tensor(rewards.total), batch.completions.truncated
    if objective.overlong.type in ("mask_before", "drop"):
        total = total.masked_fill(truncated, torch.nan)
    groups = torch.arange(len(batch.problems)).repeat_interleave(batch.samples)
    alike = zero_std_rows(total, groups)
    return len(torch.unique(groups[~alike]))


def _joined(earned: Sequence[Rewards]) -> Rewards:
    """The rewards of several rounds, one after the other."""
    parts = {name: [value for rewards in earned for value in rewards.parts[name]] for name in earned[0].parts}
    at_tokens = [rewards.token_rewards for rewards in earned if rewards.token_rewards is not None]
    joined = None
    if at_tokens:
        longest = max(tensor.shape[1] for tensor in at_tokens)
        # NaN: no step ends in padding.
        widened = [
            torch.nn.functional.pad(tensor, (0, longest - tensor.shape[1]), value=torch.nan) for tensor in at_tokens
        ]
        joined = torch.cat(widened)
    return Rewards([value for rewards in earned for value in rewards.total], parts, joined)
