"""A sweep file: the question, the arms, the seeds, the comparison. Shipped files are found by name.

A sweep's folder of records keeps its file and everything that the file needs, so that it can be run again from there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, Field, ValidationError, ValidationInfo, field_validator, model_validator

import sweeps
from evals.metrics import find_metric
from evals.yaml_file import YamlError, load_yaml, parse_yaml
from harness import plugins
from harness.config.knobs import spec_knobs
from harness.config.search import TUNING_SEED, Search, Tune
from harness.config.trainer import is_open
from harness.errors import Faults, InvalidError, RefusedError, UnknownNameError, few, nearest, shown
from harness.plan.designs import RECIPE, factorial, leave_one_out
from harness.plan.gate import covered
from harness.records.scores import METRIC_PREFIX
from harness.settings import Listed, Settings, dotted
from harness.settings.faults import faults_of

SHIPPED = Path(sweeps.__file__).parent
KEPT = "question"
"""The folder next to sweep.json that holds the sweep file and what it needs."""
KEPT_PROFILE = "profile.yaml"
KEPT_CODE = "code"
_SHARED_FOLDERS = ("cache", "mlartifacts", "probes")
"""Folders in the runs folder that no sweep may be named after."""
_PROBES = "probe*.yaml"
_ARM_NAME = r"^[A-Za-z0-9][A-Za-z0-9._=+,-]{0,63}$"
MOST_ARMS = 200
"""Every two arms are compared before a cell starts, and twenty thousand pairs take seconds."""
MOST_CELLS = 10_000
ArmName = Annotated[str, Field(pattern=_ARM_NAME)]


def _is_knob_or_section(entry: str) -> str:
    """Check that a name is a knob or a section of knobs. Raises UnknownNameError."""
    known = ("algorithm", *spec_knobs())
    if not (entry.startswith("reward.parts.") or is_open(entry)) and not any(
        f"{knob}.".startswith(f"{entry}.") for knob in known
    ):
        raise UnknownNameError("knob", entry, known, "bench ls knobs")
    return entry


def _is_one_knob(entry: str) -> str:
    """Check that a name is a single knob. Raises ValueError."""
    if entry not in spec_knobs() and not (is_open(entry) or _is_knob_or_section(entry).startswith("reward.parts.")):
        raise InvalidError("plan.several_knobs_put_back", given=entry)
    return entry


def _is_one_value(given: object) -> object:
    """Check that a setting is a single value. Raises ValueError."""
    if isinstance(given, list | dict):
        raise InvalidError("plan.several_values_put_back", given=shown(given))
    return given


def _is_compared_metric(given: str) -> str:
    """Check the form of a compared metric, and that the metric exists. Raises ValueError."""
    if not given.startswith(METRIC_PREFIX):
        raise InvalidError("plan.not_a_final_metric", given=given)
    find_metric(given.rpartition(".")[2])
    return given


Declared = Annotated[str, AfterValidator(_is_knob_or_section)]
OneKnob = Annotated[str, AfterValidator(_is_one_knob)]
OneValue = Annotated[Any, AfterValidator(_is_one_value)]
Reason = Annotated[str, Field(min_length=1)]
File = TypeVar("File", bound=Settings)


class ComparisonSettings(Settings):
    """What is compared: every other arm with the baseline, on one metric of the final evaluation."""

    baseline: str | None = Field(default=None, description="an arm's name; none = the first arm")
    metric: Annotated[str, AfterValidator(_is_compared_metric)] = Field(
        default="eval.final.pass@1", description="eval.final.[<task>.]<metric>; task omitted = the first"
    )
    margin_pp: float | None = Field(
        default=None, gt=0, description="percentage points; smaller differences do not matter; none = the task's"
    )
    alpha: float = Field(default=0.05, gt=0, lt=1, description="family-wise error rate over the contrasts (Holm)")
    new_problems: bool = Field(
        default=False, description="also give intervals over new problems of the same kind, not only over new seeds"
    )


class Screening(Settings):
    """Many arms are ranked on a few seeds, without verdicts; the best are confirmed on fresh seeds."""

    best: int = Field(3, ge=1, description="how many of the best arms are confirmed against the baseline")
    seeds: int = Field(
        12, ge=3, le=1_000, description="how many fresh seeds confirm them, after those of the screening"
    )


class SweepFile(Settings):
    """A question, as its file states it."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._=+,-]*$", max_length=255)
    question: str
    profile: str = Field(description="name of a shipped profile, or path of your own; --profile overrides it")
    plugins: Listed[str] = Field((), description="modules of your own that add things: beside this file, or installed")
    ablate: Listed[Declared] = Field(
        (),
        description="the knobs under test, as dotted prefixes; those of grid and leave_one_out need not be repeated",
    )
    co_changes: dict[Declared, Reason] = Field({}, description="knobs that have to change too, each with the reason")
    base: dict[str, Any] = Field({}, description="settings of all arms, on top of the profile")
    arms: dict[ArmName, dict[str, Any]] = Field({}, description="arm -> its settings")
    grid: dict[Declared, Annotated[list[Any], Field(min_length=1)]] = Field(
        {}, description="factorial: knob -> values; an arm for each combination. Its knobs are under test"
    )
    leave_one_out: dict[OneKnob, OneValue] = Field(
        {},
        description="knob -> its ordinary value: the recipe of `base` as an arm, and one for each knob put back alone. "
        "Its knobs are under test",
    )
    checkpoint: str | None = Field(
        None,
        description="instead of training: a model that all cells evaluate as it is; a model.source, a model's folder, "
        "a cell's folder or one checkpoint's. Arms then differ in decoding, template, grader, engine or dtype",
    )
    search: Search | None = Field(None, description="instead of arms: `bench tune` searches for the best setting")
    tune: Tune | None = Field(None, description="`bench run` first searches for each arm's best values of these knobs")
    seeds: int | list[int] = Field(
        12, description="how many (counted from 0), or a list of them; in a search, those of each trial (default 1)"
    )
    compare: ComparisonSettings = ComparisonSettings()
    screening: Screening | None = Field(
        None, description="for many arms: rank them on these seeds, then confirm the best on fresh ones"
    )
    allow_noop: bool = Field(False, description="run although the arms cannot differ")

    @model_validator(mode="before")
    @classmethod
    def _a_trial_has_one_seed(cls, document: object) -> object:
        """Give a search one seed per trial by default, since it spends its cells on settings."""
        if isinstance(document, dict) and "search" in document:
            return {"seeds": 1} | document
        return document

    @field_validator("seeds")
    @classmethod
    def _seeds_are_few_enough(cls, seeds: int | list[int]) -> int | list[int]:
        if (count := seeds if isinstance(seeds, int) else len(seeds)) > MOST_CELLS:
            raise InvalidError("plan.too_many_seeds", count=count, most=MOST_CELLS)
        return seeds

    @field_validator("arms", "grid", "leave_one_out")
    @classmethod
    def _arms_are_few_enough(cls, stated: Mapping[str, Sized], field: ValidationInfo) -> Mapping[str, object]:
        """Refuse too many arms before any is made: a grid of a few long lists has more points than fit into memory."""
        of_grid = field.field_name == "grid"
        if (count := math.prod(map(len, stated.values())) if of_grid else len(stated)) > MOST_ARMS:
            raise InvalidError("plan.too_many_arms", count=count, most=MOST_ARMS)
        return stated

    @field_validator("name")
    @classmethod
    def _name_is_free(cls, name: str) -> str:
        if name in _SHARED_FOLDERS:
            raise InvalidError("plan.name_of_shared_folder", name=name)
        return name

    def clashes(self) -> Iterator[str]:
        """Yield what is wrong with keys that are each valid."""
        # No validator: `read_what_can_be_read` skips this check if these keys were left out as faulty.
        given = [name for name in ("arms", "grid", "leave_one_out", "search") if getattr(self, name)]
        starts_from_an_arm = given == ["arms", "search"] and len(self.arms) == 1  # that `tune` searches
        if len(given) != 1 and not starts_from_an_arm:
            yield (
                f"{' and '.join(given) or 'no arms'} given: state the arms one by one (arms) or as a factorial (grid), "
                "put the knobs of a recipe back one at a time (leave_one_out), or say what to search (search); one of "
                "the four."
            )
        elif self.search is not None:
            yield from self._without_effect_on_a_search()
        else:
            yield from self._faulty_arms()
        if self.screening is not None and len(self.all_arms) < self.screening.best + 2:
            yield (
                f"screening.best is {self.screening.best} of {len(self.all_arms)} arms, the baseline among them: leave "
                "screening out, so that all arms are judged, or state more arms."
            )
        if self.checkpoint is not None:
            yield from self._without_effect_on_a_checkpoint()
        if not self.seed_list or len(set(self.seed_list)) < len(self.seed_list) or min(self.seed_list) < 0:
            yield f"seeds is {shown(self.seeds)}: give a count of at least 1, or distinct non-negative seeds."
        if self.tune is not None:
            yield from self._clashes_with_tuning(self.tune)

    def _clashes_with_tuning(self, tune: Tune) -> Iterator[str]:
        """Yield what a sweep that tunes its arms cannot be combined with."""
        if self.search is not None:
            yield (
                "tune is given with search: search looks for the best setting of all, tune for the best of each arm "
                "before they are compared. Leave one out."
            )
        if self.grid:
            yield "tune is given with grid, whose main effects cannot allow for what searches leave open: state arms."
        if self.screening is not None:
            yield "tune is given with screening, which is for many arms at little cost: tune the few that it picks."
        for knob in tune.per_arm:
            if covered(knob, [*self.under_test, *self.co_changes]):
                yield (
                    f"tune.per_arm has {knob}, which the arms differ in (ablate, grid or co_changes): its values are "
                    "the question, or the search's, not both. Take it out of one."
                )
            yield from (
                f"arms.{arm} sets {knob}, which tune.per_arm looks for in each arm. Set where all arms start in base."
                for arm, settings in self.arms.items()
                if knob in dotted(settings)
            )
        if max(self.seed_list, default=0) >= TUNING_SEED:
            yield f"seeds reach {max(self.seed_list)}: with tune they stay below {TUNING_SEED}, where its trials begin."

    def _without_effect_on_a_checkpoint(self) -> Iterator[str]:
        """Yield the keys that have no effect if a checkpoint is evaluated."""
        instead = {
            "search": "trials are trained: state the evaluation settings to compare as arms",
            "tune": "nothing is trained, so there are no knobs to tune",
            "screening": "arms cost only samples: state them all, with enough samples for a verdict",
        }
        for name in instead:
            if name in self.model_fields_set:
                yield f"{name} is given with checkpoint, where {instead[name]}. Leave one of the two out."

    def _without_effect_on_a_search(self) -> Iterator[str]:
        """Yield the keys that have no effect on a search."""
        instead = {
            "ablate": "the searched knobs are what differs",
            "co_changes": "the searched knobs are what differs",
            "allow_noop": "a knob that cannot act is not searched",
            "screening": "`bench tune --confirm` trains the best with fresh seeds",
        }
        for name in self.model_fields_set & instead.keys():
            yield f"{name} is given with search, where {instead[name]}: leave it out."
        if "metric" in self.compare.model_fields_set:
            yield "compare.metric is given with search, where trials are compared by search.objectives: leave it out."
        if "baseline" in self.compare.model_fields_set:
            yield "compare.baseline is given with search, whose best is compared with the default: leave it out."

    def _faulty_arms(self) -> Iterator[str]:
        """Yield the faults of the arms, stated or made by a design."""
        unusable = [name for name in self.all_arms if not re.fullmatch(_ARM_NAME, name)]
        if unusable:
            design = "grid" if self.grid else "leave_one_out"
            yield f"{design} gives an arm {unusable[0]!r}, which is not a valid name: state the arms one by one."
        # Arms are named by their values, so equal values give one arm where the grid has two points.
        if self.grid and len(self.all_arms) < math.prod(len(values) for values in self.grid.values()):
            yield "grid gives the same arm twice: list distinct values for each knob."
        if self.leave_one_out and len(self.all_arms) <= len(self.leave_one_out):
            yield "leave_one_out names two arms alike, by the last segments of their knobs: state the arms one by one."
        baseline = self.compare.baseline
        if baseline is not None and baseline not in self.all_arms:
            yield f"compare.baseline: {UnknownNameError('arm', baseline, self.all_arms)}"
        elif self.leave_one_out and baseline not in (None, RECIPE):
            yield f"compare.baseline is {baseline}, but leave_one_out compares each arm with {RECIPE}: leave it out."

    @property
    def under_test(self) -> list[str]:
        """The knobs whose differences are the question, as dotted prefixes.

        They are declared by `ablate`, or are those of a design or a search.
        """
        if self.search is not None:
            return list(self.search.knobs)
        of_design = (*self.grid, *self.leave_one_out)
        return [*self.ablate, *(knob for knob in of_design if not covered(knob, self.ablate))]

    @property
    def tuned_knobs(self) -> list[str]:
        """The knobs with a best value for each arm; none without `tune`."""
        return [] if self.tune is None else list(self.tune.per_arm)

    @property
    def all_arms(self) -> dict[str, dict[str, object]]:
        """Arms by name, none for a search; arms of a design are named by their knobs."""
        if self.grid:
            return factorial(self.grid)
        return leave_one_out(self.leave_one_out) if self.leave_one_out else self.arms

    @property
    def seed_list(self) -> list[int]:
        """The seeds, written out."""
        return list(range(self.seeds)) if isinstance(self.seeds, int) else self.seeds


def load_sweep(given: str) -> tuple[SweepFile, Path]:
    """Load the sweep of a path or of a shipped name.

    Its plug-ins are in use from now on. Raises RefusedError with all faults of the file's form.
    """
    faults = Faults()
    sweep, path, _ = read_what_can_be_read(given, faults)
    faults.refuse()
    return sweep, path


def read_what_can_be_read(given: str, faults: Faults) -> tuple[SweepFile, Path, set[str]]:
    """Return the sweep of a path or of a shipped name, its path, and the keys that were left out.

    It is read as far as possible, and the faults of its form are gathered. Faulty keys are left out, wholly or in part.
    """
    path = shipped_probes().get(given) or find_file(given, shipped(SHIPPED), "sweep")
    document = load_yaml(path)
    if "objectives" in document:
        raise RefusedError("plan.probe_is_no_sweep", given=given)
    # Before the file is validated: it may name a plug-in's knobs, tasks or metrics.
    use_plugins(document, path)
    left_out: set[str] = set()
    try:
        sweep = validated(SweepFile, document, path)
    except RefusedError as refused:
        faults.add(refused)
        if not isinstance(refused.__cause__, ValidationError):
            raise
        readable, left_out = _without_faulty(document, refused.__cause__)
        try:
            sweep = SweepFile.model_validate(readable)
        except ValidationError:
            raise refused from None
    # Without these keys, the checks would report as missing what is only faulty.
    if not left_out & {"arms", "grid", "leave_one_out", "search"}:
        faults.lines += [f"{path}: {clash}" for clash in sweep.clashes()]
    return sweep, path, left_out


def use_plugins(document: Mapping[str, object], path: Path) -> None:
    """Make the plug-ins that a file names available, so that the rest of it can use them. Raises RefusedError."""
    named = document.get("plugins", [])
    if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
        raise RefusedError("plan.plugins_not_a_list", path=path, named=named)
    folders = [] if SHIPPED in path.parents else [path.parent, path.parent / KEPT_CODE]
    # A kept file comes with records, perhaps from somebody else: its code runs only if it is trusted.
    is_kept = path.parent.name == KEPT and (path.parent.parent / "sweep.json").is_file()
    plugins.use(named, folders, named_by=f"{path}: plugins", for_records=is_kept)


def validated(kind: type[File], document: Mapping[str, object], path: Path) -> File:
    """Return the document of a file as its model. Raises RefusedError with all its faults."""
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        lines = [f"{path}: {fault.line}" for fault in faults_of(error, kind)]
        raise RefusedError("\n".join(lines)) from error


def _without_faulty(document: Mapping[str, object], error: ValidationError) -> tuple[dict[str, object], set[str]]:
    """Return the readable part of a sweep file, and the keys that were left out.

    Its faults then do not hide others. An arm whose settings are not a mapping keeps its name.
    """
    readable = {key: dict(value) if isinstance(value, Mapping) else value for key, value in document.items()}
    left_out: set[str] = set()
    for detail in error.errors(include_url=False):
        key, *within = map(str, detail["loc"])
        section = readable.get(key)
        if key == "arms" and len(within) == 1 and isinstance(section, dict):
            section[within[0]] = {}
        elif key in ("arms", "grid", "leave_one_out", "co_changes", "compare") and within and isinstance(section, dict):
            section.pop(within[0], None)
            left_out.add(key)
        else:
            readable.pop(key, None)
            left_out.add(key)
    # Placeholders for required keys that are missing; the faults that report this are gathered already.
    return {"name": "unnamed", "question": "", "profile": ""} | readable, left_out


def parse_settings(settings: Sequence[str]) -> dict[str, object]:
    """Parse the settings of --set: `key=value`, each with a YAML value. Raises RefusedError for any other form."""
    parsed: dict[str, object] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise RefusedError("plan.setting_without_value", setting=shown(setting))
        try:
            parsed[key.strip()] = parse_yaml(value)
        except YamlError as error:
            raise RefusedError("plan.setting_not_yaml", setting=shown(setting), error=error) from None
    return parsed


def shipped(folder: Path) -> dict[str, Path]:
    """Map names to paths of the YAML files in a folder of the package, without probes."""
    probes = set(folder.glob(_PROBES))
    return {path.stem: path for path in sorted(folder.glob("*.yaml")) if path not in probes}


def shipped_probes() -> dict[str, Path]:
    """Map names to paths of the shipped files for `bench probe`."""
    return {path.stem: path for path in sorted(SHIPPED.glob(_PROBES))}


def find_file(given: str, names: Mapping[str, Path], what: str) -> Path:
    """Return the file of a path or of one of these names. Raises RefusedError if there is neither."""
    if Path(given).is_file():
        return Path(given)
    if given in names:
        return names[given]
    stem = Path(given).stem
    hint = f"; did you mean the shipped {stem}?" if stem in names else nearest(stem, names)
    rest = f"Shipped: {few(names)}." if what == "probe" else f"`bench ls {what}s` lists all."
    raise RefusedError("plan.no_such_file", what=what, given=given, hint=hint, rest=rest)
