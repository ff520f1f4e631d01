"""An objective as named on the command line: a preset with `--set objective.<knob>=value`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from harness.errors import RefusedError

if TYPE_CHECKING:
    from algorithms import AnyObjective

PREFIX = "objective."


def find_objective(name: str, settings: Sequence[str]) -> AnyObjective:
    """The preset, moved by the settings. Raises RefusedError for an unknown name, other keys and bad values."""
    from algorithms import active_knobs, preset, with_overrides
    from harness.plan.sweep_file import parse_settings

    objective = preset(name)
    parsed = parse_settings(settings)
    others = [key for key in parsed if not key.startswith(PREFIX)]
    if others:
        knob, value = next(iter(active_knobs(objective).items()))
        raise RefusedError(
            f"--set {others[0]}: only knobs of the objective can be set here, e.g. --set {PREFIX}{knob}={value}."
        )
    try:
        return with_overrides(objective, {key.removeprefix(PREFIX): value for key, value in parsed.items()})
    except ValueError as error:
        raise RefusedError("\n".join(f"--set: objective: {line}" for line in str(error).splitlines())) from None


def title(name: str, settings: Sequence[str]) -> str:
    """`grpo with rule.clip_high=0.28`."""
    changes = ", ".join(setting.strip().removeprefix(PREFIX) for setting in settings)
    return f"{name} with {changes}" if changes else name


def shown(value: Any) -> str:
    """A knob's value for people."""
    return "none" if value is None else str(value)
