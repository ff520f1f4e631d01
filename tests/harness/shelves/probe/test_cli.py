from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from harness.shelves.probe.cli import _print_probe
from tests.harness.cli.conftest import Bench, bench
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
    assert "gradients: step 320/320" in result.err and "ETA" in result.err

    folder = tmp_path / "home" / "probes" / "mine"
    assert json.loads((folder / "probe.json").read_text(encoding="utf-8")) == document
    assert json.loads((folder / "provenance.json").read_text(encoding="utf-8"))["packages"]
    estimates = pq.read_table(folder / "estimates.parquet")
    assert estimates.num_rows == 3 * 4
    assert set(estimates.column_names) == {"objective", "group_size", "batch_size", "estimate", "norm", "cosine"}

    text = bench("probe", path, "--home", "home").out
    for words in ("mean reward", "2 of 16", "leave_one_out", "95 % interval", "wrote home/probes/mine"):
        assert words in text


def test_the_table_of_a_made_up_document(capsys: pytest.CaptureFixture[str]) -> None:
    def row(objective: str, batch_size: int, **measures: object) -> dict[str, object]:
        sure = {"value": 1.0, "low": 1.0, "high": 1.0}
        names = ("cosine", "cosine_difference", "noise_to_signal", "noise_ratio", "estimate_cosine", "mean_norm")
        return {
            "objective": objective,
            "group_size": 2,
            "batch_size": batch_size,
            **dict.fromkeys(names, sure),
        } | measures

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
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "reference gradient: of 8,192 completions; hidden by its noise: raise reference.prompts" in lines
    table = lines[lines.index("objective 2 of 16 2 of 64") :]
    assert table[1:3] == ["one 0.988 [0.000, 1.23] noise", "other 0.500 1.00 [1.00, 1.00]"]
    assert "one - -" in lines
    assert "other 1.00 [1.00, 1.00] 123 [12.3, 1230]" in lines
    assert "noise as a multiple of that of one, on the same completions" in lines


def test_a_place_that_cannot_be_written_is_refused_before_measuring(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    result = bench("probe", write_probe_file(tmp_path, **SMALL), "--home", "taken")
    assert result.code == 2
    assert "taken/probes/mine: cannot be written" in result.err
    assert "gradients" not in result.err


def test_a_probe_is_no_sweep(bench: Bench, tmp_path: Path) -> None:
    for given in ("probe", write_probe_file(tmp_path)):
        for verb in ("run", "plan"):
            result = bench(verb, given)
            assert result.code == 2
            assert f"{given} is a probe, not a sweep" in result.err
            assert f"Use `bench probe {given}`." in result.err
    assert "probe" not in {row["name"] for row in bench("ls", "sweeps", "--json").document}


def test_a_sweep_is_no_probe(bench: Bench) -> None:
    result = bench("probe", "std_norm")
    assert result.code == 2
    assert "no shipped probe of that name" in result.err


def test_a_cell_without_a_checkpoint_is_refused(bench: Bench, tmp_path: Path) -> None:
    result = bench("probe", write_probe_file(tmp_path, **SMALL), "--cell", "nowhere")
    assert result.code == 2
    assert "--cell nowhere: no complete checkpoint" in result.err
    assert not (tmp_path / "runs").exists()


def test_the_shipped_probe_can_be_copied(bench: Bench, tmp_path: Path) -> None:
    result = bench("cp", "probe", "mine.yaml")
    assert result.code == 0
    assert "use it with `bench probe mine.yaml`" in result.out
    assert bench("probe", "mine.yaml", "--set", "rollout.temperature=hot").code == 2
