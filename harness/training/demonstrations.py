"""The training data of a cold start: problems with their solutions, encoded as prompts and completions.

A solution has steps and an answer, separated by the template's end of thinking. It can be shown in two modes, so that
one model learns both (Qwen3, 2505.09388). In one, the prompt asks for steps, and the completion is the complete
solution. In the other, the prompt asks for the answer at once, and the completion has no steps. A third kind of example
cuts the steps off at a budget, so that the model learns to answer from incomplete steps. Qwen3 reports that it needs no
such examples.

If the task has an environment, each line of a solution is a turn. The environment answers as it does in sampling, and
only the turns are trained on.

This module does not import torch, because plans read demonstrations too.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from evals.prompts import Template, get_template
from evals.tasks import get_task
from evals.tasks.base import Environment, Problem, Task
from evals.tasks.environment import Interjection
from harness.config.model import MIXED_DEMONSTRATIONS, SOLUTIONS_OF, SupervisedColdStart
from harness.errors import RefusedError, shown
from harness.random_keys import permutation, random_key, uniform

if TYPE_CHECKING:
    from harness.models.language_model import LanguageModel

Item = TypeVar("Item")


def require_demonstrations(recipe: SupervisedColdStart) -> None:
    """Raise RefusedError or EvalError if demonstrations are missing, or lack steps that the recipe must remove."""
    if recipe.data == MIXED_DEMONSTRATIONS:
        return
    template, task = get_template(recipe.template), _task_of(recipe)
    if recipe.leaves_steps_out and task is not None and task.environment is not None:
        raise RefusedError(
            "training.whole_turns_only", data=recipe.data, direct_frac=recipe.direct_frac, stop_frac=recipe.stop_frac
        )
    for problem, solution in _rows(recipe):
        if recipe.leaves_steps_out:
            _steps_and_answer(template, recipe, problem, solution)


class Demonstration(NamedTuple):
    """A prompt and its completion as token ids, and the environment's answers within the completion."""

    prompt: list[int]
    completion: list[int]
    interjections: Sequence[Interjection] = ()


def encoded_demonstrations(model: LanguageModel, recipe: SupervisedColdStart) -> Iterator[Demonstration]:
    """Yield demonstrations endlessly, skipping those with a completion longer than the recipe's limit.

    Raises RefusedError if none of the first 10,000 is within the limit.
    """
    template = get_template(recipe.template)
    task = _task_of(recipe)
    if task is not None and task.environment is not None:
        problems = in_turn(task.split("train").load(), recipe.seed)
        shown = (_played(model, template, task.environment, problem) for problem in problems)
    else:
        numbered = enumerate(demonstrations(recipe), start=1)
        shown = (_encoded(model, template, recipe, *texts, number) for number, texts in numbered)
    kept = 0
    for seen, one in enumerate(shown, start=1):
        if len(one.completion) <= recipe.max_completion_tokens:
            kept += 1
            yield one
        elif kept == 0 and seen >= 10_000:
            raise RefusedError(
                "training.no_demonstration_fits",
                data=recipe.data,
                n_seen=seen,
                max_completion_tokens=recipe.max_completion_tokens,
            )


def _encoded(
    model: LanguageModel, template: Template, recipe: SupervisedColdStart, problem: str, solution: str, number: int
) -> Demonstration:
    """Encode one demonstration, in a mode that is drawn with its number as the key.

    If the steps are cut off, the remaining steps and the words that stop them are part of the prompt. So the model
    learns to answer after these words, but not to stop thinking by itself.
    """
    way = uniform(random_key(recipe.seed, "select", number, "mode"))
    if way < recipe.direct_frac:
        _, answer = _steps_and_answer(template, recipe, problem, solution)
        prompt = model.encode(template.render(problem, "direct", solution=solution))
        return Demonstration(prompt, model.encode_completion(template.thinking.end + answer))
    prompt = model.encode(template.render(problem, solution=solution))
    if way >= recipe.direct_frac + recipe.stop_frac:
        return Demonstration(prompt, model.encode_completion(solution))
    steps, answer = _steps_and_answer(template, recipe, problem, solution)
    thought, stop = model.encode_text(steps), model.encode_text(template.thinking.stop)
    # The budget is uniform from one token to all. Its key differs from the mode's, so that the two are independent.
    budget = 1 + int(len(thought) * uniform(random_key(recipe.seed, "select", number, "budget")))
    return Demonstration([*prompt, *thought[:budget], *stop], model.encode_completion(answer.lstrip()))


def _played(model: LanguageModel, template: Template, environment: Environment, problem: Problem) -> Demonstration:
    """Encode a solution's lines as the turns of a completion, with the environment's answers between them."""
    completion: list[int] = []
    interjections: list[Interjection] = []
    said: list[str] = []
    for turn in problem.require_solution().split("\n"):
        if said:
            reply = model.encode_reply(environment.answer(problem, said).text, template.chat, behind=completion[-1])
            interjections.append(Interjection(len(completion), reply))
        said.append(turn)
        completion += model.encode_completion(turn)
    return Demonstration(model.encode(template.ask(problem)), completion, interjections)


def _steps_and_answer(template: Template, recipe: SupervisedColdStart, problem: str, solution: str) -> tuple[str, str]:
    """Split a solution into steps and answer. Raises RefusedError if it has no steps."""
    parts = template.thinking.parts(solution)
    if parts is None:
        raise RefusedError(
            "training.solution_without_steps",
            data=recipe.data,
            problem=shown(problem),
            solution=shown(solution),
            end=template.thinking.end,
            template=recipe.template,
        )
    return parts


def demonstrations(recipe: SupervisedColdStart) -> Iterator[tuple[str, str]]:
    """Yield (problem, solution) endlessly. Rows of a file or task come in a new order in each epoch."""
    if recipe.data == MIXED_DEMONSTRATIONS:
        from evals.tasks import arithmetic

        yield from arithmetic.demonstrations(recipe.seed)
        return
    yield from in_turn(_rows(recipe), recipe.seed)


def in_turn(rows: Sequence[Item], seed: int) -> Iterator[Item]:
    """Yield rows endlessly, in a new order in each epoch."""
    for epoch in itertools.count():
        for index in permutation(len(rows), random_key(seed, "shuffle", step=epoch)):
            yield rows[index]


def _rows(recipe: SupervisedColdStart) -> list[tuple[str, str]]:
    """Return (problem, solution) of each line of the file, or of each training problem of the task."""
    task = _task_of(recipe)
    if task is None:
        return _read_demonstrations(Path(recipe.data))
    return [(problem.problem, problem.require_solution()) for problem in task.split("train").load()]


def _task_of(recipe: SupervisedColdStart) -> Task | None:
    """Return the task whose solutions are the demonstrations, or None if the recipe's data is not a task."""
    return get_task(recipe.data.removeprefix(SOLUTIONS_OF)) if recipe.data.startswith(SOLUTIONS_OF) else None


def _read_demonstrations(path: Path) -> list[tuple[str, str]]:
    if not path.is_file():
        raise RefusedError("training.no_demonstrations_file", path=path)
    rows: list[tuple[str, str]] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            row = json.loads(line)
            rows.append((str(row["problem"]), str(row["solution"])))
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise RefusedError(
                "training.not_a_demonstration", path=path, number=number, error_type=type(error).__name__, error=error
            ) from None
    if not rows:
        raise RefusedError("training.no_demonstrations", path=path)
    return rows
