"""Writers of a step's completions: the policy, a teacher with its own prompt, or the task's given solutions.

A teacher or given solutions may share the prompts of a step with the policy. If the task has an environment, the policy
writes in turns. With `rollout.partial` it writes in slices (`harness.run.learning.slices`).
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from evals.prompts import get_template
from evals.tasks.base import Environment, Problem
from harness.config.run_spec import RunSpec
from harness.engines.base import Completions, Engine, SamplingParams, make_engine
from harness.models.language_model import LanguageModel
from harness.random_keys import permutation, random_key
from harness.run.prompts import teacher_prompt
from harness.sampling.turns import Conversation, Dialogue
from harness.training.batch import Batch, Origin
from harness.training.optimizer import DivergedError
from harness.training.states import TrainerState


class Writer(ABC):
    """Returns the completions of a step as a batch. The subclass determines who writes them."""

    def __init__(self, spec: RunSpec, language_model: LanguageModel, engine: Engine) -> None:
        """Create the writer. engine: samples from the sampling policy."""
        self._spec, self._language_model, self._engine = spec, language_model, engine
        self._template = get_template(spec.task.template)
        self._stop = spec.rollout.stop + self._template.stop

    @abstractmethod
    def draw(self, problems: Sequence[Problem], step: int, max_completion_tokens: int, first_example: int = 0) -> Batch:
        """Return the completions of a step. The noise is keyed by (seed, step, prompt, sample).

        first_example: the number of the first prompt, which equals the number of prompts that the step has used before.
        Raises as the engines do, and EvalError if a problem lacks a required solution. Raises DivergedError if
        log-probs of
        the policy are not finite: if such completions all had the same reward, no loss would reveal the divergence.
        """

    def encode(self, problem: Problem) -> list[int]:
        return self._language_model.encode(self._template.ask(problem))

    def learned(self) -> None:  # noqa: B027
        """Take note that the step has trained on its completions."""

    def metrics(self) -> dict[str, float]:
        """Return the writer's metrics for steps.jsonl after a step."""
        return {}

    def state_dict(self) -> TrainerState:
        return {}

    def load_state_dict(self, state: TrainerState, problems: Sequence[Problem]) -> None:  # noqa: B027
        """Continue from this state. problems: all training problems."""


class AtOnce(Writer):
    """Writes complete completions, each in the step in which its prompt was drawn."""

    def draw(self, problems: Sequence[Problem], step: int, max_completion_tokens: int, first_example: int = 0) -> Batch:
        started_s = time.perf_counter()
        rollout, samples = self._spec.rollout, self._spec.rollout.samples_per_prompt
        keys = rollout_keys(self._spec.seed, step, range(first_example, first_example + len(problems)), samples)
        params = SamplingParams(max_completion_tokens, rollout.temperature, rollout.top_p, rollout.top_k, self._stop)
        batch = self._write(problems, keys, params, step, first_example)
        require_finite(batch.sampler_logps)
        return replace(
            batch,
            problems=[problem for problem in problems for _ in range(samples)],
            rollout_s=time.perf_counter() - started_s,
        )

    @abstractmethod
    def _write(
        self, problems: Sequence[Problem], keys: Tensor, params: SamplingParams, step: int, first_example: int
    ) -> Batch:
        """Return n completions for each of P problems.

        keys: [P, n]; see `Engine.generate`.
        first_example: as in `draw`.
        """


def rollout_keys(seed: int, step: int, examples: range, samples: int) -> Tensor:
    """Return the noise keys [P, n] of a step, one for each sample of each prompt. examples: the prompts' numbers."""
    return torch.tensor(
        [[random_key(seed, "rollout", step, one, sample) for sample in range(samples)] for one in examples]
    )


def require_finite(sampler_logps: Tensor) -> None:
    """Raise DivergedError if a log-prob that the sampler reported is not finite."""
    if not torch.isfinite(sampler_logps).all():
        raise DivergedError("the policy's log-probs are not finite")


class InOneTurn(AtOnce):
    """Writes complete completions, as `rollout.sampler` and `rollout.policy_frac` say.

    Seed and step determine which prompts the policy answers. Sampling noise depends only on the completion's key, so
    the policy answers these prompts with the same noise as in an arm in which it answers all prompts.
    """

    def __init__(
        self, spec: RunSpec, language_model: LanguageModel, engine: Engine, teacher: PreTrainedModel | None
    ) -> None:
        """Create the writer, with an engine for the teacher if the teacher writes.

        teacher: the teacher's weights, if there is a teacher. Raises as `make_engine` if the teacher writes.
        """
        super().__init__(spec, language_model, engine)
        self._engines: dict[Origin, Engine] = {"policy": engine}
        sampler = spec.rollout.sampler
        self._other: Origin = sampler if sampler in ("teacher", "given") else "policy"
        if self._other == "teacher":
            self._engines["teacher"] = make_engine(spec.rollout, language_model, teacher)
        self._teacher_template = None
        if spec.teacher.type == "model" and spec.teacher_template != spec.task.template:
            self._teacher_template = get_template(spec.teacher_template)

    def _write(
        self, problems: Sequence[Problem], keys: Tensor, params: SamplingParams, step: int, first_example: int
    ) -> Batch:
        prompts, samples = [self.encode(problem) for problem in problems], range(keys.shape[1])
        by_policy = self._by_policy(len(problems), step, first_example)
        places: dict[Origin, list[int]] = {self._other: [], "policy": []}
        for place in range(len(problems)):
            places["policy" if place in by_policy else self._other].append(place)
        writing = {origin: own for origin, own in places.items() if own}
        parts = [
            self._written_by(origin, [problems[at] for at in own], [prompts[at] for at in own], keys[own], params)
            for origin, own in writing.items()
        ]
        drawn = parts[0]
        if len(parts) > 1:
            # The parts are ordered by writer. Sorting by the original row restores the order of the prompts.
            order = [at * len(samples) + one for own in writing.values() for at in own for one in samples]
            drawn = Completions.joined(parts).rows(torch.tensor(order).argsort())
        origins: list[Origin] = [
            "policy" if at in by_policy else self._other for at in range(len(problems)) for _ in samples
        ]
        return replace(
            Batch.of_completions(prompts, drawn, first_example, params.max_completion_tokens),
            origins=origins if self._other != "policy" else (),
            teacher_prompts=[prompt for prompt in self._teacher_prompts(problems) for _ in samples],
        )

    def _by_policy(self, count: int, step: int, first_example: int) -> set[int]:
        """Return the indices of the prompts, out of `count`, that the policy answers."""
        if self._other == "policy":
            return set(range(count))
        share = round(self._spec.rollout.policy_frac * count)
        # A refill begins at another number, so its choice is independent.
        key = random_key(self._spec.seed, "select", step=step, example=f"writers/{first_example}")
        return set(permutation(count, key)[:share])

    def _written_by(
        self,
        origin: Origin,
        problems: Sequence[Problem],
        prompts: Sequence[Sequence[int]],
        keys: Tensor,
        params: SamplingParams,
    ) -> Completions:
        if origin == "given":
            return self._given(problems, params.max_completion_tokens)
        own = self._teacher_prompts(problems) if origin == "teacher" else []
        return self._engines[origin].generate(own or prompts, keys, params)

    def _teacher_prompts(self, problems: Sequence[Problem]) -> list[list[int]]:
        """Return the teacher's prompts as token ids, or [] if they are the same as the policy's.

        Raises EvalError for a missing solution.
        """
        if self._teacher_template is None:
            return []
        return [self._language_model.encode(teacher_prompt(self._teacher_template, problem)) for problem in problems]

    def _given(self, problems: Sequence[Problem], limit: int) -> Completions:
        """Return the problems' solutions as completions, truncated at the limit.

        Nothing was sampled, so all log-probs are 0.
        """
        encoded = [self._language_model.encode_completion(problem.require_solution()) for problem in problems]
        tokens = [one[:limit] for one in encoded]
        truncated = [len(one) > limit for one in encoded]
        return Completions.of(
            tokens, [[0.0] * len(one) for one in tokens], truncated, self._language_model.pad_token_id
        )


class InTurns(AtOnce):
    """Writes completions of several turns, which the task's environment answers.

    The first turn has the same noise as a completion of one turn.
    """

    def __init__(self, spec: RunSpec, language_model: LanguageModel, engine: Engine, environment: Environment) -> None:
        super().__init__(spec, language_model, engine)
        self._environment = environment

    def _write(
        self, problems: Sequence[Problem], keys: Tensor, params: SamplingParams, step: int, first_example: int
    ) -> Batch:
        model, samples = self._language_model, keys.shape[1]
        prompts = [self.encode(problem) for problem in problems]
        asked = zip(prompts, problems, strict=True)
        rows = [Conversation(prompt, problem) for prompt, problem in asked for _ in range(samples)]

        def key_of(row: int, turn: int) -> int:
            place, sample = divmod(row, samples)
            # Each turn has its own key, because one key would repeat the noise of the first turn.
            if turn == 0:
                return int(keys[place, sample])
            return random_key(self._spec.seed, "rollout", step, f"{first_example + place}/turn{turn}", sample)

        dialogue = Dialogue(self._engine, model, self._environment, params, self._template.chat)
        cost = dialogue.converse(rows, key_of)
        drawn = Completions.of(
            [one.tokens for one in rows],
            [one.logps for one in rows],
            [one.truncated for one in rows],
            model.pad_token_id,
            cost,
        )
        batch = Batch.of_completions(prompts, drawn, first_example, params.max_completion_tokens)
        said = replace(batch.sequences, interjections=[one.interjections for one in rows])
        return replace(batch, sequences=said, turns=[one.turns for one in rows])
