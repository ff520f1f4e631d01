"""From a request to evaluations: a convention, the user's changes to it, and the requirements of each task."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from evals.errors import EvalError
from evals.graders import get_grader, require_gradable, runs_code
from evals.prompts import get_template
from evals.sampler import SamplingParams, ks_of
from evals.tasks import get_task
from evals.tasks.base import Problem, Task
from evals.tasks.rows import LoadedRows
from harness.config.run_spec import RunSpec, recorded_spec
from harness.errors import RefusedError, few, nearest
from harness.evaluate.evaluation import TaskEvaluation
from harness.plan.subject import Subject
from harness.sampling.conditions import Conditions

OWN_PRESET = "cell"
"""The preset for a cell's own evaluation: its `eval` section, with its seed."""


def own_spec(subject: Subject) -> RunSpec:
    """Return the spec of the cell that is evaluated. Raises RefusedError if the subject is not a cell."""
    if subject.cell is None:
        raise RefusedError("evaluate.preset_without_cell", preset=OWN_PRESET, subject=subject.label)
    return recorded_spec(subject.cell)


@dataclass(frozen=True)
class Convention:
    temperature: float
    top_p: float
    max_completion_tokens: int
    samples: int = 1
    """Samples per problem for tasks that are not in `samples_by_task`."""
    samples_by_task: Mapping[str, int] = field(default_factory=dict, hash=False)
    seed: int = 0
    top_k: int = 0
    stop: tuple[str, ...] = ()
    template: str | None = None
    """None for each task's own template."""
    grader: str | None = None
    """None for each task's own grader."""
    ks: Sequence[int] | None = None
    """The values of k in pass@k; None for 1, 2, 4, ..."""
    problems: int | None = None
    """The number of problems per task; None for all."""
    fits_context: bool = True
    asked: frozenset[str] = frozenset()
    """The fields that the user changed. A remark names those that have no effect."""

    @classmethod
    def named(cls, name: str, subject: Subject) -> Convention:
        """Return a published preset, or the own evaluation of the cell that is evaluated.

        Raises EvalError for an unknown name, and RefusedError for a cell's preset if the subject is not a cell.
        """
        if name in PRESETS:
            return PRESETS[name]
        if name != OWN_PRESET:
            raise EvalError("evaluate.unknown_preset", preset=name, nearest=nearest(name, PRESETS), known=few(PRESETS))
        spec = own_spec(subject)
        own = spec.eval
        return cls(
            own.temperature,
            own.top_p,
            own.max_completion_tokens,
            samples=1 if own.is_greedy else own.samples,
            seed=spec.seed,
            top_k=own.top_k,
            stop=own.stop,
            template=own.template,
            grader=own.grader,
            ks=own.k,
            problems=own.problems,
            fits_context=False,
        )

    def changed(self, **fields: Any) -> Convention:
        """Return the convention with these fields changed. None leaves a field unchanged."""
        given = {name: value for name, value in fields.items() if value is not None}
        asked = frozenset(given)
        # An explicit limit is used as given, instead of being shortened to fit the context.
        if "max_completion_tokens" in asked:
            given["fits_context"] = False
        # The preset's k were chosen for its own number of samples, so they are dropped. An explicit k takes precedence,
        # because `given` comes later.
        if "samples" in asked:
            given = {"ks": None, **given, "samples_by_task": {}}
        return replace(self, **given, asked=asked)

    def samples_of(self, task: str) -> int:
        return self.samples_by_task.get(task, self.samples)

    def evaluations(
        self,
        subject: Subject,
        tasks: Sequence[str],
        thinking_budgets_tokens: Sequence[int | None] = (None,),
        allow_code: bool = False,
    ) -> list[TaskEvaluation]:
        """Return one evaluation for each distinct task and thinking budget.

        Raises UnknownNameError for an unknown task, template or grader. Raises EvalError if problems cannot be loaded,
        or if the grader cannot read a reference answer.

        Raises RefusedError in these cases: two tasks have the same name; programs would run without permission; k
        exceeds the number of samples; greedy decoding has more than one sample; a thinking budget is given although the
        task gives choices or asks for no thinking; the template lacks the task's mode.
        """
        found = []
        seen: dict[str, str] = {}
        for name, budget in itertools.product(dict.fromkeys(tasks), dict.fromkeys(thinking_budgets_tokens)):
            task = get_task(name)
            if seen.setdefault(task.name, name) != name:
                raise RefusedError("evaluate.duplicate_task_name", first=seen[task.name], second=name, task=task.name)
            found.append(self._evaluation(subject, name, budget, allow_code))
        return found

    def _evaluation(self, subject: Subject, name: str, budget: int | None, allow_code: bool) -> TaskEvaluation:
        task = get_task(name)
        template, grader = self.template or task.template, self.grader
        # Such a task has its own prompts and grading, whatever the preset says.
        if task.asks_itself:
            template, grader = task.template, None
        if fault := task.fault_of_mode(get_template(template)):
            raise RefusedError("evaluate.in_tasks", task=name, fault=fault)
        if budget is not None and (fault := _fault_of_budget(name, task)):
            raise RefusedError("evaluate.in_thinking_budget", fault=fault)
        params = SamplingParams(
            self.max_completion_tokens,
            self.temperature,
            self.top_p,
            self.top_k,
            self.stop + get_template(template).stop + task.stop,
        )
        # The most likely choice is always the same, so further samples would repeat it.
        samples = 1 if task.gives_choices else self.samples_of(name)
        if params.temperature == 0 and samples > 1:
            raise RefusedError("evaluate.identical_greedy_samples", task=name, n_samples=samples)
        grader = grader or task.require_grader()
        # This only reports an unknown grader before problems are loaded.
        get_grader(grader)
        if runs_code(grader) and not allow_code:
            raise RefusedError("evaluate.code_not_allowed", task=name, grader=grader)
        rows = task.split("test").load()
        problems = list(itertools.islice(rows, self.problems))
        _require_gradable(name, problems, grader)
        conditions = Conditions(
            task,
            template,
            params,
            grader,
            self.seed,
            thinking_budget_tokens=task.thinking_budget_tokens if budget is None else budget,
            fits_context=self.fits_context and not task.gives_choices,
        )
        warning = " ".join(self._remarks(task, rows)) or None
        return TaskEvaluation(subject, conditions, problems, samples, self._ks(name, samples), warning, allow_code)

    def _ks(self, task: str, samples: int) -> Sequence[int]:
        if self.ks is None:
            return ks_of(samples)
        too_large = [k for k in self.ks if not 1 <= k <= samples]
        # Only a k that the user gave is an error. A preset's k is dropped silently.
        if too_large and "ks" in self.asked:
            raise RefusedError(
                "evaluate.k_above_samples", ks=", ".join(map(str, too_large)), n_samples=samples, task=task
            )
        return [k for k in self.ks if k not in too_large]

    def _remarks(self, task: Task, rows: Sequence[Problem]) -> Iterator[str]:
        if task.gives_choices and "samples" in self.asked and self.samples != 1:
            yield (
                "--samples does not count here. The most likely choice is always the same, so a problem has one sample."
            )
        if "problems" in self.asked and self.problems is not None and self.problems > len(rows):
            yield f"--problems is {self.problems}, but there are {len(rows)}; all of them are used."
        if isinstance(rows, LoadedRows) and rows.warning:
            yield rows.warning


PRESETS = {
    # DeepSeek-R1's README reports pass@1 and cons@64 from 64 samples per problem of AIME. It does not state the number
    # for MATH-500; open-r1 uses 4 (pull request 633). `math` is evaluated on MATH-500 too.
    "r1": Convention(
        temperature=0.6,
        top_p=0.95,
        max_completion_tokens=32_768,
        samples_by_task={"aime24": 64, "aime25": 64, "amc23": 64, "math500": 4, "math": 4},
    ),
    # DAPO reports avg@32, cons@32 and pass@32 (BytedTsinghua-SIA/DAPO, issue 5) and evaluates at top-p 0.7 (its
    # script in verl, `val_top_p`). The 20,480 tokens are from memory, not checked against a source.
    "dapo": Convention(temperature=1.0, top_p=0.7, max_completion_tokens=20_480, samples=32),
    # The most likely tokens, once, as in the evaluations of Dr. GRPO, Qwen2.5-Math and lm-eval. The limit is that of
    # lm-eval's aime tasks; Dr. GRPO uses 3,000.
    "greedy": Convention(temperature=0.0, top_p=1.0, max_completion_tokens=32_768),
}
"""Conventions under which papers report results."""


def _fault_of_budget(name: str, task: Task) -> str | None:
    """Return the reason why this task cannot have a thinking budget, with the remedy, or None if it can."""
    if task.environment is not None:
        return (
            f" with {name}: its completions have several turns, and a budget cuts one thought. Leave the option out, "
            "or evaluate another task."
        )
    if task.mode == "direct" or task.thinking_budget_tokens is not None:
        return f" with {name}, which says by its name how much is thought: leave out the one or the other."
    if task.gives_choices:
        return (
            f": the problems of {name} give choices, and nothing is written on the way to one. Leave it out, or "
            "evaluate that task by itself."
        )
    return None


def _require_gradable(task: str, problems: Sequence[Problem], grader: str) -> None:
    """Raise EvalError if the grader cannot read a reference answer.

    If this were found only during the run, the samples taken until then would be lost.
    """
    for problem in problems:
        try:
            require_gradable(problem.answer, grader, problem.own_comparison)
        except EvalError as error:
            raise EvalError("evaluate.in_problem", task=task, problem=problem.id, error=error) from None
