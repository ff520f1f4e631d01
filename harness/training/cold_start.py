"""Cold start: supervised fine-tuning on demonstrations, so that reinforcement learning has something to choose from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import torch
from pydantic import ValidationError

from evals.yaml_file import load_yaml
from harness.config.model import SupervisedColdStart
from harness.errors import RefusedError
from harness.models.language_model import LanguageModel
from harness.settings import Settings
from harness.settings.faults import faults_of
from harness.training.demonstrations import Demonstration, encoded_demonstrations
from harness.training.optimizer import warm_up_and_decay
from harness.training.sequences import Sequences, score_completions

MICRO_BATCH_TOKENS = 2048
Progress = Callable[[int, int, float], None]


class Recipe(Settings):
    """What `bench coldstart` makes. source: as `model.source`, or `scratch:tiny` for random weights of the tiny
    architecture."""

    source: str
    cold_start: SupervisedColdStart


def load_recipe(path: Path) -> Recipe:
    """Raises RefusedError with all faults of the file."""
    try:
        return Recipe.model_validate(load_yaml(path))
    except ValidationError as error:
        raise RefusedError("\n".join(f"{path}: {fault.line}" for fault in faults_of(error, Recipe))) from None


def run_cold_start(start: LanguageModel, recipe: SupervisedColdStart, on_step: Progress) -> None:
    """Fine-tune `start` on the recipe's demonstrations. Otherwise as `fine_tune`."""
    fine_tune(start, recipe, encoded_demonstrations(start, recipe), on_step)


def fine_tune(
    start: LanguageModel, recipe: SupervisedColdStart, shown: Iterator[Demonstration], on_step: Progress
) -> None:
    """Fine-tune `start` in place. shown: endless demonstrations, in place of the recipe's data.
    on_step(step, steps, loss in nats a token) after every step.

    Loss: token-mean cross entropy over the demonstrations' completions of a step, end-of-sequence token included.
    ValueError for weights of less than float32, on which small steps would be lost.
    """
    if torch.finfo(start.model.dtype).bits < 32:
        raise ValueError(f"the cold start trains weights in float32, and these are {start.model.dtype}")
    weights = [weight for weight in start.model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=recipe.learning_rate, weight_decay=recipe.weight_decay, betas=(0.9, 0.95))
    for step in range(1, recipe.steps + 1):
        batch = list(islice(shown, recipe.batch_size))
        lengths = torch.tensor([len(one.completion) for one in batch])
        completions = torch.full((len(batch), int(lengths.max())), start.pad_token_id)
        for row, one in enumerate(batch):
            completions[row, : len(one.completion)] = torch.tensor(one.completion)
        said = [one.interjections for one in batch]
        sequences = Sequences([one.prompt for one in batch], completions, lengths, said)

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
