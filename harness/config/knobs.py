"""The knobs of a run spec by dotted name: all there are, those active in a spec, and what decides whether it exists."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.config.run_spec import RunSpec
from harness.config.trainer import OPEN, OutsideTrainer, is_open
from harness.plugins import cached
from harness.settings import Knob, active_knobs, knobs_of
from harness.settings.marks import Acts
from harness.settings.words import KnobFacts, facts_of

PARTS = "reward.parts."
"""Below it the names of reward parts are knobs, their weights."""


@cached
def spec_knobs() -> Mapping[str, Knob]:
    """Return every knob of the spec. `reward.parts` stands for all its parts, and `trainer.args` for all its names."""
    return knobs_of(RunSpec)


@cached
def knob_facts() -> dict[str, KnobFacts]:
    """Return what one must know to set each of them."""
    return {name: facts_of(knob) for name, knob in spec_knobs().items()}


def knob_at(name: str) -> Knob | None:
    """Return the knob of a name, for one that the user chose (`trainer.args.rank`) that which stands for it; None for
    an unknown one."""
    known = spec_knobs()
    if name in known:
        return known[name]
    return next((known[group.rstrip(".")] for group in (PARTS, *OPEN) if name.startswith(group)), None)


@cached
def acts_of(name: str) -> Acts:
    """Return what a knob acts on. Raises KeyError for an unknown one."""
    knob = knob_at(name)
    acts = None if knob is None else knob.inherited(Acts)
    if acts is None:
        raise KeyError(f"the knob {name} is unknown, or neither it nor its section is marked with what it acts on")
    return acts


def active(spec: RunSpec) -> dict[str, Any]:
    """Every active knob with its value; a tuple is a list. Knobs that do not exist at this point are absent: also those
    of drawing and rewarding completions, where training is on given pairs, of all training, where a checkpoint is
    evaluated, and those that a program of the user's own does not read, where one trains."""
    existing = _existing(spec)
    if not isinstance(spec.trainer, OutsideTrainer):
        return existing
    return {knob: value for knob, value in existing.items() if reads(spec, knob)}


def unread(spec: RunSpec) -> dict[str, object]:
    """Knobs with their values that exist in a spec, but do not act on a cell that its program trains."""
    return {knob: value for knob, value in _existing(spec).items() if not reads(spec, knob)}


def reads(spec: RunSpec, knob: str) -> bool:
    """Return whether a knob acts on a cell, whoever trains it; those that do not are neither compared nor hashed."""
    return not isinstance(spec.trainer, OutsideTrainer) or acts_of(knob).any_trainer or spec.trainer.reads(knob)


def _existing(spec: RunSpec) -> dict[str, object]:
    flat = active_knobs(spec)
    if spec.checkpoint:
        return {knob: value for knob, value in flat.items() if acts_of(knob).evaluates}
    if spec.pairs.type == "dataset":
        return {knob: value for knob, value in flat.items() if not acts_of(knob).only_draws}
    return flat


def governor(knob: str) -> str | None:
    """The selector that decides whether this knob exists: `objective.rule.type` for `objective.rule.clip_low`."""
    if is_open(knob):
        return "trainer.type"
    known = spec_knobs().get(knob)
    return known.selector if known else None
