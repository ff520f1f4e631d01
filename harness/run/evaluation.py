"""Evaluation of a policy by the one frozen EvalSpec of all arms."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from evals.calibration import expected_calibration_error, reliability
from evals.evaluate import scores
from evals.tasks import get_task
from harness.config.task import EvalSpec
from harness.engines.base import Engine
from harness.models.language_model import LanguageModel
from harness.sampling.conditions import Conditions
from harness.sampling.sampler import EngineSampler
from harness.sampling.store import SampleStore

Row = dict[str, Any]


@dataclass(frozen=True)
class Evaluator:
    """Evaluates one policy. Noise is keyed by seed, problem and sample, so it is shared by all arms and by all
    evaluations of a run."""

    spec: EvalSpec
    seed: int
    language_model: LanguageModel
    engine: Engine

    def run(self, samples: int, store: SampleStore) -> Iterator[Row]:
        """Evaluate every task and yield its scores as fields of a row of scores.jsonl. Samples that the store holds are
        not drawn again.

        The metric `ece` and `reliability`, the bins that it is made from (see `evals.calibration`), are None where
        samples do not show the policy's answer frequencies: at another temperature than 1, with top-p or top-k, or with
        one sample a problem.
        """
        sampler = EngineSampler(self.language_model, self.engine, self.seed)
        for task in map(get_task, self.spec.tasks):
            problems = list(itertools.islice(task.split("test").load(), self.spec.problems))
            conditions = Conditions.of_evaluation(self.spec, task, self.seed)
            rows = store.fill(problems, samples, conditions, sampler)
            bins = reliability(rows) if samples > 1 and self._draws_from_the_policy_itself else None
            yield {
                "task": task.name,
                "metrics": {
                    **scores(rows, [k for k in self.spec.k if k <= samples]),
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
