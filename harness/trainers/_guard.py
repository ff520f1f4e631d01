"""Runs a program at the head of a process group, and ends the group when bench is gone, for whatever reason.

It is started by its path, so that it imports nothing of bench except the redactor for the program's output:

 _guard.py <grace_s> <variables with secrets, separated by commas> <word> ...

A line on stdin asks the program to stop (SIGTERM). The end of stdin means that bench wants to end the program, or has
itself ended: after `grace_s` the whole group is killed. The guard exits with the program's exit code, with 128 + the
signal's number if a signal ended the program, and with 127 if the program could not be started.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

LOOK_EVERY_S = 0.05
COPIED_WITHIN_S = 0.5


def main() -> None:
    """Start the program on the command line, copy its output, and end it when stdin says so."""
    grace_s, variables, argv = float(sys.argv[1]), sys.argv[2].split(","), sys.argv[3:]
    sys.path.append(str(Path(__file__).parents[2]))
    from harness.secrets import copy_redacted, register_variable

    for name in variables:
        register_variable(name)
    # Handlers are used instead of SIG_IGN, which the program would inherit. The guard must survive signals to its
    # group.
    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, lambda number, frame: None)
    try:
        program = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, process_group=0
        )
    except OSError as error:
        print(f"{argv[0]}: cannot be started ({error.strerror})", file=sys.stderr, flush=True)
        os._exit(127)
    assert program.stdout is not None
    copying = threading.Thread(target=copy_redacted, args=(program.stdout.fileno(), 1), daemon=True)
    copying.start()
    while program.poll() is None:
        if select.select([0], [], [], LOOK_EVERY_S)[0]:
            is_over = not os.read(0, 1024)
            send(program.pid, signal.SIGTERM)
            if is_over:
                end_s = time.monotonic() + grace_s
                while program.poll() is None and time.monotonic() < end_s:
                    time.sleep(LOOK_EVERY_S)
                break
    # The group may still contain processes that the program left behind.
    send(program.pid, signal.SIGKILL)
    code = program.wait()
    # This takes longer only if a process outside the group has the pipe open.
    copying.join(COPIED_WITHIN_S)
    os._exit(code if code >= 0 else 128 - code)


def send(group: int, number: int) -> None:
    """Send a signal to a process group, if the group still exists and belongs to this user."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


if __name__ == "__main__":
    main()
