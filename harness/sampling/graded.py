"""Completions of the starting weights with their verdicts, drawn as in training or as in evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from evals.grading import Verdict, grade
from evals.prompts import get_template
from evals.tasks import get_task
from evals.tasks.base import Problem
from harness.config.run_spec import RunSpec
from harness.engines.base import Engine, SamplingParams
from harness.models.language_model import LanguageModel
from harness.random_keys import SEED_OF_ALL_CELLS, Stream, random_key
from harness.training.sequences import Sequences

CHUNK_SAMPLES = 1024


@dataclass(frozen=True)
class Conditions:
    """How completions are prompted, drawn and graded. The noise of a sample is keyed by seed, stream and problem."""

    template: str
    params: SamplingParams
    grader: str
    extract: str
    seed: int
    stream: Stream

    @classmethod
    def of_training(cls, spec: RunSpec) -> Conditions:
        """Those of rollouts, but with the noise of step 0, before training, and of no cell's seed."""
        rollout, task = spec.rollout, get_task(spec.task.train)
        stop = rollout.stop + get_template(spec.task.template).stop
        params = SamplingParams(rollout.max_completion_tokens, rollout.temperature, rollout.top_p, rollout.top_k, stop)
        return cls(spec.task.template, params, spec.rollout_grader, task.extract, SEED_OF_ALL_CELLS, "rollout")

    @classmethod
    def of_evaluation(cls, spec: RunSpec) -> Conditions:
        """Those of the first evaluation task, with the noise of the evaluations."""
        wanted = spec.eval
        stop = wanted.stop + get_template(wanted.template).stop
        params = SamplingParams(wanted.max_completion_tokens, wanted.temperature, wanted.top_p, wanted.top_k, stop)
        return cls(wanted.template, params, wanted.grader, get_task(wanted.tasks[0]).extract, spec.seed, "eval")


@dataclass(frozen=True)
class GradedSamples:
    """N completions of P problems, the `samples` of each next to each other, with the grader's verdicts."""

    problems: Sequence[Problem]
    samples: int
    sequences: Sequences
    verdicts: Sequence[Verdict]

    @property
    def correct(self) -> Tensor:
        """Bool [P, samples]."""
        return torch.tensor([verdict.correct for verdict in self.verdicts]).view(-1, self.samples)


def chunks(problems: Sequence[Problem], samples: int) -> Iterator[Sequence[Problem]]:
    """The problems whose completions are drawn together. The split does not depend on what is there already: a resumed
    measurement repeats the same batches, whose size can decide the last bit of a log-prob."""
    size = max(1, CHUNK_SAMPLES // samples)
    for start in range(0, len(problems), size):
        yield problems[start : start + size]


def draw_graded(
    problems: Sequence[Problem],
    samples: int,
    conditions: Conditions,
    language_model: LanguageModel,
    engine: Engine,
    on_progress: Callable[[int], None] = lambda drawn: None,
) -> GradedSamples:
    """Draw and grade `samples` completions of each problem. on_progress is told after each chunk how many problems are
    drawn."""
    template = get_template(conditions.template)
    prompts: list[list[int]] = []
    completions: list[list[int]] = []
    verdicts: list[Verdict] = []
    for chunk in chunks(problems, samples):
        encoded = [language_model.encode(template.render(problem.problem)) for problem in chunk]
        keys = [
            [random_key(conditions.seed, conditions.stream, example=p.id, sample=sample) for sample in range(samples)]
            for p in chunk
        ]
        drawn = engine.generate(encoded, torch.tensor(keys), conditions.params)
        for row, (tokens, length) in enumerate(zip(drawn.tokens.tolist(), drawn.lengths.tolist(), strict=True)):
            prompts.append(encoded[row // samples])
            completions.append(tokens[:length])
            problem = chunk[row // samples]
            text = language_model.decode(completions[-1])
            verdicts.append(grade(text, problem.answer, conditions.grader, conditions.extract, problem.own_comparison))
        on_progress(len(verdicts) // samples)
    rows = [torch.tensor(completion) for completion in completions]
    padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=language_model.pad_token_id)
    sequences = Sequences(prompts, padded, torch.tensor([len(row) for row in rows]))
    return GradedSamples(problems, samples, sequences, verdicts)
