"""The plan of a search: the spec of any setting, and the checks that are possible before the first trial."""

from __future__ import annotations

import json
import math
import operator
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from pathlib import Path

from harness.config.hashing import semantic_hash
from harness.config.knobs import active
from harness.config.machine import resolved_for_machine
from harness.config.resolve import Layer, resolve
from harness.config.run_spec import RunSpec
from harness.config.search import GENERATED_TOKENS, Search
from harness.errors import GateError, RefusedError
from harness.executors.slots import gpu_here
from harness.plan.filing import PlannedCell
from harness.plan.gate import GateReport, check_gate, find_noops
from harness.plan.plan import Plan
from harness.plan.request import SweepRequest, metric_faults, read_request
from harness.plan.sweep_file import SweepFile
from harness.settings import dotted

Values = dict[str, object]

DEFAULT = "default"
"""The name of the setting from which a search starts: that of the profile and the base."""
_SETTINGS_TRIED = 40
"""The most settings of the other knobs that are tried to find one in which a knob has an effect."""
_ENDS = (0, -1)
"""The indices of a range's two ends in its `corners`."""
_LONGEST_NAME = 255
"""The limit of common file systems on the name of a folder, in bytes."""
_WILCOXON: dict[str, object] = {"p_threshold": 0.1, "n_startup_steps": 2}
_FEWEST_PAIRS = 2
"""The fewest pairs that this pruner compares, whatever its options."""


@dataclass(frozen=True)
class SearchPlan:
    """A search before it begins.

    A trial's values override the layers of `request` and are overridden by its `overrides`.
    """

    request: SweepRequest
    search: Search
    _specs: dict[str, RunSpec] = field(default_factory=dict)

    @property
    def sweep(self) -> SweepFile:
        return self.request.sweep

    @property
    def path(self) -> Path:
        return self.request.path

    @property
    def profile(self) -> str:
        return self.request.profile

    @property
    def where(self) -> str:
        """The key of the sweep file that contains the ranges. If the file has arms, the search tunes an arm."""
        return "tune.per_arm" if self.sweep.arms else "search.knobs"

    @cached_property
    def _layers(self) -> tuple[list[Layer], list[Layer]]:
        """The layers that a trial's values override, and the layers that override these values."""
        below = self.request.layers
        for with_arm in self.request.arms_between(below, []).values():
            below = with_arm
        return below, self.request.overrides

    def spec(self, values: Mapping[str, object], seed: int) -> RunSpec:
        """Return the resolved spec of a setting. Raises RefusedError if the values contradict each other."""
        # The specs are cached, because the records are rewritten with all settings after each trial.
        key = json.dumps([values, seed], sort_keys=True)
        if key not in self._specs:
            own = [Layer(f"{self.path}: {self.where}", values)]
            below, above = self._layers
            self._specs[key] = resolved_for_machine(resolve([*below, *own, *above], seed), self.request.on_gpu)
        return self._specs[key]

    def plan(self, settings: Mapping[str, Mapping[str, object]]) -> Plan:
        specs = {arm: {seed: self.spec(values, seed) for seed in self.seeds} for arm, values in settings.items()}
        firsts = {arm: by_seed[self.seeds[0]] for arm, by_seed in specs.items()}
        return Plan(
            request=self.request,
            arms=firsts,
            cells=[cell for arm, by_seed in specs.items() for cell in PlannedCell.of_arm(arm, by_seed)],
            gate=check_gate(firsts, list(self.search.knobs), {}) if firsts else GateReport([], {}),
            noops=[],
            warnings=[],
        )

    @property
    def seeds(self) -> list[int]:
        return self.request.seed_list

    def folder(self, home: Path) -> Path:
        return home / self.sweep.name

    @property
    def confirmation_name(self) -> str:
        """The name of the sweep that trains the best setting on fresh seeds."""
        return f"{self.sweep.name}-confirm"

    @cached_property
    def objectives(self) -> list[str]:
        """The objectives in their full form, eval.final.<task>.<metric>."""
        plan = self.plan({DEFAULT: {}})
        return [_with_task(objective, plan.task_names) for objective in self.search.objectives]

    @cached_property
    def always_drawn(self) -> dict[str, object]:
        """The values that the base has for the searched knobs without a condition."""
        known = active(self.spec({}, self.seeds[0]))
        return {k: known[k] for k, searched in self.search.knobs.items() if not searched.when and k in known}

    def require_searchable(self) -> None:
        """Raise RefusedError for invalid ranges, overrides or metrics, GateError for a knob that has no effect."""
        overridden = [knob for layer in self.request.overrides for knob in dotted(layer.settings)]
        for knob in overridden:
            if knob in self.search.knobs:
                raise RefusedError("plan.searched_knob_set", knob=knob, where=self.where)
        _require_short_name(self)
        faults = list(metric_faults(self.search.objectives[0], self.spec({}, self.seeds[0]).eval))
        if faults:
            raise RefusedError("\n".join(f"{self.path}: {fault}" for fault in faults))
        _require_metrics(self)
        _require_something_to_prune_by(self)
        # Types are checked first, because whether a knob has an effect can be judged only at values that it can have.
        _require_types(self)
        _require_action(self)

    def question(self) -> dict[str, object]:
        """Return the parts of a search that must not change: how trials are compared, sampled and pruned."""
        return {
            "knobs": {knob: searched.model_dump(mode="json") for knob, searched in self.search.knobs.items()},
            "objectives": self.objectives,
            "seeds": self.seeds,
            "sampler": self.search.sampler.model_dump(mode="json"),
            "pruner": self.search.pruner.model_dump(mode="json"),
            "base": semantic_hash(self.spec({}, self.seeds[0])),
        }

    def default_values(self) -> dict[str, object] | None:
        """Return the values of the searched knobs in the base, or None if one of them is outside its range."""
        known = active(self.spec({}, self.seeds[0]))
        values: dict[str, object] = {}
        for knob in self.search.ordered():
            if not self.search.is_drawn(knob, values):
                continue
            if knob not in known or not self.search.knobs[knob].holds(known[knob]):
                return None
            values[knob] = self.search.knobs[knob].as_drawn(known[knob])
        return values


def make_search_plan(
    given: str,
    profile: str | None = None,
    settings: Sequence[str] = (),
    seeds: int | None = None,
    on_gpu: Callable[[], bool] = gpu_here,
) -> SearchPlan:
    """Plan the search of a sweep file (path or shipped name) with the overrides of the command line.

    on_gpu: as in `read_request`. Raises RefusedError for any fault in the files, ranges or overrides, GateError for a
    knob that has no effect.
    """
    request = read_request(given, profile, settings, seeds, on_gpu=on_gpu)
    search = request.sweep.search
    if search is None:
        raise RefusedError("plan.arms_without_search", given=given)
    plan = SearchPlan(request, search)
    plan.require_searchable()
    return plan


def _require_short_name(plan: SearchPlan) -> None:
    """Raise RefusedError for a name that is too long once `-confirm` is appended."""
    excess = len(plan.confirmation_name) - _LONGEST_NAME
    if excess > 0:
        raise RefusedError(
            "plan.name_too_long",
            path=plan.path,
            n_characters=len(plan.sweep.name),
            most_characters=len(plan.sweep.name) - excess,
        )


def _with_task(objective: str, tasks: Sequence[str]) -> str:
    if objective == GENERATED_TOKENS:
        return objective
    task, _, metric = objective.removeprefix("eval.final.").rpartition(".")
    return f"eval.final.{task or tasks[0]}.{metric}"


def _require_metrics(plan: SearchPlan) -> None:
    """Raise RefusedError for an unknown second objective. The first is checked like the metric of any sweep."""
    tasks = plan.plan({DEFAULT: {}}).task_names
    for objective in plan.objectives[1:]:
        if objective == GENERATED_TOKENS:
            continue
        task, _, metric = objective.removeprefix("eval.final.").rpartition(".")
        if task not in tasks or metric != "mean_tokens":
            raise RefusedError(
                "plan.unknown_second_objective", path=plan.path, objective=objective, tasks=", ".join(tasks)
            )


def _require_something_to_prune_by(plan: SearchPlan) -> None:
    """Raise RefusedError for a pruner that would have nothing to compare."""
    pruner, base = plan.search.pruner.type, plan.spec({}, plan.seeds[0])
    if pruner == "wilcoxon":
        _require_seeds_to_prune_by(plan)
    every, searched = base.eval.every, plan.search.knobs.get("train.steps")
    # This is the longest training that a trial may have. One evaluation before its end suffices.
    drawn = [value for value in searched.corners if isinstance(value, int)] if searched else []
    steps = max(drawn, default=base.train.steps)
    # The evaluation after the last step is the final one, so it does not count.
    if pruner in ("median", "asha") and not 0 < every < steps:
        raise RefusedError("plan.pruner_without_evaluations", path=plan.path, pruner=pruner, every=every, steps=steps)


def _require_seeds_to_prune_by(plan: SearchPlan) -> None:
    """Raise RefusedError if Wilcoxon pruning could act only after the last seed: with k pairs, p is at least 2^-k."""
    options = _WILCOXON | plan.search.pruner.options
    threshold, startup, given = options["p_threshold"], options["n_startup_steps"], len(plan.seeds)
    if not isinstance(threshold, int | float) or not threshold <= 1 or not isinstance(startup, int):
        return  # refused when the study is made, like everything that Optuna does not accept
    if threshold <= 0:
        raise RefusedError("plan.p_threshold_not_positive", path=plan.path, p_threshold=threshold)
    # The smallest k with 2^-k < threshold, plus the one seed that pruning then saves.
    needed = 1 + max(_FEWEST_PAIRS, startup, math.floor(-math.log2(threshold)) + 1)
    if given < needed:
        raise RefusedError(
            "plan.too_few_seeds_to_prune",
            path=plan.path,
            seeds="one seed" if given == 1 else f"{given} seeds",
            p_threshold=threshold,
            n_startup_steps=startup,
            earliest=needed - 1,
            n_needed=needed,
        )


def _require_types(plan: SearchPlan) -> None:
    """Raise RefusedError unless every knob can have the values at the ends of its range.

    The other knobs have values that satisfy its condition, or otherwise those of the base.
    """
    problems: list[str] = []
    for knob, searched in plan.search.knobs.items():
        around = _where_drawn(plan.search, knob)
        for value in searched.corners:
            problems += _problems(plan, around | {knob: value})
    if problems:
        raise RefusedError("\n".join(dict.fromkeys(problems)))


def _problems(plan: SearchPlan, values: Mapping[str, object]) -> list[str]:
    """Return the reasons why no trial could have these values, or [] if one could."""
    problems: list[str] = []
    for setting in (*(_with_conditional(plan, values, end) for end in _ENDS), values):
        try:
            plan.spec(setting, plan.seeds[0])
        except RefusedError as error:
            problems = problems or str(error).splitlines()
        else:
            return []
    return problems


def _with_conditional(plan: SearchPlan, values: Mapping[str, object], end: int) -> dict[str, object]:
    """Return these values, plus the knobs that are sampled because of them, at one end of their ranges.

    Some values are invalid without such knobs: cispo needs its weight_max, for example.
    """
    setting = dict(values)
    for knob in plan.search.ordered():
        searched = plan.search.knobs[knob]
        if searched.when and knob not in setting and plan.search.is_drawn(knob, plan.always_drawn | setting):
            setting[knob] = searched.corners[end]
    return setting


def _where_drawn(
    search: Search, knob: str, pick: Callable[[Sequence[object]], object] = operator.itemgetter(0)
) -> dict[str, object]:
    """Return values of other knobs that satisfy the condition of this knob."""
    values: dict[str, object] = {}
    for parent, allowed in search.knobs[knob].when.items():
        values |= _where_drawn(search, parent, pick) | {parent: search.knobs[parent].as_drawn(pick(allowed))}
    return values


def _require_action(plan: SearchPlan) -> None:
    """Raise GateError for a knob that has no effect at all, or none on a branch where it is sampled.

    Also raises it if two values of a knob had the same effect wherever they were tried.
    """
    for knob, searched in plan.search.knobs.items():
        pairs = list(combinations(searched.corners, 2))
        # The pairs of values that have made no difference so far.
        alike = pairs
        why, inert = "its condition never holds", None
        for around in _surroundings(plan.search, knob):
            reasons = [_why_no_action(plan, knob, around, *pair) for pair in alike]
            others = (_why_no_action(plan, knob, around, *pair) for pair in pairs if pair not in alike)
            # Pairs that differed elsewhere are checked here too, but only if all pairs in `alike` make no difference
            # here: `others` is lazy.
            if all(reasons) and all(others):
                inert = inert or (around, reasons[0] if reasons else _why_no_action(plan, knob, around, *pairs[0]))
            alike = [pair for pair, reason in zip(alike, reasons, strict=True) if reason]
            why = next((reason for reason in reasons if reason), why)
        if alike == pairs:
            raise GateError("plan.knob_never_acts", where=plan.where, knob=knob, reason=why)
        if inert is not None:
            around, reason = inert
            at = ", ".join(f"{name}={value}" for name, value in around.items()) or "the base"
            raise GateError("plan.knob_inert_at_setting", where=plan.where, knob=knob, setting=at, reason=reason)
        if alike:
            one, other = alike[0]
            raise GateError(
                "plan.equivalent_knob_values", where=plan.where, knob=knob, first=one, second=other, reason=why
            )


def _surroundings(search: Search, knob: str) -> Iterator[dict[str, object]]:
    """Yield random settings of the other knobs under which this knob is sampled, without repetition."""
    rng = random.Random(0)
    seen: list[dict[str, object]] = []
    # A knob that exists only because of this knob cannot be part of the setting around it.
    others = [other for other in search.ordered() if knob not in _ancestors(search, other)]
    for _ in range(_SETTINGS_TRIED):
        values: dict[str, object] = _where_drawn(search, knob, rng.choice)
        for other in others:
            if other != knob and other not in values and search.is_drawn(other, values):
                values[other] = rng.choice(search.knobs[other].corners)
        if search.is_drawn(knob, values) and values not in seen:
            seen.append(values)
            yield values


def _ancestors(search: Search, knob: str) -> set[str]:
    """Return the knobs that decide, directly or indirectly, whether this knob is sampled."""
    parents = set(search.knobs[knob].when)
    return parents.union(*(_ancestors(search, parent) for parent in parents))


def _why_no_action(plan: SearchPlan, knob: str, around: dict[str, object], one: object, other: object) -> str | None:
    """Return the reason why two values of a knob make no difference in a setting, whatever further knobs they require.

    None if they make a difference, or contradict the setting.
    """
    reason = None
    for end in _ENDS:
        settings = {repr(value): _with_conditional(plan, around | {knob: value}, end) for value in (one, other)}
        try:
            specs = {value: plan.spec(setting, plan.seeds[0]) for value, setting in settings.items()}
        except RefusedError:  # values that do not go together: their trial will say so
            return None
        if len({semantic_hash(spec) for spec in specs.values()}) == 1:
            reason = "its values make no difference to what a cell computes"
        elif refused := [noop for noop in find_noops(specs) if noop.refused]:
            reason = "; ".join(dict.fromkeys(refused[0].reasons.values()))
        else:
            return None
    return reason
