from __future__ import annotations

from pathlib import Path

import pytest

from harness.config.model_source import TINY
from harness.config.resolve import load_recipe
from harness.errors import RefusedError


def test_the_recipe_of_the_tiny_checkpoint_loads() -> None:
    recipe = load_recipe(TINY / "recipe.yaml")
    assert recipe.source == "scratch:tiny"
    assert recipe.cold_start.data == "demonstrations:arithmetic"


def test_all_faults_of_a_recipe_are_told_with_its_path(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("sorce: scratch:tiny\ncold_start: {data: a.jsonl, stesp: 3, batch_size: 0, template: plian}\n")
    with pytest.raises(RefusedError) as caught:
        load_recipe(path)
    lines = str(caught.value).splitlines()
    assert all(line.startswith(f"{path}: ") for line in lines)
    assert len(lines) == 5
    for text in (
        "source has no default",
        "sorce is not a key here",
        "cold_start.stesp is not a key here; did you mean cold_start.steps",
        "cold_start.batch_size is 0",
        "cold_start.template: unknown template 'plian'",
    ):
        assert any(text in line for line in lines), (text, lines)
