"""Cells on a real cluster of two nodes, which are processes of this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from harness.executors.local import LocalPool
from harness.executors.ray import RAY, RayPool
from harness.executors.slots import Slot, choose_slots
from harness.plan import make_plan
from harness.run.sweep import SweepRun
from tests.cuda.device import ROOT
from tests.harness.run import bench
from tests.harness.run.stages_here import Quiet

WORKER = "harness.run.worker"


@dataclass
class Nodes:
    """The cluster: a head without a GPU, and a node with one."""

    cluster: Any
    address: str
    second: Any = None

    def complete(self) -> None:
        """Start the second node unless it runs."""
        if self.second is None:
            self.second = self.cluster.add_node(num_cpus=1, num_gpus=1)
            self.cluster.wait_for_nodes()

    def kill_second(self) -> None:
        self.cluster.remove_node(self.second, allow_graceful=False)
        self.second = None


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.delenv("RAY_ADDRESS", raising=False)
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
        found = Nodes(cluster, cluster.address)
        found.complete()
        try:
            yield found
        finally:
            ray.shutdown()
            cluster.shutdown()


@dataclass
class KillingOnce(Quiet):
    """Kills the second node as soon as both nodes train."""

    nodes: Nodes
    training: set[str] = field(default_factory=set)
    remarks: list[str] = field(default_factory=list)

    def progress(self, name: str, event: object) -> None:
        self.training.add(name)
        if len(self.training) == 2 and self.nodes.second is not None:
            self.nodes.kill_second()

    def remark(self, sentence: str) -> None:
        self.remarks.append(sentence)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bench.write_sweep(tmp_path_factory.mktemp("sweep"), seeds=1)


@pytest.fixture(scope="module")
def expected(sweep: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    home = tmp_path_factory.mktemp("local")
    slots = [Slot("cpu", "")] * 2
    SweepRun(make_plan(str(sweep)), home, "bench run", 2, lambda count: LocalPool(slots, home, WORKER)).run(Quiet())
    return bench.all_contents(home)


@pytest.mark.slow
@pytest.mark.parametrize("shared", [True, False])
def test_cells_of_a_killed_node_finish_elsewhere(
    nodes: Nodes, sweep: Path, expected: dict[str, Any], tmp_path: Path, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes.complete()
    # A path that leads to the home in this process alone stands for a disk that machines do not share.
    home = tmp_path if shared else Path(f"/proc/self/fd/{os.open(tmp_path, os.O_RDONLY)}")
    slots = choose_slots(RAY.slots(nodes.address), {"cpu"}, 2)
    observer = KillingOnce(nodes)
    pools: list[RayPool] = []

    def opened(count: int) -> RayPool:
        pools.append(RayPool(slots, home, WORKER))
        return pools[-1]

    SweepRun(make_plan(str(sweep)), home, "bench run", 2, opened).run(observer)
    assert nodes.second is None, "it was killed while both trained"
    assert [remark for remark in observer.remarks if "its worker was lost with" in remark]
    assert pools[0].slots == 1
    assert bench.all_contents(tmp_path) == expected
    left = [str(path) for path in tmp_path.rglob(".*") if path.name.startswith(".seen") or path.name.endswith(".tmp")]
    assert left == []
