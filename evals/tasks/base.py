"""What a task is: problems in splits, and how their answers are asked for, extracted and graded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from evals.errors import EvalError, UnknownNameError
from evals.grading import OwnComparison, get_extraction, get_grader
from evals.prompts import get_template


@dataclass(frozen=True)
class Problem:
    """One problem. `answer` is the reference without its working, empty where a task without a grader has none;
    `solution` shows the working; a larger `difficulty` is harder, in a unit of the task's own. `own_comparison` judges
    an extracted answer where more than one is right; the grader `own` asks it."""

    id: str
    problem: str
    answer: str
    solution: str | None = None
    difficulty: float | None = None
    own_comparison: OwnComparison | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Step:
    """One written step of a completion. `end`: the number of characters up to and with its last one."""

    end: int
    right: bool


class SplitSource(Protocol):
    """Where the problems of a split come from."""

    @property
    def fingerprint(self) -> str:
        """Names the content, e.g. by a pinned digest, so that plans need no data. Part of a run's semantic hash."""

    def load(self) -> Sequence[Problem]:
        """The problems, always in the same order. Raises DataMissingError if they cannot be had."""


@dataclass(frozen=True)
class Generated:
    """Problems made by a deterministic recipe; raise `version` whenever the recipe's output changes."""

    recipe: Callable[[], Sequence[Problem]]
    version: int

    @property
    def fingerprint(self) -> str:
        return f"generated:v{self.version}"

    def load(self) -> Sequence[Problem]:
        return self.recipe()


@dataclass(frozen=True)
class Task:
    """A set of problems and the way they are evaluated by default.

    template: name of a prompt template (`evals.prompts`).
    grader, extract: names of a grader and of an extraction (`evals.grading`). Without a grader (None) the task has
        prompts, but by itself nothing can be scored on it.
    margin_pp: differences of pass@1 below this many percentage points do not matter in practice.
    written_steps: (problem, completion) -> the steps written in it, in order.
    check_steps: (problem, completion) -> whether the written work is faulty; None where no step is written.

    Raises UnknownNameError for an unknown template, grader or extraction.
    """

    name: str
    template: str
    grader: str | None
    extract: str
    margin_pp: float
    splits: Mapping[str, SplitSource]
    written_steps: Callable[[Problem, str], Sequence[Step]] | None = None
    check_steps: Callable[[Problem, str], bool | None] | None = None

    def __post_init__(self) -> None:
        get_template(self.template)
        if self.grader is not None:
            get_grader(self.grader)
        get_extraction(self.extract)

    def split(self, name: str) -> SplitSource:
        """The source of a split. Raises UnknownNameError."""
        if name not in self.splits:
            raise UnknownNameError(f"split of task {self.name}", name, self.splits)
        return self.splits[name]

    def require_grader(self) -> str:
        """The name of the grader. Raises EvalError for a task without one."""
        if self.grader is None:
            raise EvalError(
                f"task {self.name}: has no grader (`grader: null`), so no completion of it can be scored. Name a "
                "grader, here or in the task's file, and give its rows their answers; or take a task that has one."
            )
        return self.grader
