"""Cells on a real cluster of two nodes, which are processes of this machine."""

from __future__ import annotations

import os
import socket
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from harness.errors import BenchError, RefusedError
from harness.executors.base import Ended, Job
from harness.executors.local import LocalPool
from harness.executors.slots import SHARE, Slot, choose_slots
from harness.plan import make_plan
from harness.records.lease import hold_lease
from harness.run.sweep import SweepRun
from harness.shelves.ray import executors as ray_executor
from harness.shelves.ray.executors import RAY, RayPool
from harness.shelves.ray.slot_actor import pack, unpack, unpack_whole
from tests.cuda.device import ROOT
from tests.harness.run import bench
from tests.harness.run.small import small_spec
from tests.harness.run.stages_here import Quiet
from tests.refusals import refuses

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
    """Kills the second node when one of two cells has a checkpoint, and both are under way."""

    nodes: Nodes
    pools: list[RayPool] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def progress(self, name: str, event: Any) -> None:
        is_busy = all(place.job is not None for place in self.pools[0]._places)
        if is_busy and event.get("step", 0) >= 4 and self.nodes.second is not None:
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


def elsewhere(home: Path) -> Path:
    """A path that leads to the home in this process alone: machines that do not share a disk."""
    return Path(f"/proc/self/fd/{os.open(home, os.O_RDONLY)}")


@pytest.mark.slow
@pytest.mark.parametrize("shared", [True, False])
def test_cells_of_a_killed_node_finish_elsewhere(
    nodes: Nodes, sweep: Path, expected: dict[str, Any], tmp_path: Path, shared: bool
) -> None:
    nodes.complete()
    home = tmp_path if shared else elsewhere(tmp_path)
    slots = choose_slots(RAY.slots(nodes.address), {"cpu"}, 2)
    observer = KillingOnce(nodes)

    def opened(count: int) -> RayPool:
        observer.pools.append(RayPool(slots, home, WORKER))
        return observer.pools[0]

    SweepRun(make_plan(str(sweep)), home, "bench run", 2, opened).run(observer)
    assert nodes.second is None, "it was killed"
    assert len([remark for remark in observer.remarks if "lost" in remark]) == 1
    assert observer.pools[0].slots == 1
    assert bench.all_contents(tmp_path) == expected
    left = [str(path) for path in tmp_path.rglob(".*") if path.name.startswith(".seen") or path.name.endswith(".tmp")]
    assert left == []


@pytest.mark.slow
def test_a_head_without_a_gpu_plans_for_those_of_the_nodes(nodes: Nodes, tmp_path: Path) -> None:
    """And two cells on one card have each a half of it."""
    nodes.complete()
    found = RAY.slots(nodes.address)
    assert [slot.kind for slot in found] == ["cuda", "cpu", "cpu"]
    pool = RayPool(choose_slots(found, {"cuda"}, 2), tmp_path, WORKER)
    try:
        bench.wait_until(lambda: not pool.wait(0.1) and pool.slots == 2)
        assert [place.name for place in pool._places] == [f"GPU 0 of {socket.gethostname()}"] * 2
        assert [place.slot.environment[SHARE] for place in pool._places] == ["0.5000"] * 2
    finally:
        pool.close()


@pytest.mark.slow
def test_a_cell_that_another_process_runs_is_left_to_it(nodes: Nodes, tmp_path: Path) -> None:
    """Where records are sent back, its lease is held here."""
    nodes.complete()
    home = elsewhere(tmp_path)
    folder = home / "small/cells/arm-s0-0123456789"
    folder.mkdir(parents=True)
    pool = RayPool(choose_slots(RAY.slots(nodes.address), {"cpu"}, 1), home, WORKER)
    try:
        with hold_lease(folder):
            pool.start(Job("cell", str(folder.relative_to(home)), small_spec()))
            (ended,) = pool.wait(1.0)
        assert isinstance(ended, Ended)
        assert (ended.state, pool._places[0].job) == ("taken", None)
    finally:
        pool.close()


def test_without_ray_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with refuses(RefusedError, "shelves.ray.not_installed"):
        RAY.slots("")


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
def not_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.setattr("ray.is_initialized", lambda: False)


@pytest.mark.parametrize(
    ("address", "code"),
    [("127.0.0.1:1", "no_answer"), ("head:99999", "no_answer"), ("head", "not_an_address"), ("silent", "no_answer")],
)
def test_an_address_where_nobody_answers_is_refused(
    not_connected: None, listening: socket.socket, monkeypatch: pytest.MonkeyPatch, address: str, code: str
) -> None:
    """Ray would wait for more than two minutes for a server that never answers."""
    monkeypatch.setattr(ray_executor, "CONNECT_S", 0.2)
    started_s = time.monotonic()
    address = "{}:{}".format(*listening.getsockname()) if address == "silent" else address
    with refuses(RefusedError, f"shelves.ray.{code}", address=address):
        ray_executor._connect(address)
    assert time.monotonic() - started_s < 15


def test_a_server_of_another_kind_is_refused(not_connected: None, listening: socket.socket) -> None:
    def answer() -> None:
        connection, _ = listening.accept()
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    threading.Thread(target=answer, daemon=True).start()
    with refuses(RefusedError, "shelves.ray.not_a_cluster"):
        ray_executor._connect("{}:{}".format(*listening.getsockname()))


def test_a_machine_with_other_numerics_is_refused() -> None:
    place = ray_executor._Place(Slot("cpu", ""), None, None)
    with refuses(BenchError, "shelves.ray.version_differs", host="node7", numerics=1):
        ray_executor._introduce(place, {"host": "node7", "gpus": None, "shares_home": True, "numerics": 1})


def test_a_cell_of_several_processes_asks_for_whole_gpus_on_one_node() -> None:
    pair = Slot("cuda", "", processes=2)
    assert ray_executor._resources(pair) == {"num_cpus": 2, "num_gpus": 2}
    assert ray_executor._resources(Slot("cuda", "").shared(3)) == {"num_cpus": 0.3333, "num_gpus": 0.3333}
    with refuses(RefusedError, "shelves.ray.processes_cannot_share", processes=2):
        ray_executor._resources(pair.shared(2))


def test_a_parcel_holds_a_folder_without_its_lease_and_what_is_unfinished(tmp_path: Path) -> None:
    folder = tmp_path / "cell"
    for name in ("steps.jsonl", "checkpoints/step-1/weights", "lease.json", ".status.json.1.tmp"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    with (tmp_path / "parcel").open("w+b") as parcel:
        for _ in range(2):  # it is empty after it was unpacked
            pack(folder, parcel)
            unpack(parcel, tmp_path / "there")
            assert parcel.read() == b""
        there = {
            str(path.relative_to(tmp_path / "there")) for path in (tmp_path / "there").rglob("*") if path.is_file()
        }
        assert there == {"steps.jsonl", "checkpoints/step-1/weights"}
        pack(folder / "steps.jsonl", parcel)
        unpack_whole(parcel, tmp_path / "one.jsonl")
    assert (tmp_path / "one.jsonl").read_text() == "steps.jsonl"


def test_checkpoints_are_packed_before_the_rows_that_they_count(tmp_path: Path) -> None:
    """A worker goes on writing: a checkpoint that was read last could count rows that were not there yet."""
    for name in ("a.jsonl", "checkpoints/step-1/checkpoint.json", "z.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    with (tmp_path / ".parcel").open("w+b") as parcel:
        pack(tmp_path, parcel)
        with tarfile.open(fileobj=parcel) as tar:
            assert tar.getnames() == ["checkpoints/step-1/checkpoint.json", "a.jsonl", "z.jsonl"]
