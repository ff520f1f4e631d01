"""From what a user asks for to the evaluations that are run: a preset, what is changed of it, the tasks' own ways."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from evals.errors import EvalError
from evals.grading import get_grader, require_gradable
from evals.prompts import get_template
from evals.sampler import SamplingParams, SamplingPreset, ks_of
from evals.tasks import get_task
from evals.tasks.base import Problem
from evals.tasks.rows import LoadedRows
from harness.errors import RefusedError
from harness.evaluate.conditions import Conditions, problems_digest
from harness.evaluate.evaluation import TaskEvaluation
from harness.evaluate.subject import Subject


def plan_evaluations(
    subject: Subject,
    tasks: Sequence[str],
    preset: SamplingPreset,
    problems: int | None,
    samples: int | None,
    ks: Sequence[int] | None,
    changes: Mapping[str, float | int | None],
    template: str | None,
    grader: str | None,
    seed: int,
    thinking_budgets_tokens: Sequence[int | None],
) -> list[TaskEvaluation]:
    """One evaluation for each task and thinking budget, each once.

    changes: of the preset's temperature, top_p and max_completion_tokens; None leaves one as it is.

    Raises UnknownNameError for an unknown task, template or grader, EvalError for problems that cannot be had and for
    one whose answer the grader cannot read, RefusedError for k > samples, and for more than one sample of greedy
    decoding, which would all be alike.
    """
    found = []
    seen: dict[str, str] = {}
    fits_context = changes.get("max_completion_tokens") is None
    for name, budget in itertools.product(dict.fromkeys(tasks), dict.fromkeys(thinking_budgets_tokens)):
        task = get_task(name)
        chosen = samples or preset.samples_of(name)
        if seen.setdefault(task.name, name) != name:
            raise RefusedError(
                f"--tasks {seen[task.name]},{name}: both are named {task.name}, so their samples would be mixed. Name "
                "them differently in their files, or evaluate them one after the other."
            )
        chosen_template = template or task.template
        stop = get_template(chosen_template).stop
        settings = {
            "max_completion_tokens": preset.max_completion_tokens,
            "temperature": preset.temperature,
            "top_p": preset.top_p,
        } | {key: value for key, value in changes.items() if value is not None}
        decoding = SamplingParams(**settings, stop=stop)  # type: ignore[arg-type]  # the keys are its fields
        if decoding.temperature == 0 and chosen > 1:
            raise RefusedError(
                f"{name}: {chosen} samples a problem at temperature 0 would all be the same. Use --samples 1, or a "
                "--temperature above 0."
            )
        wanted = list(ks) if ks is not None else ks_of(chosen)
        if too_large := [k for k in wanted if not 1 <= k <= chosen]:
            raise RefusedError(
                f"--k {', '.join(map(str, too_large))} with {chosen} samples a problem of {name}: pass@k needs 1 <= k "
                "<= samples. Raise --samples or drop these k."
            )
        grading = grader or task.require_grader()
        get_grader(grading)
        rows = task.split("test").load()
        asked = list(itertools.islice(rows, problems))
        _require_gradable(name, asked, grading)
        found.append(
            TaskEvaluation(
                Conditions(
                    subject,
                    task,
                    problems_digest(rows),
                    template or task.template,
                    decoding,
                    seed,
                    budget,
                    fits_context,
                ),
                asked,
                chosen,
                wanted,
                grading,
                warning=_warning(rows, problems),
            )
        )
    return found


def _require_gradable(task: str, problems: Sequence[Problem], grader: str) -> None:
    """Found out in mid-run, it would cost the samples that were drawn till then."""
    for problem in problems:
        try:
            require_gradable(problem.answer, grader, problem.own_comparison)
        except EvalError as error:
            raise EvalError(f"{task}, problem {problem.id}: {error}") from None


def _warning(rows: Sequence[Problem], problems: int | None) -> str | None:
    remarks = []
    if problems is not None and problems > len(rows):
        remarks.append(f"--problems is {problems}, but there are {len(rows)}; all of them are used.")
    if isinstance(rows, LoadedRows) and rows.warning:
        remarks.append(rows.warning)
    return " ".join(remarks) or None
