"""`bench selftest`: whole, on this machine's CPU, and what becomes of checks that fail, crash or hang."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from harness.shelves import engine_contract as contract
from harness.shelves.selftest import checks
from harness.shelves.selftest.checks import CHECKS, CheckPlace, Outcome, run_checks
from tests.cuda.device import ROOT
from tests.harness.cli.conftest import Bench, bench

__all__ = ["bench"]  # the fixture


def cpu_seconds_of_children() -> float:
    """Which depend less than the time of day on what else the machine does."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


BESIDE_TRL = "step time beside TRL"
BESIDE_OTHERS = 1.5
"""Other tests that run at the same time cost it up to half again, through caches and clock rates that cores share."""


@pytest.mark.slow
@pytest.mark.parametrize("names", [[name for name in CHECKS.names() if name != BESIDE_TRL], [BESIDE_TRL]])
def test_this_machine_passes(names: list[str], tmp_path: Path) -> None:
    """All checks; that beside TRL in a run of its own, since half of its time is TRL's own start."""
    command = [sys.executable, "-c", "from harness.cli import main; main()", "selftest", "--device", "cpu", "--json"]
    command += [word for name in names for word in ("--only", name)]
    before_s = cpu_seconds_of_children()
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 0, done.stderr
    if not find_spec("vllm"):
        spent_s = cpu_seconds_of_children() - before_s
        assert spent_s < BESIDE_OTHERS * 120, "it must be over within two minutes on a quiet CPU"
    document = json.loads(done.stdout)
    (kept,) = tmp_path.iterdir()
    assert kept.name == document.pop("path") and kept.name.startswith("selftest-")
    assert json.loads(kept.read_text()) == document
    assert {"gpu", "processor", "packages", "commit", "cores", "memory_gb"} <= set(document["machine"])
    results = {one["check"]: one["result"] for one in document["checks"]}
    left_out = {"graphs against eager"}
    left_out |= set() if find_spec("vllm") else {"vLLM sync"}
    left_out |= set() if find_spec("trl") else {BESIDE_TRL}
    assert results == {name: "not run" if name in left_out else "passed" for name in names}


def outcome_of(name: str, device: str = "cpu") -> Outcome:
    (outcome,) = run_checks(device, [name], lambda name: None)
    return outcome


@pytest.mark.slow
def test_a_check_that_crashes_or_hangs_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    crashed = outcome_of("mismatch in bfloat16", device="cuda:99")
    assert crashed.result == "failed"
    assert "CUDA" in crashed.found and "Traceback" in crashed.output
    monkeypatch.setattr(checks, "LONGEST_S", 0.2)
    started_s = time.monotonic()
    hung = outcome_of("two cells side by side")
    assert hung.result == "failed" and "longer" in hung.found
    assert time.monotonic() - started_s < 30
    monkeypatch.setattr(checks, "TOTAL_S", 0.0)
    assert "over" in outcome_of("engine contract").found


def test_a_failed_check_is_an_exit_code_and_is_kept(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def made(device: str, names: Sequence[str], began: Any) -> Iterator[Outcome]:
        for name in names:
            began(name)
            yield Outcome(name, "failed", "3 of 14", 4.0, {"broken": {}}, "Traceback")

    monkeypatch.setattr(checks, "run_checks", made)
    result = bench("selftest", "--device", "cpu", "--only", "engine contract")
    assert result.code == 1 and result.error is not None and result.error.code == "shelves.selftest.checks_failed"
    assert (result.error.fields["n_failed"], result.error.fields["failed"]) == (1, "engine contract")
    assert "4s" in result.out.split()
    (kept,) = tmp_path.glob("selftest-*.json")
    assert json.loads(kept.read_text())["checks"][0]["output"] == "Traceback"


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (["--device", "gpu"], "shelves.selftest.unknown_device"),
        (["--device", "cuda:99"], "shelves.selftest.no_gpu"),
        (["--only", "engine contrat"], "bench.unknown_name"),
    ],
)
def test_what_is_not_there_is_refused(bench: Bench, given: list[str], code: str) -> None:
    result = bench("selftest", *given)
    assert result.code == 2 and result.error is not None and result.error.code == code


def test_an_engine_that_breaks_its_promises_fails_the_check(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(trial: contract.ContractTrial) -> None:
        raise contract.BrokenPromiseError("made-up")

    some = {name: contract.PROMISES[name] for name in ("shapes and padding",)}
    monkeypatch.setattr(contract, "PROMISES", {**some, "no tokens are made up": broken})
    finding = CHECKS.find("engine contract").run(CheckPlace("cpu", tmp_path))
    assert not finding.passed
    assert "(made-up)" in finding.found or find_spec("vllm")


PRETENDED = """
from pathlib import Path
from harness.shelves.selftest.checks import CHECKS, CheckPlace
from harness.models.language_model import load_model
from tests.cuda import device
load_model("builtin:tiny")  # once without the device, else transformers leaves buffers of later ones uninitialised
device.install()
for name in ("engine contract", "mismatch in bfloat16", "graphs against eager"):
    finding = CHECKS.find(name).run(CheckPlace("cuda", Path(".")))
    print(name, finding)
    assert finding.passed
"""


@pytest.mark.slow
def test_what_engines_draw_is_checked_on_the_pretended_device() -> None:
    done = subprocess.run([sys.executable, "-c", PRETENDED], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert "100%" in done.stdout
