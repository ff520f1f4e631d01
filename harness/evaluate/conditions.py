"""Under what conditions the samples of an evaluation are drawn: whatever can change a sample, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from evals.prompts import get_template, template_version
from evals.sampler import SamplingParams
from evals.tasks.base import Problem, Task
from harness.config.hashing import NUMERICS_VERSION, digest
from harness.evaluate.subject import Subject


@dataclass(frozen=True)
class Conditions:
    """One model on one task. Not among them: how many problems and samples there are, and the grader, since more can be
    drawn later and stored text can be graded again.

    problems: identifies the task's problems as they were loaded (`problems_digest`), since a task may have them from
        several sources. fits_context: the length is an upper bound, lowered to what the model's context has room for.
    thinking_budget_tokens: after so many tokens without `</think>` the model is told to answer; None: never.
    """

    subject: Subject
    task: Task
    problems: str
    template: str
    decoding: SamplingParams
    seed: int
    thinking_budget_tokens: int | None = None
    fits_context: bool = False

    def as_json(self) -> dict[str, Any]:
        """What two evaluations must have in common for their samples to be mixed.

        Raises RefusedError for a model's files that are not there.
        """
        template = {"name": get_template(self.template).name, "version": template_version(self.template)}
        return model_conditions(self.subject, self.seed) | {
            "task": {"name": self.task.name, "problems": self.problems},
            "template": template,
            "decoding": asdict(self.decoding) | {"stop": list(self.decoding.stop), "fits_context": self.fits_context},
            "thinking_budget_tokens": self.thinking_budget_tokens,
        }

    def hash(self) -> str:
        """40 hexadecimal digits."""
        return digest(self.as_json())


def problems_digest(problems: Sequence[Problem]) -> str:
    """40 hexadecimal digits over ids, statements and answers, in their order."""
    return digest([[problem.id, problem.problem, problem.answer] for problem in problems])


def model_conditions(subject: Subject, seed: int) -> dict[str, Any]:
    """What of a model and the machine that runs it can change a sample, whatever the prompt. seed: of the noise.

    Raises RefusedError for a model's files that are not there.
    """
    spec = subject.spec
    return {
        "model": {
            "weights": subject.fingerprint(),
            "dtype": spec.model.dtype,
            "chat_template": spec.model.chat_template,
        },
        "seed": seed,
        "engine": spec.rollout.engine,
        "device": spec.train.device.partition(":")[0],
        "numerics": NUMERICS_VERSION,
    }
