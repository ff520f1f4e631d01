"""The gate and the guard. The gate: arms differ only in the declared knobs. The guard: these differences can act."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TypedDict

from algorithms import Objective, PreferenceObjective, differences_that_cannot_act, hears_rewards
from algorithms.preference import preference_differences_that_cannot_act
from harness.config.knobs import active, acts_of, governor, reads, unread
from harness.config.reward import parts_with_options
from harness.config.run_spec import RunSpec
from harness.config.trainer import BENCH, OutsideTrainer, is_open
from harness.errors import shown
from harness.words import said

ABSENT = "(absent)"
NOT_READ = "(not read)"
"""The value of a knob that exists in an arm, but does not act on the program that trains its cells."""
NOT_GIVEN = "(not given)"
"""The value of a program's own setting that is left to the program."""
_MOST_PAIRS_NAMED = 20
"""The most messages on pairs of arms that are shown."""
EVALUATION = "eval."
"""Prefix of the knobs that decide how arms are measured."""


@dataclass(frozen=True)
class GateReport:
    """The verdict on the differences between arms."""

    differs: list[str]
    """Knobs in which any two arms differ."""
    violations: dict[str, dict[str, object]]
    """Knobs, with each arm's value, that were not declared; and those of the evaluation, declared or not."""
    over_checkpoint: bool = False
    """True if nothing is trained, so that the evaluation itself is the question."""

    @property
    def ok(self) -> bool:
        """True if no knob is refused."""
        return not self.violations

    def message(self) -> str:
        """Return a message with every knob that is refused, the arms and their values, and the remedy."""
        undeclared, measured = refused_lines(self.violations, heeds_evaluation=not self.over_checkpoint)
        parts = [said("plan.arms_differ_undeclared", knobs=undeclared)] if undeclared else []
        if measured:
            parts.append(said("plan.arms_measured_differently", knobs=measured))
        return "\n".join(parts)


def refused_lines(violations: Mapping[str, Mapping[str, object]], heeds_evaluation: bool = True) -> tuple[str, str]:
    """Return a line for each refused knob with its values: first those not declared, then those of the evaluation.

    violations: the knobs with their values by arm or cell. heeds_evaluation: tell the evaluation's knobs apart.
    """
    lines: tuple[list[str], list[str]] = ([], [])
    for knob, values in violations.items():
        by_name = ", ".join(f"{name} = {shown(value)}" for name, value in values.items())
        lines[heeds_evaluation and knob.startswith(EVALUATION)].append(f"  {knob}: {by_name}")
    return "\n".join(lines[False]), "\n".join(lines[True])


def check_gate(arms: Mapping[str, RunSpec], ablate: Sequence[str], co_changes: Mapping[str, str]) -> GateReport:
    """Compare the resolved specs of all arms (of one seed), knob by knob.

    A knob that exists only in some arms is explained by the selector that governs it, directly or through others.
    Nothing explains a knob of the evaluation: arms are measured alike, or they cannot be compared. Only over one
    checkpoint, where nothing is trained, is it a knob like any other.
    """
    over_checkpoint = all(spec.checkpoint for spec in arms.values())
    declared = [*ablate, *co_changes]
    values = values_that_differ(arms)
    violations = {
        knob: by_arm
        for knob, by_arm in values.items()
        if (knob.startswith(EVALUATION) and not over_checkpoint)
        or (
            not covered(knob, declared)
            and not (ABSENT in by_arm.values() and any(covered(selector, declared) for selector in _governors(knob)))
        )
    }
    return GateReport(list(values), violations, over_checkpoint)


def differing(one: Mapping[str, object], other: Mapping[str, object]) -> dict[str, tuple[object, object]]:
    """Map the knobs in which settings differ to their two values; `ABSENT` stands for none."""
    pairs = {knob: (one.get(knob, ABSENT), other.get(knob, ABSENT)) for knob in dict.fromkeys([*one, *other])}
    return {knob: pair for knob, pair in pairs.items() if pair[0] != pair[1]}


def values_that_differ(arms: Mapping[str, RunSpec]) -> dict[str, dict[str, object]]:
    """Map each knob in which the arms are not all equal to its value by arm; the seed is not a knob."""
    flat = {arm: active(spec) for arm, spec in arms.items()}
    knobs = dict.fromkeys(knob for values in flat.values() for knob in values if knob != "seed")
    by_knob = {
        knob: {arm: values.get(knob, _without(arms[arm], knob)) for arm, values in flat.items()} for knob in knobs
    }
    # A knob that a program does not read is no difference of its own: `trainer.type` already differs.
    acting = {knob: [value for value in by_arm.values() if value != NOT_READ] for knob, by_arm in by_knob.items()}
    return {knob: by_arm for knob, by_arm in by_knob.items() if any(v != acting[knob][0] for v in acting[knob])}


def _without(spec: RunSpec, knob: str) -> str:
    """Return why a spec has no such knob."""
    if not reads(spec, knob):
        return NOT_READ
    return NOT_GIVEN if is_open(knob) and isinstance(spec.trainer, OutsideTrainer) else ABSENT


def _governors(knob: str) -> Iterator[str]:
    """Yield the selectors that decide whether a knob exists, its own first: a selector may itself have one."""
    selector = governor(knob)
    while selector is not None:
        yield selector
        selector = governor(selector)
    # Knobs of sampling do not exist with a data set of pairs, although no marker at their field says so.
    if acts_of(knob).only_draws:
        yield from ("pairs.type", *_governors("pairs.type"))


def covered(knob: str, declared: Sequence[str]) -> bool:
    """Return whether a knob is declared, by its name or as a part of a declared section.

    `algorithm` stands for `objective`.
    """
    below = ["objective" if entry == "algorithm" else entry for entry in declared]
    return any(f"{knob}.".startswith(f"{entry}.") for entry in (*declared, *below))


@dataclass(frozen=True)
class Noop:
    """Two arms whose differing knobs cannot act, wholly (`refused`) or in part, with the reason for each such knob."""

    arms: tuple[str, str]
    reasons: dict[str, str]
    refused: bool

    def message(self) -> str:
        """Return a sentence with the arms, the knobs and the reasons."""
        first, second = self.arms
        reasons = "; ".join(f"{knob}: {reason}" for knob, reason in self.reasons.items())
        if self.refused:
            return said("plan.arms_cannot_differ", first=first, second=second, reasons=reasons)
        return said("plan.arms_differ_partly_without_effect", first=first, second=second, reasons=reasons)


def find_noops(arms: Mapping[str, RunSpec]) -> list[Noop]:
    """Return every pair of arms with a differing knob that cannot act.

    A clip range with one update per rollout is such a knob.
    """
    noops = []
    varied = values_that_differ(arms)
    for (name_a, a), (name_b, b) in combinations(arms.items(), 2):
        inert = {f"objective.{knob}": reason for knob, reason in _inert(a, b).items()} | _without_weight(a, b)
        for part in a.reward.scored:
            inert |= part.cannot_act(a, b)
        if any(isinstance(one.trainer, OutsideTrainer) for one in (a, b)):
            inert = _not_read(a, b)
        differing = {knob for knob, by_arm in varied.items() if by_arm[name_a] != by_arm[name_b]}
        if not (_heeds_rewards(a) or _heeds_rewards(b)) and a.trainer.type == b.trainer.type == BENCH:
            of_rewards = sorted(knob for knob in differing if knob.startswith("reward."))
            inert |= dict.fromkeys(of_rewards, "rewards affect neither the loss nor which completions are in it")
        if inert:
            noops.append(Noop((name_a, name_b), inert, refused=differing <= inert.keys()))
    return noops


def _not_read(a: RunSpec, b: RunSpec) -> dict[str, str]:
    """Map the knobs in which two specs differ and which neither's program reads to the reason."""
    unread_a, unread_b = unread(a), unread(b)
    reason = "its program does not read it; name it under trainer.uses if it does, or hand it over as trainer.args"
    return {knob: reason for knob in unread_a if knob in unread_b and unread_a[knob] != unread_b[knob]}


def _heeds_rewards(spec: RunSpec) -> bool:
    """Return whether training depends on rewards.

    It may do so through advantages, or through the choice of groups, prompts or a limit.
    """
    objective = spec.objective
    if not isinstance(objective, Objective) or hears_rewards(objective) or objective.zero_std != "keep":
        return True
    task = spec.task
    return spec.rollout.staged.type == "converged" or task.order == "prioritised" or task.retire_at is not None


def first_of(messages: Sequence[str]) -> list[str]:
    """Return the first messages about pairs of arms, and how many more there are."""
    more = len(messages) - _MOST_PAIRS_NAMED
    return [*messages[:_MOST_PAIRS_NAMED], *([f"and {more:,} more such pairs of arms"] if more > 0 else [])]


def _inert(a: RunSpec, b: RunSpec) -> dict[str, str]:
    """Map objective knobs in which the two differ without effect to reasons; {} for objectives of two families."""
    if isinstance(a.objective, Objective) and isinstance(b.objective, Objective):
        # With one update every importance ratio is 1; the arm with more updates decides what can act.
        updates = max(a.optimizer_steps_per_rollout, b.optimizer_steps_per_rollout)
        inert = differences_that_cannot_act(a.objective, b.objective, updates)
        if a.reward.has_answer_term or b.reward.has_answer_term:
            # The aggregation also divides the supervised term on gold answers.
            inert.pop("aggregation", None)
        return inert
    if isinstance(a.objective, PreferenceObjective) and isinstance(b.objective, PreferenceObjective):
        return preference_differences_that_cannot_act(a.objective, b.objective)
    return {}


def _without_weight(a: RunSpec, b: RunSpec) -> dict[str, str]:
    """Map options of reward parts whose weight is 0 in both specs to the reason."""
    inert = {}
    for section, part in parts_with_options().items():
        # Other parts read the options of a section that is not the part's own, such as `noise`.
        if section == part.name and a.reward.parts.get(part.name) == b.reward.parts.get(part.name) == 0:
            options = (one.reward.of(part) for one in (a, b))
            for (field, of_a), (_, of_b) in zip(*options, strict=True):
                if of_a != of_b:
                    inert[f"reward.{section}.{field}"] = (
                        f"the part {part.name} has weight 0: it is recorded but not trained on"
                    )
    return inert


class ImportedSettings(TypedDict):
    """The settings of another tool, in spec.json under `imported`."""

    config: dict[str, object]
    passed_over: list[str]
    """The knobs that are no part of the comparison."""


def imported_settings_that_differ(one: ImportedSettings, other: ImportedSettings) -> dict[str, tuple[object, object]]:
    """Map knobs to their values in two cells; {} unless the settings of both are known."""
    ours, theirs = (
        {knob: value for knob, value in side["config"].items() if knob not in side["passed_over"]}
        for side in (one, other)
    )
    return differing(ours, theirs) if ours and theirs else {}
