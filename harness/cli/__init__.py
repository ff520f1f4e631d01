"""The command line, `bench`. One small file a verb; the only place that may import everything."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point. Users' mistakes are told in a message, never in a traceback; exit codes: design section 6."""
    from evals.errors import EvalError
    from harness.cli.app import app
    from harness.errors import BenchError

    try:
        # Usage errors end in here, with exit code 2; Ctrl-C with 130.
        app(prog_name="bench")
    except BenchError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except EvalError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
