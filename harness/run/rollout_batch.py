"""One step's experience: prompts, completions, rewards; and what it says about the policy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from evals.grading import grade
from evals.prompts import get_template
from evals.tasks import get_task
from evals.tasks.base import Problem
from harness.models.language_model import LanguageModel
from harness.rewards import Attempt, Rewards, reward_attempts
from harness.rollouts.engine import Completions, Engine, SamplingParams
from harness.rollouts.keys import random_key
from harness.spec.run_spec import RunSpec
from harness.training.policy_update import ScoredRollout
from harness.training.sequences import Sequences


@dataclass(frozen=True)
class RolloutBatch:
    """N completions of P problems, `samples` each, next to each other."""

    problems: list[Problem]
    prompts: list[list[int]]
    completions: Completions
    samples: int

    @property
    def generated_tokens(self) -> int:
        return int(self.completions.lengths.sum())


def roll_out(
    problems: list[Problem], spec: RunSpec, step: int, language_model: LanguageModel, engine: Engine
) -> RolloutBatch:
    """Draw a step's completions; the noise is keyed by (seed, step, prompt, sample)."""
    template = get_template(spec.task.template)
    prompts = [language_model.encode(template.render(problem.problem)) for problem in problems]
    samples = spec.rollout.samples_per_prompt
    keys = torch.tensor(
        [
            [random_key(spec.seed, "rollout", step, example, sample) for sample in range(samples)]
            for example in range(len(problems))
        ]
    )
    params = SamplingParams(
        spec.rollout.max_completion_tokens,
        spec.rollout.temperature,
        spec.rollout.top_p,
        spec.rollout.top_k,
        spec.rollout.stop,
    )
    return RolloutBatch(problems, prompts, engine.generate(prompts, keys, params), samples)


def grade_and_reward(
    batch: RolloutBatch, spec: RunSpec, language_model: LanguageModel
) -> tuple[list[Attempt], Rewards]:
    """Every completion decoded and graded, and its reward."""
    extract = get_task(spec.task.train).extract
    lengths, truncated = batch.completions.lengths.tolist(), batch.completions.truncated.tolist()
    graded = []
    for row, tokens in enumerate(batch.completions.tokens.tolist()):
        problem = batch.problems[row // batch.samples]
        text = language_model.decode(tokens[: lengths[row]])
        verdict = grade(text, problem.answer, spec.reward.grader, extract)
        graded.append(Attempt(problem, text, lengths[row], truncated[row], verdict))
    return graded, reward_attempts(graded, spec.reward.parts)


def scored(batch: RolloutBatch, rewards: Rewards) -> ScoredRollout:
    """The batch in the form that the policy update takes: one row a completion."""
    rows = range(len(batch.completions.lengths))
    return ScoredRollout(
        Sequences(
            [batch.prompts[row // batch.samples] for row in rows], batch.completions.tokens, batch.completions.lengths
        ),
        batch.completions.logps,
        torch.tensor(rewards.total),
        torch.tensor([row // batch.samples for row in rows]),
    )


def rollout_metrics(batch: RolloutBatch, tried: Sequence[Attempt], rewards: Rewards) -> dict[str, float | None]:
    """reward/*, len/* and entropy/sampled of steps.jsonl; None where there is nothing to average."""
    reward = torch.tensor(rewards.total)
    by_group = reward.view(-1, batch.samples)
    lengths = batch.completions.lengths.float()
    right = torch.tensor([attempt.verdict.correct for attempt in tried])
    correct_by_group = right.view(-1, batch.samples)
    return {
        "reward/mean": float(reward.mean()),
        "reward/std": float(reward.std()) if len(reward) > 1 else None,
        "reward/correct": float(right.float().mean()),
        **{f"reward/{name}": math.fsum(part) / len(part) for name, part in rewards.parts.items() if name != "correct"},
        "reward/frac_zero_std": float((by_group == by_group[:, :1]).all(1).float().mean()),
        "reward/frac_all_0": float((~correct_by_group).all(1).float().mean()),
        "reward/frac_all_1": float(correct_by_group.all(1).float().mean()),
        "len/mean": float(lengths.mean()),
        "len/p95": float(lengths.quantile(0.95)),
        "len/correct": float(lengths[right].mean()) if right.any() else None,
        "len/incorrect": float(lengths[~right].mean()) if not right.all() else None,
        "len/truncated_frac": float(batch.completions.truncated.float().mean()),
        "entropy/sampled": float(-batch.completions.logps.sum() / lengths.sum()),
    }


def rollout_rows(batch: RolloutBatch, step: int, tried: Sequence[Attempt], rewards: Rewards) -> list[dict[str, Any]]:
    """A row of rollouts/*.parquet for each completion."""
    tokens, logps = batch.completions.tokens.tolist(), batch.completions.logps.tolist()
    return [
        {
            "step": step,
            "problem_id": attempt.problem.id,
            "sample": row % batch.samples,
            "text": attempt.text,
            "tokens": tokens[row][: attempt.n_tokens],
            "logps": logps[row][: attempt.n_tokens],
            "reward": rewards.total[row],
            **{f"reward/{name}": part[row] for name, part in rewards.parts.items()},
            "correct": attempt.verdict.correct,
            "truncated": attempt.truncated,
        }
        for row, attempt in enumerate(tried)
    ]
