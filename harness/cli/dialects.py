"""`bench show --as` and `--from`: an algorithm as another trainer's settings, and the algorithm of such settings."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import typer

from algorithms import active_knobs, formula
from algorithms.dialects import (
    DIALECTS,
    Translation,
    Understood,
    configs_of,
    differences,
    translate,
    understand,
    yaml_scalar,
)
from algorithms.presets import describe
from evals.yaml_file import YamlError, parse_yaml, read_text
from harness.cli.console import print_json, print_pairs
from harness.cli.options import PREFIX, find_objective, knob_text, title
from harness.errors import RefusedError, shown
from harness.settings import dotted


def show_elsewhere(name: str, as_: str | None, from_: str | None, settings: Sequence[str], json: bool) -> None:
    """Show an algorithm as another trainer's settings (--as), or the algorithm of such settings (--from).

    name: an algorithm with --as, a file with --from. Raises RefusedError if this is not possible.
    """
    if as_ is not None and from_ is not None:
        raise RefusedError("cli.as_and_from_together")
    if from_ is None:
        translation = translate(DIALECTS.find(str(as_)), find_objective(name, settings))
        if json:
            print_json(_translation_document(translation))
        else:
            _print_translation(title(name, settings), translation)
        return
    if settings:
        raise RefusedError("cli.set_with_from", setting=settings[0])
    dialect_name, _, config_name = from_.partition(":")
    dialect = DIALECTS.find(dialect_name)
    given = read_settings(Path(name))
    configs = configs_of(dialect, given, config_name or None)
    try:
        understood = understand(dialect, configs[0], given)
    except RefusedError as error:
        raise RefusedError("\n".join(f"{name}: {line}" for line in str(error).splitlines())) from None
    others = [config.name for config in configs[1:]]
    if json:
        print_json(_understood_document(understood, others))
    else:
        _print_understood(name, understood, others)


def _translation_document(translation: Translation) -> dict[str, object]:
    return {
        "trainer": translation.dialect.title,
        "config": translation.config.name,
        "verdict": translation.verdict,
        "settings": dict(translation.written.settings),
        "beside": {f"{PREFIX}{knob}": where for knob, where in translation.written.beside.items()},
        "differs": {f"{PREFIX}{knob}": {"here": a, "there": b} for knob, (a, b) in translation.differs.items()},
        "beyond_the_knobs": dict(translation.point.outside),
        "cannot_act_in_one_step": {f"{PREFIX}{knob}": reason for knob, reason in translation.inert.items()},
        "limits": list(translation.point.limits),
        "checked": translation.dialect.checked,
    }


def _print_translation(name: str, translation: Translation) -> None:
    dialect, config = translation.dialect, translation.config
    nearest = "; the nearest:" if translation.lost else ""
    typer.echo(f"{name} for {dialect.title}, {config.name}: {translation.verdict}{nearest}\n")
    lines = {setting: dialect.line(setting, value) for setting, value in translation.written.settings.items()}
    width = max(map(len, lines.values()))
    for setting, line in lines.items():
        default = config.defaults[setting]
        kept = translation.written.settings[setting] == default
        typer.echo(line if kept else f"{line.ljust(width)}  # default: {yaml_scalar(default)}")
    print_pairs("\nsaid elsewhere", {f"{PREFIX}{knob}": text for knob, text in translation.written.beside.items()})
    differs = {
        f"{PREFIX}{knob}": f"{knob_text(a)} here, {knob_text(b)} there" for knob, (a, b) in translation.differs.items()
    }
    for knob in translation.inert:
        differs[f"{PREFIX}{knob}"] += "; cannot act with one optimiser step per rollout"
    print_pairs("\ndiffers in", differs | dict(translation.point.outside))
    _print_limits(translation.point.limits)
    typer.echo(f"\nchecked: {dialect.checked}")


def _understood_document(understood: Understood, others: Sequence[str]) -> dict[str, object]:
    return {
        "trainer": understood.dialect.title,
        "config": understood.config.name,
        "fits_too": list(others),
        "knobs": active_knobs(understood.objective),
        "formula": formula(understood.objective),
        "expected": {
            said: {"algorithm": name, "differs": _apart(understood, name)} for said, name in understood.expected.items()
        },
        "start": understood.start,
        "moves": {f"{PREFIX}{knob}": value for knob, value in understood.moves.items()},
        "beyond_the_knobs": dict(understood.point.outside),
        "limits": list(understood.point.limits),
        "run": understood.run_knobs,
        "checked": understood.dialect.checked,
    }


def _apart(understood: Understood, name: str) -> dict[str, dict[str, object]]:
    """Return the knobs in which the settings differ from the preset with this name."""
    pairs = differences(describe(name).objective, understood.objective)
    return {f"{PREFIX}{knob}": {name: a, "here": b} for knob, (a, b) in pairs.items()}


def _print_understood(name: str, understood: Understood, others: Sequence[str]) -> None:
    dialect, config = understood.dialect, understood.config
    typer.echo(f"{name} as {config.name} of {dialect.title}")
    if others:
        ways = " or ".join(f"--from {dialect.name}:{other}" for other in others)
        typer.echo(f"its settings also fit other trainers: {ways}")
    print_pairs("\nknobs (objective.*)", {k: knob_text(v) for k, v in active_knobs(understood.objective).items()})
    print_pairs("\nformula", formula(understood.objective))
    for said, promised in understood.expected.items():
        apart = {
            knob: f"{knob_text(pair[promised])} in {promised}, {knob_text(pair['here'])} here"
            for knob, pair in _apart(understood, promised).items()
        }
        print_pairs(f"\n{said} makes one expect {promised}, which differs in", apart)
        if not apart:
            typer.echo(f"\n{said} makes one expect {promised}, and that is what it is")
    moves = "".join(f" --set {PREFIX}{knob}={yaml_scalar(value)}" for knob, value in understood.moves.items())
    typer.echo(f"\nthe same here: bench show {understood.start}{moves}")
    print_pairs("\nbeyond the knobs, so that the above is only the nearest", dict(understood.point.outside))
    _print_limits(understood.point.limits)
    print_pairs("\nbeside the objective", {knob: knob_text(value) for knob, value in understood.run_knobs.items()})
    typer.echo(f"\nchecked: {dialect.checked}")


def _print_limits(limits: Sequence[str]) -> None:
    if limits:
        typer.echo("\nlimits")
    for limit in limits:
        typer.echo(f"  {limit}")


def read_settings(path: Path) -> dict[str, object]:
    """Return the settings in a file by dotted names.

    The file may be YAML or JSON (including a list of Hydra's overrides), TOML, or a script with the trainer's command
    line. Raises RefusedError if the file contains no settings.
    """
    try:
        text = read_text(path)
        if path.suffix in (".yaml", ".yml", ".json"):
            document = parse_yaml(text)
        elif path.suffix == ".toml":
            document = tomllib.loads(text)
        else:
            document = _of_command_line(text)
    except FileNotFoundError:
        raise RefusedError("cli.settings_file_missing", path=path) from None
    except (YamlError, tomllib.TOMLDecodeError) as error:
        raise RefusedError("cli.in_file", path=path, error=error) from None
    if isinstance(document, list) and all(isinstance(one, str) for one in document):
        document = dict(filter(None, map(_override, document)))
    if not isinstance(document, dict) or not document:
        raise RefusedError("cli.file_without_settings", path=path, document=shown(document))
    return {name: value for name, value in dotted(document).items() if value != {}}


def _of_command_line(text: str) -> dict[str, object]:
    """Return the settings in a shell script.

    These are all of Hydra's overrides in it. If there are none, they are the options `--key value` and `--flag` of the
    trainer's command, or of an array that is part of it. Variables that the script sets are filled in.
    """
    try:
        words = shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise YamlError("cli.unreadable_shell_script", error=error) from None
    # Options before the last `-m` belong to a launcher, unless their names contain a dot.
    command = max((place for place, word in enumerate(words) if word == "-m"), default=-1)
    variables: dict[str, str] = {}
    overrides: dict[str, object] = {}
    options: dict[str, list[object]] = {}
    option: str | None = None
    for place, word in enumerate(_filled(word, variables) for word in words):
        name, equals, value = word.removeprefix("--").partition("=")
        if (override := _override(word)) is not None:
            overrides.update([override])
        elif word.startswith("--") and ("." in name or place > command):
            options[name] = [_value(value)] if equals else []
            option = None if equals else name
        elif word.startswith("--") or word in ("(", ")") or "@" in word:
            option = None
        elif equals and name.isidentifier():
            variables[name] = value
            option = None
        elif option is not None:
            options[option].append(_value(word))
    return overrides or {name: values[0] if len(values) == 1 else values or True for name, values in options.items()}


def _filled(word: str, variables: Mapping[str, str]) -> str:
    """Return a word in which known `$name`, `${name}` and `${name:-default}` are filled in. The rest is not changed."""

    def value(found: re.Match[str]) -> str:
        return variables.get(found[1] or found[3], found[0] if found[2] is None else found[2])

    return re.sub(r"\$(?:\{(\w+)(?::-([^{}]*))?\}|(\w+))", value, word)


def _override(word: str) -> tuple[str, object] | None:
    """Return the name and value of Hydra's `+section.key=value`, or None for any other word."""
    found = re.fullmatch(r"\+{0,2}([A-Za-z_]\w*(?:\.\w+)+)=(.*)", word, re.DOTALL)
    return None if found is None else (found[1], _value(found[2]))


def _value(text: str) -> object:
    """Return a value parsed as YAML, also accepting True, False and None as written in Python."""
    try:
        value = parse_yaml(text)
    except YamlError:
        return text
    return {"True": True, "False": False, "None": None}.get(value, value) if isinstance(value, str) else value
