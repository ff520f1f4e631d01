"""Cold start: supervised fine-tuning on demonstrations, so that reinforcement learning has something to choose from."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import torch
from pydantic import ValidationError

from evals.prompts import get_template
from evals.tasks import get_task
from evals.yaml_file import load_yaml
from harness.config.knobs import keys_of
from harness.config.model import SOLUTIONS_OF, SupervisedColdStart
from harness.config.resolve import readable_errors
from harness.config.section import Section
from harness.errors import RefusedError
from harness.models.language_model import LanguageModel
from harness.random_keys import permutation, random_key
from harness.training.optimizer import warm_up_and_decay
from harness.training.sequences import Sequences, score_completions

MICRO_BATCH_TOKENS = 2048
Progress = Callable[[int, int, float], None]


class Recipe(Section):
    """What `bench coldstart` makes. source: as `model.source`, or `scratch:tiny` for random weights of the tiny
    architecture."""

    source: str
    cold_start: SupervisedColdStart


def load_recipe(path: Path) -> Recipe:
    """Raises RefusedError with all faults of the file."""
    try:
        return Recipe.model_validate(load_yaml(path))
    except ValidationError as error:
        raise RefusedError(
            "\n".join(f"{path}: {line}" for _, line in readable_errors(error, list(keys_of(Recipe))))
        ) from None


def run_cold_start(start: LanguageModel, recipe: SupervisedColdStart, on_step: Progress) -> None:
    """Fine-tune `start` on the recipe's demonstrations. Otherwise as `fine_tune`."""
    fine_tune(start, recipe, _encoded_demonstrations(start, recipe), on_step)


def fine_tune(
    start: LanguageModel, recipe: SupervisedColdStart, pairs: Iterator[tuple[list[int], list[int]]], on_step: Progress
) -> None:
    """Fine-tune `start` in place. pairs: endless, prompt and completion as token ids, in place of the recipe's data.
    on_step(step, steps, loss in nats a token) after every step.

    Loss: token-mean cross entropy over the demonstrations' completions of a step, end-of-sequence token included.
    ValueError for weights of less than float32, on which small steps would be lost.
    """
    if torch.finfo(start.model.dtype).bits < 32:
        raise ValueError(f"the cold start trains weights in float32, and these are {start.model.dtype}")
    weights = [weight for weight in start.model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=recipe.learning_rate, weight_decay=recipe.weight_decay, betas=(0.9, 0.95))
    for step in range(1, recipe.steps + 1):
        batch = list(islice(pairs, recipe.batch_size))
        lengths = torch.tensor([len(completion) for _, completion in batch])
        completions = torch.full((len(batch), int(lengths.max())), start.pad_token_id)
        for row, (_, completion) in enumerate(batch):
            completions[row, : len(completion)] = torch.tensor(completion)
        sequences = Sequences([prompt for prompt, _ in batch], completions, lengths)

        optimizer.zero_grad()
        loss = 0.0
        for rows in sequences.micro_batches(torch.arange(len(batch)), MICRO_BATCH_TOKENS):
            logps, _ = score_completions(start.model, sequences, rows, 1.0, start.pad_token_id)
            part = -logps.sum() / lengths.sum()
            part.backward()  # type: ignore[no-untyped-call]
            loss += float(part.detach())
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * warm_up_and_decay(step, recipe.steps)
        optimizer.step()
        on_step(step, recipe.steps, loss)


def _encoded_demonstrations(model: LanguageModel, recipe: SupervisedColdStart) -> Iterator[tuple[list[int], list[int]]]:
    """Endless (prompt, completion) token ids; demonstrations longer than the limit are left out."""
    template = get_template(recipe.template)
    kept = 0
    for seen, (problem, solution) in enumerate(_demonstrations(recipe), start=1):
        completion = model.encode_completion(solution)
        if len(completion) <= recipe.max_completion_tokens:
            kept += 1
            yield model.encode(template.render(problem, solution=solution)), completion
        elif kept == 0 and seen >= 10_000:
            raise RefusedError(
                f"cold_start.data {recipe.data}: none of the first {seen} demonstrations fits "
                f"max_completion_tokens={recipe.max_completion_tokens}. Raise it."
            )


def _demonstrations(recipe: SupervisedColdStart) -> Iterator[tuple[str, str]]:
    """Endless (problem, solution); rows of a file, and those of a task, in a new order each epoch."""
    if recipe.data == "demonstrations:arithmetic":
        from evals.tasks.arithmetic import demonstrations

        yield from demonstrations(recipe.seed)
        return
    if recipe.data.startswith(SOLUTIONS_OF):
        problems = get_task(recipe.data.removeprefix(SOLUTIONS_OF)).split("train").load()
        rows = [(problem.problem, problem.require_solution()) for problem in problems]
    else:
        rows = _read_demonstrations(Path(recipe.data))
    epoch = 0
    while True:
        for index in permutation(len(rows), random_key(recipe.seed, "shuffle", step=epoch)):
            yield rows[index]
        epoch += 1


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
