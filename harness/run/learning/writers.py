"""Who writes the completions of a step: the policy, a teacher under a prompt of its own, or the task with its given
solutions. The policy may also share the prompts of a step with one of the other two. Where the task has an environment
the policy writes in turns; with `rollout.partial` it writes slices (`harness.run.learning.slices`)."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from evals.prompts import get_template
from evals.tasks.base import Problem
from evals.tasks.environment import Environment
from harness.config.run_spec import RunSpec
from harness.engines.base import Completions, Engine, SamplingParams, make_engine
from harness.models.language_model import LanguageModel
from harness.random_keys import permutation, random_key
from harness.run.prompts import teacher_prompt
from harness.sampling.turns import Conversation, Dialogue
from harness.training.batch import Batch, Origin
from harness.training.optimizer import DivergedError


class Writer(ABC):
    """Draws the completions of a step as a batch; who writes them is the subclass's."""

    def __init__(self, spec: RunSpec, language_model: LanguageModel, engine: Engine) -> None:
        """engine: draws from the policy that samples."""
        self._spec, self._language_model, self._engine = spec, language_model, engine
        self._template = get_template(spec.task.template)
        self._stop = spec.rollout.stop + self._template.stop

    @abstractmethod
    def draw(self, problems: Sequence[Problem], step: int, max_completion_tokens: int, first_example: int = 0) -> Batch:
        """Draw completions of a step; the noise is keyed by (seed, step, prompt, sample).

        first_example: the number of the first prompt, which is how many the step has drawn before. Raises as the
        engines, EvalError for a problem that lacks a required solution, and DivergedError if log-probs of the policy
        are not finite: such completions are noise, and if all of them earned the same, no loss would ever tell.
        """

    def encode(self, problem: Problem) -> list[int]:
        """The token ids of a problem's prompt."""
        return self._language_model.encode(self._template.ask(problem))

    def learned(self) -> None:  # noqa: B027
        """Called once the step has learned from what was drawn."""

    def metrics(self) -> dict[str, float]:
        """What steps.jsonl says of the writer after a step."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any], problems: Sequence[Problem]) -> None:  # noqa: B027
        """Go on from there. problems: the training pool."""


class AtOnce(Writer):
    """Writes each completion whole, in the step that draws its prompt."""

    def draw(self, problems: Sequence[Problem], step: int, max_completion_tokens: int, first_example: int = 0) -> Batch:
        """As `Writer.draw`."""
        started_s = time.perf_counter()
        rollout, samples = self._spec.rollout, self._spec.rollout.samples_per_prompt
        prompts = [self.encode(problem) for problem in problems]
        keys = rollout_keys(self._spec.seed, step, range(first_example, first_example + len(problems)), samples)
        params = SamplingParams(max_completion_tokens, rollout.temperature, rollout.top_p, rollout.top_k, self._stop)
        batch = self._write(problems, prompts, keys, params, step, first_example)
        require_finite(batch.sampler_logps)
        return replace(
            batch,
            problems=[problem for problem in problems for _ in range(samples)],
            rollout_s=time.perf_counter() - started_s,
        )

    @abstractmethod
    def _write(
        self,
        problems: Sequence[Problem],
        prompts: Sequence[Sequence[int]],
        keys: Tensor,
        params: SamplingParams,
        step: int,
        first_example: int,
    ) -> Batch:
        """Draw n completions of each of P problems. prompts: token ids of the policy's prompts; keys [P, n]: see
        `Engine.generate`; first_example as in `draw`."""


def rollout_keys(seed: int, step: int, examples: range, samples: int) -> Tensor:
    """[P, n] the noise of a step's completions, one key for each sample of each prompt, by the prompt's number."""
    return torch.tensor(
        [[random_key(seed, "rollout", step, one, sample) for sample in range(samples)] for one in examples]
    )


def require_finite(sampler_logps: Tensor) -> None:
    """Raise DivergedError if a log-prob that the sampler reported is not finite."""
    if not torch.isfinite(sampler_logps).all():
        raise DivergedError("the policy's log-probs are not finite")


class InOneTurn(AtOnce):
    """Writes whole completions, as `rollout.sampler` and `rollout.policy_frac` say.

    Seed and step decide which prompts the policy answers. Sampling noise depends only on the completion's key, so for
    these prompts the policy draws with the same noise as in an arm in which it answers every prompt.
    """

    def __init__(
        self, spec: RunSpec, language_model: LanguageModel, engine: Engine, teacher: PreTrainedModel | None
    ) -> None:
        """teacher: the teacher's weights, if there is one. Raises as `make_engine` if the teacher writes."""
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
        self,
        problems: Sequence[Problem],
        prompts: Sequence[Sequence[int]],
        keys: Tensor,
        params: SamplingParams,
        step: int,
        first_example: int,
    ) -> Batch:
        samples = range(keys.shape[1])
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
        """Which of `count` prompts the policy answers, as indices."""
        if self._other == "policy":
            return set(range(count))
        share = round(self._spec.rollout.policy_frac * count)
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
        """The teacher's prompts as token ids; [] if they are the policy's. Raises EvalError for a missing solution."""
        if self._teacher_template is None:
            return []
        return [self._language_model.encode(teacher_prompt(self._teacher_template, problem)) for problem in problems]

    def _given(self, problems: Sequence[Problem], limit: int) -> Completions:
        """The problems' solutions as completions, truncated at the limit. They were not sampled, so log-probs are 0."""
        encoded = [self._language_model.encode_completion(problem.require_solution()) for problem in problems]
        tokens = [one[:limit] for one in encoded]
        truncated = [len(one) > limit for one in encoded]
        return Completions.of(
            tokens, [[0.0] * len(one) for one in tokens], truncated, self._language_model.pad_token_id
        )


class InTurns(AtOnce):
    """Writes completions of several turns, which the task's environment answers. The first turn has the noise of a
    completion of one turn."""

    def __init__(self, spec: RunSpec, language_model: LanguageModel, engine: Engine, environment: Environment) -> None:
        super().__init__(spec, language_model, engine)
        self._environment = environment

    def _write(
        self,
        problems: Sequence[Problem],
        prompts: Sequence[Sequence[int]],
        keys: Tensor,
        params: SamplingParams,
        step: int,
        first_example: int,
    ) -> Batch:
        model, samples = self._language_model, keys.shape[1]
        asked = zip(prompts, problems, strict=True)
        rows = [Conversation(prompt, problem) for prompt, problem in asked for _ in range(samples)]

        def key_of(row: int, turn: int) -> int:
            place, sample = divmod(row, samples)
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
