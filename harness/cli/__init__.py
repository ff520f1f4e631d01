"""The command line, `bench`. One small file a verb; the only place that may import everything."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point. Users' mistakes are told in a message, never in a traceback."""
    import click

    from evals.errors import EvalError
    from harness.cli.app import app
    from harness.errors import BenchError

    try:
        code = app(standalone_mode=False)
    except click.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except BenchError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except EvalError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    sys.exit(code if isinstance(code, int) else 0)
