"""Cells on the pretended device: no tensors of two devices mixed, nothing illegal while a graph is recorded, the CPU's
numbers, and a host that seldom waits. Each in a process of its own, which has that device for good."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from typing import Any

import pytest

from tests.cuda.device import ROOT
from tests.cuda.rehearse import VARIANTS

SHORT = ("grpo", "ppo-own-critic", "kl-in-loss", "lora", "dpo")
MOST_PER_PASS = {"waits": 4, "copies": 4}
"""How often the host waits for the device, or for a copy to it, in a pass with gradient, and how often it copies."""


def in_a_process(*command: str) -> str:
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def assert_alike(got: list[dict[str, Any]], wanted: list[dict[str, Any]], rounds: bool) -> None:
    """Where rounding matters, mismatch/* measures only that, and after the first step rounding can draw other
    tokens."""
    relative, absolute = (2e-2, 3e-3) if rounds else (1e-4, 1e-6)
    assert len(got) == len(wanted) > 0
    for row, expected in zip(got, wanted, strict=True):
        assert row.keys() == expected.keys()
        for name, value in expected.items():
            if rounds and (row["step"] > 1 or name.startswith("mismatch/")):
                continue
            same = row[name] == value
            if isinstance(value, float) and isinstance(row[name], float):
                same = math.isclose(row[name], value, rel_tol=relative, abs_tol=absolute)
            assert same, f"{name} is {row[name]} on the device, {value} on the CPU"


def rehearse(name: str, steps: int) -> None:
    result = json.loads(in_a_process("-m", "tests.cuda.rehearse", name, str(steps)))
    assert result["cpu"]["state"] == result["cuda"]["state"] == "done"
    # CUDA keeps sums in half precision that a CPU rounds. And the penalty |log r| of kl_cov has a slope of -1 or 1 at
    # r = 1, whichever way log r was rounded.
    rounds = VARIANTS[name]["model.dtype"] == "bfloat16" or name == "kl-cov"
    assert_alike(result["cuda"]["steps"], result["cpu"]["steps"], rounds)
    if not rounds:
        scores = [[row["metrics"] for row in result[on]["scores"]] for on in ("cuda", "cpu")]
        assert scores[0] == scores[1]
    per_pass = result["most_per_pass"]
    assert all(per_pass[what] <= most for what, most in MOST_PER_PASS.items()), (per_pass, result["lines"])


@pytest.mark.slow
@pytest.mark.parametrize("name", SHORT)
def test_a_cell_on_the_pretended_device(name: str) -> None:
    rehearse(name, steps=2)


@pytest.mark.long
@pytest.mark.parametrize("name", VARIANTS)
def test_longer_cells_on_the_pretended_device(name: str) -> None:
    rehearse(name, steps=6)


RULES = """
import pytest, torch
from tests.cuda import device
device.install()
cuda, host = torch.ones(3, device="cuda"), torch.ones(3)
assert cuda.is_cuda and cuda.device.type == "cuda" and (cuda + 1).is_cuda and not cuda.cpu().is_cuda
for mixed in (lambda: cuda + host, lambda: torch.cat([cuda, host]), lambda: host.copy_(host) + cuda):
    with pytest.raises(device.MixedDevicesError):
        mixed()
assert (cuda * torch.tensor(2.0)).tolist() == [2, 2, 2], "a scalar may be on the host"

def spent(action):
    before = device.ledger.waits.total(), device.ledger.copies.total()
    action()
    return device.ledger.waits.total() - before[0], device.ledger.copies.total() - before[1]

pinned = torch.empty(3, pin_memory=True)
assert spent(lambda: cuda.mul_(1)) == (0, 0)
assert spent(lambda: float(cuda.sum())) == spent(lambda: cuda.cpu()) == spent(lambda: cuda[cuda > 0]) == (1, 0)
assert spent(lambda: host.to("cuda")) == spent(lambda: host.to("cuda", non_blocking=True)) == (1, 1)
assert spent(lambda: pinned.to("cuda", non_blocking=True)) == (0, 1)
assert spent(lambda: cuda[torch.tensor([0, 1])]) == (1, 1)

graph, total = torch.cuda.CUDAGraph(), torch.zeros(3, device="cuda")
with torch.cuda.graph(graph):
    total.add_(cuda * 2)
assert total.tolist() == [0, 0, 0], "recording computes nothing"
cuda.fill_(5)
graph.replay()
graph.replay()
assert total.tolist() == [20, 20, 20]
for illegal in (lambda: float(total.sum()), lambda: host.to("cuda"), lambda: total[total > 0]):
    with pytest.raises(device.IllegalInGraphError), torch.cuda.graph(torch.cuda.CUDAGraph()):
        illegal()
weight = torch.nn.Parameter(torch.ones(3, device="cuda"))
((weight * cuda)[:2] ** 2).sum().backward()
assert weight.grad.is_cuda and weight.grad.tolist() == [50, 50, 0]
"""


@pytest.mark.slow
def test_the_pretended_device_keeps_the_rules() -> None:
    in_a_process("-c", RULES)
