"""One step's experience: prompts, completions, rewards; and what it says about the policy.

A step's experience: completions drawn until the batch is full, and rewarded.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from algorithms import Objective
from algorithms.knobs.overlong import Overlong, Penalise
from algorithms.objective import Credit
from evals.grading import grade
from evals.prompts import get_template
from evals.tasks import get_task
from evals.tasks.base import Problem
from harness.config.run_spec import RunSpec
from harness.engines.base import Completions, Engine, GenerationCost, SamplingParams
from harness.models.language_model import LanguageModel
from harness.random_keys import random_key
from harness.rewards import Attempt, RewardContext, TotalReward
from harness.rewards.parts.correct import true_verdict
from harness.run.prompts import PromptOrder
from harness.training.batch import Filtered, ScoredRollout, filter_rows, zero_std_rows
from harness.training.optimizer import DivergedError
from harness.training.reward_model import RewardModel
from harness.training.sequences import Sequences


@dataclass(frozen=True)
class RolloutBatch:
    """N completions of P problems, `samples` each, next to each other, drawn under a limit of max_completion_tokens."""

    problems: list[Problem]
    prompts: list[list[int]]
    completions: Completions
    samples: int
    max_completion_tokens: int

    @property
    def generated_tokens(self) -> int:
        return int(self.completions.lengths.sum())

    @property
    def sequences(self) -> Sequences:
        """A row for each completion."""
        prompts = [prompt for prompt in self.prompts for _ in range(self.samples)]
        return Sequences(prompts, self.completions.tokens, self.completions.lengths)

    @classmethod
    def joined(cls, batches: Sequence[RolloutBatch]) -> RolloutBatch:
        """Batches of one step, one after the other."""
        drawn = [batch.completions for batch in batches]
        longest = max(completions.tokens.shape[1] for completions in drawn)

        def widened(tensors: Iterable[Tensor]) -> Tensor:
            # Padding is masked everywhere, so any token id serves.
            return torch.cat([torch.nn.functional.pad(tensor, (0, longest - tensor.shape[1])) for tensor in tensors])

        return cls(
            [problem for batch in batches for problem in batch.problems],
            [prompt for batch in batches for prompt in batch.prompts],
            Completions(
                widened(completions.tokens for completions in drawn),
                widened(completions.logps for completions in drawn),
                torch.cat([completions.lengths for completions in drawn]),
                torch.cat([completions.truncated for completions in drawn]),
                sum((completions.cost for completions in drawn), GenerationCost()),
            ),
            batches[0].samples,
            batches[0].max_completion_tokens,
        )


@dataclass(frozen=True)
class Rewards:
    """One number a completion: the total, NaN for one that cannot be scored, and each part before its weight.

    token_rewards [N, T]: rewards of steps at the tokens where they end, NaN at other tokens; not in the total. None
    unless objective.credit is `steps`.
    """

    total: list[float]
    parts: dict[str, list[float]]
    token_rewards: Tensor | None = None


def roll_out(
    problems: list[Problem],
    spec: RunSpec,
    step: int,
    language_model: LanguageModel,
    engine: Engine,
    max_completion_tokens: int,
    first_example: int = 0,
) -> RolloutBatch:
    """Draw completions of a step; the noise is keyed by (seed, step, prompt, sample). `first_example` is the number of
    the first prompt: how many the step has drawn before."""
    template = get_template(spec.task.template)
    prompts = [language_model.encode(template.render(problem.problem)) for problem in problems]
    samples = spec.rollout.samples_per_prompt
    keys = torch.tensor(
        [
            [random_key(spec.seed, "rollout", step, example, sample) for sample in range(samples)]
            for example in range(first_example, first_example + len(problems))
        ]
    )
    params = SamplingParams(
        max_completion_tokens,
        spec.rollout.temperature,
        spec.rollout.top_p,
        spec.rollout.top_k,
        spec.rollout.stop + template.stop,
    )
    return RolloutBatch(problems, prompts, engine.generate(prompts, keys, params), samples, max_completion_tokens)


def grade_and_reward(
    batch: RolloutBatch,
    spec: RunSpec,
    language_model: LanguageModel,
    step: int,
    reward_model: RewardModel | None = None,
) -> tuple[list[Attempt], Rewards]:
    """Every completion decoded and graded, and its reward. The part `reward_model` needs one.

    Raises RefusedError if a reward function of the user's own cannot be imported or does not give its numbers.
    """
    if (reward_model is None) == spec.reward.needs_reward_model:
        raise ValueError("a reward model comes with a part that needs it, and the part with a reward model")
    learned = [math.nan] * len(batch.completions.lengths)
    if reward_model is not None:
        learned = reward_model.scores(batch.sequences).tolist()
    task = get_task(spec.task.train)
    lengths, truncated = batch.completions.lengths.tolist(), batch.completions.truncated.tolist()
    mean_logps = (batch.completions.logps.sum(1) / batch.completions.lengths).tolist()
    tried = []
    for row, tokens in enumerate(batch.completions.tokens.tolist()):
        problem = batch.problems[row // batch.samples]
        text = language_model.decode(tokens[: lengths[row]])
        verdict = grade(text, problem.answer, spec.rollout_grader, task.extract, problem.own_comparison)
        sample = row % batch.samples
        tried.append(
            Attempt(problem, sample, text, lengths[row], truncated[row], verdict, mean_logps[row], learned[row])
        )
    overlong, credit = _rewarding_knobs(spec)
    context = RewardContext(step, spec.seed, batch.max_completion_tokens, spec.reward, overlong, credit, task)
    groups = [tried[start : start + batch.samples] for start in range(0, len(tried), batch.samples)]
    reward = TotalReward(context)
    total, parts = reward.of_groups(groups, context)
    at_tokens = reward.at_steps(tried, context, batch.completions.tokens, language_model.decode)
    return tried, Rewards(total, parts, at_tokens)


def _rewarding_knobs(spec: RunSpec) -> tuple[Overlong, Credit]:
    """Knobs of the objective that rewards depend on; pairs are ranked without them."""
    if isinstance(spec.objective, Objective):
        return spec.objective.overlong, spec.objective.credit
    return Penalise(), "completion"


def rollout_metrics(batch: RolloutBatch, tried: Sequence[Attempt], rewards: Rewards) -> dict[str, float | None]:
    """reward/* and len/* of steps.jsonl; None where there is nothing to average.

    Means of rewards and of parts are over the attempts that have one; reward/correct is the true verdict, whatever
    training sees. reward/frac_zero_std is the share of groups whose rewards are all equal, of the groups with any.
    """
    known = [reward for reward in rewards.total if not math.isnan(reward)]
    distinct_by_group = [
        {reward for reward in rewards.total[start : start + batch.samples] if not math.isnan(reward)}
        for start in range(0, len(tried), batch.samples)
    ]
    lengths = batch.completions.lengths.float()
    right = torch.tensor([attempt.verdict.correct for attempt in tried])
    correct_by_group = right.view(-1, batch.samples)
    return {
        "reward/mean": _mean(rewards.total),
        "reward/std": statistics.stdev(known) if len(known) > 1 else None,
        "reward/unscored": len(rewards.total) - len(known),
        "reward/correct": _mean([true_verdict(attempt) for attempt in tried]),
        **{f"reward/{name}": _mean(part) for name, part in rewards.parts.items()},
        "reward/frac_zero_std": _mean([len(values) == 1 for values in distinct_by_group if values]),
        "reward/frac_all_0": float((~correct_by_group).all(1).float().mean()),
        "reward/frac_all_1": float(correct_by_group.all(1).float().mean()),
        "len/mean": float(lengths.mean()),
        "len/p95": float(lengths.quantile(0.95)),
        "len/correct": float(lengths[right].mean()) if right.any() else None,
        "len/incorrect": float(lengths[~right].mean()) if not right.all() else None,
        "len/truncated_frac": float(batch.completions.truncated.float().mean()),
        "len/difficulty_slope": _difficulty_slope(tried),
    }


def _mean(values: Sequence[float]) -> float | None:
    """Mean of what is not NaN."""
    numbers = [value for value in values if not math.isnan(value)]
    return math.fsum(numbers) / len(numbers) if numbers else None


def _difficulty_slope(tried: Sequence[Attempt]) -> float | None:
    """Least-squares slope of completion tokens on the problem's difficulty; None where that is unknown or constant."""
    known = [(attempt.problem.difficulty, attempt.n_tokens) for attempt in tried]
    points = [(difficulty, n_tokens) for difficulty, n_tokens in known if difficulty is not None]
    if len({difficulty for difficulty, _ in points}) < 2:
        return None
    return statistics.linear_regression(*zip(*points, strict=True)).slope


def rollout_rows(batch: RolloutBatch, step: int, tried: Sequence[Attempt], rewards: Rewards) -> list[dict[str, Any]]:
    """A row of rollouts/*.parquet for each completion; a reward that is NaN is None."""
    tokens, logps = batch.completions.tokens.tolist(), batch.completions.logps.tolist()
    return [
        {
            "step": step,
            "problem_id": attempt.problem.id,
            "sample": row % batch.samples,
            "text": attempt.text,
            "tokens": tokens[row][: attempt.n_tokens],
            "logps": logps[row][: attempt.n_tokens],
            "reward": _or_none(rewards.total[row]),
            **{f"reward/{name}": _or_none(part[row]) for name, part in rewards.parts.items()},
            "correct": attempt.verdict.correct,
            "truncated": attempt.truncated,
        }
        for row, attempt in enumerate(tried)
    ]


def _or_none(reward: float) -> float | None:
    return None if math.isnan(reward) else reward


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
