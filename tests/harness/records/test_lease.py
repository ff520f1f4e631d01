from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from harness.records import lease as lease_module
from harness.records.fence import LeaseLostError, directory_of
from harness.records.lease import (
    HEARTBEAT_S,
    STALE_AFTER_S,
    Lease,
    Leases,
    LeaseTakenError,
    hold_lease,
    is_leased,
)

ROOT = Path(__file__).parents[3]


@contextmanager
def other_process_holding(folder: Path) -> Iterator[subprocess.Popen[str]]:
    code = (
        "import sys, time; from pathlib import Path; from harness.records.lease import hold_lease\n"
        "with hold_lease(Path(sys.argv[1])):\n    print('held', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def test_a_lease_lasts_as_long_as_it_is_held(tmp_path: Path) -> None:
    assert not is_leased(tmp_path)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), hold_lease(tmp_path):
            assert is_leased(tmp_path)
            raise ZeroDivisionError
        assert not is_leased(tmp_path)


def test_asking_leaves_nothing_behind(tmp_path: Path) -> None:
    assert not is_leased(tmp_path / "none")
    (tmp_path / "file").touch()
    assert not is_leased(tmp_path / "file" / "cell")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_two_processes_exclude_each_other_until_one_is_killed(tmp_path: Path) -> None:
    with other_process_holding(tmp_path) as owner:
        assert is_leased(tmp_path)
        with pytest.raises(LeaseTakenError) as taken, hold_lease(tmp_path):
            pytest.fail("two owners")
        assert str(owner.pid) in str(taken.value) and socket.gethostname() in str(taken.value)
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        assert not is_leased(tmp_path)
        with hold_lease(tmp_path):
            assert json.loads((tmp_path / "lease.json").read_text())["pid"] == os.getpid()


def test_who_asks_does_not_keep_a_runner_out(tmp_path: Path) -> None:
    """`is_leased` holds a shared lock for an instant; here the instant is long."""
    with hold_lease(tmp_path):
        pass
    with (tmp_path / "lease.json").open("rb") as asking:
        fcntl.flock(asking, fcntl.LOCK_SH)
        assert not is_leased(tmp_path)


@pytest.mark.parametrize(
    "content", ["", "[]", "1", '{"host": "else', '{"host": 1, "pid": 2, "heartbeat_s": 3}', "\udcff"]
)
def test_what_is_no_lease_of_ours_holds_nobody_up(tmp_path: Path, content: str) -> None:
    (tmp_path / "lease.json").write_bytes(content.encode(errors="surrogateescape"))
    assert not is_leased(tmp_path)
    with hold_lease(tmp_path):
        assert is_leased(tmp_path)


class FakeClock:
    """A clock that only runs while somebody sleeps by it; `meanwhile` happens in each sleep."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s, self.slept_s = now_s, 0.0
        self.meanwhile: Callable[[], None] = lambda: None

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.slept_s += seconds
        self.meanwhile()


@contextmanager
def stopped_owner(folder: Path, host: str = "there", kernel: str = "another") -> Iterator[Lease]:
    """A lease of another machine whose owner sends no heartbeat by itself."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(lease_module, "_beat", lambda lease, released: None)
        patched.setattr(lease_module, "_lock_of", lambda path: "free")  # a lock is not seen from one to the other
        with Leases(kernel=kernel, host=host).hold(folder) as lease:
            yield lease


def machine(host: str = "here", now_s: float = 0.0) -> tuple[Leases, FakeClock]:
    clock = FakeClock(now_s)
    return Leases(kernel="this", host=host, clock=clock), clock


@pytest.mark.parametrize("skew_s", [0.0, 3600.0, -3600.0], ids=["as ours", "an hour ahead", "an hour behind"])
@pytest.mark.parametrize("host", ["there", "here"], ids=["", "equal names"])
def test_the_clocks_and_names_of_two_machines_do_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, skew_s: float, host: str
) -> None:
    real = time.time
    with stopped_owner(tmp_path, host) as owner:
        here, clock = machine("here", now_s=1e6)
        monkeypatch.setattr(time, "time", lambda: real() + skew_s)
        owner.beat()
        clock.meanwhile = lambda: owner.beat() if clock.slept_s % HEARTBEAT_S == 0 else None
        with pytest.raises(LeaseTakenError, match=rf"{os.getpid()} .*{host}"), here.hold(tmp_path):
            pytest.fail("two owners")
        assert clock.slept_s <= HEARTBEAT_S
        clock.meanwhile = lambda: None  # it dies
        with here.hold(tmp_path) as mine:
            assert clock.slept_s == pytest.approx(HEARTBEAT_S + STALE_AFTER_S, abs=2)
            mine.require()


def test_a_clock_that_jumps_back_at_the_owner_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([5000.0, 5010.0, 20.0, 20.0, 10.0, *range(1000)])
    with stopped_owner(tmp_path) as owner:
        here, clock = machine()
        monkeypatch.setattr(time, "time", lambda: next(times))
        clock.meanwhile = owner.beat
        for _ in range(4):
            with pytest.raises(LeaseTakenError), here.hold(tmp_path):
                pytest.fail("two owners")
            clock.now_s += 60


def test_a_dead_owner_is_free_after_the_limit_and_its_other_cells_at_once(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("a", "b", "c")]
    for folder in folders:
        folder.mkdir()
    with ExitStack() as dead:
        for folder in folders:
            dead.enter_context(stopped_owner(folder))
        here, clock = machine()
        assert all(machine()[0].is_held(folder) for folder in folders)
        for folder in folders:
            with here.hold(folder):
                assert clock.slept_s == pytest.approx(STALE_AFTER_S, abs=2)


def test_whether_an_owner_lives_is_known_at_its_next_heartbeat_or_after_the_limit(tmp_path: Path) -> None:
    here, clock = machine()
    assert here.look(tmp_path) == "free"
    with stopped_owner(tmp_path) as owner:
        assert [here.look(tmp_path), here.look(tmp_path)] == ["unknown", "unknown"]
        owner.beat()
        assert [here.look(tmp_path), here.look(tmp_path)] == ["held", "held"]
        clock.now_s += STALE_AFTER_S
        assert here.look(tmp_path) == "free"
    with here.hold(tmp_path):
        assert here.look(tmp_path) == "held"
    assert here.look(tmp_path) == "free"


def test_who_waits_in_turn_is_told_of_the_owner_and_comes_after_it(tmp_path: Path) -> None:
    here, clock = machine()
    folder = tmp_path / "made"
    owners: list[str] = []
    with here.hold_in_turn(folder):
        assert here.look(folder) == "held"
    with ExitStack() as other:
        other.enter_context(stopped_owner(folder))
        clock.meanwhile = lambda: other.close() if clock.slept_s > 3 else None
        with here.hold_in_turn(folder, owners.append) as lease:
            assert lease.epoch == 3
    assert len(set(owners)) == 1 and str(os.getpid()) in owners[0] and len(owners) == clock.slept_s == 4


def test_an_owner_that_wakes_up_late_finds_its_lease_gone(tmp_path: Path) -> None:
    here, _ = machine()
    with stopped_owner(tmp_path) as late:
        with here.hold(tmp_path) as mine:
            assert mine.epoch > late.epoch
            content = (tmp_path / "lease.json").read_bytes()
            with pytest.raises(LeaseLostError):
                late.require()
            late.beat()
            late.beat(released=True)
            assert (tmp_path / "lease.json").read_bytes() == content
            mine.require()
        with pytest.raises(LeaseLostError):
            late.require()
    assert not here.is_held(tmp_path)


def test_a_sign_of_life_in_the_last_moment_keeps_the_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner wakes between the other's judgement and its renaming."""
    here, _ = machine()
    real = lease_module._rename_away
    with stopped_owner(tmp_path) as owner:

        def rename(path: Path, dead: bytes, by: str) -> None:
            owner.beat()
            real(path, dead, by)

        monkeypatch.setattr(lease_module, "_rename_away", rename)
        with pytest.raises(LeaseTakenError), here.hold(tmp_path):
            pytest.fail("two owners")
        owner.require()
        owner.beat()
        assert not owner.is_lost
        assert {path.name for path in tmp_path.iterdir()} == {"lease.json", directory_of(tmp_path, owner.owner).name}


def test_of_many_that_take_over_at_once_one_does(tmp_path: Path) -> None:
    """All have found the same owner dead before the first renames its lease away."""
    n = 8
    ready = threading.Barrier(n)
    owners: list[Lease] = []

    with stopped_owner(tmp_path):
        pass

    def take() -> None:
        with pytest.MonkeyPatch.context():
            leases = Leases(kernel="this", clock=FakeClock())
            dead = leases._await_free(tmp_path / "lease.json")
            leases._await_free = lambda *_: dead  # type: ignore[method-assign]
            ready.wait()
            try:
                with ExitStack() as files:
                    owners.append(leases._take(tmp_path / "lease.json", 0, files))
            except LeaseTakenError:
                pass

    threads = [threading.Thread(target=take) for _ in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    alive = [lease for lease in owners if lease._is_ours()]
    assert len(alive) == 1 and alive[0].epoch == 2


def test_a_lease_in_the_hands_of_another_can_still_be_put_back(tmp_path: Path) -> None:
    """Another renames it by mistake right after it was taken, while its owner deletes what takeovers left."""
    path, was = tmp_path / "lease.json", tmp_path / ".lease.json.another.was"

    def is_ours_and_gone(lease: Lease) -> bool:
        path.rename(was)
        return True

    with ExitStack() as files:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Lease, "_is_ours", is_ours_and_gone)
            lease = Leases(kernel="this", clock=FakeClock())._take(path, 0, files)
        was.rename(path)
        assert lease._is_ours()


def test_epochs_grow_from_holder_to_holder_and_begin_above_the_records(tmp_path: Path) -> None:
    epochs = []
    for last in (0, 0, 7, 3):
        with hold_lease(tmp_path, last) as lease:
            epochs.append(lease.epoch)
    assert epochs == [1, 2, 8, 9]


def test_one_that_comes_back_under_another_name_has_its_cell_at_once(tmp_path: Path) -> None:
    """A container on the same machine: its kernel knows that the lock is gone."""
    code = (
        "import os, sys; from pathlib import Path; from harness.records.lease import Leases\n"
        "with Leases(host='pod-1').hold(Path(sys.argv[1])):\n    os._exit(9)"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=environment, check=False).returncode == 9
    clock = FakeClock()
    again = Leases(host="pod-2", clock=clock)
    assert not again.is_held(tmp_path)
    with again.hold(tmp_path):
        assert clock.slept_s == 0
    elsewhere = Leases(kernel="another", host="pod-1", clock=FakeClock())
    assert not elsewhere.is_held(tmp_path), "it was given back"


@pytest.mark.parametrize("error", [errno.ENOLCK, errno.ENOTSUP, errno.EINVAL])
def test_without_locks_owners_are_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    def flock(*_: object) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(fcntl, "flock", flock)
    here, clock = machine()
    with here.hold(tmp_path) as first:
        clock.meanwhile = first.beat
        with pytest.raises(LeaseTakenError), here.hold(tmp_path):
            pytest.fail("two owners")
        clock.meanwhile = lambda: None
        with here.hold(tmp_path):
            assert clock.slept_s >= STALE_AFTER_S
            with pytest.raises(LeaseLostError):
                first.require()


def test_without_links_a_lease_is_made_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    with hold_lease(tmp_path) as lease:
        lease.require()
        with pytest.raises(LeaseTakenError), hold_lease(tmp_path):
            pytest.fail("two owners")
    with hold_lease(tmp_path):
        pass


def test_the_heart_beats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "HEARTBEAT_S", 0.01)
    with hold_lease(tmp_path):
        contents = set()
        for _ in range(20):
            contents.add((tmp_path / "lease.json").read_bytes())
            time.sleep(0.01)
    assert len(contents) > 2 and {len(content) for content in contents} == {512}
    assert all(json.loads(content)["owner"] for content in contents)


def test_a_stopped_process_that_wakes_up_late_stops_by_itself(tmp_path: Path) -> None:
    """Two processes on one folder, as if on two machines: the first is stopped until the second has taken over."""
    code = (
        "import sys, time; from pathlib import Path; from harness.records import lease\n"
        "lease.HEARTBEAT_S = 0.05\n"
        "with lease.Leases(kernel='another').hold(Path(sys.argv[1])) as held:\n"
        "    print('held', flush=True)\n"
        "    while not held.is_lost: time.sleep(0.01)\n"
        "print('stopped by itself', flush=True)"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        other.send_signal(signal.SIGSTOP)
        here, clock = machine()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(lease_module, "_lock_of", lambda path: "free")
            with here.hold(tmp_path) as mine:
                assert clock.slept_s >= STALE_AFTER_S
                other.send_signal(signal.SIGCONT)
                rescue = threading.Timer(20, other.kill)
                rescue.start()
                assert other.stdout.readline() == "stopped by itself\n"
                rescue.cancel()
                mine.require()
