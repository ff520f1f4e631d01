"""A sweep file: the question, the arms, the seeds, the comparison. Shipped files are found by name.

The folder of a sweep's records keeps the file and everything that the file needs, so that it can be rerun from there.
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
"""The folder next to sweep.json that contains the sweep file and everything that it needs."""
KEPT_PROFILE = "profile.yaml"
KEPT_CODE = "code"
_SHARED_FOLDERS = ("cache", "mlartifacts", "probes")
"""Folders in the runs folder whose names a sweep must not have."""
_PROBES = "probe*.yaml"
_ARM_NAME = r"^[A-Za-z0-9][A-Za-z0-9._=+,-]{0,63}$"
MOST_ARMS = 200
"""Every two arms are compared before a cell starts. The resulting twenty thousand pairs take seconds."""
MOST_CELLS = 10_000
ArmName = Annotated[str, Field(pattern=_ARM_NAME)]


def _is_knob_or_section(entry: str) -> str:
    """Return the name of a knob or of a section of knobs. Raises UnknownNameError for any other name."""
    known = ("algorithm", *spec_knobs())
    if not (entry.startswith("reward.parts.") or is_open(entry)) and not any(
        f"{knob}.".startswith(f"{entry}.") for knob in known
    ):
        raise UnknownNameError("knob", entry, known, "bench ls knobs")
    return entry


def _is_one_knob(entry: str) -> str:
    """Return the name of a single knob. Raises ValueError for any other name."""
    if entry not in spec_knobs() and not (is_open(entry) or _is_knob_or_section(entry).startswith("reward.parts.")):
        raise InvalidError("plan.several_knobs_put_back", given=entry)
    return entry


def _is_one_value(given: object) -> object:
    """Return a setting that is a single value. Raises ValueError for a list or a mapping."""
    if isinstance(given, list | dict):
        raise InvalidError("plan.several_values_put_back", given=shown(given))
    return given


def _is_compared_metric(given: str) -> str:
    """Return a compared metric. Raises ValueError if its form is wrong or the metric does not exist."""
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
    """The comparison: every other arm with the baseline, on one metric of the final evaluation."""

    baseline: str | None = Field(default=None, description="the name of an arm; none = the first arm")
    metric: Annotated[str, AfterValidator(_is_compared_metric)] = Field(
        default="eval.final.pass@1", description="eval.final.[<task>.]<metric>; without a task, the first task"
    )
    margin_pp: float | None = Field(
        default=None, gt=0, description="smallest difference that matters, in percentage points; none = the task's"
    )
    alpha: float = Field(default=0.05, gt=0, lt=1, description="family-wise error rate over the contrasts (Holm)")
    new_problems: bool = Field(
        default=False,
        description="whether to give intervals that generalise to new problems of the same kind, in addition to new "
        "seeds",
    )


class Screening(Settings):
    """Many arms are ranked on a few seeds, without verdicts. The best are confirmed on fresh seeds."""

    best: int = Field(3, ge=1, description="number of best arms to confirm against the baseline")
    seeds: int = Field(
        12, ge=3, le=1_000, description="number of fresh seeds for the confirmation, after those of the screening"
    )


class SweepFile(Settings):
    """The question as stated in a sweep file."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._=+,-]*$", max_length=255)
    question: str
    profile: str = Field(description="name of a shipped profile, or path of your own; --profile overrides it")
    plugins: Listed[str] = Field((), description="your own modules that add things, in this file's folder or installed")
    ablate: Listed[Declared] = Field(
        (),
        description="the knobs under test, as dotted prefixes; those in grid and leave_one_out need not be repeated",
    )
    co_changes: dict[Declared, Reason] = Field({}, description="further knobs that must change, each with the reason")
    base: dict[str, Any] = Field({}, description="settings of all arms, which override the profile")
    arms: dict[ArmName, dict[str, Any]] = Field({}, description="maps each arm to its settings")
    grid: dict[Declared, Annotated[list[Any], Field(min_length=1)]] = Field(
        {},
        description="factorial: maps knobs to lists of values, with an arm for each combination. Its knobs are under "
        "test",
    )
    leave_one_out: dict[OneKnob, OneValue] = Field(
        {},
        description="maps knobs to their ordinary values; the arms are the recipe in `base`, and one for each knob "
        "that resets only this knob. Its knobs are under test",
    )
    checkpoint: str | None = Field(
        None,
        description="a model that all cells evaluate instead of training: a model.source, a model's folder, a cell's "
        "folder or that of one checkpoint. Arms then differ in decoding, template, grader, engine or dtype",
    )
    search: Search | None = Field(
        None, description=("search for the best setting with `bench tune`, instead of stating arms")
    )
    tune: Tune | None = Field(
        None,
        description=("search for the best values of these knobs in each arm, before `bench run` compares the arms"),
    )
    seeds: int | list[int] = Field(
        12,
        description="number of seeds (counted from 0), or a list of seeds; in a search, the seeds of each trial "
        "(default 1)",
    )
    compare: ComparisonSettings = ComparisonSettings()
    screening: Screening | None = Field(
        None, description="for many arms: rank them on these seeds, then confirm the best on fresh seeds"
    )
    allow_noop: bool = Field(False, description="run even if the arms cannot differ")

    @model_validator(mode="before")
    @classmethod
    def _a_trial_has_one_seed(cls, document: object) -> object:
        """Raise an error for too many arms before any is created: a grid of a few lists may not fit into memory."""
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
        """Set the default of a search to one seed per trial, because a search spends its cells on settings."""
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
        """Yield the faults in combinations of keys that are each valid."""
        # This is not a validator, because `read_what_can_be_read` must skip it if these keys were left out as faulty.
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
        """Yield the settings that cannot be combined with the tuning of arms."""
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
        """Yield the faults of the arms, whether listed or made by a design."""
        unusable = [name for name in self.all_arms if not re.fullmatch(_ARM_NAME, name)]
        if unusable:
            design = "grid" if self.grid else "leave_one_out"
            yield f"{design} gives an arm {unusable[0]!r}, which is not a valid name: state the arms one by one."
        # Arms are named by their values, so equal values in a grid give only one arm.
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
        """The knobs whose effect is the question, as dotted prefixes.

        They are those declared in `ablate`, and those of a design or a search.
        """
        if self.search is not None:
            return list(self.search.knobs)
        of_design = (*self.grid, *self.leave_one_out)
        return [*self.ablate, *(knob for knob in of_design if not covered(knob, self.ablate))]

    @property
    def tuned_knobs(self) -> list[str]:
        """The knobs that are tuned in each arm, or [] without `tune`."""
        return [] if self.tune is None else list(self.tune.per_arm)

    @property
    def all_arms(self) -> dict[str, dict[str, object]]:
        """The settings of each arm by its name; empty for a search. Arms of a design are named by their knobs."""
        if self.grid:
            return factorial(self.grid)
        return leave_one_out(self.leave_one_out) if self.leave_one_out else self.arms

    @property
    def seed_list(self) -> list[int]:
        return list(range(self.seeds)) if isinstance(self.seeds, int) else self.seeds


def load_sweep(given: str) -> tuple[SweepFile, Path]:
    """Load a sweep, given the path of its file or a shipped name.

    Its plug-ins are in use afterwards. Raises RefusedError with all faults of the file's form.
    """
    faults = Faults()
    sweep, path, _ = read_what_can_be_read(given, faults)
    faults.refuse()
    return sweep, path


def read_what_can_be_read(given: str, faults: Faults) -> tuple[SweepFile, Path, set[str]]:
    """Return a sweep, its path, and the keys that were left out. given: the path of its file or a shipped name.

    The file is read as far as possible. Faulty keys are left out, in full or in part, and their faults are added to
    `faults`.
    """
    path = shipped_probes().get(given) or find_file(given, shipped(SHIPPED), "sweep")
    document = load_yaml(path)
    if "objectives" in document:
        raise RefusedError("plan.probe_is_no_sweep", given=given)
    # The plug-ins must be in use before the file is validated, because it may name their knobs, tasks or metrics.
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
    # If one of these keys was left out, the checks would report it as missing, although it is only faulty.
    if not left_out & {"arms", "grid", "leave_one_out", "search"}:
        faults.lines += [f"{path}: {clash}" for clash in sweep.clashes()]
    return sweep, path, left_out


def use_plugins(document: Mapping[str, object], path: Path) -> None:
    """Load the plug-ins that a file names, so that the rest of the file can use them. Raises RefusedError."""
    named = document.get("plugins", [])
    if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
        raise RefusedError("plan.plugins_not_a_list", path=path, named=named)
    folders = [] if SHIPPED in path.parents else [path.parent, path.parent / KEPT_CODE]
    # A file in a folder of records may come from someone else, so its code runs only if it is trusted.
    is_kept = path.parent.name == KEPT and (path.parent.parent / "sweep.json").is_file()
    plugins.use(named, folders, named_by=f"{path}: plugins", for_records=is_kept)


def validated(kind: type[File], document: Mapping[str, object], path: Path) -> File:
    """Return the validated content of a file. Raises RefusedError with all its faults."""
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        lines = [f"{path}: {fault.line}" for fault in faults_of(error, kind)]
        raise RefusedError("\n".join(lines)) from error


def _without_faulty(document: Mapping[str, object], error: ValidationError) -> tuple[dict[str, object], set[str]]:
    """Return the readable part of a sweep file and the keys that were left out, so that further faults can be found.

    An arm whose settings are not a mapping keeps its name.
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
    # Add placeholders for missing required keys. The faults that report these keys are collected already.
    return {"name": "unnamed", "question": "", "profile": ""} | readable, left_out


def parse_settings(settings: Sequence[str]) -> dict[str, object]:
    """Parse the options --set: `key=value`, where the value is YAML. Raises RefusedError for any other form."""
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
    """Return the paths of the YAML files in a folder of the package by name, without probes."""
    probes = set(folder.glob(_PROBES))
    return {path.stem: path for path in sorted(folder.glob("*.yaml")) if path not in probes}


def shipped_probes() -> dict[str, Path]:
    """Return the paths of the shipped files for `bench probe` by name."""
    return {path.stem: path for path in sorted(SHIPPED.glob(_PROBES))}


def find_file(given: str, names: Mapping[str, Path], what: str) -> Path:
    """Return a file, given its path or one of these names. Raises RefusedError if neither exists."""
    if Path(given).is_file():
        return Path(given)
    if given in names:
        return names[given]
    stem = Path(given).stem
    hint = f"; did you mean the shipped {stem}?" if stem in names else nearest(stem, names)
    rest = f"Shipped: {few(names)}." if what == "probe" else f"`bench ls {what}s` lists all."
    raise RefusedError("plan.no_such_file", what=what, given=given, hint=hint, rest=rest)
