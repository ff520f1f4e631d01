"""The knobs of a run spec by dotted name: all there are, those active in a spec, and what decides whether it exists."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from algorithms import Objective, PreferenceObjective, active_knobs, objective_knobs
from algorithms.space import joined_meanings
from harness.config.reward import parts_with_options, reward_section
from harness.config.run_spec import RunSpec
from harness.config.section import InWords, Section
from harness.config.trainer import TRAINERS, is_open
from harness.plugins import cached


def active(spec: RunSpec) -> dict[str, Any]:
    """Every active knob with its value; a tuple is a list. Knobs that do not exist at this point are absent: also those
    of drawing and rewarding completions, where training is on given pairs, of all training, where a checkpoint is
    evaluated, and those that a program of the user's own does not read, where one trains."""
    return {knob: value for knob, value in _existing(spec).items() if spec.trainer.reads(knob)}


def unread(spec: RunSpec) -> dict[str, Any]:
    """Knobs with their values that exist in a spec, but do not act on a cell that its program trains."""
    return {knob: value for knob, value in _existing(spec).items() if not spec.trainer.reads(knob)}


def _existing(spec: RunSpec) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    _flatten(spec, "", flat)
    if spec.checkpoint:
        return {knob: value for knob, value in flat.items() if is_of_evaluation(knob)}
    if spec.pairs.type == "dataset":
        return {knob: value for knob, value in flat.items() if not is_of_drawing(knob)}
    return flat


def is_of_drawing(knob: str) -> bool:
    """Whether a knob says which completions are drawn in training, and what they earn. Log-probs are at the temperature
    of rollouts, and evaluations drawn by their engine, whatever is learned from."""
    of_all = (
        *("rollout.temperature", "rollout.engine", "rollout.vllm_memory_frac", "rollout.dtype"),
        *("budget.trained_tokens", "budget.flops"),
    )
    return knob.startswith(("rollout.", "reward.", "task.", "budget.")) and knob not in of_all


_OF_EVALUATION = (
    *("checkpoint", "seed", "train.device"),
    *("model.dtype", "model.head_dtype", "model.chat_template", "model.trust_remote_code"),
    *("rollout.engine", "rollout.vllm_memory_frac", "rollout.dtype"),
)
_OF_CURVES = ("eval.every", "eval.curve_samples")


def is_of_evaluation(knob: str) -> bool:
    """Whether a knob exists where a checkpoint is evaluated and nothing is trained."""
    return knob in _OF_EVALUATION or (knob.startswith("eval.") and knob not in _OF_CURVES)


def _flatten(value: Any, name: str, flat: dict[str, Any]) -> None:
    if isinstance(value, Objective | PreferenceObjective):
        flat.update({f"{name}.{knob}": setting for knob, setting in active_knobs(value).items()})
    elif isinstance(value, BaseModel):
        absent = value.absent_fields() if isinstance(value, Section) else []
        for field, item in value:
            if field not in absent:
                _flatten(item, f"{name}.{field}" if name else field, flat)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _flatten(item, f"{name}.{key}", flat)
    else:
        flat[name] = list(value) if isinstance(value, tuple) else value


_GOVERNORS = {
    "rollout.round_steps": "rollout.sampler",
    "rollout.policy_frac": "rollout.sampler",
    "rollout.staleness_steps": "rollout.sampler",
    "train.sharding": "train.processes",
    "pairs.type": "objective.link",
    "teacher.type": "objective.distill.where",
    "pairs.max_per_prompt": "pairs.pairing",
}
"""Knobs outside the objective whose selector is not the `type` beside them. Preference objectives alone have a link; a
teacher that only writes completions is explained by no objective."""


def governor(knob: str) -> str | None:
    """The selector that decides whether this knob exists: `objective.rule.type` for `objective.rule.clip_low`."""
    section, _, rest = knob.partition(".")
    if section == "objective":
        own = objective_knobs().get(rest)
        return f"objective.{own.selector}" if own and own.selector else None
    part = parts_with_options().get(rest.partition(".")[0]) if section == "reward" else None
    if part:
        return f"reward.parts.{part.name}"
    if knob in _GOVERNORS:
        return _GOVERNORS[knob]
    if is_open(knob):
        return "trainer.type"
    section = knob.rpartition(".")[0]
    if knob.endswith(".type"):  # of a union within another's member
        section = section.rpartition(".")[0]
    selector = f"{section}.type"
    return selector if selector in knob_facts() else None


@dataclass(frozen=True)
class KnobFacts:
    """What one must know to set a knob, in words for tables. Settings are written as in a sweep file."""

    type: str
    """`int`, `float | null`, `list of str`; all of a fixed choice, as `none | sft`."""
    default: str
    """The default, e.g. `the task's` where others decide it; "" where the knob must be set."""
    range: str
    """`> 0, <= 1`; that of a list is of its length. "" where every value of the type will do."""
    description: str
    """`at_step: ... | converged: ...` for a knob that exists at some values of the `type` beside it only."""


@cached
def knob_facts() -> dict[str, KnobFacts]:
    """Every knob of the spec. `reward.parts` stands for all its parts, and `trainer.args` for all its names."""
    return dict(_knobs(RunSpec, ""))


def descriptions() -> dict[str, str]:
    """Every knob of the spec with what it does."""
    return {knob: facts.description for knob, facts in knob_facts().items()}


def _knobs(section: type[BaseModel], prefix: str) -> Iterator[tuple[str, KnobFacts]]:
    for field, info in section.model_fields.items():
        name = f"{prefix}{field}"
        sections = list(sections_in(info.annotation))
        if name == "objective":
            yield from _objective_facts()
        elif name == "reward":
            yield from _knobs(reward_section(), "reward.")
        elif name == "trainer":
            yield from _union_knobs([*TRAINERS.all().values()], name, info)
        elif len(sections) > 1:
            yield from _union_knobs(sections, name, info)
        elif sections:
            yield from _knobs(sections[0], f"{name}.")
        else:
            yield name, _facts([info], info.description or "")


def sections_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The sections that a field may hold: one, or the members of a union."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (Union, UnionType, Annotated):
        for argument in get_args(annotation):
            yield from sections_in(argument)


def keys_of(document: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """The keys of a file, dotted, those of its sections included."""
    for field, info in document.model_fields.items():
        yield f"{prefix}{field}"
        for section in sections_in(info.annotation):
            yield from keys_of(section, f"{prefix}{field}.")


def _union_knobs(members: Sequence[type[BaseModel]], name: str, held_by: FieldInfo) -> Iterator[tuple[str, KnobFacts]]:
    """The `type`, described by the first sentences of its members' docstrings, and then the members' knobs."""
    by_type = {member.model_fields["type"].default: member for member in members}
    for field in dict.fromkeys(field for member in members for field in member.model_fields):
        infos = {kind: member.model_fields[field] for kind, member in by_type.items() if field in member.model_fields}
        if field == "type":
            meanings = {kind: _first_sentence(member) for kind, member in by_type.items()}
            facts = _facts(list(infos.values()), joined_meanings(meanings))
            yield f"{name}.type", replace(facts, default=_default(held_by))
        elif within := [one for info in infos.values() for one in sections_in(info.annotation)]:
            yield from _union_knobs(within, f"{name}.{field}", next(iter(infos.values())))
        else:
            meanings = {kind: info.description or "" for kind, info in infos.items()}
            yield f"{name}.{field}", _facts(list(infos.values()), joined_meanings(meanings))


def _first_sentence(section: type[BaseModel]) -> str:
    return re.split(r"\. (?=[A-Z])", " ".join((section.__doc__ or "").split()), maxsplit=1)[0].rstrip(".")


def _objective_facts() -> Iterator[tuple[str, KnobFacts]]:
    plain = active_knobs(Objective(aggregation="token_mean"))  # all but the aggregation have a default
    for name, knob in objective_knobs().items():
        facts = _facts(knob.fields, knob.description)
        if not facts.default and knob.selector is None:
            facts = replace(facts, default="the algorithm's")
        elif name in plain and facts.default:
            facts = replace(facts, default=written(plain[name]))
        yield f"objective.{name}", facts


def _facts(declarations: Sequence[FieldInfo], description: str) -> KnobFacts:
    """The facts of a knob that one section declares, or several of a union."""

    def joined(parts: Iterable[str], by: str) -> str:
        return by.join(dict.fromkeys(parts))

    return KnobFacts(
        type=joined((one for info in declarations for one in _types(info.annotation, info.metadata)), " | "),
        default=joined(map(_default, declarations), " or "),
        range=joined((", ".join(_bounds(info.metadata)) for info in declarations), " or "),
        description=description,
    )


def _default(info: FieldInfo) -> str:
    in_words = [marker.default for marker in info.metadata if isinstance(marker, InWords) and marker.default]
    return in_words[-1] if in_words else "" if info.is_required() else written(info.default)


def written(value: Any) -> str:
    """A setting as in a sweep file."""
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(written, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {written(item)}' for key, item in value.items())}}}"
    if isinstance(value, BaseModel):  # of a union
        return written(value.model_dump()["type"])
    return value if isinstance(value, str) else json.dumps(value)


def _types(annotation: Any, metadata: Sequence[Any] = ()) -> Iterator[str]:
    """The alternatives of a type."""
    in_words = [marker.type() for marker in metadata if isinstance(marker, InWords) and marker.type]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if in_words:
        yield in_words[-1]
    elif origin is Literal:
        yield from map(str, arguments)
    elif origin in (Union, UnionType):
        for argument in arguments:
            yield from _types(argument)
    elif origin is Annotated:
        yield from _types(arguments[0], arguments[1:])
    elif origin is tuple:
        yield f"list of {' | '.join(_types(arguments[0]))}"
    elif origin is dict:
        yield " -> ".join(" | ".join(_types(argument)) for argument in arguments)
    elif annotation is bool:
        yield "true | false"
    else:
        yield "null" if annotation is type(None) else annotation.__name__


_BOUNDS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<", "min_length": ">=", "max_length": "<="}


def _bounds(metadata: Sequence[Any]) -> Iterator[str]:
    for constraint in metadata:
        for name, sign in _BOUNDS.items():
            bound = getattr(constraint, name, None)
            if bound is not None:
                shown = f"{bound:,}" if isinstance(bound, int) else bound
                yield f"{sign} {shown}{' items' if name.endswith('length') else ''}"
