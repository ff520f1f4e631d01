"""The knob space: which knobs there are, and which of them exist at a given point; those of both families.

A clip range belongs to the clipping rule, an epsilon to a standard deviation. `GOVERNORS` names, for every knob that
can be absent, the selector that decides; an absent knob keeps its default in the model and does not appear in
`active_knobs`, so that two objectives are the same when their active knobs are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from algorithms.knobs.base import Knobs
from algorithms.knobs.critic import Critic
from algorithms.knobs.entropy import NotAdaptive, StepBothWays, StepUpOnly
from algorithms.knobs.kl import KlInLoss, KlInReward, NoKl
from algorithms.knobs.overlong import Drop, MaskAfter, MaskBefore, Penalise, Soft
from algorithms.knobs.rule import Cispo, Gmpo, PolicyGradient, PpoClip, Sapo, Weighted
from algorithms.knobs.sampler_correction import NoCorrection, SequenceBand, SequenceTruncate, TokenBand, TokenTruncate
from algorithms.knobs.select import ClipCov, KlCov, NoSelection, TopEntropy

KnobValue = str | float | int | None


class Union(NamedTuple):
    """A field that is one of several groups of knobs: the name of the knob that says which, and the groups."""

    selector: str
    members: Mapping[str, type[Knobs]]


def _union(selector: str, *members: type[Knobs]) -> Union:
    return Union(selector, {member.model_fields[selector].default: member for member in members})


UNIONS: Mapping[str, Union] = MappingProxyType(
    {
        "rule": _union("type", PolicyGradient, Weighted, PpoClip, Cispo, Sapo, Gmpo),
        "select": _union("type", NoSelection, ClipCov, KlCov, TopEntropy),
        "kl": _union("where", NoKl, KlInReward, KlInLoss),
        "entropy.adaptive": _union("type", NotAdaptive, StepBothWays, StepUpOnly),
        "overlong": _union("type", Penalise, MaskAfter, MaskBefore, Drop, Soft),
        "sampler_correction": _union("type", NoCorrection, TokenTruncate, SequenceTruncate, TokenBand, SequenceBand),
    }
)
"""Dotted field -> its union."""

_HAS_STD = ("group_std", "batch_std", "mini_batch_std", "whiten_tokens")

EXISTS_AT: Mapping[str, tuple[str, tuple[str, ...]]] = MappingProxyType(
    {
        "scale_ddof": ("scale", _HAS_STD),
        "scale_eps": ("scale", _HAS_STD),
        "ratio": ("rule.type", ("weighted", "ppo_clip", "cispo", "sapo", "gmpo")),
        "refill_max_rounds": ("zero_std", ("refill",)),
        "kl.refresh_every_steps": ("kl.reference", ("refreshed",)),
        "kl.target_nats": ("kl.control", ("adaptive",)),
        "kl.horizon_sequences": ("kl.control", ("adaptive",)),
        **{f"critic.{knob}": ("baseline", ("critic",)) for knob in Critic.model_fields},
        "margin": ("link", ("logistic", "hinge")),
        "label_smoothing": ("link", ("logistic", "exo")),
        "smoothing": ("link", ("logistic",)),
        "positive_penalty": ("link", ("logistic",)),
        "desirable_weight": ("link", ("kto",)),
        "undesirable_weight": ("link", ("kto",)),
        "ld_alpha": ("logp", ("sum",)),
        "matching": ("link", ("logistic",)),
        "discopop_tau": ("link", ("discopop",)),
    }
)
"""Knob -> its selector, and the values of the selector at which it exists. Members of unions come on top."""

GOVERNORS: Mapping[str, str] = MappingProxyType(
    {
        f"{field}.{knob}": f"{field}.{union.selector}"
        for field, union in UNIONS.items()
        for member in union.members.values()
        for knob in member.model_fields
        if knob != union.selector
    }
    | {knob: selector for knob, (selector, _) in EXISTS_AT.items()}
)
"""Knob that can be absent -> the selector knob that decides whether it exists."""


def descriptions(model: type[Knobs], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every knob of a group by dotted name, whether or not it exists at a given point, with its meaning."""
    for name in _field_names(model):
        path, info = f"{prefix}{name}", model.model_fields[name]
        if path in UNIONS:
            yield from _union_descriptions(path, UNIONS[path])
        elif isinstance(info.annotation, type) and issubclass(info.annotation, Knobs):
            yield from descriptions(info.annotation, f"{path}.")
        else:
            yield path, info.description or ""


def _union_descriptions(field: str, union: Union) -> Iterator[tuple[str, str]]:
    kinds = {kind: (member.__doc__ or "").partition("\n")[0] for kind, member in union.members.items()}
    yield f"{field}.{union.selector}", " | ".join(f"{kind}: {meaning}" for kind, meaning in kinds.items())
    names = dict.fromkeys(name for member in union.members.values() for name in _field_names(member))
    for name in names:
        if name == union.selector:
            continue
        owners: dict[str, list[str]] = {}
        for kind, member in union.members.items():
            if name in member.model_fields:
                owners.setdefault(member.model_fields[name].description or "", []).append(kind)
        yield f"{field}.{name}", " | ".join(f"{', '.join(kinds)}: {meaning}" for meaning, kinds in owners.items())


def _field_names(model: type[Knobs]) -> list[str]:
    """A group's own fields, its selector first, before those that it shares with others."""
    own = [name for name in model.__annotations__ if name in model.model_fields]
    return [*own, *(name for name in model.model_fields if name not in own)]


def active_knobs(objective: Knobs) -> dict[str, KnobValue]:
    """The knobs that exist at this point, by dotted name: what is gated, hashed and shown."""
    knobs = _flatten(objective)
    return {knob: value for knob, value in knobs.items() if exists(knob, knobs)}


def exists(knob: str, knobs: Mapping[str, object]) -> bool:
    """Whether a knob exists where the selectors among `knobs` have these values."""
    if knob not in EXISTS_AT:
        return True
    selector, values = EXISTS_AT[knob]
    return knobs.get(selector) in values


def inactive_settings(objective: Knobs) -> Iterator[tuple[str, KnobValue, str, KnobValue]]:
    """Knobs that do not exist at this point but were set: (knob, its value, its selector, the selector's value)."""
    knobs = _flatten(objective)
    unset = defaults(objective)
    for knob, value in knobs.items():
        if not exists(knob, knobs) and value != unset[knob]:
            selector = EXISTS_AT[knob][0]
            yield knob, value, selector, knobs[selector]


def defaults(knobs: Knobs, prefix: str = "") -> dict[str, KnobValue]:
    """The default of every knob of the same types as these."""
    found: dict[str, KnobValue] = {}
    for name in _field_names(type(knobs)):
        value = getattr(knobs, name)
        if isinstance(value, Knobs):
            found |= defaults(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = type(knobs).model_fields[name].default
    return found


def _flatten(knobs: Knobs, prefix: str = "") -> dict[str, KnobValue]:
    flat: dict[str, KnobValue] = {}
    for name in _field_names(type(knobs)):
        value = getattr(knobs, name)
        flat |= _flatten(value, f"{prefix}{name}.") if isinstance(value, Knobs) else {prefix + name: value}
    return flat
