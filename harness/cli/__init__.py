"""The command line, `bench`. One small file a verb; the only place that may import everything."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point. Users' mistakes are told in a message, never in a traceback; exit codes: design section 6."""
    from harness.cli.app import app
    from harness.errors import BenchError

    try:
        # Usage errors end in here, with exit code 2; Ctrl-C with 130.
        app(prog_name="bench")
    except BenchError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:
        from harness.records.files import is_disk_full

        if is_disk_full(error):
            print("error: the disk is full. Once there is room, the same command continues.", file=sys.stderr)
            sys.exit(1)
        if error.errno is None:  # not the system's word on a file, but some library's on something of ours
            raise
        print(f"error: {_about_a_file(error)}", file=sys.stderr)
        sys.exit(2)


def _about_a_file(error: OSError) -> str:
    """What the system refused, and what to do about it. A rename that fails is about its target."""
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
