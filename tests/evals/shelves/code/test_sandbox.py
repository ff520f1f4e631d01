"""Programs that try to get away with something: what they reach, what they earn, and that they end."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from evals.errors import EvalError
from evals.shelves.code import _sandbox, sandbox
from evals.shelves.code.sandbox import Isolation, Limits, Program, Ran, isolation, run_program
from tests.refusals import refuses

SYSTEM_PYTHON = "/usr/bin/python3"
ALONE = "none of an ordinary user"
SHARED = "those of bench"
MODES = ("namespaces", "namespaces of an ordinary user", "none", ALONE)
LIMITS = Limits(cpu_s=1, wall_s=5.0)
OK = b'{"value": "ok"}'


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Root tries all four with a Python that everybody may read; others what they may have."""
    mode: str = request.param
    if mode != "namespaces":
        if os.geteuid() != 0 or not Path(SYSTEM_PYTHON).exists() or shutil.which("setpriv") is None:
            pytest.skip("needs root, setpriv and a Python of the system")
        starter = tmp_path / "python"
        user = "setpriv --reuid 12345 --regid 12345 --clear-groups" if "ordinary" in mode else ""
        starter.write_text(f'#!/bin/sh\nchown 12345 .\nexec env -u PWD {user} {SYSTEM_PYTHON} "$@"\n')
        starter.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(starter))
    isolation.cache_clear()
    if _has_namespaces(mode) and not _is_permitted():
        pytest.skip("no namespaces are permitted here")
    yield mode
    isolation.cache_clear()


@pytest.fixture
def folders() -> Iterator[Path]:
    """A folder for temporary ones, which every user may enter."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


def _has_namespaces(mode: str) -> bool:
    return mode.startswith("namespaces")


def _is_permitted() -> bool:
    try:
        return isolation().namespaces
    except EvalError:
        return False


def run(code: str, mode: str, limits: Limits = LIMITS, calls: int = 1) -> Ran:
    """What `attack()` of the code returns."""
    return run_program(Program(code, "attack", [[]] * calls), limits, namespaces=_has_namespaces(mode))


HARMLESS = {
    "reads the environment": """
import os
def attack():
    return "ok" if set(os.environ) <= {"PYTHONHASHSEED", "LC_ALL"} else dict(os.environ)
""",
    "reads stdin": """
import sys
def attack():
    return "ok" if sys.stdin.read() == "" and sys.argv[0] != "" else "read"
""",
    "starts a process": """
import os, subprocess, threading
def attack():
    for start in (os.fork, lambda: subprocess.Popen(["true"]), lambda: threading.Thread(target=print).start()):
        try:
            start()
        except (OSError, RuntimeError):
            continue
        return f"{start} works"
    return "ok"
""",
    "becomes root": """
import os
def attack():
    try:
        os.setuid(0)
    except OSError:
        return "ok"
""",
    "fills the memory": """
def attack():
    try:
        return len(bytearray(1 << 30))
    except MemoryError:
        return "ok"
""",
    "writes a huge file": """
import signal
def attack():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with open("huge", "wb") as file:
            for _ in range(64):
                file.write(bytes(1 << 20))
    except OSError:
        return "ok"
""",
    "prints without end": """
import os, sys
def attack():
    for _ in range(300):
        os.write(1, bytes(1 << 20)), os.write(2, bytes(1 << 20))
    return "ok"
""",
    "opens many files": """
def attack():
    files = []
    try:
        for number in range(1000):
            files.append(open(str(number), "w"))
    except OSError:
        return "ok"
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("code", HARMLESS.values(), ids=HARMLESS)
def test_what_it_tries_is_denied(code: str, mode: str) -> None:
    assert run(code, mode) == Ran([OK], "ended")


def test_it_writes_nothing_outside_its_folder(mode: str) -> None:
    folders = [
        "/",
        "/etc",
        "/usr/lib",
        "/usr/local/lib",
        "/var/lib",
        str(Path.home()),
        str(Path(__file__).parent),
    ]
    code = f"""
def attack():
    for folder in {folders}:
        try:
            open(folder + "/bench_was_here", "w")
        except OSError:
            pass
    return "ok"
"""
    assert run(code, mode) == Ran([OK], "ended")
    assert not [folder for folder in folders if Path(folder, "bench_was_here").exists()]


ENDS = {
    "sys.exit(0)": ("import sys\ndef attack(): sys.exit(0)", Ran([b"{}"], "ended")),
    "sys.exit(0) at once": ("import sys\nsys.exit(0)\ndef attack(): return 1", Ran([], "ended")),
    "os._exit(0)": ("import os\ndef attack(): os._exit(0)", Ran([], "ended")),
    "no such function": ("def other(): return 1", Ran([], "ended")),
    "no Python": ("def attack(:", Ran([], "unreadable")),
    "a NUL": ("def attack(): return '\0'", Ran([], "unreadable")),
    "half a character": ("def attack(): return '\ud800'", Ran([], "unreadable")),
    "deep brackets": ("(" * 50_000 + ")" * 50_000, Ran([], "unreadable")),
    "an exception": ("def attack(): raise ValueError", Ran([b"{}"], "ended")),
    "no JSON": ("def attack(): return {1, 2}", Ran([b"{}"], "ended")),
    "deep recursion": ("def attack(): return attack()", Ran([b"{}"], "ended")),
    "a dead process": ("import os\ndef attack(): os.kill(os.getpid(), 11); return 1", None),
}


@pytest.mark.slow
@pytest.mark.parametrize(("code", "expected"), ENDS.values(), ids=ENDS)
def test_how_it_ends(code: str, expected: Ran | None) -> None:
    ran = run_program(Program(code, "attack", [[]]), LIMITS)
    # The first process of a namespace does not die by a signal of its own.
    assert ran == expected or (expected is None and ran.end == "ended")


def test_a_tuple_is_a_list_and_calls_share_nothing_but_the_module(mode: str) -> None:
    code = "seen = []\ndef attack(x):\n    seen.append(x)\n    x.append(0)\n    return x, len(seen)"
    ran = run_program(Program(code, "attack", [[[1]], [[1]]]), LIMITS, namespaces=_has_namespaces(mode))
    assert [json.loads(reply)["value"] for reply in ran.replies] == [[[1, 0], 1], [[1, 0], 2]]


@pytest.mark.slow
def test_a_loop_ends_by_its_processor_time_and_what_came_before_counts(mode: str) -> None:
    code = """
import signal
signal.signal(signal.SIGXCPU, signal.SIG_IGN)
calls = 0
def attack():
    global calls
    calls += 1
    while calls > 1:
        pass
    return "ok"
"""
    assert run(code, mode, calls=3) == Ran([OK], "ended")


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        "import time\ndef attack():\n    while True: time.sleep(1)",
        "import signal\nfor one in (15, 2, 1): signal.signal(one, signal.SIG_IGN)\ndef attack(): signal.pause()",
        "import os\nfor one in range(3, 64):\n    try: os.dup(one)\n    except OSError: pass\n"
        "def attack(): os.read(os.pipe()[0], 1)",
    ],
    ids=["sleeps", "ignores signals", "holds its pipes"],
)
def test_a_program_that_waits_times_out(code: str, mode: str) -> None:
    started_s = time.monotonic()
    assert run(code, mode, Limits(cpu_s=1, wall_s=0.5)) == Ran([], "timeout")
    assert time.monotonic() - started_s < 10


def test_it_cannot_kill_who_watches_over_it(mode: str) -> None:
    """In a namespace its parent has no number. Without one, only another user is safe from it; nobody then knows how
    the program would have ended, and it gets no verdict."""
    ran = run("import os\ndef attack():\n    os.kill(os.getppid() or -1, 9)\n    return 'ok'", mode)
    assert ran.end == ("lost" if mode == ALONE else "ended")


def test_replies_are_bounded(mode: str) -> None:
    flood = """
import os
def attack():
    for descriptor in range(3, 64):
        try:
            while True:
                os.write(descriptor, b"x" * 4096)
        except OSError:
            pass
"""
    assert run(flood, mode, Limits(cpu_s=5, wall_s=20.0, reply_bytes=1 << 18)) == Ran([], "ended")


@pytest.mark.slow
def test_nothing_is_left_behind(mode: str, folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither files, of which some can be removed by few means only, nor processes."""
    monkeypatch.setattr(tempfile, "tempdir", str(folders))
    code = """
import os
def attack():
    for _ in range(1100):
        os.mkdir("d")
        os.chdir("d")
    os.symlink("/", "link")
    os.chmod(".", 0)
    return "ok"
"""
    assert run(code, mode) == Ran([OK], "ended")
    assert not list(folders.iterdir())
    assert not _processes_in(folders)


def _processes_in(folder: Path) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found += [process.name] if str(folder) in str((process / "cwd").readlink()) else []
        except OSError:
            continue
    return found


@pytest.mark.slow
def test_it_dies_with_bench(tmp_path: Path) -> None:
    """A killed bench leaves no program running."""
    import signal
    import subprocess

    code = (
        "from evals.shelves.code.sandbox import *\n"
        "print('on', flush=True)\n"
        "run_program(Program('import time\\ndef attack(): time.sleep(60)', 'attack', [[]]))"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[4])}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment) as bench:
        assert bench.stdout is not None and bench.stdout.readline() == b"on\n"
        deadline_s = time.monotonic() + 20
        while not _processes_in(tmp_path) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        assert _processes_in(tmp_path)
        time.sleep(0.5)
        bench.send_signal(signal.SIGKILL)
    time.sleep(0.5)
    assert not _processes_in(tmp_path)


def test_isolation_is_measured(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = isolation()
    if not _has_namespaces(mode):
        monkeypatch.setattr(sandbox, "_run", _refusing_namespaces)
        isolation.cache_clear()
        found = isolation()
        assert not found.namespaces and not found.processes
        assert found.account["namespaces"] == SHARED
    else:
        user = os.geteuid() or _sandbox.NOBODY if mode == "namespaces" else 12345
        assert found == Isolation(True, user, network=False, files=False, processes=False)
        assert found.account["network"] == "none"


_really_run = sandbox._run


def _refusing_namespaces(program: Program, limits: Limits, namespaces: bool) -> Ran:
    if namespaces:
        raise sandbox._RefusedError("not permitted")
    return _really_run(program, limits, namespaces)


def test_what_cannot_be_contained_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(program: Program, limits: Limits, namespaces: bool) -> Ran:
        raise sandbox._RefusedError("not permitted")

    monkeypatch.setattr(sandbox, "_run", refusing)
    isolation.cache_clear()
    with refuses(EvalError, "evals.shelves.code.containment_not_available", reasons="not permitted; not permitted"):
        run_program(Program("def f(): return 1", "f", [[]]))


@pytest.mark.slow
def test_several_threads_run_programs_at_once() -> None:
    found: dict[int, list[bytes]] = {}

    def ask(number: int) -> None:
        found[number] = run_program(Program("def f(x): return x", "f", [[number]]), LIMITS).replies

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: [b'{"value": %d}' % number] for number in range(6)}
