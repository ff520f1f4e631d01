"""Arguments and options that several verbs share."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.completion import run_names, sweep_names
from harness.errors import RefusedError, note
from harness.words import said

if TYPE_CHECKING:
    from algorithms import AnyObjective

SWEEP_ARGUMENT = typer.Argument(
    autocompletion=sweep_names,
    help=said("cli.help_sweep"),
)
SweepArgument = Annotated[str, SWEEP_ARGUMENT]
RunArgument = Annotated[
    str,
    typer.Argument(autocompletion=run_names, help=said("cli.help_run")),
]
HomeOption = Annotated[Path | None, typer.Option("--home", metavar="DIR", help=said("cli.help_home"))]
# Every verb accepts --home, so that scripts need not know which verbs read runs.
UnusedHomeOption = Annotated[Path | None, typer.Option("--home", metavar="DIR", hidden=True)]
JsonOption = Annotated[bool, typer.Option("--json", help=said("cli.help_json"))]
OpenOption = Annotated[bool, typer.Option("--open", help=said("cli.help_open"))]
ProfileOption = Annotated[
    str | None,
    typer.Option("--profile", metavar="P", help=said("cli.help_profile")),
]
SetOption = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help=said("cli.help_set"))]
SeedsOption = Annotated[
    int | None,
    typer.Option("--seeds", metavar="N", help=said("cli.help_seeds")),
]
EvalSamplesOption = Annotated[
    int | None,
    typer.Option(
        "--eval-samples",
        metavar="N",
        min=1,
        help=said("cli.help_final_samples"),
    ),
]
ArmsOption = Annotated[str | None, typer.Option("--arms", metavar="A,B", help=said("cli.help_arms"))]

PluginOption = Annotated[
    list[str] | None,
    typer.Option("--plugin", metavar="MODULE", help=said("cli.help_plugin")),
]


def _trust_code(yes: bool) -> bool:
    """Store whether code that comes with the records may run, before any verb reads records."""
    from harness.plugins import user_code

    user_code.trust_all(yes)
    return yes


TrustOption = Annotated[
    bool,
    typer.Option(
        "--trust-code",
        callback=_trust_code,
        help=said("cli.help_trust"),
    ),
]

PREFIX = "objective."


def knob_text(value: object) -> str:
    return "none" if value is None else str(value)


def find_objective(name: str, settings: Sequence[str]) -> AnyObjective:
    """Return a preset with the overrides of `--set objective.<knob>=value`.

    Raises RefusedError for an unknown preset, other knobs and invalid values.
    """
    from algorithms import active_knobs, preset, with_overrides
    from harness.plan.sweep_file import parse_settings
    from harness.settings.faults import FaultyError

    objective = preset(name)
    parsed = parse_settings(settings)
    others = [key for key in parsed if not key.startswith(PREFIX)]
    if others:
        knob, value = next(iter(active_knobs(objective).items()))
        raise RefusedError("cli.not_an_objective_knob", setting=others[0], prefix=PREFIX, knob=knob, value=value)
    try:
        return with_overrides(objective, {key.removeprefix(PREFIX): value for key, value in parsed.items()}, PREFIX)
    except FaultyError as error:
        raise RefusedError("\n".join(f"--set: {fault.line}" for fault in error.faults)) from None


def title(name: str, settings: Sequence[str]) -> str:
    """Return the name of an algorithm with its overrides, such as `grpo with rule.clip_high=0.28`."""
    changes = ", ".join(setting.strip().removeprefix(PREFIX) for setting in settings)
    return f"{name} with {changes}" if changes else name


def use_plugins(names: list[str] | None) -> None:
    """Load the modules of --plugin. Raises RefusedError if one cannot be found or imported."""
    if names:
        from harness import plugins

        plugins.use(names, [], named_by="--plugin")


def question_in(home: Path, sweep: str, asks_anew: bool) -> str:
    """Return where to read the question: the records of a sweep, if only the name of a sweep that was run is given.

    asks_anew: whether options change the question. If so, a shipped sweep of that name is used instead of the records.
    """
    from harness.plan.sweep_file import KEPT, SHIPPED, shipped
    from harness.records import read_sweep

    folder = home / sweep
    # A path or a file name states where the question is.
    if Path(sweep).name != sweep or Path(sweep).suffix or (asks_anew and sweep in shipped(SHIPPED)):
        return sweep
    if not (folder / "sweep.json").is_file():
        return sweep
    record = read_sweep(folder)
    if (asked := record.asked) is None:
        return str(folder) if record.is_imported else sweep
    # Without a kept sweep file, only a shipped sweep or the original file can state the question.
    if not (folder / KEPT / asked.file).is_file():
        return sweep
    options = [word for setting in asked.settings for word in ("--set", setting)]
    options += ["--profile", asked.profile] if sweep in shipped(SHIPPED) else []
    options += ["--seeds", str(asked.seeds)] if asked.seeds is not None else []
    options += ["--arms", ",".join(asked.arms)] if asked.arms else []
    note(f"continuing {folder} with the options of its last run{': ' if options else ''}{shlex.join(options)}")
    return str(folder)


def words(option: str, given: str | None) -> list[str]:
    """Return the words between commas, or [] if `given` is None. Raises RefusedError if there are no words."""
    if given is None:
        return []
    found = [word.strip() for word in given.split(",") if word.strip()]
    if not found:
        raise RefusedError("cli.not_a_name_list", option=option, given=given)
    return found


def whole_numbers(option: str, given: str, least: int = 1) -> list[int]:
    """Return the integers between commas. Raises RefusedError for anything else, and for an integer below `least`."""
    found = words(option, given)
    if not all(word.isdecimal() and int(word) >= least for word in found):
        kind = "positive integers" if least else "integers"
        raise RefusedError("cli.not_numbers", option=option, given=given, kind=kind)
    return [int(word) for word in found]


def with_eval_samples(settings: list[str] | None, eval_samples: int | None) -> list[str]:
    """Return the settings of --set, plus the setting that --eval-samples stands for."""
    return [*(settings or []), *([] if eval_samples is None else [f"eval.samples={eval_samples}"])]


def command_line(
    verb: str,
    sweep: str,
    profile: str | None,
    settings: list[str] | None,
    seeds: int | None,
    arms: str | None = None,
) -> str:
    """Return the command that creates these records, for captions."""
    parts = ["bench", verb, sweep]
    parts += ["--profile", profile] if profile else []
    parts += [word for setting in settings or [] for word in ("--set", setting)]
    parts += ["--seeds", str(seeds)] if seeds is not None else []
    parts += ["--arms", arms] if arms else []
    return shlex.join(parts)
