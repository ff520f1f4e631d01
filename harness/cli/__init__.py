"""The command line, `bench`: the only package that may import everything. `app` lists the file of each verb."""

from __future__ import annotations

import os
import re
import select
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from harness.namesakes import require_own_packages
from harness.secrets import redact, redact_output

if TYPE_CHECKING:
    from typer import TyperException

_LONG_WORD = re.compile(r"\S{500,}")
INTERRUPTED = 130
OUTPUT_CLOSED = 141
"""The shell's exit code for a program that wrote to a pipe without a reader: 128 + SIGPIPE."""


def main() -> None:
    """Run the command line. A user's mistake ends in a message, never in a traceback.

    The exit codes are listed in docs/reference/exit_codes.md.
    """
    # A stream is None if the shell closed it. /dev/null is opened in its place. Otherwise the next file that is opened
    # would get its descriptor, and output of a library or subprocess would end up in a record.
    sys.stdout = sys.stdout or Path(os.devnull).open("w")  # noqa: SIM115
    sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115
    redact_output()
    # A notebook's kernel sets this for its child processes, to a matplotlib backend that may not be installed here.
    os.environ.pop("MPLBACKEND", None)
    try:
        code = _exit_code()
    except KeyboardInterrupt:
        code = _refused("interrupted.", INTERRUPTED)
    sys.exit(code)


def _exit_code() -> int:
    """Run the command line and flush its output. Return the exit code. Bugs in bench are raised."""
    from typer import TyperException

    from harness.errors import BenchError

    try:
        require_own_packages()
        from harness.cli.app import app

        code = app(prog_name="bench", standalone_mode=False) or 0
        if code == INTERRUPTED:  # typer's exit code for Ctrl-C
            raise KeyboardInterrupt
        sys.stdout.flush()
    # Typer turns a BrokenPipeError into a SystemExit.
    except (SystemExit, BrokenPipeError):
        if _silence_closed_outputs():
            return OUTPUT_CLOSED
        raise
    except TyperException as error:
        return _refused(_usage(error), error.exit_code)
    except BenchError as error:
        return _refused(str(error), error.exit_code)
    except OSError as error:
        from harness.records.files import is_disk_full

        if is_disk_full(error):
            return _refused("the disk is full. Once there is room, the same command continues.", 1)
        # Without an error number, this is not the system's error about a file but a library's, and thus a bug in bench.
        if error.errno is None:
            raise
        return _refused(_about_a_file(error), 2)
    return int(code)


def _refused(message: str, code: int) -> int:
    """Print the reason on stderr, if possible. Return the exit code.

    Words that are too long for a name or path, such as a number with thousands of digits, are shortened.
    """
    message = _LONG_WORD.sub(lambda word: f"{word[0][:100]}...{word[0][-20:]}", redact(message))
    with suppress(OSError):
        sys.stdout.flush()
    with suppress(OSError):
        print(f"error: {message}", file=sys.stderr, flush=True)
    _silence_closed_outputs()
    return code


def _silence_closed_outputs() -> bool:
    """Return whether an output is closed or full. Redirect such outputs to /dev/null.

    Otherwise Python would report an error about them when it exits.
    """
    broken = [stream for stream in (sys.__stdout__, sys.__stderr__) if stream is not None and _is_broken(stream)]
    for stream in broken:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return bool(broken)


def _is_broken(stream: TextIO) -> bool:
    """Return whether a stream is full or has no reader."""
    try:
        stream.flush()
    except OSError:
        return True
    # After a failed write, the buffer may be empty, so a flush proves nothing. poll() detects a pipe without a reader.
    watched = select.poll()
    watched.register(stream.fileno(), 0)
    return any(event & select.POLLERR for _, event in watched.poll(0))


def _usage(error: TyperException) -> str:
    """Return a message about a mistake in the command line, in the form of bench's own errors: value, rule, help."""
    from pydantic import ValidationError

    message = error.format_message()
    if found := re.fullmatch(r"Invalid value for '?([^':]+)'?: (.*)", message, re.DOTALL):
        option, rule = found.groups()
        given = ""
        if isinstance(error.__cause__, ValidationError):
            first = error.__cause__.errors()[0]
            rule, given = first["msg"], f" is {first['input']!r}"
        message = f"{option}{given}: {rule[:1].lower()}{rule[1:]}"
    message = message[:1].lower() + message[1:]
    context = getattr(error, "ctx", None)
    verb = "bench" if context is None else context.command_path
    return f"{message}{'' if message.endswith(('.', '?')) else '.'} `{verb} --help` shows what it takes."


def _about_a_file(error: OSError) -> str:
    """Return a message about a file operation that the system refused, with a remedy."""
    # A rename has two paths. If it fails, the message should name the target.
    path = error.filename2 or error.filename
    match error:
        case FileNotFoundError():
            remedy = "Restore it, or run again what makes it"
        case IsADirectoryError() | NotADirectoryError() | FileExistsError():
            remedy = "Something else has its name or that of its folder: move that away"
        case PermissionError():
            remedy = "Make it yours to read and write, or choose another place with --home DIR or BENCH_HOME"
        case _:
            remedy = "Once that is mended, the same command continues"
    return f"{f'{path}: ' if path else ''}{error.strerror}. {remedy}."
