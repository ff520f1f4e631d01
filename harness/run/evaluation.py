"""Evaluation of a policy: samples are recorded as their chunk finishes, so a killed evaluation goes on where it was."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from evals.calibration import expected_calibration_error, reliability
from evals.evaluate import grade_sample, missing_requests, scores
from evals.prompts import get_template
from evals.sampler import Draw, SamplingParams
from evals.tasks import get_task
from evals.tasks.base import Problem, Task
from harness.config.task import EvalSpec
from harness.engines.base import Engine
from harness.models.language_model import LanguageModel
from harness.records.problems import ProblemsFile
from harness.sampling.graded import chunks
from harness.sampling.sampler import EngineSampler

Row = dict[str, Any]


@dataclass(frozen=True)
class Evaluator:
    """Evaluates one policy by one frozen EvalSpec. Noise is keyed by seed, problem and sample, so it is shared by all
    arms and by all evaluations of a run."""

    spec: EvalSpec
    seed: int
    language_model: LanguageModel
    engine: Engine

    def run(
        self,
        step: int,
        samples: int,
        final: bool,
        earlier: list[Row],
        record: Callable[[list[Row]], None],
        file: ProblemsFile | None = None,
    ) -> Iterator[Row]:
        """Evaluate every task and yield its scores as one row of scores.jsonl without `generated_tokens`.

        The metric `ece` and `reliability`, the bins that it is made from (see `evals.calibration`), are None where
        samples do not show the policy's answer frequencies: at another temperature than 1, with top-p or top-k, or with
        one sample a problem.

        earlier: rows of evals.jsonl that exist already; whole chunks among them are not drawn again.
        record: is given the rows of each chunk as it finishes.
        """
        for task in map(get_task, self.spec.tasks):
            problems = list(itertools.islice(task.split("test").load(), self.spec.problems))
            mine = [row for row in earlier if (row["task"], row["step"], row["final"]) == (task.name, step, final)]
            if file is not None:
                file.add(task.name, "test", problems, get_template(self.spec.template).render)
            rows = []
            for chunk in chunks(problems, samples):
                ids = {problem.id for problem in chunk}
                kept = [row for row in mine if row["problem_id"] in ids]
                if len(kept) == len(chunk) * samples:
                    rows += kept
                    continue
                drawn = [{"step": step, "final": final, **row} for row in self._draw(task, chunk, samples)]
                # What a kill in the middle of an append left is the beginning of the same rows.
                record(drawn[len(kept) :])
                rows += drawn
            ks = [k for k in self.spec.k if k <= samples]
            bins = reliability(rows) if samples > 1 and self._draws_from_the_policy_itself else None
            yield {
                "step": step,
                "final": final,
                "task": task.name,
                "metrics": {
                    **scores(rows, ks),  # type: ignore[arg-type]  # rows carry step and final besides
                    "ece": None if bins is None else expected_calibration_error(bins),
                },
                "reliability": bins,
                "n_problems": len(problems),
                "n_samples": samples,
            }

    @property
    def _draws_from_the_policy_itself(self) -> bool:
        """Otherwise answers come more often or less often than the policy would give them."""
        return (self.spec.temperature, self.spec.top_p, self.spec.top_k) == (1.0, 1.0, 0)

    def _draw(self, task: Task, problems: Sequence[Problem], samples: int) -> Iterator[Row]:
        spec = self.spec
        template = get_template(spec.template)
        requests = list(missing_requests(problems, template, samples))
        draws = [Draw(request.prompt, request.problem.id, request.sample) for request in requests]
        stop = spec.stop + template.stop
        decoding = SamplingParams(spec.max_completion_tokens, spec.temperature, spec.top_p, spec.top_k, stop)
        completions = EngineSampler(self.language_model, self.engine, self.seed).draw(draws, decoding)
        for request, drawn in zip(requests, completions, strict=True):
            yield {**grade_sample(task, request, drawn.text, drawn.n_tokens, drawn.truncated, spec.grader)}
