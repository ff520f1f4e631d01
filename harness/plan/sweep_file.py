"""A sweep file: the question, the arms, the seeds, the comparison. Shipped ones are found by name."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, Field, ValidationError, field_validator, model_validator

import sweeps
from harness.config.knobs import descriptions
from harness.config.resolve import readable_errors, suggest
from harness.config.search import Search
from harness.config.section import Listed, Section
from harness.config.yaml_file import load_yaml
from harness.errors import RefusedError, nearest

SHIPPED = Path(sweeps.__file__).parent
_SHARED_FOLDERS = ("cache", "mlartifacts", "probes")
_PROBES = "probe*.yaml"
_ARM_NAME = r"^[A-Za-z0-9][A-Za-z0-9._=+,-]{0,63}$"
ArmName = Annotated[str, Field(pattern=_ARM_NAME)]


def _is_knob_or_section(entry: str) -> str:
    known = ("algorithm", *descriptions())
    if not entry.startswith("reward.parts.") and not any(f"{knob}.".startswith(f"{entry}.") for knob in known):
        raise ValueError(f"{entry} is no knob and no section of knobs{suggest(entry, known).removesuffix('.')}")
    return entry


Declared = Annotated[str, AfterValidator(_is_knob_or_section)]
Reason = Annotated[str, Field(min_length=1)]
File = TypeVar("File", bound=Section)


class Comparison(Section):
    """What is compared: every other arm with the baseline, on one metric of the final evaluation."""

    baseline: str | None = Field(default=None, description="an arm's name; none = the first arm")
    metric: str = Field(
        default="eval.final.pass@1", description="eval.final.[<task>.]<metric>; task omitted = the first"
    )
    margin_pp: float | None = Field(
        default=None, gt=0, description="differences below it do not matter; none = the task's"
    )
    alpha: float = Field(default=0.05, gt=0, lt=1, description="family-wise error rate over the contrasts (Holm)")
    new_problems: bool = Field(
        default=False, description="give intervals over new problems of the same kind too, not over new seeds alone"
    )


class SweepFile(Section):
    """A question, as its file states it."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    question: str
    profile: str = Field(description="name of a shipped profile or path of one's own; --profile overrides it")
    ablate: Listed[Declared] = Field((), description="the knobs under test, as dotted prefixes")
    co_changes: dict[Declared, Reason] = Field({}, description="knobs that must change along, each with the reason")
    base: dict[str, Any] = Field({}, description="settings of all arms, on top of the profile")
    arms: dict[ArmName, dict[str, Any]] = Field({}, description="arm -> its settings")
    grid: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field(
        {}, description="factorial: knob -> values; an arm for each combination"
    )
    search: Search | None = Field(None, description="instead of arms: `bench tune` looks for the best setting")
    seeds: int | list[int] = Field(6, description="how many, from 0, or which; of a search, for each trial: 1")
    compare: Comparison = Comparison()
    allow_noop: bool = Field(False, description="run although the arms cannot differ")

    @model_validator(mode="before")
    @classmethod
    def _a_trial_has_one_seed(cls, document: Any) -> Any:
        """Unless it says otherwise: a search spends its cells on settings."""
        if isinstance(document, dict) and "search" in document:
            return {"seeds": 1} | document
        return document

    @field_validator("name")
    @classmethod
    def _name_is_free(cls, name: str) -> str:
        if name in _SHARED_FOLDERS:
            raise ValueError(f"{name!r} is a folder that all sweeps share in the runs folder: choose another name")
        return name

    @model_validator(mode="after")
    def _arms_or_grid(self) -> SweepFile:
        given = [name for name in ("arms", "grid", "search") if getattr(self, name)]
        if len(given) != 1:
            raise ValueError(
                f"{' and '.join(given) or 'no arms'} given: state the arms one by one (arms) or as a factorial (grid), "
                "or what to search (search); one of the three"
            )
        if self.search is not None:
            self._only_what_a_search_reads()
        if self.compare.baseline is not None and self.compare.baseline not in self.all_arms:
            raise ValueError(
                f"compare.baseline is {self.compare.baseline!r}, but the arms are {', '.join(self.all_arms)}"
            )
        if not self.seed_list or len(set(self.seed_list)) < len(self.seed_list) or min(self.seed_list) < 0:
            raise ValueError(f"seeds is {self.seeds!r}: give a count of at least 1, or distinct non-negative seeds")
        return self

    def _only_what_a_search_reads(self) -> None:
        """Nothing that is stated may be without effect."""
        instead = {
            "ablate": "the searched knobs are what differs",
            "co_changes": "the searched knobs are what differs",
            "allow_noop": "a knob that cannot act is not searched",
        }
        for name in self.model_fields_set & instead.keys():
            raise ValueError(f"{name} is given with search, where {instead[name]}: leave it out")
        if "metric" in self.compare.model_fields_set:
            raise ValueError("compare.metric is given with search, where trials are compared by search.objectives")
        if "baseline" in self.compare.model_fields_set:
            raise ValueError("compare.baseline is given with search, whose best is compared with the default")

    @model_validator(mode="after")
    def _grid_gives_distinct_names(self) -> SweepFile:
        unusable = [name for name in self.all_arms if not re.fullmatch(_ARM_NAME, name)]
        if unusable:
            raise ValueError(f"grid gives an arm {unusable[0]!r}, which is no name: state the arms one by one")
        if self.grid and len(self.all_arms) < math.prod(len(values) for values in self.grid.values()):
            raise ValueError("grid gives the same arm twice: list distinct values for each knob")
        return self

    @property
    def all_arms(self) -> dict[str, dict[str, Any]]:
        """Arms by name, none of a search; those of a grid are named by the last segments of their knobs,
        `clip_high=0.28+beta=0`."""
        if not self.grid:
            return self.arms
        points = (dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values()))
        return {
            "+".join(f"{knob.rsplit('.', 1)[-1]}={value}" for knob, value in point.items()): point for point in points
        }

    @property
    def seed_list(self) -> list[int]:
        return list(range(self.seeds)) if isinstance(self.seeds, int) else self.seeds


def load_sweep(given: str) -> tuple[SweepFile, Path]:
    """The sweep of a path or of a shipped name. Raises RefusedError with all faults of the file."""
    path = shipped_probes().get(given) or find_file(given, shipped(SHIPPED), "sweep")
    document = load_yaml(path)
    if "objectives" in document:
        raise RefusedError(
            f"{given} is a probe, no sweep: it trains nothing, but measures gradients at frozen weights. Use "
            f"`bench probe {given}`."
        )
    return validated(SweepFile, document, path), path


def validated(kind: type[File], document: Mapping[str, Any], path: Path) -> File:
    """The document of a file as its model. Raises RefusedError with all its faults."""
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        keys = list(kind.model_fields)
        lines = [_with_known_keys(line, keys) for _, line in readable_errors(error)]
        raise RefusedError("\n".join(f"{path}: {line}" for line in lines)) from None


def load_profile(given: str, beside: Path) -> tuple[Mapping[str, Any], Path]:
    """The settings of a profile: a shipped name, or a path (also relative to the sweep file's folder)."""
    if given.endswith((".yaml", ".yml")) and not Path(given).is_file() and (beside.parent / given).is_file():
        given = str(beside.parent / given)
    path = find_file(given, shipped(SHIPPED / "profiles"), "profile")
    settings = load_yaml(path)
    settings.pop("description", None)
    return settings, path


def shipped(folder: Path) -> dict[str, Path]:
    """Names and paths of the YAML files in a folder of the package, probes left out."""
    probes = set(folder.glob(_PROBES))
    return {path.stem: path for path in sorted(folder.glob("*.yaml")) if path not in probes}


def shipped_probes() -> dict[str, Path]:
    """Names and paths of the shipped files for `bench probe`."""
    return {path.stem: path for path in sorted(SHIPPED.glob(_PROBES))}


def find_file(given: str, names: Mapping[str, Path], what: str) -> Path:
    """The file of a path or of one of these names. Raises RefusedError if there is neither."""
    if Path(given).is_file():
        return Path(given)
    if given in names:
        return names[given]
    stem = Path(given).stem
    hint = f"; did you mean the shipped {stem}?" if stem in names else nearest(stem, names)
    raise RefusedError(
        f"{what} {given!r}: there is no such file and no shipped {what} of that name{hint} Shipped: {', '.join(names)}."
    )


def _with_known_keys(line: str, keys: list[str]) -> str:
    path, unknown, _ = line.partition(" is not a key here")
    return f"{path}{unknown}{suggest(path, keys)}" if unknown else line
