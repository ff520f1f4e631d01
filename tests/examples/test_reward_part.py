"""The reward part that docs/extending.md shows, used from a folder outside the package."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import plugins
from harness.config.hashing import semantic_hash
from harness.config.knobs import active, governor, spec_knobs
from harness.errors import RefusedError
from harness.records import CellRecord
from harness.rewards import PARTS
from tests.harness.run.small import run_cell, small_spec
from tests.refusals import refuses

EXAMPLE = Path(__file__).parent / "extending" / "reward_part.py"
SETTINGS = {"reward.parts.repetition": 0.5, "reward.repetition.ngram_words": 1, "train.steps": 2, "eval.every": 0}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    shutil.copy(EXAMPLE, tmp_path / "repetition.py")
    plugins.use(["repetition"], [tmp_path])
    yield tmp_path
    plugins.use([], [])


def test_its_options_are_knobs_like_any_other(folder: Path) -> None:
    knob = "reward.repetition.ngram_words"
    assert spec_knobs()[knob].description
    assert governor(knob) == "reward.parts.repetition"
    assert active(small_spec(SETTINGS))[knob] == 1
    assert knob not in active(small_spec())
    with refuses(RefusedError, "value", path=knob):
        small_spec(SETTINGS | {knob: 0})
    with pytest.raises(RefusedError) as refused:  # without the part
        small_spec({knob: 2})
    assert "repetition.ngram_words=2" in str(refused.value)
    spec = small_spec(SETTINGS)
    assert type(spec).model_validate_json(spec.model_dump_json()) == spec


def test_a_cell_trains_with_it(folder: Path) -> None:
    cell = CellRecord(folder, "arm", 0, "0")
    run_cell(cell, small_spec(SETTINGS))
    steps = cell.read_steps()
    assert len(steps) == 2
    assert any(-1 < step["reward/repetition"] < 0 for step in steps)
    for step in steps:
        assert step["reward/mean"] == pytest.approx(step["reward/correct"] + 0.5 * step["reward/repetition"])


def test_its_source_is_in_the_hash_of_cells_that_use_it(folder: Path) -> None:
    used, unused = semantic_hash(small_spec(SETTINGS)), semantic_hash(small_spec())
    with (folder / "repetition.py").open("a") as file:
        file.write("# another version\n")
    plugins.use(["repetition"], [folder])
    assert semantic_hash(small_spec(SETTINGS)) != used
    plugins.use([], [])
    assert semantic_hash(small_spec()) == unused
    assert "repetition" not in PARTS.names()
    with refuses(RefusedError, "unknown", path="reward.repetition.ngram_words"):
        small_spec(SETTINGS)
