from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from harness.shelves.probe.cli import _print_probe
from tests.frozen import frozen
from tests.harness.cli.conftest import Bench, Result, bench
from tests.harness.shelves.probe.files import write_probe_file

__all__ = ["bench"]

pytestmark = pytest.mark.slow

SMALL = {"completions": 64, "batch_sizes": [], "reference": {"prompts": 32, "samples": 4}}


def test_a_probe_is_measured_saved_and_printed(bench: Bench, tmp_path: Path) -> None:
    path = write_probe_file(tmp_path, **SMALL)
    result = bench("probe", path, "--home", "home", "--json")
    assert result.code == 0, result.err
    document = result.document
    assert set(document) == {"name", "question", "profile", "seed", "model", "reference", "baseline", "points"}
    assert len(document["points"]) == 3
    keys = {"objective", "group_size", "batch_size", "estimates", "cosine", "cosine_difference", "noise_to_signal",
            "noise_ratio", "estimate_cosine", "mean_norm"}  # fmt: skip
    assert all(set(row) == keys for row in document["points"])
    assert "320/320" in result.err and "ETA" in result.err

    folder = tmp_path / "home" / "probes" / "mine"
    assert json.loads((folder / "probe.json").read_text(encoding="utf-8")) == document
    assert json.loads((folder / "provenance.json").read_text(encoding="utf-8"))["packages"]
    estimates = pq.read_table(folder / "estimates.parquet")
    assert estimates.num_rows == 3 * 4
    assert set(estimates.column_names) == {"objective", "group_size", "batch_size", "estimate", "norm", "cosine"}


def test_the_table_of_a_made_up_document(capsys: pytest.CaptureFixture[str]) -> None:
    names = ("cosine", "cosine_difference", "noise_to_signal", "noise_ratio", "estimate_cosine", "mean_norm")
    sure = {name: {"value": 1.0, "low": 1.0, "high": 1.0} for name in names}

    def row(objective: str, batch_size: int, **measures: object) -> dict[str, object]:
        return {"objective": objective, "group_size": 2, "batch_size": batch_size, **sure, **measures}

    none = {"cosine_difference": None, "noise_ratio": None}
    _print_probe(
        {
            "name": "mine",
            "model": {"source": "builtin:tiny", "weights": "0123456789abcdef"},
            "reference": {"completions": 8192, "mean_reward": 0.5, "norm": None, "noise_to_signal": None},
            "baseline": "one",
            "points": [
                row("one", 16, cosine={"value": 0.98765, "low": -0.00001, "high": 1.2345}, **none),
                row("one", 64, cosine={"value": None, "low": None, "high": None}, **none),
                row("other", 16, cosine={"value": 0.5, "low": None, "high": None}),
                row("other", 64, noise_ratio={"value": 123.456, "low": 12.3456, "high": 1234.56}),
            ],
        }
    )
    frozen("shelves/probe", capsys.readouterr().out)


def test_a_place_that_cannot_be_written_is_refused_before_measuring(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    result = bench("probe", write_probe_file(tmp_path, **SMALL), "--home", "taken")
    assert code_of(result) == "shelves.probe.folder_not_writable"
    assert "gradients" not in result.err


def code_of(refused: Result) -> str:
    assert refused.code == 2 and refused.error is not None
    return refused.error.code


def test_a_probe_is_no_sweep_and_a_sweep_no_probe(bench: Bench, tmp_path: Path) -> None:
    for verb in ("run", "plan"):
        for given in ("probe", write_probe_file(tmp_path)):
            assert code_of(bench(verb, given)) == "plan.probe_is_no_sweep"
    assert "probe" not in {row["name"] for row in bench("ls", "sweeps", "--json").document}
    assert code_of(bench("probe", "std_norm")) == "plan.no_such_file"


def test_a_cell_without_a_checkpoint_is_refused(bench: Bench, tmp_path: Path) -> None:
    result = bench("probe", write_probe_file(tmp_path, **SMALL), "--cell", "nowhere")
    assert code_of(result) == "shelves.probe.no_checkpoint"
    assert not (tmp_path / "runs").exists()


def test_the_shipped_probe_can_be_copied(bench: Bench, tmp_path: Path) -> None:
    assert bench("cp", "probe", "mine.yaml").code == 0
    assert bench("probe", "mine.yaml", "--set", "rollout.temperature=hot").code == 2
