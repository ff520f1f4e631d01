"""Late owners and kills at every write of the functions that write records.

An audit hook tells of each change of the file system right before it happens, in a fork that is then suspended or dies.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.records.fence import LeaseLostError, directory_of, fenced, move, remove, restore
from harness.records.files import append_jsonl, keep_jsonl, read_jsonl, write_folder, write_json
from harness.runs import run_folder

LOST, KILLED = 7, 9
CHANGES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree")


def fill(folder: Path) -> None:
    (folder / "a").write_text("new")
    (folder / "b").write_text("new")


WRITES: dict[str, Callable[[Path], None]] = {
    "replace a file": lambda folder: write_json(folder / "file.json", "new"),
    "write a file": lambda folder: write_json(folder / "other.json", "new"),
    "replace a folder": lambda folder: write_folder(folder / "kept", fill, replaces=True),
    "write a folder": lambda folder: write_folder(folder / "other", fill),
    "append a row": lambda folder: append_jsonl(folder / "rows.jsonl", [{"row": 2}]),
    "append a first row": lambda folder: append_jsonl(folder / "other.jsonl", [{"row": 1}]),
    "cut rows": lambda folder: keep_jsonl(folder / "rows.jsonl", lambda row: False),
    "remove a file": lambda folder: remove(folder / "file.json"),
    "remove a folder": lambda folder: remove(folder / "kept"),
    "move a file": lambda folder: move(folder / "file.json", folder / "kept" / "file.json"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "cell"
    (folder / "kept").mkdir(parents=True)
    (folder / "kept" / "a").write_text("old")
    (folder / "kept" / "c").write_text("old")
    write_json(folder / "file.json", "old")
    append_jsonl(folder / "rows.jsonl", [{"row": 1}])
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def in_fork(act: Callable[[], object], at: int, happen: Callable[[str], None]) -> int:
    """Do something in a fork, and let something happen there right before its change of the disk with this number."""
    if process := os.fork():
        return process
    left, code = [at], 1

    def listen(event: str, args: tuple[Any, ...]) -> None:
        if event in CHANGES or (event == "open" and isinstance(args[2], int) and args[2] & os.O_ACCMODE):
            left[0] -= 1
            if left[0] == -1:
                happen(event)

    try:
        sys.addaudithook(listen)
        act()
        code = 0
    except LeaseLostError:
        code = LOST
    finally:
        os._exit(code)


def owned(folder: Path, owner: str) -> Any:
    """Own a folder; a lease makes the directory before it can be seen."""
    directory_of(folder, owner).mkdir()
    return fenced(folder, directory_of(folder, owner))


@pytest.mark.parametrize("write", WRITES)
def test_what_a_late_owner_writes_does_not_arrive(folder: Path, write: str) -> None:
    ended = []
    for at in range(30):

        def act() -> None:
            with owned(folder, f"first{at}"):  # noqa: B023 - the fork runs at once
                WRITES[write](folder)

        process = in_fork(act, at + 1, lambda event: os.kill(os.getpid(), signal.SIGSTOP))  # after its own directory
        if not os.WIFSTOPPED(os.waitpid(process, os.WUNTRACED)[1]):
            break
        with owned(folder, f"second{at}"):
            write_json(folder / "file.json", f"second{at}")
            write_folder(folder / "kept", lambda aside: (aside / "c").write_text("second"), replaces=True)
            before, rows = contents(folder), read_jsonl(folder / "rows.jsonl")
            os.kill(process, signal.SIGCONT)
            ended.append(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
            after = contents(folder)
            # Nothing can hold back a row whose write has begun: it is for readers to drop it, by its epoch.
            if write == "append a row" and before != after:
                assert after.pop("rows.jsonl") == before.pop("rows.jsonl") + b'{"row": 2}\n'
                keep_jsonl(folder / "rows.jsonl", lambda row: row in rows)  # noqa: B023
            assert after == before, f"stopped at change {at}"
        for left in ("other.json", "other.jsonl", "other", "kept/file.json"):
            remove(folder / left)
    else:
        pytest.fail("it has more changes than were tried")
    assert LOST in ended or write == "append a row"
    assert set(ended) <= {0, LOST}


@pytest.mark.parametrize("is_owned", [False, True])
def test_a_folder_that_is_replaced_survives_a_kill_at_any_point(folder: Path, is_owned: bool) -> None:
    old = {"a": b"old", "c": b"old"}
    new = {"a": b"new", "b": b"new"}
    seen = []
    for at in range(60):
        remove(folder / "kept")
        write_folder(folder / "kept", lambda aside: [(aside / name).write_bytes(old[name]) for name in old])

        def act() -> None:
            if is_owned:
                with owned(folder, f"first{at}"):  # noqa: B023 - the fork runs at once
                    WRITES["replace a folder"](folder)
            else:
                WRITES["replace a folder"](folder)

        process = in_fork(act, at, lambda event: os._exit(KILLED))
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        if is_owned:
            with owned(folder, f"next{at}"):
                pass
        restore(folder / "kept")
        assert contents(folder / "kept") in (old, new), f"killed at change {at}"
        seen.append(contents(folder / "kept") == new)
        if code == 0:
            break
    assert seen == sorted(seen) and set(seen) == {False, True}, "the old one up to a point, the new one from there"
    assert not [path for path in folder.iterdir() if path.name.endswith(".was")]


def test_a_folder_that_cannot_be_replaced_stays(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.rename

    def rename(path: Path, target: Path) -> Path:
        if target == folder / "kept" and path.name.endswith(".tmp"):
            raise OSError("no room")
        return real(path, target)

    before = contents(folder)
    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(OSError, match="no room"):
        write_folder(folder / "kept", fill, replaces=True)
    assert contents(folder) == before


def test_results_whose_replacement_was_killed_are_found(folder: Path) -> None:
    write_json(folder / "sweep.json", {})
    folder.rename(folder.parent / ".cell.was")
    assert run_folder("cell", folder.parent) == folder
