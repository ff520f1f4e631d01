"""The command line, `bench`. One small file a verb; the only place that may import everything."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point. Users' mistakes are told in a message, never in a traceback; exit codes: design section 6."""
    from evals.errors import EvalError
    from harness.cli.app import app
    from harness.errors import BenchError
    from harness.records.files import DamagedRecordError

    try:
        # Usage errors end in here, with exit code 2; Ctrl-C with 130.
        app(prog_name="bench")
    except BenchError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except (EvalError, DamagedRecordError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        from harness.run.jobs import is_disk_full

        if not is_disk_full(error):
            raise
        print("error: the disk is full. Once there is room, the same command continues.", file=sys.stderr)
        sys.exit(1)
