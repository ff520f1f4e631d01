"""A sweep on two pretended cards: its cells leave the device to the machine, and run side by side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.executors.local import LocalPool
from harness.executors.slots import choose_slots, gpu_here, local_slots
from harness.plan import make_plan
from harness.records import CellRecord
from harness.run.sweep import SweepRun
from tests.cuda.device import ROOT
from tests.cuda.rehearse import SHORT
from tests.harness.executors.test_slots import no_gpus, pretend
from tests.harness.run import bench
from tests.harness.run.stages_here import Quiet

__all__ = ["no_gpus"]
LISTED = """GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-5c89852c-0000)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-77aa0000-1111)
  MIG 3g.20gb     Device  0: (UUID: MIG-9d0e2a01-77b1)
"""


@pytest.mark.slow
def test_cells_on_two_cards_see_each_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(tmp_path, monkeypatch, LISTED)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # workers are not started from the current folder
    home = tmp_path / "runs"
    settings = [f"{knob}={json.dumps(value)}" for knob, value in (SHORT | {"train.steps": 1}).items()]
    sweep = bench.write_sweep(tmp_path, seeds=1)
    plan = make_plan(str(sweep), None, [*settings, "train.device=auto", "model.dtype=float32"], on_gpu=gpu_here)
    assert {spec.train.device for spec in plan.arms.values()} == {"cuda"}
    slots = choose_slots(local_slots(), {"cuda"}, 3)
    SweepRun(plan, home, "bench run", 3, lambda count: LocalPool(slots, home, "tests.cuda.worker")).run(Quiet())

    seen = {path.name: [json.loads(line) for line in path.read_text().splitlines()] for path in home.glob("seen/*")}
    assert sorted(told[0]["gpu"] for told in seen.values()) == ["0", "0", "MIG-9d0e2a01-77b1"]
    assert {told[0]["threads"] for told in seen.values()} == {"1"}
    cells = [CellRecord.at(path) for path in sorted(home.glob("small/cells/*"))]
    assert [cell.state for cell in cells] == ["done", "done"]
    ran_in = [seen[str(cell.own.read_starts()[-1]["owner"]["pid"])] for cell in cells]
    assert {told[0]["gpu"] for told in ran_in} == {"0", "MIG-9d0e2a01-77b1"}
    for told in ran_in:
        shares = {row["share"] for row in told[1:]}
        assert shares == ({0.5} if told[0]["gpu"] == "0" else set()), "of the card that two slots share, half"
