"""The sections `search:` and `tune:` of a sweep file: searched knobs with their ranges, objectives and budget."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field, field_validator, model_validator

from evals.metrics import find_metric
from harness.config.knobs import spec_knobs
from harness.config.trainer import is_open
from harness.errors import InvalidError, UnknownNameError
from harness.settings import Listed, Settings
from harness.settings.fields import LARGEST_NUMBER

Scalar = str | int | float | bool | None
Kind = Literal["float", "int", "log", "categorical"]
_MOST_VALUES = 1_000_000
_FINAL = "eval.final."
GENERATED_TOKENS = "generated_tokens"


class KnobRange(Settings):
    """The range of one searched knob: exactly one of float, int, log and categorical."""

    model_config = ConfigDict(populate_by_name=True)

    float_: Annotated[tuple[float, float], Field(strict=False)] | None = Field(
        None, alias="float", description="[low, high], sampled uniformly"
    )
    int_: Annotated[tuple[int, int], Field(strict=False)] | None = Field(
        None, alias="int", description="[low, high], both included"
    )
    log: Annotated[tuple[float, float], Field(strict=False)] | None = Field(
        None, description="[low, high], sampled uniformly in the logarithm"
    )
    categorical: Listed[Scalar] | None = Field(None, max_length=1000, description="values without an order")
    step: float | None = Field(None, gt=0, description="for float and int: restrict the values to low, low + step, ...")
    when: dict[str, Annotated[list[Scalar], Field(min_length=1)]] = Field(
        {}, description="condition: the knob is sampled only if each of these knobs has one of its listed values"
    )

    @model_validator(mode="after")
    def _one_range_that_is_not_empty(self) -> KnobRange:
        given = [kind for kind in ("float", "int", "log", "categorical") if self._of(kind) is not None]
        if len(given) != 1:
            raise InvalidError("config.not_one_range", given=" and ".join(given) or "no range")
        if self.kind == "categorical":
            choices = self.choices
            for one, other in combinations(choices, 2):
                # A knob treats 1 and 1.0 as equal. A file that lists both gets a message of its own.
                if same(one, other) and type(one) is not type(other):
                    raise InvalidError("config.choices_are_one_value", first=one, second=other)
            if len(choices) < 2 or any(same(one, other) for one, other in combinations(choices, 2)):
                raise InvalidError("config.too_few_choices", choices=list(choices))
            if self.step is not None:
                raise InvalidError("config.step_with_categorical")
            return self
        low, high = self.bounds
        if low >= high:
            raise InvalidError("config.range_is_empty", kind=self.kind, low=low, high=high)
        if self.kind == "log" and low <= 0:
            raise InvalidError("config.log_range_not_positive", low=low, high=high)
        if max(abs(low), abs(high)) > LARGEST_NUMBER:
            raise InvalidError("config.range_too_large", kind=self.kind, low=low, high=high, largest=LARGEST_NUMBER)
        if self.step is not None:
            if (high - low) / self.step > _MOST_VALUES:
                raise InvalidError("config.step_too_small", step=self.step, most=_MOST_VALUES, low=low, high=high)
            if self.kind == "log":
                raise InvalidError("config.step_with_log")
            if self.step > high - low:
                raise InvalidError("config.step_too_large", step=self.step, width=high - low)
            if self.kind == "int" and self.step != int(self.step):
                raise InvalidError("config.step_of_int_not_whole", step=self.step)
            # If the steps miss the high end, Optuna replaces it by the last step, so the range would not be the stated
            # one.
            if not self.holds(high):
                last = low + self.step * math.floor((high - low) / self.step)
                raise InvalidError(
                    "config.steps_miss_high", kind=self.kind, low=low, high=high, step=self.step, last=last
                )
        return self

    def _of(self, kind: str) -> object:
        return getattr(self, {"float": "float_", "int": "int_"}.get(kind, kind))

    @property
    def kind(self) -> Kind:
        """Which of the four kinds of range is set."""
        kinds: tuple[Kind, ...] = ("float", "int", "log", "categorical")
        return next(kind for kind in kinds if self._of(kind) is not None)

    @property
    def bounds(self) -> tuple[float, float]:
        given = self.float_ or self.int_ or self.log
        assert given is not None
        return given

    @property
    def choices(self) -> tuple[Scalar, ...]:
        """The values of a categorical range, or () for other ranges."""
        return self.categorical or ()

    @property
    def corners(self) -> tuple[Scalar, ...]:
        """Values that represent the range in a trial check: its two ends, or all choices."""
        return self.choices or self.bounds

    def holds(self, value: object) -> bool:
        """Return whether a search could sample this value from the range."""
        if self.kind == "categorical":
            return any(same(choice, value) for choice in self.choices)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        low, high = self.bounds
        step = self.step or (1 if self.kind == "int" else None)
        # A decimal step such as 0.1 has no exact binary form, so the number of steps is compared with a tolerance.
        steps = (value - low) / step if step else 0.0
        return low <= value <= high and math.isclose(steps, round(steps), abs_tol=1e-9)

    def as_drawn(self, value: object) -> Scalar:
        """Return a value of the range in the form in which a search would sample it.

        For example, if the choices are [0.7, 1], the form of 1.0 is 1.
        """
        if self.kind == "categorical":
            return next(choice for choice in self.choices if same(choice, value))
        assert isinstance(value, int | float)
        return int(value) if self.kind == "int" else float(value)


class SearchBudget(Settings):
    """The limits of a search. It ends when the first of them is reached."""

    trials: int | None = Field(
        None, ge=1, le=1_000_000, description="most finished trials, whatever their outcome; --trials overrides it"
    )
    tokens: int | None = Field(None, ge=1, description="most tokens generated in training, over all trials")
    hours: float | None = Field(
        None, gt=0, le=1_000_000, description=("most hours of running trials, summed over all workers")
    )


class SearchSampler(Settings):
    """Optuna's sampler by name. `options` are the arguments of its class."""

    type: Literal["tpe", "gp", "random", "qmc", "nsga2"] = "tpe"
    seed: int = Field(0, ge=0)
    options: dict[str, object] = Field({}, description="arguments of the class, e.g. {n_startup_trials: 5}")


class Pruner(Settings):
    """Optuna's pruner by name. `options` are the arguments of its class.

    median and asha use the evaluations during training, wilcoxon the final scores of each seed.
    """

    type: Literal["none", "median", "asha", "wilcoxon"] = "none"
    options: dict[str, object] = Field({}, description="arguments of the class, e.g. {n_startup_trials: 5}")


def _known_knobs(knobs: dict[str, KnobRange]) -> dict[str, KnobRange]:
    for knob in knobs:
        if knob == "algorithm":
            raise InvalidError("config.algorithm_searched")
        if knob.startswith("eval."):
            raise InvalidError("config.measurement_searched", knob=knob)
        if knob not in spec_knobs() and not (knob.startswith("reward.parts.") or is_open(knob)):
            raise UnknownNameError("knob", knob, spec_knobs(), "bench ls knobs")
    return knobs


def _conditions_name_searched_knobs(knobs: dict[str, KnobRange]) -> dict[str, KnobRange]:
    for knob, searched in knobs.items():
        for parent, values in searched.when.items():
            if parent not in knobs or parent == knob:
                raise InvalidError("config.condition_not_searched", knob=knob, parent=parent)
            if knobs[parent].kind in ("float", "log"):
                raise InvalidError("config.condition_on_continuous_knob", knob=knob, parent=parent)
            never = [value for value in values if not knobs[parent].holds(value)]
            if never:
                raise InvalidError("config.condition_never_drawn", knob=knob, parent=parent, value=never[0])
    _in_order(knobs)
    return knobs


def _in_order(knobs: dict[str, KnobRange]) -> list[str]:
    """Return the knobs, each after the knobs in its condition. Raises ValueError if conditions are circular."""
    order: list[str] = []
    while len(order) < len(knobs):
        free = [k for k, r in knobs.items() if k not in order and set(r.when) <= set(order)]
        if not free:
            circle = [knob for knob in knobs if knob not in order]
            raise InvalidError("config.circular_conditions", knobs=", ".join(circle))
        order += free
    return order


SearchedKnobs = Annotated[
    dict[str, KnobRange],
    Field(min_length=1),
    AfterValidator(_known_knobs),
    AfterValidator(_conditions_name_searched_knobs),
]


class Search(Settings):
    """A search for the best settings, as variations of the sweep's base."""

    knobs: SearchedKnobs = Field(description="maps each knob to its range")
    objectives: Listed[str] = Field(
        ("eval.final.pass@1",),
        min_length=1,
        max_length=2,
        description="one metric of accuracy, or a metric of accuracy and then one of tokens: "
        "eval.final.[<task>.]<metric>, eval.final.[<task>.]mean_tokens, generated_tokens",
    )
    budget: SearchBudget = SearchBudget()
    sampler: SearchSampler = SearchSampler()
    pruner: Pruner = Pruner()

    def contradictions(self) -> Iterator[str]:
        first, *rest = self.objectives
        if not first.startswith(_FINAL) or not find_metric(first.rpartition(".")[2]).compares_arms:
            yield f"objectives begins with {first!r}: the first is accuracy, e.g. eval.final.pass@1"
        for other in rest:
            if other == first or not (other == GENERATED_TOKENS or other.startswith(_FINAL)):
                yield (
                    f"objectives has {other!r} beside {first!r}: the second is another one, e.g. "
                    "eval.final.mean_tokens or generated_tokens"
                )
        if rest and self.pruner.type != "none":
            yield (
                f"pruner is {self.pruner.type} with two objectives: Optuna prunes by one only. Set pruner to "
                "{type: none}, or leave one objective"
            )

    def ordered(self) -> list[str]:
        """Return the knobs, each after the knobs in its condition."""
        return _in_order(self.knobs)

    def is_drawn(self, knob: str, values: Mapping[str, object]) -> bool:
        """Return whether a knob's condition holds. values: the sampled values of the knobs before it."""
        return all(
            # A parent that was not sampled does not exist at this point. Its value in the base cannot satisfy a
            # condition.
            parent in values and any(same(values[parent], value) for value in allowed)
            for parent, allowed in self.knobs[knob].when.items()
        )


TUNING_SEED = 1_000_000
"""The first seed of trials that tune an arm. Verdicts use smaller seeds, so that no seed is used for both."""
_AMOUNTS = ("budget.", "train.steps")
"""Prefixes of knobs that set the amount of training."""


class Tune(Settings):
    """Tuning: each arm is searched with the same budget, and arms are compared at their best settings."""

    per_arm: SearchedKnobs = Field(
        description=("maps each knob to its range; each arm is searched separately for its best values")
    )
    trials: int = Field(
        8,
        ge=2,
        le=1_000_000,
        description=("trials per arm; the first trial is the untuned arm, if its values lie in the ranges"),
    )
    seeds: int = Field(
        3,
        ge=2,
        le=1_000,
        description=f"of each trial, from {TUNING_SEED:,} on: no verdict shares one. One cannot tell the noise",
    )

    @field_validator("per_arm")
    @classmethod
    def _arms_get_equal_amounts(cls, knobs: dict[str, KnobRange]) -> dict[str, KnobRange]:
        for knob in knobs:
            if knob.startswith(_AMOUNTS):
                raise InvalidError("config.amount_tuned", knob=knob)
        return knobs

    @property
    def seed_list(self) -> list[int]:
        return [TUNING_SEED + i for i in range(self.seeds)]

    def search(self, metric: str) -> Search:
        """Return the search within one arm, whose objective is the metric by which arms are compared.

        The first samples are the same in every arm. The later ones come from a Gaussian process fitted to the trials so
        far, which finds the peak of a knob in few trials.
        """
        return Search(
            knobs=self.per_arm,
            objectives=(metric,),
            budget=SearchBudget(trials=self.trials),
            sampler=SearchSampler(type="gp", options={"n_startup_trials": min(4, self.trials)}),
        )


def same(one: object, other: object) -> bool:
    """Return whether a knob treats two values as equal. 1 and 1.0 are equal, but 1 and true are not."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def direction(objective: str) -> Literal["maximize", "minimize"]:
    """Return whether an objective is maximised or minimised. Raises UnknownNameError for an unknown metric."""
    if objective == GENERATED_TOKENS or find_metric(objective.rpartition(".")[2]).better == "less":
        return "minimize"
    return "maximize"
