"""Tasks: problems in splits, and the way to prompt for their answers, extract and grade them."""

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
    """One problem."""

    id: str
    problem: str
    answer: str
    """The reference without its working; empty if a task without a grader has none."""
    solution: str | None = None
    """The reference with its working."""
    difficulty: float | None = None
    """Larger is harder, in a unit of the task's own."""
    own_comparison: OwnComparison | None = field(default=None, compare=False, repr=False)
    """Judges an extracted answer if more than one is right; the grader `own` calls it."""
    choices: Choices | None = field(default=None, compare=False, repr=False)
    """The choices, in a task whose problems are not answered in words."""
    mode: Mode = "think"
    """The mode of its prompt, under a template with modes."""

    def require_solution(self) -> str:
        """Return the solution. Raises EvalError if the problem has none."""
        if self.solution is None:
            raise EvalError("evals.problem_without_solution", problem=self.id)
        return self.solution


@dataclass(frozen=True)
class Environment:
    """The part of a task that answers the turns of its completions.

    The model ends its turn, the environment answers with text, and the model continues after both. A reply depends only
    on the problem and on what the model has said. There is no state to keep, and a resumed cell gets the same replies.

    Raises EvalError for less than one turn.
    """

    reply: Callable[[Problem, Sequence[str]], Reply]
    """(problem, what the model has said in each of its turns so far) -> the answer to the last of them.

    It must depend on nothing else: samples are drawn again and are expected to be the same.
    """
    max_turns: int
    """The conversation ends after this many turns. Evaluation allows as many; training too, unless
    `rollout.max_turns` says otherwise.
    """
    version: int = 1
    """Raise it whenever replies or rewards change; it is part of a run's semantic hash."""

    def __post_init__(self) -> None:
        if self.max_turns < 1:
            raise EvalError("evals.max_turns_too_small", max_turns=self.max_turns)

    def answer(self, problem: Problem, said: Sequence[str]) -> Reply:
        """Return the reply to the last of these turns.

        Raises EvalError if the task's function returns something else.
        """
        answered = self.reply(problem, said)
        if not isinstance(answered, Reply):
            raise EvalError("evals.answer_not_a_reply", answer=answered, problem=problem.id)
        return answered

    @property
    def identity(self) -> dict[str, int]:
        """Everything that its replies depend on besides the problem and the model's words."""
        return {"version": self.version, "max_turns": self.max_turns}


@dataclass(frozen=True)
class Step:
    """One written step of a completion."""

    end: int
    """The number of characters up to its last one, which is included."""
    right: bool


class SplitSource(Protocol):
    """The source of a split's problems."""

    @property
    def fingerprint(self) -> str:
        """An identifier of the content, e.g. a pinned digest, so that plans need no data.

        It is part of a run's semantic hash.
        """

    def load(self) -> Sequence[Problem]:
        """Return the problems, always in the same order. Raises DataMissingError if they are not available."""


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
    """A set of problems and the way they are evaluated by default."""

    name: str
    template: str
    """A prompt template, as `evals.prompts.get_template` finds it."""
    grader: str | None
    """The name of a grader (`evals.grading`). Without one (None) the task has prompts, but by itself no scores."""
    extract: str
    """The name of an extraction (`evals.grading.extract`)."""
    margin_pp: float
    """Differences of pass@1 below this many percentage points do not matter in practice."""
    splits: Mapping[str, SplitSource]
    """Splits by name. Training takes `train`, evaluation `test`; a task may lack one of them."""
    written_steps: Callable[[Problem, str], Sequence[Step]] | None = None
    """(problem, completion) -> the steps written in it, in order."""
    check_steps: Callable[[Problem, str], bool | None] | None = None
    """(problem, completion) -> whether the written work is faulty; None if no step is written."""
    asks_itself: bool = False
    """Problems are whole prompts, and only their own comparison can judge; `eval.template` and `eval.grader` apply
    to the other tasks of an evaluation.
    """
    stop: tuple[str, ...] = ()
    """Strings that end a completion, besides the template's."""
    judge_template: str = "judge"
    """The template for the question to a pairwise judge; it also has the holes {first} and {second}."""
    gives_choices: bool = False
    """Every problem has `choices`, of which the model finds one most likely. No text is sampled, so a problem has
    one sample, which no seed changes.
    """
    mode: Mode = "think"
    """The mode of its problems."""
    thinking_budget_tokens: int | None = None
    """After this many tokens without an answer the model is told to give it; None: never. See `evals.tasks.modes`."""
    environment: Environment | None = None
    """Answers each turn of a completion; None: a completion is one turn."""
    grades_all_turns: bool = False
    """The verdict is on all turns of a completion, not on the last one."""
    modules: tuple[UserModule, ...] = ()
    """Modules of the user whose code makes the problems or answers the model, apart from the task's own plug-in."""

    def graded_text(self, text: str, turns: Sequence[Turn]) -> str:
        """Return the part of a completion that is graded.

        It is the last turn or, if the task grades all turns, a JSON list of them. A completion without turns counts as
        one turn.
        """
        if not self.grades_all_turns:
            return last_turn(text, turns)
        ends = [0, *([turn.end_chars for turn in turns] or [len(text)])]
        return json.dumps([text[begin:end] for begin, end in itertools.pairwise(ends)])

    def require_known_names(self) -> None:
        """Raise UnknownNameError or EvalError for an unknown template, grader or extraction.

        The constructor does not check this: a plug-in may provide a task together with its grader.
        """
        get_template(self.template)
        if self.grader is not None:
            get_grader(self.grader)
        EXTRACTIONS.find(self.extract)

    def fault_of_mode(self, template: Template) -> str | None:
        """Return why this template cannot express the problems' mode, with the remedy; None if it can."""
        if self.mode == "think" or template.has_modes:
            return None
        return (
            f"the template {template.name} has no {{mode}}, so {self.name} would be asked for steps as ever. Name a "
            "template with modes, e.g. qwen3, or leave the task out"
        )

    def split(self, name: str) -> SplitSource:
        """Return the source of a split. Raises EvalError if there is none of that name."""
        if name not in self.splits:
            raise EvalError(
                "evals.unknown_split",
                task=self.name,
                split=name,
                nearest=nearest(name, self.splits),
                known=few(self.splits),
            )
        return self.splits[name]

    def n_evaluated(self, wanted: int | None) -> int | None:
        """Return how many problems an evaluation takes: `wanted`, or all if that is None, but no more than `count`.

        `count` is the declared number of rows, so no data are read. None if it is not declared and `wanted` is None.
        """
        count: int | None = getattr(self.splits.get("test"), "count", None)
        return min((n for n in (wanted, count) if n is not None), default=None)

    def require_grader(self) -> str:
        """Return the name of the grader. Raises EvalError for a task without one."""
        if self.grader is None:
            raise EvalError("evals.task_without_grader", task=self.name)
        return self.grader


def written_options(task: str, written: str) -> dict[str, str]:
    """Return the options of a name such as `<task>?option=value&...` by name, as they are written after the `?`.

    Raises EvalError for one without a value, and for one that is given twice.
    """
    found: dict[str, str] = {}
    for option in written.split("&") if written else []:
        name, equals, text = option.partition("=")
        if not equals:
            raise EvalError("evals.option_without_value", task=task, option=option)
        if name in found:
            raise EvalError("evals.option_given_twice", task=task, option=name)
        found[name] = text
    return found


def with_options(task: str, options: Mapping[str, object]) -> str:
    """Return the name of a task with these options, sorted. Values are JSON, texts as they are."""
    written = [
        f"{name}={value if isinstance(value, str) else json.dumps(value, separators=(',', ':'))}"
        for name, value in sorted(options.items())
    ]
    return f"{task}?{'&'.join(written)}" if written else task


@dataclass(frozen=True)
class TaskFamily:
    """The tasks of another package, each named by a prefix and its own name."""

    prefix: str
    """With the colon, e.g. `verifiers:`."""
    form: str
    """The form of a task's name, e.g. `verifiers:<taskset>[?option=value&...]`."""
    summary: str
    load: Callable[[str], Task]
    """(the whole name) -> the task. Raises EvalError."""
    run_itself: Callable[..., LmEvalResult] | None = None
    """Runs such tasks in the other package's way, for `bench eval`; see `evals.shelves.lm_eval.adapter.run_lm_eval`."""
