"""From what a user asks for to the evaluations that are run: a convention, what is changed of it, each task's ways."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from evals.errors import EvalError
from evals.grading import get_grader, require_gradable
from evals.grading.unit_tests import runs_code
from evals.prompts import get_template
from evals.sampler import SamplingParams, get_preset, ks_of
from evals.tasks import get_task
from evals.tasks.base import Problem
from evals.tasks.rows import LoadedRows
from harness.config.run_spec import RunSpec, recorded_spec
from harness.errors import RefusedError
from harness.evaluate.evaluation import TaskEvaluation
from harness.plan.subject import Subject
from harness.sampling.conditions import Conditions

OWN_PRESET = "cell"
"""The preset that is a cell's own evaluation: its `eval` section, with its seed."""


@dataclass(frozen=True)
class Convention:
    """How samples are drawn where nothing else is asked for. samples_of: by task. template, grader: None for each
    task's own. ks: None for 1, 2, 4, ... problems: None for all. fits_context: as in `Conditions`."""

    temperature: float
    top_p: float
    max_completion_tokens: int
    samples_of: Callable[[str], int]
    seed: int = 0
    top_k: int = 0
    stop: tuple[str, ...] = ()
    template: str | None = None
    grader: str | None = None
    ks: Sequence[int] | None = None
    problems: int | None = None
    fits_context: bool = True

    @classmethod
    def named(cls, name: str, subject: Subject) -> Convention:
        """A published preset, or the own evaluation of the cell that is evaluated. Raises EvalError for an unknown
        name, RefusedError for a subject that is no cell."""
        if name != OWN_PRESET:
            preset = get_preset(name)
            return cls(preset.temperature, preset.top_p, preset.max_completion_tokens, preset.samples_of)
        spec = own_spec(subject)
        own = spec.eval
        return cls(
            own.temperature,
            own.top_p,
            own.max_completion_tokens,
            lambda task: 1 if own.is_greedy else own.samples,
            seed=spec.seed,
            top_k=own.top_k,
            stop=own.stop,
            template=own.template,
            grader=own.grader,
            ks=own.k,
            problems=own.problems,
            fits_context=False,
        )


def own_spec(subject: Subject) -> RunSpec:
    """The spec of the cell that is evaluated. Raises RefusedError for what is no cell."""
    if subject.cell is None:
        raise RefusedError(
            f"--preset {OWN_PRESET} means a cell's own evaluation, and {subject.label} is no cell. Give a cell's "
            "folder, or another preset."
        )
    return recorded_spec(subject.cell)


@dataclass(frozen=True)
class Asked:
    """What `bench eval` is asked of our tasks. None: as the convention has it."""

    tasks: Sequence[str]
    convention: Convention
    problems: int | None = None
    samples: int | None = None
    ks: Sequence[int] | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_completion_tokens: int | None = None
    template: str | None = None
    grader: str | None = None
    seed: int | None = None
    thinking_budgets_tokens: Sequence[int | None] = (None,)
    allow_code: bool = False

    def of(self, subject: Subject) -> list[TaskEvaluation]:
        """One evaluation for each task and thinking budget, each once.

        Raises UnknownNameError for an unknown task, template or grader, EvalError for problems that cannot be had and
        for one whose answer the grader cannot read, RefusedError for programs that nobody allowed to be run, for
        k > samples, for more than one sample of greedy decoding, which would all be alike, for a thinking budget
        where problems give choices or ask for no thinking, and for a mode that the template does not have.
        """
        found = []
        seen: dict[str, str] = {}
        budgets = dict.fromkeys(self.thinking_budgets_tokens)
        for name, budget in itertools.product(dict.fromkeys(self.tasks), budgets):
            task = get_task(name)
            if seen.setdefault(task.name, name) != name:
                raise RefusedError(
                    f"--tasks {seen[task.name]},{name}: both are named {task.name}, so their samples would be mixed. "
                    "Name them differently in their files, or evaluate them one after the other."
                )
            found.append(self._evaluation(subject, name, budget))
        return found

    def _evaluation(self, subject: Subject, name: str, budget: int | None) -> TaskEvaluation:
        task, usual = get_task(name), self.convention
        template = self.template or usual.template or task.template
        grader = self.grader or usual.grader
        if task.asks_itself:
            template, grader = task.template, None
        if fault := task.fault_of_mode(get_template(template)):
            raise RefusedError(f"--tasks {name}: {fault}.")
        if budget is not None and task.environment is not None:
            raise RefusedError(
                f"--thinking-budget with {name}: its completions have several turns, and a budget cuts one thought. "
                "Leave the option out, or evaluate another task."
            )
        if budget is not None and (task.mode == "direct" or task.thinking_budget_tokens is not None):
            raise RefusedError(
                f"--thinking-budget with {name}, which says by its name how much is thought: leave out the one or the "
                "other."
            )
        params = SamplingParams(
            _first(self.max_completion_tokens, usual.max_completion_tokens),
            _first(self.temperature, usual.temperature),
            _first(self.top_p, usual.top_p),
            usual.top_k,
            usual.stop + get_template(template).stop + task.stop,
        )
        samples = self.samples or usual.samples_of(name)
        if task.gives_choices:
            samples = 1
            if budget is not None:
                raise RefusedError(
                    f"--thinking-budget: the problems of {name} give choices, and nothing is written on the way to "
                    "one. Leave it out, or evaluate that task by itself."
                )
        elif params.temperature == 0 and samples > 1:
            raise RefusedError(
                f"{name}: {samples} samples per problem at temperature 0 would all be the same. Use --samples 1, or a "
                "--temperature above 0."
            )
        grader = grader or task.require_grader()
        get_grader(grader)
        if runs_code(grader) and not self.allow_code:
            raise RefusedError(
                f"{name}: the grader {grader} runs programs that the model writes, on this machine. Read in "
                "docs/howto/code.md what contains them, then give --allow-code; or leave this task out."
            )
        rows, wanted = task.split("test").load(), _first(self.problems, usual.problems)
        problems = list(itertools.islice(rows, wanted))
        _require_gradable(name, problems, grader)
        conditions = Conditions(
            task,
            template,
            params,
            grader,
            _first(self.seed, usual.seed),
            thinking_budget_tokens=_first(budget, task.thinking_budget_tokens),
            fits_context=usual.fits_context and self.max_completion_tokens is None and not task.gives_choices,
        )
        warning = _warning(rows, self.problems, self.samples if task.gives_choices else None)
        return TaskEvaluation(subject, conditions, problems, samples, self._ks(name, samples), warning)

    def _ks(self, task: str, samples: int) -> Sequence[int]:
        if self.ks is None:
            usual = self.convention.ks
            return ks_of(samples) if usual is None or self.samples is not None else [k for k in usual if k <= samples]
        if too_large := [k for k in self.ks if not 1 <= k <= samples]:
            raise RefusedError(
                f"--k {', '.join(map(str, too_large))} with {samples} samples per problem of {task}: pass@k needs "
                "1 <= k <= samples. Raise --samples or drop these k."
            )
        return self.ks


def _first(asked: Any, usual: Any) -> Any:
    return usual if asked is None else asked


def _require_gradable(task: str, problems: Sequence[Problem], grader: str) -> None:
    """Found out in mid-run, it would cost the samples that were drawn till then."""
    for problem in problems:
        try:
            require_gradable(problem.answer, grader, problem.own_comparison)
        except EvalError as error:
            raise EvalError(f"{task}, problem {problem.id}: {error}") from None


def _warning(rows: Sequence[Problem], problems: int | None, unheeded_samples: int | None) -> str | None:
    remarks = []
    if unheeded_samples not in (None, 1):
        remarks.append(
            "--samples does not count here. The most likely choice is always the same, so a problem has one sample."
        )
    if problems is not None and problems > len(rows):
        remarks.append(f"--problems is {problems}, but there are {len(rows)}; all of them are used.")
    if isinstance(rows, LoadedRows) and rows.warning:
        remarks.append(rows.warning)
    return " ".join(remarks) or None
