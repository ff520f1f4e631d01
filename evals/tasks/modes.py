"""Tasks in one mode of thinking, or with a thinking budget.

    direct:arithmetic     the prompt requests the answer at once
    think8:arithmetic     thinking is stopped after 8 tokens, and the answer must follow

They are for evaluation only. The problems are those of the task's test split, with the same ids, so a sample has the
same noise in both modes. The prompt template defines the text that requests a mode, and the end of thinking. A task
without a prefix requests thinking, without a budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from evals.errors import EvalError
from evals.prompts import Mode
from evals.tasks.base import Problem, SplitSource, Task
from evals.tasks.rows import LoadedRows


def in_mode(task: Task, prefix: str, written_budget: str | None) -> Task:
    """Return the task named `direct:<task>` or `think<N>:<task>`. prefix: the part before the task's own name.

    Raises EvalError for a budget of 0, a task whose prompts are its own, or a budget for a task with several turns.
    """
    name = f"{prefix}{task.name}"
    if task.asks_itself or task.gives_choices:
        raise EvalError("evals.mode_without_flag", name=name, task=task.name)
    if written_budget is not None and task.environment is not None:
        raise EvalError("evals.budget_of_several_turns", name=name, task=task.name)
    budget = None if written_budget is None else int(written_budget)
    if budget == 0:
        raise EvalError("evals.budget_too_small", name=name, task=task.name)
    mode: Mode = "direct" if budget is None else "think"
    return replace(
        task,
        name=name,
        splits={"test": _InMode(task.split("test"), prefix, mode)},
        mode=mode,
        thinking_budget_tokens=budget,
    )


@dataclass(frozen=True)
class _InMode:
    """The problems of a split, in one mode."""

    source: SplitSource
    prefix: str
    mode: Mode

    @property
    def fingerprint(self) -> str:
        return f"{self.prefix}{self.source.fingerprint}"

    @property
    def count(self) -> int | None:
        """The number of problems, or None if it is not known without reading data."""
        return getattr(self.source, "count", None)

    def load(self) -> Sequence[Problem]:
        """Return the problems, set to this mode."""
        rows = self.source.load()
        asked = tuple(replace(problem, mode=self.mode) for problem in rows)
        # Loaded rows keep their origin and the result of the check against the pinned digest.
        return replace(rows, problems=asked) if isinstance(rows, LoadedRows) else asked
