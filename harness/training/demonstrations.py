"""What a cold start learns: problems with their solutions, as the model is asked and as it is to answer.

A solution has steps and an answer, with the template's end of thinking between them. It can be shown in two modes,
which fuses them into one model (Qwen3, 2505.09388): whole, where the prompt asks for steps, or without its
steps, where it asks for the answer at once. It can also be shown with its steps cut at a budget, so that the model
learns to answer from what it has. Qwen3 reports that it needs none of these.

No torch here: plans look at demonstrations too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from evals.prompts import Template, get_template
from evals.tasks import get_task
from harness.config.model import MIXED_DEMONSTRATIONS, SOLUTIONS_OF, SupervisedColdStart
from harness.errors import RefusedError, shown
from harness.random_keys import permutation, random_key, uniform

if TYPE_CHECKING:
    from harness.models.language_model import LanguageModel


def require_demonstrations(recipe: SupervisedColdStart) -> None:
    """Raise RefusedError or EvalError for demonstrations that cannot be had, or that show no steps where these are to
    be left out or cut."""
    if recipe.data == MIXED_DEMONSTRATIONS:
        return
    template = get_template(recipe.template)
    for problem, solution in _rows(recipe):
        if recipe.leaves_steps_out:
            _steps_and_answer(template, recipe, problem, solution)


def encoded_demonstrations(model: LanguageModel, recipe: SupervisedColdStart) -> Iterator[tuple[list[int], list[int]]]:
    """Endless (prompt, completion) token ids; demonstrations longer than the limit are left out."""
    template = get_template(recipe.template)
    kept = 0
    for seen, (problem, solution) in enumerate(demonstrations(recipe), start=1):
        prompt, completion = _encoded(model, template, recipe, problem, solution, seen)
        if len(completion) <= recipe.max_completion_tokens:
            kept += 1
            yield prompt, completion
        elif kept == 0 and seen >= 10_000:
            raise RefusedError(
                f"cold_start.data {recipe.data}: none of the first {seen} demonstrations fits "
                f"max_completion_tokens={recipe.max_completion_tokens}. Raise it."
            )


def _encoded(
    model: LanguageModel, template: Template, recipe: SupervisedColdStart, problem: str, solution: str, number: int
) -> tuple[list[int], list[int]]:
    """A demonstration as (prompt, completion) token ids, in the way that is drawn for its number.

    Where steps are cut, they and the words that stop them belong to the prompt: the model is to answer behind them, and
    not to break off by itself.
    """
    way = uniform(random_key(recipe.seed, "select", number, "mode"))
    if way < recipe.direct_frac:
        _, answer = _steps_and_answer(template, recipe, problem, solution)
        prompt = model.encode(template.render(problem, "direct", solution=solution))
        return prompt, model.encode_completion(template.thinking.end + answer)
    prompt = model.encode(template.render(problem, solution=solution))
    if way >= recipe.direct_frac + recipe.stop_frac:
        return prompt, model.encode_completion(solution)
    steps, answer = _steps_and_answer(template, recipe, problem, solution)
    thought, stop = model.encode_text(steps), model.encode_text(template.thinking.stop)
    budget = 1 + int(len(thought) * uniform(random_key(recipe.seed, "select", number, "budget")))
    return [*prompt, *thought[:budget], *stop], model.encode_completion(answer.lstrip())


def _steps_and_answer(template: Template, recipe: SupervisedColdStart, problem: str, solution: str) -> tuple[str, str]:
    """Raises RefusedError for a solution without steps."""
    parts = template.thinking.parts(solution)
    if parts is None:
        raise RefusedError(
            f"cold_start.data {recipe.data}: the solution of {shown(problem)} is {shown(solution)}, without steps "
            f"that end with {template.thinking.end!r}, the thinking.end of the template {recipe.template}. So there "
            "are none to leave out or to cut. Give solutions with steps, name the template that they are written for, "
            "or set direct_frac and stop_frac to 0."
        )
    return parts


def demonstrations(recipe: SupervisedColdStart) -> Iterator[tuple[str, str]]:
    """Endless (problem, solution); rows of a file, and those of a task, in a new order each epoch."""
    if recipe.data == MIXED_DEMONSTRATIONS:
        from evals.tasks import arithmetic

        yield from arithmetic.demonstrations(recipe.seed)
        return
    rows = _rows(recipe)
    epoch = 0
    while True:
        for index in permutation(len(rows), random_key(recipe.seed, "shuffle", step=epoch)):
            yield rows[index]
        epoch += 1


def _rows(recipe: SupervisedColdStart) -> list[tuple[str, str]]:
    """(problem, solution) of each line of the file, or of each training problem of the task."""
    if not recipe.data.startswith(SOLUTIONS_OF):
        return _read_demonstrations(Path(recipe.data))
    problems = get_task(recipe.data.removeprefix(SOLUTIONS_OF)).split("train").load()
    return [(problem.problem, problem.require_solution()) for problem in problems]


def _read_demonstrations(path: Path) -> list[tuple[str, str]]:
    if not path.is_file():
        raise RefusedError(
            f"cold_start.data {path}: there is no such file. Give a JSONL file of `problem` and `solution`, "
            "solutions:<task>, or demonstrations:arithmetic."
        )
    rows: list[tuple[str, str]] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            row = json.loads(line)
            rows.append((str(row["problem"]), str(row["solution"])))
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise RefusedError(
                f"{path}:{number}: not an object with `problem` and `solution` ({type(error).__name__}: {error})."
            ) from None
    if not rows:
        raise RefusedError(f"{path}: holds no demonstrations.")
    return rows
