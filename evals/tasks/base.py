"""Tasks: problems in splits, and how they are prompted, extracted and graded."""

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
    id: str
    problem: str
    answer: str
    """The reference without its derivation; "" if the row has none, which only a task without a grader allows."""
    solution: str | None = None
    """The reference with its derivation."""
    difficulty: float | None = None
    """Larger is harder, in a unit of the task's own."""
    own_comparison: OwnComparison | None = field(default=None, compare=False, repr=False)
    """Judges an extracted answer if several answers are correct. The grader `own` calls it."""
    choices: Choices | None = field(default=None, compare=False, repr=False)
    """The choices, in a task whose problems are not answered in words."""
    mode: Mode = "think"
    """The mode of the problem's prompt, if the template has modes."""

    def require_solution(self) -> str:
        """Return the solution. Raises EvalError if the problem has none."""
        if self.solution is None:
            raise EvalError("evals.problem_without_solution", problem=self.id)
        return self.solution


@dataclass(frozen=True)
class Environment:
    """The part of a task that replies to the turns of a completion.

    The model ends its turn, the environment replies with text, and the model continues after both. A reply depends only
    on the problem and on what the model has said. So there is no state to keep, and a resumed cell gets the same
    replies.

    Raises EvalError if `max_turns` is below 1.
    """

    reply: Callable[[Problem, Sequence[str]], Reply]
    """(problem, what the model said in each of its turns so far) -> the reply to the last turn.

    It must not depend on anything else, because samples may be drawn again and must come out the same.
    """
    max_turns: int
    """The conversation ends after this many turns: in evaluation, and in training unless `rollout.max_turns` says
    otherwise.
    """
    version: int = 1
    """Raise this whenever replies or rewards change; it is part of a run's semantic hash."""

    def __post_init__(self) -> None:
        if self.max_turns < 1:
            raise EvalError("evals.max_turns_too_small", max_turns=self.max_turns)

    def answer(self, problem: Problem, said: Sequence[str]) -> Reply:
        """Return the reply to the last of these turns.

        Raises EvalError if the task's function does not return a `Reply`.
        """
        answered = self.reply(problem, said)
        if not isinstance(answered, Reply):
            raise EvalError("evals.answer_not_a_reply", answer=answered, problem=problem.id)
        return answered

    @property
    def identity(self) -> dict[str, int]:
        """Everything that the replies depend on, in addition to the problem and the model's words."""
        return {"version": self.version, "max_turns": self.max_turns}


@dataclass(frozen=True)
class Step:
    """A step written in a completion."""

    end: int
    """The position after the step's last character."""
    right: bool


class SplitSource(Protocol):
    """Where a split's problems come from."""

    @property
    def fingerprint(self) -> str:
        """An identifier of the content, e.g. a pinned digest, so that planning needs no data.

        It is part of a run's semantic hash.
        """

    def load(self) -> Sequence[Problem]:
        """Return the problems, always in the same order. Raises DataMissingError if they are not available."""


@dataclass(frozen=True)
class Generated:
    """Problems made by a deterministic recipe, once per process. Raise `version` whenever its output changes."""

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
    """A set of problems, and how they are evaluated by default."""

    name: str
    template: str
    """A prompt template, by a name that `evals.prompts.get_template` accepts."""
    grader: str | None
    """The name of a grader (`evals.grading`); None for a task that has prompts but no scores of its own."""
    extract: str
    """The name of an extraction (`evals.grading.extract`)."""
    margin_pp: float
    """Smaller differences of pass@1, in percentage points, do not matter in practice."""
    splits: Mapping[str, SplitSource]
    """The splits by name: `train` for training, `test` for evaluation. A task may lack one of them."""
    written_steps: Callable[[Problem, str], Sequence[Step]] | None = None
    """(problem, completion) -> the steps written in the completion, in order."""
    check_steps: Callable[[Problem, str], bool | None] | None = None
    """(problem, completion) -> whether the written steps are faulty; None if no step is written."""
    asks_itself: bool = False
    """True if problems are complete prompts that only their own comparison can judge. `eval.template` and `eval.grader`
    then apply only to the other tasks of an evaluation.
    """
    stop: tuple[str, ...] = ()
    """Strings that end a completion, in addition to the template's."""
    judge_template: str = "judge"
    """The template of the question to a pairwise judge. It also has the placeholders {first} and {second}."""
    gives_choices: bool = False
    """True if every problem has `choices`, and the answer is the choice that the model finds most likely. No text is
    sampled, so a problem has one sample, which does not depend on the seed.
    """
    mode: Mode = "think"
    """The mode of the task's problems."""
    thinking_budget_tokens: int | None = None
    """After this many tokens without an answer, the model is told to give it; None for no limit. See
    `evals.tasks.modes`.
    """
    environment: Environment | None = None
    """Replies to each turn of a completion; None if a completion is a single turn."""
    grades_all_turns: bool = False
    """True if the verdict covers all turns of a completion, instead of the last one."""
    modules: tuple[UserModule, ...] = ()
    """The user's modules whose code makes the problems or replies to the model, apart from the task's own plug-in."""

    def graded_text(self, text: str, turns: Sequence[Turn]) -> str:
        """Return the part of a completion that is graded.

        This is the last turn or, if the task grades all turns, a JSON list of the turns. A completion without recorded
        turns counts as one turn.
        """
        if not self.grades_all_turns:
            return last_turn(text, turns)
        ends = [0, *([turn.end_chars for turn in turns] or [len(text)])]
        return json.dumps([text[begin:end] for begin, end in itertools.pairwise(ends)])

    def require_known_names(self) -> None:
        """Raise UnknownNameError or EvalError for an unknown template, grader or extraction.

        The constructor does not check this, because a plug-in may provide a task together with its grader.
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
        """Return the source of a split. Raises EvalError if the task does not have the split."""
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
        """Return how many problems an evaluation uses: `wanted` or, if that is None, all; at most `count`.

        `count` is the declared number of rows, so no data are read. None if neither is known.
        """
        count: int | None = getattr(self.splits.get("test"), "count", None)
        return min((n for n in (wanted, count) if n is not None), default=None)

    def require_grader(self) -> str:
        """Return the name of the grader. Raises EvalError if the task has none."""
        if self.grader is None:
            raise EvalError("evals.task_without_grader", task=self.name)
        return self.grader


def written_options(task: str, written: str) -> dict[str, str]:
    """Return the options written after the `?` of a name such as `<task>?option=value&...`, by name, as text.

    Raises EvalError for an option without a value, or one that is given twice.
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
    """Return the name of a task with these options, sorted. Strings are written unchanged, other values as JSON."""
    written = [
        f"{name}={value if isinstance(value, str) else json.dumps(value, separators=(',', ':'))}"
        for name, value in sorted(options.items())
    ]
    return f"{task}?{'&'.join(written)}" if written else task


@dataclass(frozen=True)
class TaskFamily:
    """The tasks of another package, each named by a prefix and its own name."""

    prefix: str
    """Including the colon, e.g. `verifiers:`."""
    form: str
    """The syntax of a task's name, e.g. `verifiers:<taskset>[?option=value&...]`."""
    summary: str
    load: Callable[[str], Task]
    """(name including the prefix) -> the task. Raises EvalError."""
    run_itself: Callable[..., LmEvalResult] | None = None
    """Runs the tasks in their package's own way, for `bench eval`; see `evals.shelves.lm_eval.adapter.run_lm_eval`."""
