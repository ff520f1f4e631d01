"""Translation between our objectives and the settings of other trainers, in both directions.

A dialect is a trainer with its configs, in one file of `algorithms.elsewhere` or of a plug-in. A config has two
functions: `write` returns the settings nearest to a point of our knob space, and `read` returns the point that settings
stand for. A translation writes the settings and reads them back. If the result differs from the original point, the
trainer cannot express the objective, and the knobs that differ say why. If `read` is correct, every difference is
found. The tests compare `read` with the trainers' own losses.

Points map knobs (`rule.clip_high`) to values, as `active_knobs` returns them. So neither function needs torch or the
trainer.
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
"""Knobs that only prevent a division by 0 or endless sampling. They may differ without making another objective."""
UNBOUNDED = 1e9
"""A bound that no ratio reaches, for trainers without a value for "no bound": ratios are at most e^20, 4.9e8."""
_MOST_RATIO = 4.85e8
"""e^20, rounded down: log-ratios are clamped to +-20 (`rules.LOG_RATIO_LIMIT`), so no ratio reaches a larger bound."""


@dataclass(frozen=True)
class Point:
    """The objective that a trainer's settings stand for."""

    knobs: Knobs
    """Knobs of the objective; missing knobs have our defaults."""
    outside: Mapping[str, str] = field(default_factory=dict)
    """Settings with an effect that no knob has -> that effect. If there are any, `knobs` is only an approximation."""
    limits: tuple[str, ...] = ()
    """Small deviations of the trainer from the knobs: in extreme cases, or in what it counts."""


@dataclass(frozen=True)
class Written:
    """The settings nearest to an objective."""

    settings: Settings
    beside: Mapping[str, str] = field(default_factory=dict)
    """Knobs, or groups of knobs, that this config cannot set -> how to set them in the trainer."""


@dataclass(frozen=True)
class Config:
    """A trainer's class or file of settings."""

    name: str
    family: Family
    defaults: Settings
    """The settings that determine the objective, with the trainer's defaults."""
    write: Callable[[Knobs], Written]
    read: Callable[[Given], Point]
    promise: str | None = None
    """The preset that users expect from the config's name."""
    promises: Mapping[tuple[str, Any], str] = field(default_factory=dict)
    """(setting, value) -> the preset that users expect from this value."""
    plain: Mapping[str, str] = field(default_factory=dict)
    """Settings outside the objective -> the run's knob that each corresponds to."""
    others: Collection[str] = ()
    """Settings without effect on the objective; `trainer.*` stands for a whole section."""

    def knows(self, setting: str) -> bool:
        """Return whether the trainer has this setting, or a parent setting that contains it."""
        # `a.b` is known as `a.b`, inside a setting `a`, and through the sections `a.*` and `a.b.*`.
        parts = setting.split(".")
        wholes = {".".join(parts[: place + 1]) for place in range(len(parts))}
        return not self._names.isdisjoint(wholes | {f"{whole}.*" for whole in wholes})

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset((*self.defaults, *self.plain, *self.others))

    def require_known(self, settings: Settings) -> None:
        """Raise RefusedError if the trainer does not have all of these settings, naming every unknown one."""
        unknown = [setting for setting in settings if not self.knows(setting)]
        if unknown:
            names = sorted(name.removesuffix(".*") for name in self._names)
            lines = (f"{self.name} has no setting {shown(one)}{nearest(one, names)}" for one in unknown)
            raise RefusedError("\n".join(lines))


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """A trainer and the ways to express an objective in its settings."""

    name: str
    title: str
    """The trainer and the version that the mapping is for."""
    summary: str
    checked: str
    """The code and version that the mapping was compared with."""
    line: Callable[[str, Any], str] = lambda setting, value: f"{setting}: {yaml_scalar(value)}"
    """Formats a setting as the trainer's users write it."""
    configs: tuple[Config, ...]
    """In order of preference: if several fit an objective equally well, the first is used."""


DIALECTS: Kind[Dialect] = Kind(
    "dialect",
    lambda thing: isinstance(thing, Dialect),
    "algorithms.elsewhere",
    "bench ls dialects",
    about_of=lambda dialect: f"{dialect.title}\nchecked: {dialect.checked}",
)


class Given:
    """The settings of a config, completed by its defaults.

    Every getter raises RefusedError for a value that the trainer would not accept.
    """

    def __init__(self, config: Config, settings: Settings) -> None:
        self._name, self._all = config.name, {**config.defaults, **settings}

    def __getitem__(self, setting: str) -> Any:
        return self._all[setting]

    def has(self, setting: str) -> bool:
        """Return whether the setting has a value other than none, or any setting below it is present."""
        return self._all.get(setting) is not None or any(one.startswith(f"{setting}.") for one in self._all)

    def number(self, setting: str) -> float:
        value = self._all[setting]
        # bool is a subclass of int, so true would pass as 1.
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refused(setting, "a number")
        return float(value)

    def optional(self, setting: str) -> float | None:
        """Return the number, or None if the setting is none."""
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
        """Build the error for a value that breaks the rule."""
        return RefusedError(
            "algorithms.value_not_taken", setting=setting, value=shown(self._all[setting]), config=self._name, rule=rule
        )


@dataclass(frozen=True)
class Translation:
    """An objective written as settings of a config, with the objective that these settings stand for."""

    objective: AnyObjective
    dialect: Dialect
    config: Config
    written: Written
    point: Point
    """The settings that the config reads back from those written."""
    reads_as: AnyObjective
    """The objective at that point."""

    @cached_property
    def differs(self) -> dict[str, tuple[KnobValue, KnobValue]]:
        """The knobs that differ -> (value in the objective, value in the trainer)."""
        differs = differences(self.objective, self.reads_as)
        return {knob: pair for knob, pair in differs.items() if not self._is_beside(knob)}

    @property
    def lost(self) -> list[str]:
        """The reasons why the trainer cannot express the objective: knobs that differ, and settings outside our knobs.

        Empty if it can express the objective. GUARDS do not count.
        """
        return [*(knob for knob in self.differs if knob not in GUARDS), *self.point.outside]

    @cached_property
    def inert(self) -> dict[str, str]:
        """The differing knobs that have no effect with one optimiser step per rollout -> the reason."""
        if not isinstance(self.objective, Objective) or not isinstance(self.reads_as, Objective):
            return {}
        inert = differences_that_cannot_act(self.objective, self.reads_as, 1)
        return {knob: reason for knob, reason in inert.items() if knob in self.differs}

    @property
    def verdict(self) -> str:
        """The outcome of the translation, in a few words."""
        if not self.lost:
            return "the same" if not self.differs else f"the same but for {', '.join(self.differs)}"
        if not [one for one in self.lost if one not in self.inert]:
            return "the same with one optimiser step per rollout"
        return "cannot be expressed"

    def _is_beside(self, knob: str) -> bool:
        return any(knob == group or knob.startswith(f"{group}.") for group in self.written.beside)


def translate(dialect: Dialect, objective: AnyObjective) -> Translation:
    """Translate the objective to the trainer's settings, or to the nearest settings if it cannot be expressed.

    Raises RefusedError if the trainer has no config for the objective's family.
    """
    family = family_of(objective)
    found = [_translated(dialect, config, objective) for config in dialect.configs if config.family == family]
    if not found:
        kind = "pairs of completions" if family == "preference" else "rewards"
        raise RefusedError("algorithms.no_trainer_for_feedback", dialect=dialect.title, feedback=kind)
    # `min` returns the first of equally near translations, so the order of the dialect's configs decides.
    return min(found, key=lambda one: _distance(one.objective, one.reads_as) + len(one.point.outside))


def _translated(dialect: Dialect, config: Config, objective: AnyObjective) -> Translation:
    written = config.write(active_knobs(objective))
    point = config.read(Given(config, written.settings))
    return Translation(objective, dialect, config, written, point, _objective_at(config, point))


@dataclass(frozen=True)
class Understood:
    """The objective that a user's settings of a config stand for."""

    dialect: Dialect
    config: Config
    given: Settings
    point: Point
    objective: AnyObjective

    @cached_property
    def expected(self) -> dict[str, str]:
        """Each setting that names an algorithm -> the preset that users expect from it.

        The config's own name counts only if no setting that can name an algorithm is given.
        """
        # A value may also be a list of one, as TRL's loss_type may.
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
        """The preset that `moves` start from: the first of `expected`, or else the nearest preset."""
        counts = {name: _distance(describe(name).objective, self.objective) for name in presets(self.config.family)}
        return next(iter(self.expected.values()), min(counts, key=counts.__getitem__))

    @cached_property
    def moves(self) -> dict[str, KnobValue]:
        """The overrides that turn the preset `start` into the objective."""
        preset, knobs = active_knobs(describe(self.start).objective), active_knobs(self.objective)
        moved = {knob for knob, value in knobs.items() if preset.get(knob) != value or knob not in preset}
        # Overriding a group's type resets the group's other knobs to their defaults, whatever the preset has. So all
        # knobs of such a group are candidates. A knob at its default is left out, unless the preset has another value.
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
        """The run's knobs outside the objective that the settings determine, with the given values."""
        said = {knob: self.given[setting] for setting, knob in self.config.plain.items() if setting in self.given}
        return {knob: value for knob, value in said.items() if isinstance(value, str | int) or _is_number(value)}


def understand(dialect: Dialect, config: Config, settings: Settings) -> Understood:
    """Return the objective that these settings stand for. Missing settings have the config's defaults.

    Raises RefusedError for settings that the config does not have, for values that it does not accept, and for settings
    that stand for no valid objective.
    """
    config.require_known(settings)
    point = config.read(Given(config, settings))
    try:
        objective = _objective_at(config, point)
    except ValueError as error:
        problems = "; ".join(line.rstrip(".") for line in str(error).splitlines())
        raise RefusedError("algorithms.settings_without_objective", config=config.name, problems=problems) from None
    return Understood(dialect, config, settings, point, objective)


def configs_of(dialect: Dialect, settings: Settings, name: str | None = None) -> list[Config]:
    """List the configs that these settings may belong to, the likeliest first.

    If `name` is given, only that config is returned. Otherwise these are the configs that have all the settings and
    accept their values. If there is no such config, the one that has the most of the settings is returned.
    Raises UnknownNameError if no config has this name.
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
    """Map each knob that differs to its values in `one` and in `other`.

    A knob that exists in only one of them is left out, because the knob that makes it exist differs too.
    """
    a, b = active_knobs(one), active_knobs(other)
    return {knob: (a[knob], b[knob]) for knob in a if knob in b and a[knob] != b[knob]}


def yaml_scalar(value: Any) -> str:
    """Format a value on one line that YAML 1.1, YAML 1.2 and Hydra all read as the same value."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(yaml_scalar, value))}]"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    text = f"{value:.1e}" if value == UNBOUNDED else str(value)
    # YAML 1.1 reads `1e-06` as a string, because its numbers need a decimal point.
    return text.replace("e", ".0e") if isinstance(value, float) and "e" in text and "." not in text else text


def _distance(one: AnyObjective, other: AnyObjective) -> int:
    """Count the knobs that differ or exist in only one of the objectives, without GUARDS."""
    return len({knob for knob, _ in active_knobs(one).items() ^ active_knobs(other).items()} - GUARDS)


def _is_number(value: object) -> bool:
    return isinstance(value, float) and math.isfinite(value)


def unbounded(bound: float | None) -> float | None:
    """Return the bound of a ratio, or None if the bound is so large that no ratio reaches it."""
    return None if bound is None or bound >= _MOST_RATIO else bound


def names_of(dialect: str, *sections: str) -> frozenset[str]:
    """Return the settings without effect on the objective that these sections of `elsewhere/<dialect>.txt` list."""
    names: dict[str, list[str]] = {}
    section = ""
    for line in (Path(__file__).parent / "elsewhere" / f"{dialect}.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif not line.startswith("#"):
            names.setdefault(section, []).extend(line.split())
    return frozenset(name for section in sections for name in names[section])


def _objective_at(config: Config, point: Point) -> AnyObjective:
    """Build the objective at a point. Raises ValueError if the knobs do not form a valid objective."""
    # `link` and `aggregation` have no default. These values are used only if the point does not name them.
    if config.family == "preference":
        return with_overrides(PreferenceObjective(link="hinge"), point.knobs)
    return with_overrides(Objective(aggregation="token_mean"), point.knobs)
