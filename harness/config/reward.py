"""The section `reward` of a run spec: parts with their weights, and the options of the parts that have any."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field, create_model

from algorithms.objective import Credit
from evals.grading.asked_model import Asking
from evals.tasks import get_task
from harness import plugins
from harness.config.names import FromTask, GraderName
from harness.config.scored import ScoredPart
from harness.errors import RefusedError, UnknownNameError
from harness.rewards import PARTS
from harness.rewards.base import LISTED_BY, Part, RewardPart, nameable_parts
from harness.rewards.parts.verifier_free import Jepo, VrCli
from harness.rewards.total import is_reference
from harness.settings import MadeOf, OnlyWith, Settings
from harness.settings.marks import NOT_HASHED, Acts


class RewardSpec(Settings):
    """The fields of every reward section. `reward_section` adds a field for each part with options."""

    parts: dict[str, float] = Field(
        {"correct": 1.0},
        min_length=1,
        description="reward parts and their weights; the reward is the weighted sum; `correct` has weight 1 unless set",
    )
    grader: Annotated[GraderName | None, FromTask(), Acts("draw", "start")] = Field(
        None, description="grader used by the part `correct`"
    )
    allow_code: Annotated[bool, NOT_HASHED] = Field(
        False,
        description="allow the grader unit_tests to run programs that the policy writes, in training and in evaluation",
    )

    def of(self, part: type[Part]) -> Part:
        """Return this section's instance of a part, with its options."""
        options: Part = getattr(self, part.section) if part.model_fields else part()
        return options

    @property
    def scored(self) -> list[ScoredPart]:
        """The parts with a model that scores completions for a named part, each once, with their options."""
        known = PARTS.all()
        read = dict.fromkeys(known[name].scores_of for name in self.parts if name in known)
        return [self.of(part) for part in read if part is not None and issubclass(part, ScoredPart)]

    @property
    def asked_judges(self) -> dict[str, Asking]:
        """The file-based judges that these parts ask, by the knobs that name the files."""
        return {knob: judge for part in self.scored for knob, judge in part.asks().items()}

    @property
    def gold_parts(self) -> dict[str, str]:
        """Maps each part that needs the gold text's likelihood to the model that scores it, `policy` or `generator`."""
        known = PARTS.all()
        return {name: known[name].gold_scored_by for name in self.parts if name in known and known[name].gold_scored_by}

    @property
    def gold_scorers(self) -> set[str]:
        """The models that score the gold text for these parts: `policy`, `generator`, both or none."""
        return set(self.gold_parts.values())

    @property
    def generator(self) -> str | None:
        """The source of the frozen generator; None if the generator is the starting model or no part needs one."""
        return self.of(VrCli).generator if VrCli.name in self.parts else None

    @property
    def asks_start(self) -> bool:
        """True if the frozen generator has the weights from which training starts."""
        return "generator" in self.gold_scorers and self.generator is None

    @property
    def has_answer_term(self) -> bool:
        return bool(self.parts.get(Jepo.name)) and self.of(Jepo).supervised > 0

    def contradictions(self) -> Iterator[str]:
        for name in self.parts:
            if name in nameable_parts() or is_reference(name):
                continue
            # The part exists, but only another knob can enable it.
            if part := PARTS.all().get(name):
                yield f"parts.{name} cannot be set: {part.implied_by} brings it in. Leave it out"
            else:
                yield str(UnknownNameError("reward part", name, nameable_parts(), LISTED_BY))
        for section in (name for name, part in parts_with_options().items() if part.name not in self.parts):
            options = getattr(self, section)
            changed = [field for field, value in options if value != type(options).model_fields[field].default]
            if changed:
                value = getattr(options, changed[0])
                written = json.dumps(value) if isinstance(value, tuple) else value
                yield (
                    f"{section}.{changed[0]}={written} has no effect without the part {options.name}: give "
                    f"reward.parts.{options.name} a weight, or leave it out"
                )


def parts_with_options() -> dict[str, type[RewardPart]]:
    """Map the field that contains a part's options to the part, for all known parts with options.

    Raises RefusedError if two parts share a field.
    """
    found: dict[str, type[RewardPart]] = {}
    for part in PARTS.all().values():
        if part.model_fields:
            if part.section in (*found, *RewardSpec.model_fields):
                raise RefusedError("config.part_section_taken", part=part.name, section=part.section)
            found[part.section] = part
    return found


@plugins.cached
def reward_section() -> type[RewardSpec]:
    """Return the class of the section, with the options of all known parts."""
    # The class is created at run time, because plug-ins add parts. `plugins.cached` recreates it when the plug-ins
    # change.
    options: dict[str, Any] = {
        section: (Annotated[part, OnlyWith(f"parts.{part.name}", refused=False)], part())
        for section, part in parts_with_options().items()
    }
    return create_model("RewardSpec", __base__=RewardSpec, **options)


Reward = Annotated[RewardSpec, MadeOf(reward_section)]
"""The type of the field in a spec. Its class depends on the parts that are known when the spec is built."""


def reward_problems(reward: RewardSpec, credit: Credit, task_name: str) -> Iterator[str]:
    """Yield the problems of the section that depend on the task's steps and turns, and on `credit`."""
    names = [name for name, part in PARTS.all().items() if part.rewards_steps]
    task = get_task(task_name)
    for name in (name for name in names if name in reward.parts):
        if PARTS.find(name).rewards_turns:
            if task.environment is None:
                yield (
                    f"reward.parts.{name} with task.train={task_name}: no environment answers this task, so a "
                    "completion is one turn without a reward of its own. Train on a task with an environment, e.g. "
                    "guess, or leave the part out"
                )
        elif task.written_steps is None:
            yield (
                f"reward.parts.{name} with task.train={task_name}: this task does not say what a step is. Train on "
                "arithmetic, or leave the part out"
            )
    if credit == "steps" and not any(reward.parts.get(name) for name in names):
        fitting = [name for name in names if (task.environment is not None) == PARTS.find(name).rewards_turns]
        missing = " or ".join(f"reward.parts.{name}" for name in fitting)
        yield (
            f"objective.credit=steps without {missing}: no step has a reward. Give {missing} a weight, or set "
            "objective.credit to completion"
        )
