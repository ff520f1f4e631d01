"""The files of examples/cluster, run in a stand-in: each node is a process on this machine that takes itself for a host
of its own, and what submits jobs is a shell script."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.records.files import read_jsonl
from tests.harness.run import bench
from tests.harness.run.hosts import kill_host, pretend_hosts, write_command

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples/cluster"
SBATCH = """#!/bin/bash
# sbatch --array=0-1 SCRIPT. Each task is a host of its own, which mounts the shared folder somewhere else, and comes
# back as often as it is requeued.
script=$2
for task in 0 1; do
  export PRETENDED_HOST=node$task BENCH_HOME=$STAND_IN/mount$task/runs SLURM_JOB_ID=10$task SLURM_CPUS_PER_TASK=1
  setsid bash -c '
    bash "$1"; code=$?
    while rm "$STAND_IN/requeued-$SLURM_JOB_ID" 2>/dev/null; do bash "$1"; code=$?; done
    echo $code > "$STAND_IN/$SLURM_JOB_ID.code"' task "$script" &
  echo $! > "$STAND_IN/10$task.pid"
done
wait
"""
SCONTROL = '#!/bin/sh\n[ "$1" = requeue ] && touch "$STAND_IN/requeued-$2"\n'
SSH = '#!/bin/sh\nPRETENDED_HOST=$1 exec sh -c "$2"\n'


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = bench.write_sweep(tmp_path_factory.mktemp("sweep"))
    document = yaml.safe_load(path.read_text())
    document["base"] |= {"train.steps": 6, "train.checkpoint_every": 2, "eval.every": 0, "eval.problems": 8}
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path


@pytest.fixture(scope="module")
def unbroken(sweep: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of a finished run on one machine: 2 arms x 2 seeds."""
    home = tmp_path_factory.mktemp("unbroken") / "runs"
    code, stderr = bench.run_here(sweep, home)
    assert code == 0, stderr
    return home


@pytest.fixture
def environment(tmp_path: Path, sweep: Path) -> dict[str, str]:
    return pretend_hosts(tmp_path) | {"STAND_IN": str(tmp_path), "SWEEP": str(sweep)}


@pytest.fixture
def nearly_done(tmp_path: Path, unbroken: Path) -> Path:
    """A home in which one cell is missing."""
    home = Path(shutil.copytree(unbroken, tmp_path / "runs"))
    shutil.rmtree(next((home / "small" / "cells").glob("no_std-s1-*")))
    return home


def test_slurm(tmp_path: Path, environment: dict[str, str], unbroken: Path) -> None:
    """One node dies with its cell, the other one comes to its time limit and is requeued. Nothing is lost, and the
    numbers are those of one machine, though each mounts the folder under a path of its own."""
    home = tmp_path / "shared" / "runs"
    (tmp_path / "shared").mkdir()
    shutil.copytree(unbroken / "cache", home / "cache", ignore=shutil.ignore_patterns("leases"))
    for task in (0, 1):
        (tmp_path / f"mount{task}").symlink_to(tmp_path / "shared")
    write_command(tmp_path / "bin", "sbatch", SBATCH)
    write_command(tmp_path / "bin", "scontrol", SCONTROL)
    array = start("sbatch", "--array=0-1", EXAMPLES / "slurm.sh", environment=environment)

    bench.wait_until(lambda: "node0" in hosts_with_steps(home))
    kill_host("node0", tmp_path)
    (left,) = (cell for cell, host in running(home).items() if host == "node0")
    bench.wait_until(lambda: "node1" in hosts_with_steps(home))
    send_sigterm_to_script(int((tmp_path / "101.pid").read_text()))
    output = end(array)

    assert "SIGTERM" in output
    assert not (tmp_path / "100.code").exists(), "killed"
    assert (tmp_path / "101.code").read_text() == "0\n", "requeued, and done"
    assert bench.all_contents(home) == bench.all_contents(unbroken)
    assert len((left / "starts.jsonl").read_text().splitlines()) == 2, "it was gone on with"
    assert json.loads((left / "lease.json").read_text())["host"] == "node1"
    code, stderr = bench.run_here("small", home)
    assert code == 0 and "4 cells" not in stderr, "none is left"


def test_kubernetes(tmp_path: Path, environment: dict[str, str], nearly_done: Path, unbroken: Path) -> None:
    job = yaml.safe_load((EXAMPLES / "kubernetes.yaml").read_text())["spec"]
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    assert (job["completionMode"], pod["restartPolicy"]) == ("Indexed", "Never")
    assert {rule["onExitCodes"]["containerName"] for rule in job["podFailurePolicy"]["rules"][:2]} == {"bench"}
    variables = {one["name"]: one["value"] for one in container["env"]}
    (mount,) = container["volumeMounts"]
    assert variables["BENCH_HOME"] == f"{mount['mountPath']}/runs"
    variables["BENCH_HOME"] = str(nearly_done)
    command = [environment["SWEEP"] if word == "std_norm" else word for word in container["command"]]
    pod_0 = {"PRETENDED_HOST": "pod-0", "JOB_COMPLETION_INDEX": "0"}
    output = end(start(*command, environment=environment | variables | pod_0))
    assert ran(output) == [("1", "4", "4")]
    assert bench.all_contents(nearly_done) == bench.all_contents(unbroken)


def test_skypilot(tmp_path: Path, environment: dict[str, str], nearly_done: Path, unbroken: Path) -> None:
    task = yaml.safe_load((EXAMPLES / "skypilot.yaml").read_text())
    assert task["envs"]["BENCH_HOME"].startswith(next(iter(task["volumes"])))
    variables = task["envs"] | {"BENCH_HOME": str(nearly_done), "SWEEP": environment["SWEEP"]}
    head = {"PRETENDED_HOST": "node-0", "SKYPILOT_NODE_RANK": "0"}
    output = end(start("bash", "-c", task["run"], environment=environment | variables | head))
    assert ran(output) == [("1", "4", "4")]
    assert bench.all_contents(nearly_done) == bench.all_contents(unbroken)


def test_ssh(tmp_path: Path, environment: dict[str, str], nearly_done: Path, unbroken: Path) -> None:
    write_command(tmp_path / "bin", "ssh", SSH)
    home = {"BENCH_HOME": str(nearly_done)}
    output = end(start(EXAMPLES / "ssh.sh", "one", "two", environment=environment | home))
    assert [done for _, *done in ran(output)] == [["4", "4"]] * 2 and {"one:", "two:"} <= {*output.split()}
    assert bench.all_contents(nearly_done) == bench.all_contents(unbroken)


def ran(output: str) -> list[tuple[str, ...]]:
    """How many cells each host ran, and how many of how many are done."""
    return re.findall(r"\bran (\d+); (\d+) of (\d+)\b", output)


def start(*command: Any, environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(word) for word in command],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip


def end(process: subprocess.Popen[str]) -> str:
    """What a command wrote, which must end well."""
    try:
        output, _ = process.communicate(timeout=2 * bench.PATIENCE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    assert process.returncode == 0, output
    return output


def running(home: Path) -> dict[Path, str]:
    """The cells that are run, by their leases, and on which host."""
    leases = {path.parent: json.loads(path.read_text()) for path in (home / "small" / "cells").glob("*/lease.json")}
    return {cell: lease["host"] for cell, lease in leases.items() if not lease["released"]}


def hosts_with_steps(home: Path) -> set[str]:
    """Hosts that train a cell of which steps are recorded."""
    return {host for cell, host in running(home).items() if read_jsonl(cell / "steps.jsonl")}


def send_sigterm_to_script(task: int) -> None:
    """To the shell that runs the job's script in this process group, as Slurm does (`--signal=B:TERM`)."""
    script = ["bash", str(EXAMPLES / "slurm.sh")]
    (pid,) = (pid for pid in processes_of_group(task) if words_of(pid)[:2] == script)
    os.kill(pid, signal.SIGTERM)


def processes_of_group(group: int) -> list[int]:
    listed = subprocess.run(["pgrep", "-g", str(group)], capture_output=True, text=True, check=True)
    return [int(pid) for pid in listed.stdout.split()]


def words_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
