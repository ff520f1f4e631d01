from __future__ import annotations

import json
from pathlib import Path

from tests.harness.cli.conftest import Bench


def test_a_checkpoint_that_a_sweep_can_start_from(bench: Bench, tmp_path: Path) -> None:
    recipe = {
        "source": "scratch:tiny",
        "cold_start": {"data": "demonstrations:arithmetic", "steps": 2, "batch_size": 2},
    }
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    documents = []
    for folder in ("one", "other"):
        result = bench("coldstart", "recipe.yaml", "--out", folder, "--json", "--home", "anywhere")
        assert result.code == 0, result.err
        assert " 2/2" in result.err
        assert set(result.document) == {"path", "digest"}
        assert (tmp_path / folder / "config.json").is_file()
        documents.append(result.document)
    assert documents[0]["digest"] == documents[1]["digest"], "the recipe decides the weights"
    assert bench("plan", "aa", "--set", "model.source=path:one").code == 0
