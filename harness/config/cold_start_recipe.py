"""The recipe of `bench coldstart`: a model, and how it is fine-tuned before reinforcement learning."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from evals.yaml_file import load_yaml
from harness.config.knobs import keys_of
from harness.config.model import SupervisedColdStart
from harness.config.resolve import readable_errors
from harness.config.section import Section
from harness.errors import RefusedError


class Recipe(Section):
    """source: as `model.source`, or `scratch:tiny` for random weights of the tiny architecture."""

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
