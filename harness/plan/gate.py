"""The gate checks that arms differ only in declared knobs. The guard checks that the differences have an effect."""

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
"""The value of a knob that exists in an arm but is not read by the program that trains its cells."""
NOT_GIVEN = "(not given)"
"""The value of one of a program's own settings that is not set."""
_MOST_PAIRS_NAMED = 20
EVALUATION = "eval."
"""The prefix of the knobs that determine how arms are evaluated."""


@dataclass(frozen=True)
class GateReport:
    """The result of comparing the arms' settings."""

    differs: list[str]
    violations: dict[str, dict[str, object]]
    """The refused knobs, with each arm's value: knobs that were not declared, and all knobs of the evaluation."""
    over_checkpoint: bool = False
    """True if nothing is trained, so that the settings of the evaluation are the question."""

    @property
    def ok(self) -> bool:
        return not self.violations

    def message(self) -> str:
        """Return a message that lists every refused knob with the arms and their values, and states the remedy."""
        undeclared, measured = refused_lines(self.violations, heeds_evaluation=not self.over_checkpoint)
        parts = [said("plan.arms_differ_undeclared", knobs=undeclared)] if undeclared else []
        if measured:
            parts.append(said("plan.arms_measured_differently", knobs=measured))
        return "\n".join(parts)


def refused_lines(violations: Mapping[str, Mapping[str, object]], heeds_evaluation: bool = True) -> tuple[str, str]:
    """Return a line for each refused knob with its values: first the undeclared knobs, then those of the evaluation.

    violations: maps each knob to its values by arm or cell.
    heeds_evaluation: whether to list the evaluation's knobs separately.
    """
    lines: tuple[list[str], list[str]] = ([], [])
    for knob, values in violations.items():
        by_name = ", ".join(f"{name} = {shown(value)}" for name, value in values.items())
        lines[heeds_evaluation and knob.startswith(EVALUATION)].append(f"  {knob}: {by_name}")
    return "\n".join(lines[False]), "\n".join(lines[True])


def check_gate(arms: Mapping[str, RunSpec], ablate: Sequence[str], co_changes: Mapping[str, str]) -> GateReport:
    """Compare the resolved specs of all arms, for one seed, knob by knob.

    A knob that exists only in some arms is allowed if the selector that governs it, directly or indirectly, is
    declared. A knob of the evaluation is never allowed to differ, because arms that are measured differently cannot be
    compared. Only if all arms evaluate one checkpoint, and nothing is trained, is it treated like any other knob.
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
    """Map the knobs in which two settings differ to their two values. `ABSENT` stands for a missing knob."""
    pairs = {knob: (one.get(knob, ABSENT), other.get(knob, ABSENT)) for knob in dict.fromkeys([*one, *other])}
    return {knob: pair for knob, pair in pairs.items() if pair[0] != pair[1]}


def values_that_differ(arms: Mapping[str, RunSpec]) -> dict[str, dict[str, object]]:
    """Map each knob in which the arms differ to its value in each arm. The seed is not a knob."""
    flat = {arm: active(spec) for arm, spec in arms.items()}
    knobs = dict.fromkeys(knob for values in flat.values() for knob in values if knob != "seed")
    by_knob = {
        knob: {arm: values.get(knob, _without(arms[arm], knob)) for arm, values in flat.items()} for knob in knobs
    }
    # An arm whose program does not read a knob does not differ in it, because it differs in `trainer.type` already.
    acting = {knob: [value for value in by_arm.values() if value != NOT_READ] for knob, by_arm in by_knob.items()}
    return {knob: by_arm for knob, by_arm in by_knob.items() if any(v != acting[knob][0] for v in acting[knob])}


def _without(spec: RunSpec, knob: str) -> str:
    """Return the reason why a spec does not have this knob."""
    if not reads(spec, knob):
        return NOT_READ
    return NOT_GIVEN if is_open(knob) and isinstance(spec.trainer, OutsideTrainer) else ABSENT


def _governors(knob: str) -> Iterator[str]:
    """Yield the selectors that decide whether a knob exists: the knob's selector, that selector's selector, etc."""
    selector = governor(knob)
    while selector is not None:
        yield selector
        selector = governor(selector)
    # Knobs of sampling do not exist with a data set of pairs, although they are not marked so at their field.
    if acts_of(knob).only_draws:
        yield from ("pairs.type", *_governors("pairs.type"))


def covered(knob: str, declared: Sequence[str]) -> bool:
    """Return whether a knob or a section that contains it is declared.

    `algorithm` stands for the section `objective`.
    """
    below = ["objective" if entry == "algorithm" else entry for entry in declared]
    return any(f"{knob}.".startswith(f"{entry}.") for entry in (*declared, *below))


@dataclass(frozen=True)
class Noop:
    """Two arms with differing knobs that have no effect, and the reason for each such knob.

    refused: whether this holds for all knobs in which they differ.
    """

    arms: tuple[str, str]
    reasons: dict[str, str]
    refused: bool

    def message(self) -> str:
        """Return a sentence that names the arms, the knobs and the reasons."""
        first, second = self.arms
        reasons = "; ".join(f"{knob}: {reason}" for knob, reason in self.reasons.items())
        if self.refused:
            return said("plan.arms_cannot_differ", first=first, second=second, reasons=reasons)
        return said("plan.arms_differ_partly_without_effect", first=first, second=second, reasons=reasons)


def find_noops(arms: Mapping[str, RunSpec]) -> list[Noop]:
    """Return every pair of arms with a differing knob that has no effect.

    An example is a clip range with one update per rollout.
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
    """Map each differing knob that neither arm's program reads to the reason."""
    unread_a, unread_b = unread(a), unread(b)
    reason = "its program does not read it; name it under trainer.uses if it does, or hand it over as trainer.args"
    return {knob: reason for knob in unread_a if knob in unread_b and unread_a[knob] != unread_b[knob]}


def _heeds_rewards(spec: RunSpec) -> bool:
    """Return whether training depends on rewards.

    It may depend on them through advantages, or through the choice of groups, prompts or a length limit.
    """
    objective = spec.objective
    if not isinstance(objective, Objective) or hears_rewards(objective) or objective.zero_std != "keep":
        return True
    task = spec.task
    return spec.rollout.staged.type == "converged" or task.order == "prioritised" or task.retire_at is not None


def first_of(messages: Sequence[str]) -> list[str]:
    """Return the first messages about pairs of arms, and a note of how many more there are."""
    more = len(messages) - _MOST_PAIRS_NAMED
    return [*messages[:_MOST_PAIRS_NAMED], *([f"and {more:,} more such pairs of arms"] if more > 0 else [])]


def _inert(a: RunSpec, b: RunSpec) -> dict[str, str]:
    """Map each differing knob of the objective without effect to the reason; {} if the families differ."""
    if isinstance(a.objective, Objective) and isinstance(b.objective, Objective):
        # With one update, every importance ratio is 1. The arm with more updates decides which knobs have an effect.
        updates = max(a.optimizer_steps_per_rollout, b.optimizer_steps_per_rollout)
        inert = differences_that_cannot_act(a.objective, b.objective, updates)
        if a.reward.has_answer_term or b.reward.has_answer_term:
            # The aggregation also determines the divisor of the supervised term on gold answers.
            inert.pop("aggregation", None)
        return inert
    if isinstance(a.objective, PreferenceObjective) and isinstance(b.objective, PreferenceObjective):
        return preference_differences_that_cannot_act(a.objective, b.objective)
    return {}


def _without_weight(a: RunSpec, b: RunSpec) -> dict[str, str]:
    """Map each differing option of a reward part whose weight is 0 in both specs to the reason."""
    inert = {}
    for section, part in parts_with_options().items():
        # The options in a section that is not named after its part, such as `noise`, are read by other parts too.
        if section == part.name and a.reward.parts.get(part.name) == b.reward.parts.get(part.name) == 0:
            options = (one.reward.of(part) for one in (a, b))
            for (field, of_a), (_, of_b) in zip(*options, strict=True):
                if of_a != of_b:
                    inert[f"reward.{section}.{field}"] = (
                        f"the part {part.name} has weight 0: it is recorded but not trained on"
                    )
    return inert


class ImportedSettings(TypedDict):
    """The settings of another tool, stored in spec.json under `imported`."""

    config: dict[str, object]
    passed_over: list[str]
    """The knobs to leave out of the comparison."""


def imported_settings_that_differ(one: ImportedSettings, other: ImportedSettings) -> dict[str, tuple[object, object]]:
    """Map each knob that differs between two imported cells to its values; {} if the settings of either are unknown."""
    ours, theirs = (
        {knob: value for knob, value in side["config"].items() if knob not in side["passed_over"]}
        for side in (one, other)
    )
    return differing(ours, theirs) if ours and theirs else {}
