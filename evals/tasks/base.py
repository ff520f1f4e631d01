"""What a task is: problems in splits, and how their answers are asked for, extracted and graded."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from evals.choices import Choices
from evals.errors import EvalError
from evals.graders import get_grader
from evals.grading import OwnComparison
from evals.grading.extract import EXTRACTIONS
from evals.prompts import Mode, Template, get_template
from evals.tasks.environment import Reply, Turn, last_turn
from harness.errors import few, nearest
from harness.plugins import UserModule

if TYPE_CHECKING:
    from evals.lm_eval_results import LmEvalResult


@dataclass(frozen=True)
class Problem:
    """One problem.

    answer: the reference without its working; empty where a task without a grader has none.
    solution: the reference with its working. difficulty: larger is harder, in a unit of the task's own.
    own_comparison: judges an extracted answer where more than one is right; the grader `own` asks it.
    choices: what there is to choose from, in a task whose problems are not answered in words.
    mode: in which it is asked, under a template with modes.
    """

    id: str
    problem: str
    answer: str
    solution: str | None = None
    difficulty: float | None = None
    own_comparison: OwnComparison | None = field(default=None, compare=False, repr=False)
    choices: Choices | None = field(default=None, compare=False, repr=False)
    mode: Mode = "think"

    def require_solution(self) -> str:
        """The solution. Raises EvalError if the problem has none."""
        if self.solution is None:
            raise EvalError(
                f"the problem {self.id} comes without a solution, which this run needs (rollout.sampler=given, a cold "
                "start on solutions:<task>, or a teacher's prompt with {solution}). Give the task's rows a "
                "`solution`, or use another task."
            )
        return self.solution


@dataclass(frozen=True)
class Environment:
    """What answers the turns of a task's completions. The model ends its turn, the environment answers with text, and
    the model goes on with both before its eyes. A reply follows from the problem and from what the model has said, so
    no state has to be kept, and a resumed cell gets the same replies.

    reply: (problem, what the model has said in each of its turns so far) -> the answer to the last of them. It must
        depend on nothing else: samples are drawn again and are expected to be the same.
    max_turns: after so many the conversation ends. Evaluation gives as many; training too, unless `rollout.max_turns`
        says otherwise.
    version: raise it whenever replies or rewards change; it is part of a run's semantic hash.

    Raises EvalError for less than one turn.
    """

    reply: Callable[[Problem, Sequence[str]], Reply]
    max_turns: int
    version: int = 1

    def __post_init__(self) -> None:
        if self.max_turns < 1:
            raise EvalError(f"an environment has max_turns={self.max_turns}: give at least 1")

    def answer(self, problem: Problem, said: Sequence[str]) -> Reply:
        """The reply to the last of these turns. Raises EvalError if the task's function gives something else."""
        answered = self.reply(problem, said)
        if not isinstance(answered, Reply):
            raise EvalError(
                f"the environment gave {answered!r} to a turn on the problem {problem.id}: give a Reply "
                "(evals.tasks.environment)"
            )
        return answered

    @property
    def identity(self) -> dict[str, int]:
        """What its replies depend on besides the problem and the model's words."""
        return {"version": self.version, "max_turns": self.max_turns}


@dataclass(frozen=True)
class Step:
    """One written step of a completion. end: the number of characters up to its last one, which is included."""

    end: int
    right: bool


class SplitSource(Protocol):
    """Where the problems of a split come from."""

    @property
    def fingerprint(self) -> str:
        """What identifies the content, e.g. a pinned digest, so that plans need no data. It is part of a run's semantic
        hash."""

    def load(self) -> Sequence[Problem]:
        """The problems, always in the same order. Raises DataMissingError if they cannot be had."""


@dataclass(frozen=True)
class Generated:
    """Problems made by a deterministic recipe, once in a process; raise `version` whenever its output changes."""

    recipe: Callable[[], Sequence[Problem]]
    version: int

    @property
    def fingerprint(self) -> str:
        return f"generated:v{self.version}"

    @property
    def count(self) -> int:
        return len(self._problems)

    def load(self) -> Sequence[Problem]:
        return self._problems

    @cached_property
    def _problems(self) -> Sequence[Problem]:
        return tuple(self.recipe())


@dataclass(frozen=True)
class Task:
    """A set of problems and the way they are evaluated by default.

    template: a prompt template, as `evals.prompts.get_template` finds it.
    grader, extract: names of a grader (`evals.grading`) and of an extraction (`evals.grading.extract`). Without a
        grader (None) the task has prompts, but by itself nothing can be scored on it.
    margin_pp: differences of pass@1 below this many percentage points do not matter in practice.
    splits: by name. Training takes `train`, evaluation `test`; a task may lack one of them.
    written_steps: (problem, completion) -> the steps written in it, in order.
    check_steps: (problem, completion) -> whether the written work is faulty; None where no step is written.
    asks_itself: problems are whole prompts, and only their own comparison can judge; `eval.template` and `eval.grader`
        are for the other tasks of an evaluation.
    stop: strings that end a completion, besides the template's.
    judge_template: the template with which a pairwise judge is asked; it also has the holes {first} and {second}.
    gives_choices: every problem has `choices`, of which the model finds one most likely. No text is drawn, so a problem
        has one sample, which no seed changes.
    mode: that of its problems. thinking_budget_tokens: after so many tokens without an answer the model is told to give
        it; None: never. See `evals.tasks.modes`.
    environment: answers each turn of a completion; None: a completion is one turn.
    grades_all_turns: the verdict is on all turns of a completion, not on the last one.
    modules: of the user, whose code makes the problems or answers the model, apart from the task's own plug-in.
    """

    name: str
    template: str
    grader: str | None
    extract: str
    margin_pp: float
    splits: Mapping[str, SplitSource]
    written_steps: Callable[[Problem, str], Sequence[Step]] | None = None
    check_steps: Callable[[Problem, str], bool | None] | None = None
    asks_itself: bool = False
    stop: tuple[str, ...] = ()
    judge_template: str = "judge"
    gives_choices: bool = False
    mode: Mode = "think"
    thinking_budget_tokens: int | None = None
    environment: Environment | None = None
    grades_all_turns: bool = False
    modules: tuple[UserModule, ...] = ()

    def graded_text(self, text: str, turns: Sequence[Turn]) -> str:
        """The part of a completion that is graded: its last turn or, if the task grades all turns, a JSON list of them.
        A completion without turns counts as one turn."""
        if not self.grades_all_turns:
            return last_turn(text, turns)
        ends = [0, *([turn.end_chars for turn in turns] or [len(text)])]
        return json.dumps([text[begin:end] for begin, end in itertools.pairwise(ends)])

    def require_known_names(self) -> None:
        """Raise UnknownNameError or EvalError for an unknown template, grader or extraction.

        This is not asked when the task is made: a plug-in may give a task together with its grader.
        """
        get_template(self.template)
        if self.grader is not None:
            get_grader(self.grader)
        EXTRACTIONS.find(self.extract)

    def fault_of_mode(self, template: Template) -> str | None:
        """Why the problems cannot be asked in their mode under this template, and the remedy; None if they can."""
        if self.mode == "think" or template.has_modes:
            return None
        return (
            f"the template {template.name} has no {{mode}}, so {self.name} would be asked for steps as ever. Name a "
            "template with modes, e.g. qwen3, or leave the task out"
        )

    def split(self, name: str) -> SplitSource:
        """The source of a split. Raises EvalError if there is none of that name."""
        if name not in self.splits:
            raise EvalError(
                f"task {self.name} has no split {name!r}{nearest(name, self.splits)} It has {few(self.splits)}."
            )
        return self.splits[name]

    def n_evaluated(self, wanted: int | None) -> int | None:
        """How many problems an evaluation takes: so many, or all (None), but no more than there are.

        As far as that is known without data: with `wanted` None and rows that no `count` declares it is None.
        """
        count: int | None = getattr(self.splits.get("test"), "count", None)
        return min((n for n in (wanted, count) if n is not None), default=None)

    def require_grader(self) -> str:
        """The name of the grader. Raises EvalError for a task without one."""
        if self.grader is None:
            raise EvalError(
                f"task {self.name}: has no grader (`grader: null`), so no completion of it can be scored. Name a "
                "grader, here or in the task's file, and give its rows their answers; or take a task that has one."
            )
        return self.grader


@dataclass(frozen=True)
class TaskFamily:
    """The tasks of another package, each named by a prefix and its own name."""

    prefix: str
    """With the colon, e.g. `verifiers:`."""
    form: str
    """How one is named, e.g. `verifiers:<taskset>[?option=value&...]`."""
    summary: str
    load: Callable[[str], Task]
    """(the whole name) -> the task. Raises EvalError."""
    run_itself: Callable[..., LmEvalResult] | None = None
    """Runs such tasks in the other package's way, for `bench eval`; see `evals.shelves.lm_eval.adapter.run_lm_eval`."""
