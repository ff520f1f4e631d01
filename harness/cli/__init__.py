"""The command line, `bench`: the only place that may import everything. `app` says which file holds a verb."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

from harness import OUR_PACKAGES


def main() -> None:
    """Entry point. Users' mistakes end in a message, never in a traceback; exit codes: docs/reference/exit_codes.md."""
    _refuse_namesakes()
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


def _refuse_namesakes() -> None:
    """Exit with code 2 if another package with the name of one of ours is found in its place: what it lacks would be
    told as an ImportError, and what it has would run as ours. Nothing is imported to find out."""
    ours = Path(__file__).resolve().parents[2]
    for name in OUR_PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None or Path(spec.origin).resolve().parent == ours / name:
            continue
        found = Path(spec.origin)
        stranger = found.parent if found.name == "__init__.py" else found
        if stranger.parent.resolve() in _folders_of("PYTHONPATH"):
            remedy = "Take its folder out of PYTHONPATH, or rename it."
        elif stranger.parent.resolve() == Path.cwd():
            remedy = "Run from another folder, rename it, or set PYTHONSAFEPATH=1 (python -P)."
        else:
            remedy = "Uninstall it, or install bench in an environment of its own."
        print(f"error: {stranger} stands before bench's own package {name} ({ours / name}). {remedy}", file=sys.stderr)
        sys.exit(2)


def _folders_of(variable: str) -> list[Path]:
    return [Path(folder).resolve() for folder in os.environ.get(variable, "").split(os.pathsep) if folder]
