"""Learning from completions that are drawn, graded and rewarded in each step: what all such learners share, and
the policy-gradient objectives, which learn from every completion by its advantage."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from algorithms import Objective
from algorithms.objective import Credit, Overlong, Penalise
from evals.evaluate import grade_all
from evals.graders import get_grader, rule_beside
from evals.grading import Grader
from evals.grading.asked_model import requests_sent
from evals.prompts import get_template
from evals.tasks import get_task
from evals.tasks.base import Problem
from evals.tasks.environment import turns_as_json
from harness.config.rollout import Slices
from harness.config.run_spec import RunSpec
from harness.engines.base import Engine, SamplingParams, make_engine
from harness.models.language_model import LanguageModel, TokenCharacters
from harness.processes import Processes, by_all
from harness.random_keys import random_key
from harness.rewards import Attempt, RewardContext, TotalReward
from harness.rewards.judging import Judge, compared
from harness.run.learning.base import Examples, Row, StepOutcome, nothing
from harness.run.learning.origins import Written, writers_beside
from harness.run.learning.partial import BegunGroup, SlicedRollouts
from harness.run.prompts import CompletionLimit, PromptOrder, prompt_order
from harness.training.batch import Batch, filter_rows, peers_of, zero_std_rows
from harness.training.gold_answers import GoldScorer
from harness.training.optimizer import DivergedError
from harness.training.past_weights import PROGRESS as PAST_WEIGHTS
from harness.training.past_weights import PastWeights
from harness.training.policy_update import PolicyUpdate
from harness.training.preference_update import PreferenceUpdate
from harness.training.reference import RenewedCopy, frozen_copy, require_copy
from harness.training.reward_model import RewardModel
from harness.training.update_report import UpdateReport, rollout_metrics


class Rollouts:
    """Draws, grades and rewards completions as a spec says. What it names is looked up once, when this is made."""

    def __init__(
        self,
        spec: RunSpec,
        language_model: LanguageModel,
        engine: Engine,
        reward_model: RewardModel | None = None,
        generator: LanguageModel | None = None,
        judge: Judge | None = None,
        teacher: PreTrainedModel | None = None,
    ) -> None:
        """Raises RefusedError if a reward function of the user's own cannot be imported, ValueError for a part without
        the reward model, frozen generator or judge that it needs, or for one that no part needs."""
        given = (reward_model is not None, generator is not None, judge is not None)
        asked = spec.reward
        if given != (asked.needs_reward_model, "generator" in asked.gold_scorers, asked.needs_judge):
            raise ValueError("a reward model, generator or judge comes with a part that needs it, and the part with it")
        self._spec, self._language_model = spec, language_model
        self._reward_model, self._judge = reward_model, judge
        self._template, self._task = get_template(spec.task.template), get_task(spec.task.train)
        self.grader = get_grader(spec.rollout_grader)
        self._rule = rule_beside(self.grader, self._task.grader)
        self._stop = spec.rollout.stop + self._template.stop
        self._engine = engine
        self._writers = writers_beside(engine, spec, language_model, teacher)
        overlong, credit = _rewarding_knobs(spec)
        limit = spec.rollout.max_completion_tokens
        self._context = RewardContext(0, spec.seed, limit, spec.reward, overlong, credit, self._task)
        self._reward = TotalReward(self._context)
        self._gold = GoldScorer(spec, language_model, generator) if spec.reward.gold_scorers else None

    def gather(self, step: int, done_frac: float, order: PromptOrder, max_completion_tokens: int) -> Batch:
        """Draw, grade and reward a step's completions; with zero_std=refill until enough groups have unequal rewards.

        done_frac: share of the run that is done. Refilling ends after `refill_max_rounds`, or where no prompt is left
        that the step has not seen; the batch is then as full as it is.

        Raises DivergedError if the policy's log-probs are not finite: such completions are noise, and if all of them
        earned the same, no loss would ever tell.
        """
        refill = _refill(self._spec)
        rounds: list[Batch] = []
        seen: list[str] = []
        wanted = self._spec.rollout.prompts_per_step
        while problems := order.draw(step, wanted, done_frac, round=len(rounds), exclude=seen):
            drawn = self.draw(problems, step, max_completion_tokens, first_example=len(seen))
            if not torch.isfinite(drawn.sampler_logps).all():
                raise DivergedError("the policy's log-probs are not finite")
            rounds.append(self.reward(drawn, step))
            seen += [problem.id for problem in problems]
            if refill is None or len(rounds) > refill.refill_max_rounds:
                break
            wanted -= _useful_groups(rounds[-1], refill)
            if wanted == 0:
                break
        return Batch.joined(rounds)

    def draw(self, problems: Sequence[Problem], step: int, max_completion_tokens: int, first_example: int = 0) -> Batch:
        """Draw completions of a step; the noise is keyed by (seed, step, prompt, sample).

        first_example: the number of the first prompt, which is how many the step has drawn before.
        """
        started_s = time.perf_counter()
        rollout, samples = self._spec.rollout, self._spec.rollout.samples_per_prompt
        prompts = [self.encode(problem) for problem in problems]
        keys = [
            [random_key(self._spec.seed, "rollout", step, example, sample) for sample in range(samples)]
            for example in range(first_example, first_example + len(problems))
        ]
        params = SamplingParams(max_completion_tokens, rollout.temperature, rollout.top_p, rollout.top_k, self._stop)
        if self._writers is None:
            written = Written(self._engine.generate(prompts, torch.tensor(keys), params))
        else:
            written = self._writers.write(problems, prompts, torch.tensor(keys), params, step, first_example)
        batch = Batch.of_completions(prompts, written.completions, first_example, max_completion_tokens)
        return replace(
            batch,
            sequences=replace(batch.sequences, interjections=written.interjections),
            turns=written.turns,
            problems=[problem for problem in problems for _ in range(samples)],
            origins=written.origins,
            teacher_prompts=written.teacher_prompts,
            rollout_s=time.perf_counter() - started_s,
        )

    def encode(self, problem: Problem) -> list[int]:
        """The token ids of a problem's prompt."""
        return self._language_model.encode(self._template.ask(problem))

    def reward(self, batch: Batch, step: int) -> Batch:
        """Decode and grade every completion, and reward it.

        Raises RefusedError if a reward function of the user's own does not give its numbers.
        """
        started_s = time.perf_counter()
        attempts: Sequence[Attempt] = self._graded(batch)
        if self._judge is not None:
            attempts = compared(self._judge, attempts, peers_of(batch.groups, self._spec.seed, step).tolist())
        batch = replace(batch, attempts=attempts)
        if self._gold is not None:
            batch = self._gold.scored(batch, self._reward.judges_reasoning)
        attempts = batch.attempts
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
        learned = [math.nan] * len(batch)
        if self._reward_model is not None:
            learned = self._reward_model.scores(batch.sequences).tolist()
        lengths, truncated = batch.sequences.lengths.tolist(), batch.truncated.tolist()
        mean_logps = (batch.sampler_logps.sum(1) / batch.sequences.lengths).tolist()
        samples = [sample for group in batch.by_group(batch.problems) for sample in range(len(group))]
        completions = zip(batch.sequences.completions.tolist(), lengths, strict=True)
        texts = [self._language_model.decode(tokens[:length]) for tokens, length in completions]
        turns = batch.turns or [()] * len(batch)
        answering = [self._task.graded_text(text, own) for text, own in zip(texts, turns, strict=True)]
        graded = grade_all(batch.problems, answering, self._task.extract, self.grader, self._beside)
        verdicts = [by_grader[self.grader.name] for by_grader in graded]
        by_rule = [by_grader.get(self._rule.name) if self._rule else None for by_grader in graded]
        measured = zip(lengths, truncated, verdicts, mean_logps, learned, strict=True)
        attempts = zip(batch.problems, samples, texts, measured, strict=True)
        return [
            Attempt(problem, sample, text, *values, rule_verdict=by_rule[row], turns=turns[row])
            for row, (problem, sample, text, values) in enumerate(attempts)
        ]

    def _beside(self, problem: Problem) -> list[Grader]:
        return [self._rule] if self._rule is not None and problem.answer else []


def _rewarding_knobs(spec: RunSpec) -> tuple[Overlong, Credit]:
    """Knobs of the objective that rewards depend on; pairs are ranked without them."""
    if isinstance(spec.objective, Objective):
        return spec.objective.overlong, spec.objective.credit
    return Penalise(), "completion"


def _refill(spec: RunSpec) -> Objective | None:
    """The objective, if it wants batches refilled."""
    objective = spec.objective
    return objective if isinstance(objective, Objective) and objective.zero_std == "refill" else None


def _useful_groups(batch: Batch, objective: Objective) -> int:
    """Groups whose rewards differ, among those rows that overlong leaves to be rewarded."""
    rewards = batch.rewards
    if objective.overlong.type in ("mask_before", "drop"):
        rewards = rewards.masked_fill(batch.truncated, torch.nan)
    alike = zero_std_rows(rewards, batch.groups)
    return len(torch.unique(batch.groups[~alike]))


def rollout_rows(batch: Batch, step: int) -> list[dict[str, Any]]:
    """A row of rollouts/*.parquet for each completion; a reward that is NaN is None."""
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


class RolloutLearner(ABC):
    """Draws prompts and completions and rewards them; what is learned from them is the subclass's.

    The language model must hold the starting weights.
    """

    _update: PolicyUpdate | PreferenceUpdate
    """The subclass makes it."""

    def __init__(
        self, spec: RunSpec, start: LanguageModel, examples: Examples, engine: Engine, checkpoints: Path | None = None
    ) -> None:
        """engine: draws from the policy as it is. If another policy is sampled from, an engine is made for it.
        checkpoints: as in `PastWeights`."""
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
        helpers = (examples.generator or own, examples.judge, self._teacher)
        self._rollouts = Rollouts(spec, start, engine, examples.reward_model, *helpers)
        self._sliced: SlicedRollouts | None = None
        if isinstance(spec.rollout.partial, Slices):
            encode, pool = self._rollouts.encode, examples.problems
            self._sliced = SlicedRollouts(spec, spec.rollout.partial, encode, engine, start.pad_token_id, pool)
        self._order = prompt_order(spec.task, examples.problems, spec.seed)
        self._limit = CompletionLimit(spec.rollout)
        Processes.here().share(self)

    @abstractmethod
    def _learn(self, batch: Batch, step: int) -> tuple[UpdateReport, Row, list[Row]]:
        """Train on a step's rewarded completions; returns the report, metrics of what was chosen to be learned from,
        and for each completion more columns of rollouts/*.parquet."""

    def step(self, step: int, done_frac: float, before_update: Callable[[], object] = nothing) -> StepOutcome:
        self._begin_round(step)
        sent_before = requests_sent() if self._asks_models else 0
        batch, under_way = self._gather(step, done_frac)
        before_update()
        update, chosen, columns = self._learn(batch, step)
        if self._sliced is not None:
            self._sliced.under_way = under_way
        if self._past is not None:
            self._past.keep(step, self._start.model)
        measured = rollout_metrics(batch)
        waiting = {} if self._sliced is None else {"staleness/prompts_under_way": len(under_way)}
        judging = {"judge_requests": requests_sent() - sent_before} if "judge/questions" in measured else {}
        reward, cost = measured["reward/mean"], batch.cost
        self._observe(batch, step, reward)
        drawn = {"len/limit": batch.max_completion_tokens, **self._order.metrics()}
        return StepOutcome(
            metrics={**measured, **drawn, **waiting, **chosen, **update.metrics},
            generated_tokens=batch.generated_tokens,
            teacher_tokens=update.teacher_tokens,
            trained_tokens=update.trained_tokens,
            reward=reward,
            timing={
                "rollout_s": batch.rollout_s,
                "sync_s": cost.sync_s,
                "prefill_s": cost.prefill_s,
                "decode_s": cost.decode_s,
                "occupancy_frac": cost.occupied / cost.slots if cost.slots else None,
                "reward_s": batch.reward_s,
                **judging,
                **update.timing,
            },
            notes=update.notes,
            problems=list({problem.id: problem for problem in batch.problems}.values()),
            rollouts=[row | more for row, more in zip(rollout_rows(batch, step), columns, strict=True)],
        )

    def _gather(self, step: int, done_frac: float) -> tuple[Batch, list[BegunGroup]]:
        """A step's rewarded completions, and what is under way after it."""
        weights_step = step - 1
        if self._past is not None:
            self._past.begin(step)
            weights_step = self._past.source_of(step)
        if self._sliced is not None:
            problems = self._order.draw(step, self._spec.rollout.prompts_per_step, done_frac)
            drawn, under_way = self._sliced.draw(problems, step, weights_step)
            return self._rollouts.reward(drawn, step), under_way
        batch = self._rollouts.gather(step, done_frac, self._order, self._limit.tokens)
        if self._past is not None:
            batch = replace(batch, steps_old=torch.full_like(batch.sequences.completions, step - 1 - weights_step))
        return batch, []

    @by_all
    def _begin_round(self, step: int) -> None:
        if self._round is not None:
            self._round.begin(step, self._start.model)

    def trainer_state(self) -> dict[str, Any]:
        round_start = {} if self._round is None else self._round.state_dict()
        under_way = {} if self._sliced is None else {"under_way": self._sliced.state_dict()}
        return {"update": self._update.state_dict(), "round": round_start, **under_way}

    def progress(self) -> dict[str, Any]:
        past = {} if self._past is None else {PAST_WEIGHTS: self._past.state_dict()}
        return {"order": self._order.state_dict(), "limit": self._limit.state_dict(), **past}

    def restore(self, trainer_state: dict[str, Any], progress: dict[str, Any]) -> None:
        self._update.load_state_dict(trainer_state["update"])
        if self._round is not None:
            self._round.load_state_dict(trainer_state["round"])
        if self._sliced is not None:
            self._sliced.load_state_dict(trainer_state["under_way"])
        if self._past is not None:
            self._past.load_state_dict(progress[PAST_WEIGHTS])
        self._order.load_state_dict(progress["order"])
        self._limit.load_state_dict(progress["limit"])

    def _needs_initial(self) -> bool:
        """Whether a frozen copy of the starting weights is needed."""
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
        """What later prompts and limits depend on."""
        right = batch.correct.view(-1, self._spec.rollout.samples_per_prompt)
        ids = [group[0].id for group in batch.by_group(batch.problems)]
        self._order.observe(ids, right.float().mean(1).tolist())
        self._limit.observe(step, math.nan if reward is None else reward)


class PolicyGradientLearner(RolloutLearner):
    """Every completion that the knobs `overlong` and `zero_std` leave is learned from, by its advantage."""

    def __init__(
        self, spec: RunSpec, start: LanguageModel, examples: Examples, engine: Engine, checkpoints: Path | None = None
    ) -> None:
        super().__init__(spec, start, examples, engine, checkpoints)
        self._objective = spec.policy_gradient
        self._update: PolicyUpdate = PolicyUpdate(start.model, spec, start.pad_token_id, self._initial, self._teacher)
        self._characters = TokenCharacters(start.decode)

    def _learn(self, batch: Batch, step: int) -> tuple[UpdateReport, Row, list[Row]]:
        kept = filter_rows(self._objective, batch)
        chosen = {
            "rows_dropped": len(batch) - len(kept),
            "groups_dropped": len(torch.unique(batch.groups)) - len(torch.unique(kept.groups)),
            "refill_rounds": batch.refill_rounds,
        }
        # What is sent to other processes: problems may hold code of a task, which does not travel.
        update = self._update.run(replace(kept, problems=(), turns=(), attempts=(), reward_columns={}), step)
        columns: list[Row] = [{} for _ in range(len(batch))]
        if update.tokens is not None:
            drawn = zip(kept.sequences.completions.tolist(), kept.attempts, strict=True)
            for place, seen, (tokens, attempt) in zip(kept.places.tolist(), update.tokens, drawn, strict=True):
                chars = self._characters.of(tokens[: attempt.n_tokens], attempt.text)
                columns[place] = {"token/chars": chars, **seen}
        return update, chosen, columns
