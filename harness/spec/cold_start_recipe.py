"""A cold-start recipe file: a model source and how it is fine-tuned."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from harness.errors import RefusedError
from harness.spec.resolve import readable_errors
from harness.spec.sections.base import Section
from harness.spec.sections.model import SupervisedColdStart
from harness.spec.yaml12 import load_yaml


class Recipe(Section):
    """source: as `model.source`, or `scratch:tiny` for random weights of the tiny architecture."""

    source: str
    cold_start: SupervisedColdStart


def load_recipe(path: Path) -> Recipe:
    """Raises RefusedError with all faults of the file."""
    try:
        return Recipe.model_validate(load_yaml(path))
    except ValidationError as error:
        raise RefusedError("\n".join(f"{path}: {line}" for _, line in readable_errors(error))) from None
