"""Cold start: supervised fine-tuning on demonstrations, to get a starting policy for RL."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
from pydantic import ValidationError
from torch import Tensor

from evals.yaml_file import load_yaml
from harness.config.model import SupervisedColdStart
from harness.errors import RefusedError
from harness.models.language_model import LanguageModel
from harness.settings import Settings
from harness.settings.faults import faults_of
from harness.training.demonstrations import Demonstration, encoded_demonstrations
from harness.training.sequences import Sequences, score_completions
from harness.training.supervised import Progress, train_supervised

MICRO_BATCH_TOKENS = 2048
"""Maximum number of tokens, including padding, in one forward pass. A longer row is computed alone."""


class Recipe(Settings):
    """The recipe of a model that `bench coldstart` trains.

    source: a `model.source`, or `scratch:tiny` for the tiny architecture with random weights.
    """

    source: str
    cold_start: SupervisedColdStart


def load_recipe(path: Path) -> Recipe:
    """Load a recipe. Raises RefusedError if the file has faults, naming all of them."""
    try:
        return Recipe.model_validate(load_yaml(path))
    except ValidationError as error:
        raise RefusedError("\n".join(f"{path}: {fault.line}" for fault in faults_of(error, Recipe))) from None


def fine_tune(
    start: LanguageModel,
    recipe: SupervisedColdStart,
    on_step: Progress,
    shown: Iterator[Demonstration] | None = None,
) -> None:
    """Fine-tune `start` in place.

    The loss is the mean cross entropy per token over the completions of a step's demonstrations, including their
    end-of-sequence tokens.

    on_step: called as on_step(step, steps, loss in nats per token) after every step.
    shown: an endless iterator of demonstrations; default: the recipe's.
    Raises ValueError if the weights are less precise than float32, because small steps would be rounded away.
    """
    if torch.finfo(start.model.dtype).bits < 32:
        raise ValueError(f"the cold start trains weights in float32, and these are {start.model.dtype}")
    endless = encoded_demonstrations(start, recipe) if shown is None else shown
    weights = [weight for weight in start.model.parameters() if weight.requires_grad]

    def losses() -> Iterator[Tensor]:
        batch = list(islice(endless, recipe.batch_size))
        prompts, completions, said = zip(*batch, strict=True)
        sequences = Sequences.of(prompts, completions, said)
        for rows in sequences.micro_batches(torch.arange(len(batch)), MICRO_BATCH_TOKENS):
            logps, _ = score_completions(start.model, sequences, rows, 1.0, start.pad_token_id)
            # Divided by the tokens of the complete step, so that the losses of its micro-batches add up to its mean.
            yield -logps.sum() / sequences.lengths.sum()

    train_supervised(weights, recipe.learning_rate, recipe.steps, losses, on_step, recipe.weight_decay)
