"""Other trainers' settings for an objective, and the objective that such settings compute.

A dialect is one file of this folder, or of a plug-in: a trainer with its configs. A config has two functions: `write`
finds the settings nearest to a point of our space, `read` says at which point settings are. A translation reads back
what it wrote. Where the two points differ the trainer cannot express the objective, and the difference names the knobs:
no loss of meaning goes unnoticed as long as `read` is right, and `read` is what the tests hold against the trainers'
own losses.

Points are mappings of knobs (`rule.clip_high`), as `active_knobs` gives them, so that neither function needs torch or
the trainer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from algorithms.noop import differences_that_cannot_act
from algorithms.objective import Objective
from algorithms.overrides import AnyObjective, Family, family_of, with_overrides
from algorithms.preference.objective import PreferenceObjective
from algorithms.presets import describe, presets
from harness.errors import RefusedError, UnknownNameError, nearest, shown
from harness.plugins import Kind
from harness.settings import KnobValue, active_knobs, defaults

Settings = Mapping[str, Any]
"""A trainer's settings by their dotted names."""
Knobs = Mapping[str, KnobValue]

GUARDS = frozenset({"scale_eps", "refill_max_rounds"})
"""Knobs against a division by 0 or a draw without end: a trainer that fixes them elsewhere has the same objective."""
UNBOUNDED = 1e9
"""As a bound of a ratio: none. Ratios are at most e^20, 4.9e8."""
_MOST_RATIO = 4.85e8


@dataclass(frozen=True)
class Point:
    """An objective, as settings say it."""

    knobs: Knobs
    """Knobs of the objective. Those left out have our defaults."""
    outside: Mapping[str, str] = field(default_factory=dict)
    """Settings, each with what it does that no knob does; the knobs are then only the nearest."""
    limits: tuple[str, ...] = ()
    """Where the trainer departs from the knobs in extreme cases or in what it counts."""


@dataclass(frozen=True)
class Written:
    """The settings nearest to an objective."""

    settings: Settings
    beside: Mapping[str, str] = field(default_factory=dict)
    """Knobs, or groups of them, that the trainer has outside the config's own settings, each with where."""


@dataclass(frozen=True)
class Config:
    """One class or file of settings of a trainer."""

    name: str
    family: Family
    defaults: Settings
    """The settings that say what the objective is, with the values that they have if they are left out."""
    write: Callable[[Knobs], Written]
    read: Callable[[Given], Point]
    promise: str | None = None
    """The preset that its own name makes one expect."""
    promises: Mapping[tuple[str, Any], str] = field(default_factory=dict)
    """(setting, value) -> the preset that this makes one expect."""
    plain: Mapping[str, str] = field(default_factory=dict)
    """Settings that are knobs of a run outside its objective, each with the knob."""
    others: Collection[str] = ()
    """Settings that say nothing of the objective; `trainer.*` stands for a whole section."""

    def knows(self, setting: str) -> bool:
        """Return whether the trainer has such a setting, or one of which it is a part."""
        parts = setting.split(".")
        wholes = {".".join(parts[: place + 1]) for place in range(len(parts))}
        return not self._names.isdisjoint(wholes | {f"{whole}.*" for whole in wholes})

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset((*self.defaults, *self.plain, *self.others))

    def require_known(self, settings: Settings) -> None:
        """Raises RefusedError that names the settings which the trainer does not have."""
        unknown = [setting for setting in settings if not self.knows(setting)]
        if unknown:
            names = sorted(name.removesuffix(".*") for name in self._names)
            lines = (f"{self.name} has no setting {shown(one)}{nearest(one, names)}" for one in unknown)
            raise RefusedError("\n".join(lines))


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """A trainer, and how it says an objective."""

    name: str
    title: str
    """With the version that the mapping was made for."""
    summary: str
    checked: str
    """The code and version that the mapping was compared with."""
    line: Callable[[str, Any], str] = lambda setting, value: f"{setting}: {yaml_scalar(value)}"
    """How the trainer's users write a setting."""
    configs: tuple[Config, ...]
    """Where several fit an objective equally well, the first is taken."""


DIALECTS: Kind[Dialect] = Kind(
    "dialect",
    lambda thing: isinstance(thing, Dialect),
    "algorithms.elsewhere",
    "bench ls dialects",
    about_of=lambda dialect: f"{dialect.title}\nchecked: {dialect.checked}",
)


class Given:
    """The settings of a config, with its defaults for those left out. Every getter raises RefusedError for a value that
    the trainer would not take either."""

    def __init__(self, config: Config, settings: Settings) -> None:
        self._name, self._all = config.name, {**config.defaults, **settings}

    def __getitem__(self, setting: str) -> Any:
        return self._all[setting]

    def has(self, setting: str) -> bool:
        """Return whether it is anything but none, or something within it is set."""
        return self._all.get(setting) is not None or any(one.startswith(f"{setting}.") for one in self._all)

    def number(self, setting: str) -> float:
        value = self._all[setting]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refused(setting, "a number")
        return float(value)

    def optional(self, setting: str) -> float | None:
        """A number or none."""
        return None if self._all[setting] is None else self.number(setting)

    def flag(self, setting: str) -> bool:
        if not isinstance(self._all[setting], bool):
            raise self.refused(setting, "true or false")
        return bool(self._all[setting])

    def one_of(self, setting: str, values: Collection[str]) -> str:
        if self._all[setting] not in values:
            raise self.refused(setting, f"one of {', '.join(values)}")
        return str(self._all[setting])

    def numbers(self, setting: str, count: int) -> list[float]:
        value = self._all[setting]
        if not isinstance(value, list | tuple) or len(value) != count:
            raise self.refused(setting, f"{count} numbers")
        if any(isinstance(one, bool) or not isinstance(one, int | float) for one in value):
            raise self.refused(setting, f"{count} numbers")
        return [float(one) for one in value]

    def refused(self, setting: str, rule: str) -> RefusedError:
        """The error for a value that breaks the rule."""
        return RefusedError(f"{setting}={shown(self._all[setting])}: {self._name} takes {rule} here.")


@dataclass(frozen=True)
class Translation:
    """An objective in the settings of a config."""

    objective: AnyObjective
    dialect: Dialect
    config: Config
    written: Written
    point: Point
    """Where the written settings are."""
    reads_as: AnyObjective
    """The same as an objective."""

    @cached_property
    def differs(self) -> dict[str, tuple[KnobValue, KnobValue]]:
        """Knob -> its value in the objective, and what the trainer has there."""
        differs = differences(self.objective, self.reads_as)
        return {knob: pair for knob, pair in differs.items() if not self._is_beside(knob)}

    @property
    def lost(self) -> list[str]:
        """The knobs, and the settings beyond them, because of which the trainer cannot express the objective; empty if
        it can. GUARDS are not among them."""
        return [*(knob for knob in self.differs if knob not in GUARDS), *self.point.outside]

    @cached_property
    def inert(self) -> dict[str, str]:
        """Return the differences that cannot act with one optimiser step per rollout, each with the reason."""
        if not isinstance(self.objective, Objective) or not isinstance(self.reads_as, Objective):
            return {}
        inert = differences_that_cannot_act(self.objective, self.reads_as, 1)
        return {knob: reason for knob, reason in inert.items() if knob in self.differs}

    @property
    def verdict(self) -> str:
        """In a few words."""
        if not self.lost:
            return "the same" if not self.differs else f"the same but for {', '.join(self.differs)}"
        if not [one for one in self.lost if one not in self.inert]:
            return "the same with one optimiser step per rollout"
        return "cannot be expressed"

    def _is_beside(self, knob: str) -> bool:
        return any(knob == group or knob.startswith(f"{group}.") for group in self.written.beside)


def translate(dialect: Dialect, objective: AnyObjective) -> Translation:
    """The objective in the trainer's settings: exact where it can express it, else the nearest; see `Translation`.

    Raises RefusedError if the trainer has nothing for the objective's family.
    """
    family = family_of(objective)
    found = [_translated(dialect, config, objective) for config in dialect.configs if config.family == family]
    if not found:
        kind = "pairs of completions" if family == "preference" else "rewards"
        raise RefusedError(f"{dialect.title} has no trainer here that learns from {kind}.")
    return min(found, key=lambda one: _distance(one.objective, one.reads_as) + len(one.point.outside))


def _translated(dialect: Dialect, config: Config, objective: AnyObjective) -> Translation:
    written = config.write(active_knobs(objective))
    point = config.read(Given(config, written.settings))
    return Translation(objective, dialect, config, written, point, _objective_at(config, point))


@dataclass(frozen=True)
class Understood:
    """An objective as the settings of a config compute it."""

    dialect: Dialect
    config: Config
    given: Settings
    point: Point
    objective: AnyObjective

    @cached_property
    def expected(self) -> dict[str, str]:
        """Map what in the settings bears an algorithm's name to that preset. The config's own name counts where no
        setting that could bear one is given."""
        said = {
            f"{setting}={value}": name
            for (setting, value), name in self.config.promises.items()
            if setting in self.given and self.given[setting] in (value, [value])
        }
        named_otherwise = any(setting in self.given for setting, _ in self.config.promises)
        own = self.config.promise
        return said or ({} if own is None or named_otherwise else {self.config.name: own})

    @cached_property
    def start(self) -> str:
        """The preset from which `moves` lead to it: the first that it makes one expect, else the nearest."""
        counts = {name: _distance(describe(name).objective, self.objective) for name in presets(self.config.family)}
        return next(iter(self.expected.values()), min(counts, key=counts.__getitem__))

    @cached_property
    def moves(self) -> dict[str, KnobValue]:
        """The overrides that lead from the preset `start` to it."""
        preset, knobs = active_knobs(describe(self.start).objective), active_knobs(self.objective)
        moved = {knob for knob, value in knobs.items() if preset.get(knob) != value or knob not in preset}
        # A group whose type changes starts from the defaults of its knobs.
        anew = {knob.rpartition(".")[0] for knob in moved if knob.endswith((".type", ".where"))}
        moved |= {knob for knob in knobs if knob.rpartition(".")[0] in anew}
        default = defaults(self.objective)
        return {
            knob: knobs[knob]
            for knob in knobs
            if knob in moved and (knobs[knob] != default[knob] or (knob in preset and preset[knob] != knobs[knob]))
        }

    @cached_property
    def run_knobs(self) -> dict[str, KnobValue]:
        """Knobs outside the objective that the settings also say, with the values as they are given."""
        said = {knob: self.given[setting] for setting, knob in self.config.plain.items() if setting in self.given}
        return {knob: value for knob, value in said.items() if isinstance(value, str | int) or _is_number(value)}


def understand(dialect: Dialect, config: Config, settings: Settings) -> Understood:
    """Return the objective of these settings; the config's defaults stand for those left out.

    Raises RefusedError for settings that the config does not have, values that it does not take, and combinations that
    no objective has.
    """
    config.require_known(settings)
    point = config.read(Given(config, settings))
    try:
        objective = _objective_at(config, point)
    except ValueError as error:
        problems = "; ".join(line.rstrip(".") for line in str(error).splitlines())
        raise RefusedError(f"These settings of {config.name} are no objective: {problems}.") from None
    return Understood(dialect, config, settings, point, objective)


def configs_of(dialect: Dialect, settings: Settings, name: str | None = None) -> list[Config]:
    """The configs that settings may belong to, the likeliest first: the named one; those that have all of them; or, if
    there is none, the one that has the most.

    Raises UnknownNameError for a name that no config has.
    """
    if name is not None:
        by_name = {config.name.lower(): config for config in dialect.configs}
        if name.lower() not in by_name:
            raise UnknownNameError(f"config of {dialect.title}", name, [config.name for config in dialect.configs])
        return [by_name[name.lower()]]
    fitting = [config for config in dialect.configs if all(map(config.knows, settings)) and _takes(config, settings)]
    return fitting or [max(dialect.configs, key=lambda config: sum(map(config.knows, settings)))]


def _takes(config: Config, settings: Settings) -> bool:
    try:
        config.read(Given(config, settings))
    except RefusedError:
        return False
    return True


def differences(one: AnyObjective, other: AnyObjective) -> dict[str, tuple[KnobValue, KnobValue]]:
    """Knob -> its values in both, where they differ. A knob that exists in only one of them follows from the knob that
    decides on it, which differs."""
    a, b = active_knobs(one), active_knobs(other)
    return {knob: (a[knob], b[knob]) for knob in a if knob in b and a[knob] != b[knob]}


def yaml_scalar(value: Any) -> str:
    """A value as YAML 1.1, YAML 1.2 and Hydra all read it, on one line."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(yaml_scalar, value))}]"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    text = f"{value:.1e}" if value == UNBOUNDED else str(value)
    # Without the point `1e-06` is a string in YAML 1.1.
    return text.replace("e", ".0e") if isinstance(value, float) and "e" in text and "." not in text else text


def _distance(one: AnyObjective, other: AnyObjective) -> int:
    """The number of knobs, GUARDS left out, that differ or exist in only one of them."""
    return len({knob for knob, _ in active_knobs(one).items() ^ active_knobs(other).items()} - GUARDS)


def _is_number(value: object) -> bool:
    return isinstance(value, float) and math.isfinite(value)


def unbounded(bound: float | None) -> float | None:
    """A bound of a ratio; None for one that no ratio reaches."""
    return None if bound is None or bound >= _MOST_RATIO else bound


def names_of(dialect: str, *sections: str) -> frozenset[str]:
    """The settings that `elsewhere/<dialect>.txt` lists in these sections: those that say nothing of the
    objective."""
    names: dict[str, list[str]] = {}
    section = ""
    for line in (Path(__file__).parent / "elsewhere" / f"{dialect}.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif not line.startswith("#"):
            names.setdefault(section, []).extend(line.split())
    return frozenset(name for section in sections for name in names[section])


def _objective_at(config: Config, point: Point) -> AnyObjective:
    """Raises ValueError for knobs that are no objective together."""
    if config.family == "preference":
        return with_overrides(PreferenceObjective(link="hinge"), point.knobs)
    return with_overrides(Objective(aggregation="token_mean"), point.knobs)
