"""Who writes the completions that are learned from: a policy, a teacher under a prompt of its own, or the task, whose
problems come with solutions; or the policy and one of the others, each for a share of a step's prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from evals.prompts import get_template
from evals.tasks.base import Problem
from harness.config.run_spec import RunSpec
from harness.engines.base import Completions, Engine, SamplingParams, make_engine
from harness.models.language_model import LanguageModel
from harness.random_keys import permutation, random_key
from harness.run.prompts import teacher_prompt
from harness.training.batch import Origin


class Written(NamedTuple):
    """The n completions of each of P prompts."""

    completions: Completions
    origins: Sequence[Origin] = ()
    """[P n] who wrote each of them; empty where nobody but the policy can."""
    teacher_prompts: Sequence[Sequence[int]] = ()
    """[P n] token ids of the prompts under which the teacher is asked; empty where they are the policy's."""


class Writers:
    """Writes the completions of a step's prompts, as `rollout.sampler` and `rollout.policy_frac` say.

    Which prompts are the policy's is drawn by seed and step. The noise of a completion is its key's, whoever writes it,
    so that the policy's own completions are those of an arm in which it writes all.
    """

    def __init__(
        self, spec: RunSpec, language_model: LanguageModel, engine: Engine, teacher: PreTrainedModel | None = None
    ) -> None:
        """engine: draws from the policy that samples. teacher: its weights, where there is one. Raises as `make_engine`
        where it writes."""
        self._spec, self._language_model = spec, language_model
        self._engines: dict[Origin, Engine] = {"policy": engine}
        sampler = spec.rollout.sampler
        self._other: Origin = sampler if sampler in ("teacher", "given") else "policy"
        if self._other == "teacher":
            self._engines["teacher"] = make_engine(spec.rollout, language_model, teacher)
        self._teacher_template = None
        if spec.teacher.type == "model" and spec.teacher_template != spec.task.template:
            self._teacher_template = get_template(spec.teacher_template)

    @classmethod
    def beside(
        cls, engine: Engine, spec: RunSpec, language_model: LanguageModel, teacher: PreTrainedModel | None
    ) -> Writers | None:
        """None where the policy alone writes, and no teacher is asked. Raises as the constructor."""
        alone = spec.teacher.type == "none" and spec.rollout.sampler != "given"
        return None if alone else cls(spec, language_model, engine, teacher)

    def _teacher_prompts(self, problems: Sequence[Problem]) -> list[list[int]]:
        """Raises EvalError where they show a solution that is not there."""
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
        """prompts: token ids of the policy's prompt of each problem; keys [P, n]: see `Engine.generate`; first_example:
        the number of the first prompt in its step. Raises as the engines, and EvalError for a problem without the
        solution that is to be learned or shown."""
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
        """The places, among so many, of the prompts that the policy answers."""
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
        """The solutions that problems come with, cut at the limit. Nobody has drawn them: their log-probs are 0."""
        encoded = [self._language_model.encode_completion(problem.require_solution()) for problem in problems]
        tokens = pad_sequence(
            [torch.tensor(one[:limit]) for one in encoded],
            batch_first=True,
            padding_value=self._language_model.pad_token_id,
        )
        lengths = torch.tensor([min(len(one), limit) for one in encoded])
        truncated = torch.tensor([len(one) > limit for one in encoded])
        return Completions(tokens, torch.zeros(tokens.shape), lengths, truncated)
