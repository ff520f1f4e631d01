"""Bench's rewards as a reward function for TRL, and their metrics for each step."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from accelerate.utils import gather_object

from algorithms.objective import Objective
from evals.evaluate import grade_all
from evals.graders import get_grader
from evals.tasks import get_task
from harness.config.run_spec import RunSpec
from harness.models.language_model import LanguageModel
from harness.rewards import Attempt, TotalReward
from harness.rewards.parts.correct import true_verdict
from harness.shelves.trl.trainers import reward_context


@dataclass(frozen=True)
class Scored:
    """A completion with its reward, as one process sends it to the others."""

    problem_id: str
    text: str
    tokens: int
    truncated: bool
    correct: bool
    reward: float
    parts: Mapping[str, float]


class Rewards:
    """The reward function of one process, called with whole groups, once per rollout batch.

    `scored` then holds the completions of all processes.
    """

    def __init__(self, spec: RunSpec, start: LanguageModel) -> None:
        objective = spec.policy_gradient
        self._samples, self._start = spec.rollout.samples_per_prompt, start
        self._task = get_task(spec.task.train)
        self._problems = {problem.id: problem for problem in self._task.split("train").load()}
        self._grader = get_grader(spec.rollout_grader)
        self._context = reward_context(spec)
        self._reward = TotalReward(self._context)
        self._ends = frozenset(start.eos_token_ids)
        self._learns_from_truncated = learns_from_truncated(objective)
        self.scored: list[Scored] = []

    def reward(
        self, completion_ids: Sequence[Sequence[int]], problem_id: Sequence[str], step: Sequence[int], **_: object
    ) -> list[float]:
        """Return a reward for each completion; NaN if it cannot be scored. TRL then learns nothing from it."""
        problems = [self._problems[name] for name in problem_id]
        texts = [self._start.decode(tokens) for tokens in completion_ids]
        graded = grade_all(problems, texts, self._task.extract, self._grader)
        verdicts = [by_grader[self._grader.name] for by_grader in graded]
        attempts = [
            Attempt(
                problem,
                row % self._samples,
                text,
                len(tokens),
                truncated=tokens[-1] not in self._ends,
                verdict=verdict,
                mean_logp=math.nan,
            )
            for row, (problem, text, tokens, verdict) in enumerate(
                zip(problems, texts, completion_ids, verdicts, strict=True)
            )
        ]
        # TRL keeps the samples of a prompt next to each other.
        groups = [attempts[first : first + self._samples] for first in range(0, len(attempts), self._samples)]
        totals, parts = self._reward.of_groups(groups, replace(self._context, step=step[0]))
        own = [
            Scored(
                attempt.problem.id,
                attempt.text,
                attempt.n_tokens,
                attempt.truncated,
                attempt.verdict.correct,
                totals[row],
                {name: values[row] for name, values in parts.items()} | {"correct": true_verdict(attempt)},
            )
            for row, attempt in enumerate(attempts)
        ]
        # Metrics and token counts are over all processes; only the process's own rewards are returned.
        self.scored = gather_object(own)
        return totals

    @property
    def generated_tokens(self) -> int:
        """The tokens generated in the last rollout batch."""
        return sum(one.tokens for one in self.scored)

    @property
    def trained_tokens(self) -> int:
        """The completion tokens that one pass trains on."""
        return sum(one.tokens for one in self.scored if self._learns_from_truncated or not one.truncated)

    def metrics(self) -> dict[str, float | None]:
        """Compute the columns of steps.jsonl for the last rollout batch."""
        scored, samples = self.scored, self._samples
        rewards = [one.reward for one in scored if not math.isnan(one.reward)]
        groups = [scored[first : first + samples] for first in range(0, len(scored), samples)]
        distinct = [{one.reward for one in group if not math.isnan(one.reward)} for group in groups]
        return {
            "reward/mean": _mean(rewards),
            "reward/std": statistics.stdev(rewards) if len(rewards) > 1 else None,
            **{f"reward/{name}": _mean([one.parts[name] for one in scored]) for name in scored[0].parts},
            "reward/frac_zero_std": _mean([float(len(values) == 1) for values in distinct if values]),
            "len/mean": _mean([float(one.tokens) for one in scored]),
            "len/truncated_frac": _mean([float(one.truncated) for one in scored]),
        }

    def rollouts(self, step: int) -> list[dict[str, object]]:
        """Return the rows of rollouts.jsonl for the last rollout batch."""
        return [
            {
                "step": step,
                "problem_id": one.problem_id,
                "text": one.text,
                "reward": None if math.isnan(one.reward) else one.reward,
                "correct": one.correct,
            }
            for one in self.scored
        ]


def learns_from_truncated(objective: Objective) -> bool:
    """Return whether truncated completions are in the loss."""
    return objective.overlong.type not in ("mask_after", "mask_before", "drop")


def _mean(values: Sequence[float]) -> float | None:
    """Return the mean of the values that are not NaN; None if there are none."""
    known = [value for value in values if not math.isnan(value)]
    return math.fsum(known) / len(known) if known else None
