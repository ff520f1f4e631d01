"""The knobs of a run spec by dotted name: all of them, those active in a spec, and the selector of each."""

from __future__ import annotations

from collections.abc import Mapping

from harness.config.run_spec import RunSpec
from harness.config.trainer import OPEN, OutsideTrainer, is_open
from harness.plugins import cached
from harness.settings import Knob, active_knobs, knobs_of
from harness.settings.marks import Acts
from harness.settings.words import KnobFacts, facts_of

PARTS = "reward.parts."
"""Prefix of the names of reward parts, which are knobs: their weights."""


@cached
def spec_knobs() -> Mapping[str, Knob]:
    """Return every knob of the spec.

    `reward.parts` represents all its parts, and `trainer.args` all its names.
    """
    return knobs_of(RunSpec)


@cached
def knob_facts() -> dict[str, KnobFacts]:
    """Return what a user must know to set each knob."""
    return {name: facts_of(knob) for name, knob in spec_knobs().items()}


def knob_at(name: str) -> Knob | None:
    """Return the knob of a name; None for an unknown one.

    A name that the user chose (`trainer.args.rank`) gets the knob that represents all such names.
    """
    known = spec_knobs()
    if name in known:
        return known[name]
    return next((known[group.rstrip(".")] for group in (PARTS, *OPEN) if name.startswith(group)), None)


@cached
def acts_of(name: str) -> Acts:
    """Return what a knob acts on. Raises KeyError for an unknown one."""
    knob = knob_at(name)
    # A knob without a mark of its own inherits that of its section.
    acts = None if knob is None else knob.inherited(Acts)
    if acts is None:
        raise KeyError(f"the knob {name} is unknown, or neither it nor its section is marked with what it acts on")
    return acts


def active(spec: RunSpec) -> dict[str, object]:
    """Return every active knob with its value; a tuple is a list.

    Knobs that do not exist at this point are absent. With a set of pairs, these include the knobs of sampling and
    rewarding completions. With an evaluated checkpoint, they include all knobs of training. With an outside program,
    they include all knobs that the program does not read.
    """
    existing = _existing(spec)
    if not isinstance(spec.trainer, OutsideTrainer):
        return existing
    return {knob: value for knob, value in existing.items() if reads(spec, knob)}


def unread(spec: RunSpec) -> dict[str, object]:
    """Return the knobs, with their values, that exist in a spec but do not act on a cell that its program trains."""
    return {knob: value for knob, value in _existing(spec).items() if not reads(spec, knob)}


def reads(spec: RunSpec, knob: str) -> bool:
    """Return whether a knob acts on a cell, whoever trains it; others are neither compared nor hashed."""
    return not isinstance(spec.trainer, OutsideTrainer) or acts_of(knob).any_trainer or spec.trainer.reads(knob)


def _existing(spec: RunSpec) -> dict[str, object]:
    flat = active_knobs(spec)
    if spec.checkpoint:
        return {knob: value for knob, value in flat.items() if acts_of(knob).evaluates}
    if spec.pairs.type == "dataset":
        return {knob: value for knob, value in flat.items() if not acts_of(knob).only_draws}
    return flat


def governor(knob: str) -> str | None:
    """Return the selector that decides whether this knob exists.

    It is `objective.rule.type` for `objective.rule.clip_low`; None for a knob that always exists.
    """
    if is_open(knob):
        return "trainer.type"
    known = spec_knobs().get(knob)
    return known.selector if known else None
