"""Who writes the completions of a step: the policy, a teacher under a prompt of its own, or the task with its given
solutions. The policy may also share the prompts of a step with one of the other two. Where the task has an environment
the policy writes in turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from evals.prompts import get_template
from evals.tasks.base import Environment, Problem
from evals.tasks.environment import Interjection, Turn
from harness.config.run_spec import RunSpec
from harness.engines.base import Completions, Engine, SamplingParams, make_engine
from harness.models.language_model import LanguageModel
from harness.random_keys import permutation, random_key
from harness.run.prompts import teacher_prompt
from harness.sampling.turns import Conversation, Dialogue
from harness.training.batch import Origin


class Written(NamedTuple):
    """The n completions of each of P prompts."""

    completions: Completions
    origins: Sequence[Origin] = ()
    """[P n] who wrote each completion; empty if only the policy can."""
    teacher_prompts: Sequence[Sequence[int]] = ()
    """[P n] token ids of the teacher's prompts; empty if they are the policy's."""
    interjections: Sequence[Sequence[Interjection]] = ()
    """[P n] what an environment said within each completion; empty without one."""
    turns: Sequence[Sequence[Turn]] = ()
    """[P n] the turns of each completion; empty without an environment."""


def writers_beside(
    engine: Engine, spec: RunSpec, language_model: LanguageModel, teacher: PreTrainedModel | None
) -> Writers | InTurns | None:
    """None if the policy alone writes, in one turn, and there is no teacher. Raises as `Writers`."""
    if spec.environment is not None:
        return InTurns(spec, language_model, engine, spec.environment)
    alone = spec.teacher.type == "none" and spec.rollout.sampler != "given"
    return None if alone else Writers(spec, language_model, engine, teacher)


class Writers:
    """Writes the completions of a step's prompts, as `rollout.sampler` and `rollout.policy_frac` say.

    Seed and step decide which prompts the policy answers. Sampling noise depends only on the completion's key, so for
    these prompts the policy draws with the same noise as in an arm in which it answers every prompt.
    """

    def __init__(
        self, spec: RunSpec, language_model: LanguageModel, engine: Engine, teacher: PreTrainedModel | None = None
    ) -> None:
        """engine: draws from the sampling policy. teacher: the teacher's weights, if there is one. Raises as
        `make_engine` if the teacher writes."""
        self._spec, self._language_model = spec, language_model
        self._engines: dict[Origin, Engine] = {"policy": engine}
        sampler = spec.rollout.sampler
        self._other: Origin = sampler if sampler in ("teacher", "given") else "policy"
        if self._other == "teacher":
            self._engines["teacher"] = make_engine(spec.rollout, language_model, teacher)
        self._teacher_template = None
        if spec.teacher.type == "model" and spec.teacher_template != spec.task.template:
            self._teacher_template = get_template(spec.teacher_template)

    def _teacher_prompts(self, problems: Sequence[Problem]) -> list[list[int]]:
        """The teacher's prompts as token ids; [] if they are the policy's. Raises EvalError for a missing solution."""
        if self._teacher_template is None:
            return []
        return [self._language_model.encode(teacher_prompt(self._teacher_template, problem)) for problem in problems]

    def write(
        self,
        problems: Sequence[Problem],
        prompts: Sequence[Sequence[int]],
        keys: Tensor,
        params: SamplingParams,
        step: int,
        first_example: int,
    ) -> Written:
        """Draw n completions of each of P problems. prompts: token ids of the policy's prompts; keys [P, n]: see
        `Engine.generate`; first_example: the number of the first prompt in its step. Raises as the engines, and
        EvalError for a problem that lacks a required solution."""
        samples = range(keys.shape[1])
        taught = [prompt for prompt in self._teacher_prompts(problems) for _ in samples]
        if self._other == "policy":
            return Written(self._engines["policy"].generate(prompts, keys, params), teacher_prompts=taught)
        by_policy = self._by_policy(len(problems), step, first_example)
        places: dict[Origin, list[int]] = {self._other: [], "policy": []}
        for place in range(len(problems)):
            places["policy" if place in by_policy else self._other].append(place)
        writing = {origin: own for origin, own in places.items() if own}
        parts = [
            self._written_by(origin, [problems[at] for at in own], [prompts[at] for at in own], keys[own], params)
            for origin, own in writing.items()
        ]
        order = torch.tensor([at * len(samples) + one for own in writing.values() for at in own for one in samples])
        origins: list[Origin] = [
            "policy" if at in by_policy else self._other for at in range(len(problems)) for _ in samples
        ]
        return Written(Completions.joined(parts).rows(order.argsort()), origins, taught)

    def _by_policy(self, count: int, step: int, first_example: int) -> set[int]:
        """Which of `count` prompts the policy answers, as indices."""
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

    def _given(self, problems: Sequence[Problem], limit: int) -> Completions:
        """The problems' solutions as completions, truncated at the limit. They were not sampled, so log-probs are 0."""
        encoded = [self._language_model.encode_completion(problem.require_solution()) for problem in problems]
        tokens = pad_sequence(
            [torch.tensor(one[:limit]) for one in encoded],
            batch_first=True,
            padding_value=self._language_model.pad_token_id,
        )
        lengths = torch.tensor([min(len(one), limit) for one in encoded])
        truncated = torch.tensor([len(one) > limit for one in encoded])
        return Completions(tokens, torch.zeros(tokens.shape), lengths, truncated)


@dataclass(frozen=True)
class InTurns:
    """Writes completions of several turns, which the task's environment answers."""

    spec: RunSpec
    language_model: LanguageModel
    engine: Engine
    environment: Environment

    def write(
        self,
        problems: Sequence[Problem],
        prompts: Sequence[Sequence[int]],
        keys: Tensor,
        params: SamplingParams,
        step: int,
        first_example: int,
    ) -> Written:
        """As `Writers.write`. The first turn has the noise of a completion of one turn."""
        model, samples = self.language_model, keys.shape[1]
        in_chat = get_template(self.spec.task.template).chat
        asked = zip(prompts, problems, strict=True)
        rows = [Conversation(prompt, problem) for prompt, problem in asked for _ in range(samples)]

        def key_of(row: int, turn: int) -> int:
            place, sample = divmod(row, samples)
            if turn == 0:
                return int(keys[place, sample])
            return random_key(self.spec.seed, "rollout", step, f"{first_example + place}/turn{turn}", sample)

        cost = Dialogue(self.engine, model, self.environment, params, in_chat).converse(rows, key_of)
        completions = Completions(
            pad_sequence(
                [torch.tensor(one.tokens) for one in rows], batch_first=True, padding_value=model.pad_token_id
            ),
            pad_sequence([torch.tensor(one.logps) for one in rows], batch_first=True),
            torch.tensor([len(one.tokens) for one in rows]),
            torch.tensor([one.truncated for one in rows]),
            cost,
        )
        return Written(
            completions, interjections=[one.interjections for one in rows], turns=[one.turns for one in rows]
        )
