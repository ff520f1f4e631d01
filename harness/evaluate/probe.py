"""The base class of the probe that `bench eval --memorisation` runs next to the tasks. It imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evals.tasks.base import Problem, Task
    from harness.plan.subject import Subject
    from harness.sampling.sampler import Policy
    from harness.sampling.store import OnProgress


class StatementProbe:
    """A test of what a model knows about a task's problems, apart from their answers.

    A shelf adds one to the command line as an object in its `cli.py`.
    """

    def require(self, task: Task, problems: Sequence[Problem]) -> None:
        """Raise EvalError for problems that the probe cannot use."""

    def run(
        self,
        subject: Subject,
        task: Task,
        problems: Sequence[Problem],
        home: Path,
        policy: Policy,
        on_progress: OnProgress,
        max_completion_tokens: int | None = None,
    ) -> dict[str, object]:
        """Run the probe and return a summary that names the task.

        max_completion_tokens: None for the probe's own limit.
        """
        raise NotImplementedError

    def show(self, summaries: Sequence[Mapping[str, object]]) -> None:
        raise NotImplementedError
