from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from reports.page import write_report
from reports.processes import CELLS_OF_A_PROCESS, SentOnce, each_in_processes, meanwhile, process_count
from reports.samples import write_sweep_samples
from tests.reports.synthetic import write_sweep

pytestmark = pytest.mark.slow


class UnluckyError(ValueError):
    """What `half` raises in another process."""


def half(number: int) -> float:
    if number == 13:
        raise UnluckyError(number)
    return number / 2


def test_an_exception_in_another_process_is_raised_here():
    with pytest.raises(UnluckyError):
        each_in_processes(half, [1, 13], 2)


def test_a_report_by_two_processes_has_the_same_bytes(tmp_path):
    sweep = write_sweep(tmp_path / "sweep", {"base": 0.0, "up": 3.0}, seeds=3, texts=["Wait, 3 #### 3", "#### 5"])

    def written(processes: int) -> dict[Path, bytes]:
        folder = tmp_path / f"by_{processes}"
        with meanwhile(partial(write_sweep_samples, sweep, folder), processes):
            write_report(sweep, folder, processes=processes)
        return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}

    assert written(2) == written(1)


def noted(path: Path, until: Path | None = None) -> None:
    """Write which process this is, once the other file exists."""
    while until is not None and not until.exists():
        time.sleep(0.01)
    path.write_text(str(os.getpid()))


def lasts(started: Path) -> None:
    started.touch()
    time.sleep(60)


def test_work_is_done_meanwhile_by_another_process_which_helps_when_it_is_free(tmp_path):
    other, here = tmp_path / "other", tmp_path / "here"
    with meanwhile(partial(noted, other, until=here), 2):
        assert each_in_processes(half, [1, 2, 3], 2) == [0.5, 1.0, 1.5]  # which nobody else could do
        assert not other.exists()
        noted(here)
    assert int(other.read_text()) != int(here.read_text()) == os.getpid()
    with meanwhile(partial(noted, other), 1):
        assert int(other.read_text()) == os.getpid()


def test_what_fails_meanwhile_is_raised_and_what_fails_here_ends_it(tmp_path):
    with pytest.raises(UnluckyError), meanwhile(partial(half, 13), 2):
        pass
    started = tmp_path / "started"
    begun_s = time.monotonic()
    with pytest.raises(KeyError), meanwhile(partial(lasts, started), 2):
        while not started.exists():
            time.sleep(0.01)
        raise KeyError
    assert time.monotonic() - begun_s < 30


def tenth(sent: SentOnce[list[int]], number: int) -> int:
    return sent.get()[0] * number


def test_what_all_items_need_is_sent_once(tmp_path):
    sent = SentOnce([10], tmp_path / "sent.pickle")
    assert each_in_processes(partial(tenth, sent), [1, 2, 3, 4], 2) == [10, 20, 30, 40]
    assert len(pickle.dumps(sent)) < 500
    assert sent.get() is sent.get()


def killed_once(marker: Path, here: int, number: int) -> int:
    """In the first other process that takes one it ends that process; this one waits until it has."""
    if os.getpid() != here and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    until = time.monotonic() + 60
    while not marker.exists() and time.monotonic() < until:
        time.sleep(0.01)
    return 10 * number


@pytest.mark.parametrize("processes", [2, 3])
def test_what_a_killed_process_was_doing_is_done(tmp_path, processes):
    marker = tmp_path / "killed"
    items = [*range(8)]
    assert each_in_processes(partial(killed_once, marker, os.getpid()), items, processes) == [10 * n for n in items]
    assert marker.exists()
    assert each_in_processes(half, [1, 2, 3], processes) == [0.5, 1.0, 1.5]  # by new ones


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no affinity")
def test_no_more_processes_than_the_cores_that_this_one_may_use():
    code = f"""
import os
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
from reports.processes import process_count
print(process_count({2 * CELLS_OF_A_PROCESS - 1}), process_count({10 * CELLS_OF_A_PROCESS}))
"""
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert output.split() == ["1", "1"]


def test_a_small_sweep_is_reported_by_one_process():
    assert process_count(2 * CELLS_OF_A_PROCESS - 1) == 1
