"""The knobs of a run spec by dotted name: all knobs, the active knobs of a spec, and the selector of each knob."""

from __future__ import annotations

from collections.abc import Mapping

from harness.config.run_spec import RunSpec
from harness.config.trainer import OPEN, OutsideTrainer, is_open
from harness.plugins import cached
from harness.settings import Knob, active_knobs, knobs_of
from harness.settings.marks import Acts
from harness.settings.words import KnobFacts, facts_of

PARTS = "reward.parts."
"""The prefix of reward parts' names. A knob with this prefix is the weight of a part."""


@cached
def spec_knobs() -> Mapping[str, Knob]:
    """Return every knob of the spec.

    `reward.parts` stands for all reward parts, and `trainer.args` for all names below it.
    """
    return knobs_of(RunSpec)


@cached
def knob_facts() -> dict[str, KnobFacts]:
    return {name: facts_of(knob) for name, knob in spec_knobs().items()}


def knob_at(name: str) -> Knob | None:
    """Return the knob with this name, or None if it is unknown.

    For a name that the user chose (`trainer.args.rank`), return the knob that stands for all such names.
    """
    known = spec_knobs()
    if name in known:
        return known[name]
    return next((known[group.rstrip(".")] for group in (PARTS, *OPEN) if name.startswith(group)), None)


@cached
def acts_of(name: str) -> Acts:
    """Return what a knob acts on. Raises KeyError for an unknown knob."""
    knob = knob_at(name)
    # A knob without its own mark inherits the mark of its section.
    acts = None if knob is None else knob.inherited(Acts)
    if acts is None:
        raise KeyError(f"the knob {name} is unknown, or neither it nor its section is marked with what it acts on")
    return acts


def active(spec: RunSpec) -> dict[str, object]:
    """Return every active knob with its value. Tuples become lists.

    A knob is absent if it does not exist at this point, or if it cannot have an effect: the knobs of sampling and
    rewarding completions if a set of pairs is used, all knobs of training if a checkpoint is evaluated, and the knobs
    that an outside program does not read.
    """
    existing = _existing(spec)
    if not isinstance(spec.trainer, OutsideTrainer):
        return existing
    return {knob: value for knob, value in existing.items() if reads(spec, knob)}


def unread(spec: RunSpec) -> dict[str, object]:
    """Return the knobs that exist in a spec but are not read by the program that trains the cell, with their values."""
    return {knob: value for knob, value in _existing(spec).items() if not reads(spec, knob)}


def reads(spec: RunSpec, knob: str) -> bool:
    """Return whether the cell's trainer reads a knob. Knobs that it does not read are neither compared nor hashed."""
    return not isinstance(spec.trainer, OutsideTrainer) or acts_of(knob).any_trainer or spec.trainer.reads(knob)


def _existing(spec: RunSpec) -> dict[str, object]:
    flat = active_knobs(spec)
    if spec.checkpoint:
        return {knob: value for knob, value in flat.items() if acts_of(knob).evaluates}
    if spec.pairs.type == "dataset":
        return {knob: value for knob, value in flat.items() if not acts_of(knob).only_draws}
    return flat


def governor(knob: str) -> str | None:
    """Return the selector that decides whether this knob exists, or None if the knob always exists.

    For example, the selector of `objective.rule.clip_low` is `objective.rule.type`.
    """
    if is_open(knob):
        return "trainer.type"
    known = spec_knobs().get(knob)
    return known.selector if known else None
