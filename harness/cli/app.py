"""The verbs, gathered. Each is a function in a file of its own; heavy imports wait inside the functions."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.cli.coldstart import coldstart
from harness.cli.compare import compare
from harness.cli.cp import cp
from harness.cli.diff import diff
from harness.cli.doctor import doctor
from harness.cli.eval import eval_
from harness.cli.ls import ls
from harness.cli.plan import plan
from harness.cli.power import power
from harness.cli.probe import probe
from harness.cli.replay import replay
from harness.cli.report import report
from harness.cli.run import run
from harness.cli.show import show
from harness.cli.status import status
from harness.cli.sync import sync
from harness.cli.tune import tune

# No rich markup: off a terminal, and in logs, messages must be plain text without wrapping or boxes.
app = typer.Typer(
    name="bench",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Does this knob of RL post-training help, and how sure are we?\n\nExample: bench run std_norm",
)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"bench {version('bench-rl')}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


_RUNNING = (run, tune, plan, status, report, compare, power, replay, eval_)
_LOOKING = (ls, show, diff, cp, probe, coldstart, sync, doctor)
for _verb in (*_RUNNING, *_LOOKING):
    app.command(_verb.__name__.rstrip("_"))(_verb)
