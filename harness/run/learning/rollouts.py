"""Training on completions that are sampled, graded and rewarded in each step.

This module contains what all such learners share, and the learner of the policy-gradient objectives, which weight every
completion by its advantage.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Generic, TypeVar

import torch
from transformers import PreTrainedModel

from algorithms import Objective
from algorithms.objective import Credit, Overlong, Penalise
from evals.evaluate import grade_all
from evals.graders import get_grader, rule_beside
from evals.grading import Grader
from evals.grading.asked_model import requests_sent
from evals.tasks import get_task
from evals.tasks.base import Problem
from evals.tasks.environment import turns_as_json
from harness.config.rollout import Slices
from harness.config.run_spec import RunSpec
from harness.engines.base import Engine, make_engine
from harness.models.language_model import LanguageModel, TokenCharacters
from harness.processes import Processes, by_all
from harness.rewards import Attempt, RewardContext, TotalReward
from harness.run.learning.base import Examples, nothing
from harness.run.learning.slices import InSlices
from harness.run.learning.writers import InOneTurn, InTurns, Writer
from harness.run.prompts import CompletionLimit, PromptOrder, prompt_order
from harness.training.batch import Batch, filter_rows, zero_std_rows
from harness.training.gold_answers import GoldScorer
from harness.training.past_weights import PastWeights
from harness.training.policy_update import PolicyUpdate
from harness.training.preference_update import PreferenceUpdate
from harness.training.reference import RenewedCopy, frozen_copy, require_copy
from harness.training.states import CellProgress, TrainerState
from harness.training.update_report import Metrics, StepReport, rollout_metrics

Update = TypeVar("Update", PolicyUpdate, PreferenceUpdate)


class Rollouts:
    """Samples, grades and rewards completions as a spec says. The names in the spec are resolved once, at creation."""

    def __init__(
        self,
        spec: RunSpec,
        language_model: LanguageModel,
        engine: Engine,
        examples: Examples | None = None,
        past: PastWeights | None = None,
    ) -> None:
        """Resolve the grader, task, writer and reward parts.

        engine: samples from the sampling policy.
        past: earlier weights to sample from, or None to sample from the current weights.
        Raises RefusedError if a reward function of the user cannot be imported. Raises ValueError if a part lacks its
        frozen generator or scorer, or if one is given that no part needs.
        """
        examples = examples or Examples()
        generator, self._scorers = examples.generator, examples.scorers
        needed = ({part.name for part in spec.reward.scored}, "generator" in spec.reward.gold_scorers)
        if (set(self._scorers), generator is not None) != needed:
            raise ValueError("a generator or a scorer comes with a part that needs it, and the part with it")
        self._spec, self._language_model, self._past = spec, language_model, past
        self._task = get_task(spec.task.train)
        self.grader = get_grader(spec.rollout_grader)
        self._rule = rule_beside(self.grader, self._task.grader)
        self.writer = self._writer(engine, examples)
        overlong, credit = _rewarding_knobs(spec)
        limit = spec.rollout.max_completion_tokens
        self._context = RewardContext(0, spec.seed, limit, spec.reward, overlong, credit, self._task)
        self._reward = TotalReward(self._context)
        self._gold = GoldScorer(spec, language_model, generator) if spec.reward.gold_scorers else None

    def _writer(self, engine: Engine, examples: Examples) -> Writer:
        spec, language_model, past = self._spec, self._language_model, self._past
        if spec.environment is not None:
            return InTurns(spec, language_model, engine, spec.environment)
        if isinstance(spec.rollout.partial, Slices):
            weights_of = past.source_of if past is not None else lambda step: step - 1
            return InSlices(spec, language_model, engine, spec.rollout.partial, weights_of)
        return InOneTurn(spec, language_model, engine, examples.teacher)

    def gather(self, step: int, done_frac: float, order: PromptOrder, max_completion_tokens: int) -> Batch:
        """Sample, grade and reward a step's completions.

        With zero_std=refill this repeats until enough groups have unequal rewards, `refill_max_rounds` is reached, or
        no unused prompt is left. The batch may then have fewer useful groups.
        done_frac: the fraction of the run that is done.
        Raises as `Writer.draw` and `reward`.
        """
        refill = _refill(self._spec)
        rounds: list[Batch] = []
        seen: list[str] = []
        wanted = self._spec.rollout.prompts_per_step
        while problems := order.draw(step, wanted, done_frac, round=len(rounds), exclude=seen):
            drawn = self.writer.draw(problems, step, max_completion_tokens, first_example=len(seen))
            rounds.append(self.reward(drawn, step))
            seen += [problem.id for problem in problems]
            if refill is None or len(rounds) > refill.refill_max_rounds:
                break
            # Only as many prompts are added as useful groups are missing.
            wanted -= _useful_groups(rounds[-1], refill)
            if wanted == 0:
                break
        batch = Batch.joined(rounds)
        if self._past is None or batch.steps_old is not None:
            return batch
        # The age of the sampling weights in steps; 0 if the current weights sample.
        age = step - 1 - self._past.source_of(step)
        return replace(batch, steps_old=torch.full_like(batch.sequences.completions, age))

    def reward(self, batch: Batch, step: int) -> Batch:
        """Decode, grade and reward every completion of a batch.

        Raises RefusedError if a reward function of the user does not return valid numbers.
        """
        started_s = time.perf_counter()
        batch = replace(batch, attempts=self._graded(batch))
        scores = {name: scorer.scores(batch, self._spec.seed, step) for name, scorer in self._scorers.items()}
        if scores:
            by_row = (dict(zip(scores, row, strict=True)) for row in zip(*scores.values(), strict=True))
            scored = [replace(one, scores=own) for one, own in zip(batch.attempts, by_row, strict=True)]
            batch = replace(batch, attempts=scored)
        if self._gold is not None:
            batch = self._gold.scored(batch, self._reward.judges_reasoning)
        attempts = batch.attempts
        # Rewards may depend on the step and on its limit of completion tokens.
        context = replace(self._context, step=step, max_completion_tokens=batch.max_completion_tokens)
        total, parts = self._reward.of_groups(batch.by_group(attempts), context)
        columns = {"reward": total, **{f"reward/{name}": values for name, values in parts.items()}}
        at_steps = self._reward.at_steps(attempts, context, batch.sequences.completions, self._language_model.decode)
        return replace(
            batch,
            rewards=torch.tensor(total),
            reward_columns={**batch.reward_columns, **columns},
            token_rewards=at_steps,
            correct=torch.tensor([attempt.verdict.correct for attempt in attempts]),
            reward_s=time.perf_counter() - started_s,
        )

    def _graded(self, batch: Batch) -> list[Attempt]:
        lengths, truncated = batch.sequences.lengths.tolist(), batch.truncated.tolist()
        mean_logps = (batch.sampler_logps.sum(1) / batch.sequences.lengths).tolist()
        samples = [sample for group in batch.by_group(batch.problems) for sample in range(len(group))]
        completions = zip(batch.sequences.completions.tolist(), lengths, strict=True)
        texts = [self._language_model.decode(tokens[:length]) for tokens, length in completions]
        turns = batch.turns or [()] * len(batch)
        # In a dialogue, the task determines which part is the answer.
        answering = [self._task.graded_text(text, own) for text, own in zip(texts, turns, strict=True)]
        graded = grade_all(batch.problems, answering, self._task.extract, self.grader, self._beside)
        verdicts = [by_grader[self.grader.name] for by_grader in graded]
        by_rule = [by_grader.get(self._rule.name) if self._rule else None for by_grader in graded]
        measured = zip(lengths, truncated, verdicts, mean_logps, strict=True)
        attempts = zip(batch.problems, samples, texts, measured, strict=True)
        return [
            Attempt(problem, sample, text, *values, rule_verdict=by_rule[row], turns=turns[row])
            for row, (problem, sample, text, values) in enumerate(attempts)
        ]

    def metrics(self, batch: Batch) -> Metrics:
        """Return the metrics of a step's completions and of their scorers."""
        scorers, attempts = self._scorers.values(), batch.attempts
        found = rollout_metrics(batch, [reply for scorer in scorers for reply in scorer.replies(attempts)])
        for scorer in scorers:
            found |= scorer.metrics(attempts)
        return found

    def _beside(self, problem: Problem) -> list[Grader]:
        return [self._rule] if self._rule is not None and problem.answer else []


def _rewarding_knobs(spec: RunSpec) -> tuple[Overlong, Credit]:
    """Return the knobs of the objective that affect rewards. Pairs are ranked without them."""
    if isinstance(spec.objective, Objective):
        return spec.objective.overlong, spec.objective.credit
    return Penalise(), "completion"


def _refill(spec: RunSpec) -> Objective | None:
    """Return the objective if batches are to be refilled, or None."""
    objective = spec.objective
    return objective if isinstance(objective, Objective) and objective.zero_std == "refill" else None


def _useful_groups(batch: Batch, objective: Objective) -> int:
    """Return the number of groups with unequal rewards, ignoring rows that the knob `overlong` excludes."""
    rewards = batch.rewards
    if objective.overlong.type in ("mask_before", "drop"):
        rewards = rewards.masked_fill(batch.truncated, torch.nan)
    alike = zero_std_rows(rewards, batch.groups)
    return len(torch.unique(batch.groups[~alike]))


def rollout_rows(batch: Batch, step: int) -> list[dict[str, object]]:
    """Return a row of rollouts/*.parquet for each completion. A reward of NaN becomes None."""
    tokens, logps = batch.sequences.completions.tolist(), batch.sampler_logps.tolist()
    return [
        {
            "step": step,
            "problem_id": attempt.problem.id,
            "sample": attempt.sample,
            "text": attempt.text,
            "tokens": tokens[row][: attempt.n_tokens],
            "logps": logps[row][: attempt.n_tokens],
            **{name: None if math.isnan(of[row]) else of[row] for name, of in batch.reward_columns.items()},
            "correct": attempt.verdict.correct,
            "truncated": attempt.truncated,
            **({"origin": batch.origins[row]} if batch.origins else {}),
            **({} if attempt.rule_verdict is None else {"rule_correct": attempt.rule_verdict.correct}),
            **({"turns": turns_as_json(attempt.turns)} if attempt.turns else {}),
        }
        for row, attempt in enumerate(batch.attempts)
    ]


class RolloutLearner(ABC, Generic[Update]):
    """Samples and rewards completions of prompts. Subclasses train on them.

    The language model must have the starting weights.
    """

    def __init__(
        self, spec: RunSpec, start: LanguageModel, examples: Examples, engine: Engine, checkpoints: Path | None = None
    ) -> None:
        """Create the copies, engines and orders that the spec needs.

        engine: samples from the current policy. If another model is sampled from, a further engine is created for it.
        checkpoints: as in `PastWeights`.
        """
        self._spec, self._start = spec, start
        self._asks_models = bool(spec.judges)
        self._initial = frozen_copy(start.model) if self._needs_initial() else None
        self._round = RenewedCopy(start.model, spec.rollout.round_steps) if spec.rollout.sampler == "round" else None
        self._past: PastWeights | None = None
        if staleness_steps := spec.rollout.staleness_steps:
            self._past = PastWeights(start.model, staleness_steps, checkpoints)
        sampler = self._sampling_model()
        if sampler is not start.model:
            engine = make_engine(spec.rollout, start, sampler)
        own = replace(start, model=require_copy(self._initial)) if spec.reward.asks_start else None
        self._teacher = require_copy(self._initial) if spec.start_teaches else examples.teacher
        helped = replace(examples, generator=examples.generator or own, teacher=self._teacher)
        self._rollouts, self._pool = Rollouts(spec, start, engine, helped, self._past), examples.problems
        self._order = prompt_order(spec.task, examples.problems, spec.seed)
        self._limit = CompletionLimit(spec.rollout)
        self._update: Update = self._make_update()
        # This lets `_begin_round` run in all processes.
        Processes.here().share(self)

    @abstractmethod
    def _make_update(self) -> Update:
        """Return the object that updates the policy. The policy has the starting weights."""

    @abstractmethod
    def _learn(self, batch: Batch, step: int) -> tuple[StepReport, Metrics, list[dict[str, object]]]:
        """Train on a step's rewarded completions.

        Returns the report, metrics about the selection of completions, and further columns of rollouts/*.parquet for
        each completion.
        """

    def step(self, step: int, done_frac: float, before_update: Callable[[], object] = nothing) -> StepReport:
        self._begin_round(step)
        # The counter covers the whole process, so the requests of a step are a difference.
        sent_before = requests_sent() if self._asks_models else 0
        if self._past is not None:
            self._past.begin(step)
        batch = self._rollouts.gather(step, done_frac, self._order, self._limit.tokens)
        before_update()
        update, chosen, columns = self._learn(batch, step)
        self._rollouts.writer.learned()
        if self._past is not None:
            self._past.keep(step, self._start.model)
        measured = self._rollouts.metrics(batch)
        judging = {"judge_requests": requests_sent() - sent_before} if "judge/questions" in measured else {}
        reward, cost = measured["reward/mean"], batch.cost
        self._observe(batch, step, reward)
        drawn = {"len/limit": batch.max_completion_tokens, **self._order.metrics(), **self._rollouts.writer.metrics()}
        return replace(
            update,
            metrics={**measured, **drawn, **chosen, **update.metrics},
            generated_tokens=batch.generated_tokens,
            reward=reward,
            phases={
                "rollout_s": batch.rollout_s,
                "sync_s": cost.sync_s,
                "prefill_s": cost.prefill_s,
                "decode_s": cost.decode_s,
                "occupancy_frac": cost.occupied / cost.slots if cost.slots else None,
                "reward_s": batch.reward_s,
                **judging,
            },
            problems=list({problem.id: problem for problem in batch.problems}.values()),
            rollouts=[row | more for row, more in zip(rollout_rows(batch, step), columns, strict=True)],
        )

    @by_all
    def _begin_round(self, step: int) -> None:
        if self._round is not None:
            self._round.begin(step, self._start.model)

    def trainer_state(self) -> TrainerState:
        round_start = {} if self._round is None else self._round.state_dict()
        return {"update": self._update.state_dict(), "round": round_start, **self._rollouts.writer.state_dict()}

    def progress(self) -> CellProgress:
        past: CellProgress = {} if self._past is None else {"past_weights": self._past.state_dict()}
        return {"order": self._order.state_dict(), "limit": self._limit.state_dict(), **past}

    def restore(self, trainer_state: TrainerState, progress: CellProgress) -> None:
        self._update.load_state_dict(trainer_state["update"])
        if self._round is not None:
            self._round.load_state_dict(trainer_state["round"])
        self._rollouts.writer.load_state_dict(trainer_state, self._pool)
        if self._past is not None:
            self._past.load_state_dict(progress["past_weights"])
        self._order.load_state_dict(progress["order"])
        self._limit.load_state_dict(progress["limit"])

    def _needs_initial(self) -> bool:
        """Return whether a frozen copy of the starting weights is needed."""
        spec = self._spec
        asked = spec.start_teaches or spec.reward.asks_start
        return spec.train.reference_rows > 0 or spec.rollout.sampler == "initial" or asked

    def _sampling_model(self) -> PreTrainedModel:
        match self._spec.rollout.sampler:
            case "policy" | "teacher" | "given":
                return self._start.model if self._past is None else self._past.policy
            case "initial":
                return require_copy(self._initial)
            case "round":
                return require_copy(self._round and self._round.policy)

    def _observe(self, batch: Batch, step: int, reward: float | None) -> None:
        """Update the state on which later prompts and limits depend."""
        right = batch.correct.view(-1, self._spec.rollout.samples_per_prompt)
        ids = [group[0].id for group in batch.by_group(batch.problems)]
        self._order.observe(ids, right.float().mean(1).tolist())
        self._limit.observe(step, math.nan if reward is None else reward)


class PolicyGradientLearner(RolloutLearner[PolicyUpdate]):
    """Trains on every completion that the knobs `overlong` and `zero_std` keep, weighted by its advantage."""

    def _make_update(self) -> PolicyUpdate:
        start = self._start
        self._characters = TokenCharacters(start.decode)
        return PolicyUpdate(start.model, self._spec, start.pad_token_id, self._initial, self._teacher)

    def _learn(self, batch: Batch, step: int) -> tuple[StepReport, Metrics, list[dict[str, object]]]:
        kept = filter_rows(self._spec.policy_gradient, batch)
        chosen: Metrics = {
            "rows_dropped": len(batch) - len(kept),
            "groups_dropped": len(torch.unique(batch.groups)) - len(torch.unique(kept.groups)),
            "refill_rounds": batch.refill_rounds,
        }
        # The batch is sent to other processes. Problems are removed, because they may contain code that cannot be
        # pickled.
        update = self._update.run(replace(kept, problems=(), turns=(), attempts=(), reward_columns={}), step)
        columns: list[dict[str, object]] = [{} for _ in range(len(batch))]
        if update.tokens is not None:
            drawn = zip(kept.sequences.completions.tolist(), kept.attempts, strict=True)
            for place, seen, (tokens, attempt) in zip(kept.places.tolist(), update.tokens, drawn, strict=True):
                chars = self._characters.of(tokens[: attempt.n_tokens], attempt.text)
                columns[place] = {"token/chars": chars, **seen}
        return update, chosen, columns
