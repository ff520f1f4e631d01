"""The engine that docs/extending.md shows, used from a folder outside the package. That it keeps the contract of
engines is tested with the shipped ones (tests/harness/engines)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import plugins
from harness.config.engine import ENGINES, engine_on
from harness.config.hashing import base_evaluation_hash, semantic_hash
from harness.config.knobs import active
from harness.errors import RefusedError
from harness.plan.memory import estimate_memory
from harness.records import CellRecord
from tests.harness.run.small import run_cell, small_spec
from tests.refusals import refuses

EXAMPLE = Path(__file__).parent / "extending" / "engine.py"
SETTINGS = {"rollout.engine": "plain", "train.steps": 2, "eval.every": 0}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    shutil.copy(EXAMPLE, tmp_path / "plain_engine.py")
    plugins.use(["plain_engine"], [tmp_path])
    yield tmp_path
    plugins.use([], [])


def test_a_spec_knows_it(folder: Path) -> None:
    spec = small_spec(SETTINGS)
    assert "rollout.vllm_memory_frac" not in active(spec)
    assert (engine_on("cpu", "plain"), engine_on("cpu", "auto")) == ("plain", "torch")
    estimate = estimate_memory(spec, cuda=False)
    assert estimate is not None and "kv_cache" not in estimate.parts_bytes
    with refuses(RefusedError, "bench.unknown_name", noun="engine", nearest="; did you mean plain?"):
        small_spec({"rollout.engine": "plane"})


@pytest.mark.slow
def test_a_cell_draws_what_the_torch_engine_draws(folder: Path) -> None:
    """Its noise is the same and its rounding nearly so: on the same weights, the first step's completions are."""
    cells = {engine: CellRecord(folder, engine, 0, "0") for engine in ("plain", "torch")}
    for engine, cell in cells.items():
        run_cell(cell, small_spec(SETTINGS | {"rollout.engine": engine}))
    first, other = (cell.read_steps() for cell in cells.values())
    assert len(first) == 2
    assert first[0]["generated_tokens"] == other[0]["generated_tokens"]
    assert first[0]["mismatch/ratio_max"] == pytest.approx(1, abs=1e-4)


def test_its_source_is_in_the_hash_of_what_it_draws(folder: Path) -> None:
    def hashes(engine: str) -> list[str]:
        spec = small_spec(SETTINGS | {"rollout.engine": engine})
        return [semantic_hash(spec), base_evaluation_hash(spec)]

    plain, torch = hashes("plain"), hashes("torch")
    with (folder / "plain_engine.py").open("a") as file:
        file.write("# another version\n")
    plugins.use(["plain_engine"], [folder])
    assert not set(hashes("plain")) & set(plain)
    assert hashes("torch") == torch
    plugins.use([], [])
    assert "plain" not in ENGINES.names()
