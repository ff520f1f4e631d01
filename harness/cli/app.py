"""The verbs in their groups. Verbs on shelves are found at run time instead of being imported by name.

Heavy modules are imported inside the functions, so that help and error messages appear at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from harness.cli.clean import clean
from harness.cli.compare import compare
from harness.cli.eval import eval_
from harness.cli.export import export
from harness.cli.look import diff, ls, show
from harness.cli.maintain import coldstart, cp, doctor, sync
from harness.cli.plan import plan
from harness.cli.power import power
from harness.cli.registered import freeze, verdict, verify
from harness.cli.report import report
from harness.cli.run import run
from harness.cli.status import status
from harness.cli.tune import tune
from harness.cli.verb import Verb, added
from harness.cli.worker import worker
from harness.words import said

GROUPS: dict[str, list[Callable[..., None]]] = {
    "Ask": [plan, freeze, run, worker, tune],
    "Look": [status, ls, show, diff],
    "Understand": [report, verdict, compare, power, verify, eval_, export],
    "Maintain": [doctor, clean, cp, sync, coldstart],
}

for _verb in added(Verb):
    GROUPS[_verb.group].append(_verb.run)


class Verbs(TyperGroup):
    """The formatter of `bench --help`: the verbs in their groups, each with the first sentence of its help."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        # Typer itself groups commands only if it draws boxes (`rich_help_panel`).
        column = max(map(len, self.commands))
        for group, verbs in GROUPS.items():
            named = {_name(verb): self.commands[_name(verb)] for verb in verbs}
            with formatter.section(group):
                formatter.write_dl(
                    [(name.ljust(column), one.get_short_help_str(_SENTENCE)) for name, one in named.items()]
                )


_SENTENCE = 80
"""First sentences up to this length are not truncated. A test checks that they fit next to the names."""


def _name(verb: Callable[..., None]) -> str:
    """Return the verb's name. A function whose name would hide a builtin ends with an underscore."""
    return verb.__name__.rstrip("_")


# There is no rich markup, because in logs and pipes, messages must be plain text without wrapping or boxes.
app = typer.Typer(
    name="bench",
    cls=Verbs,
    invoke_without_command=True,
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
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help=said("cli.help_main_version"))
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(2)


for _function in (verb for verbs in GROUPS.values() for verb in verbs):
    app.command(_name(_function))(_function)
