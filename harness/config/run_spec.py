"""The resolved run spec: every knob of one cell, with all defaults filled in.

The dotted names of its fields are the names of the knobs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from algorithms import Objective
from algorithms.preference import PreferenceObjective
from evals.graders import judge_of, runs_code
from evals.grading.asked_model import Asking
from evals.tasks import get_task, without_family
from evals.tasks.base import Environment
from harness.config.clashes import clashes
from harness.config.model import ModelSpec, ModelTeacher, NoTeacher, SupervisedColdStart, TeacherChoice
from harness.config.reward import Reward
from harness.config.rollout import NoPairs, Pairs, RolloutSpec
from harness.config.task import EvalSpec, TaskSpec
from harness.config.train import BY_ALL, BudgetSpec, TrainSpec
from harness.config.trainer import BY_BENCH, TrainerChoice
from harness.errors import RefusedError
from harness.records import CellRecord
from harness.settings import IfChosen, InWords, Settings
from harness.settings.marks import YOUNGER, Acts


def _family(objective: object) -> str:
    """Return the family of an objective: `preference` if it has a link, which only preference objectives have."""
    # pydantic passes a mapping when it reads a document, or an existing objective.
    has_link = "link" in objective if isinstance(objective, dict) else isinstance(objective, PreferenceObjective)
    return "preference" if has_link else "policy_gradient"


OF_TRAINING = Acts("train")
OF_DRAWING = Acts("draw")
OF_CELL = Acts("train", "evaluate", any_trainer=True)


class RunSpec(Settings):
    """All settings of one cell."""

    model: Annotated[ModelSpec, Acts("train", "start", any_trainer=True)]
    # No knob of the objective accounts for a teacher that only writes completions.
    teacher: Annotated[TeacherChoice, IfChosen("objective.distill.where"), OF_TRAINING] = NoTeacher()
    task: Annotated[TaskSpec, Acts("draw", any_trainer=True)]
    reward: Annotated[Reward, OF_DRAWING]
    rollout: Annotated[RolloutSpec, OF_DRAWING]
    objective: Annotated[
        Annotated[Objective, Tag("policy_gradient")] | Annotated[PreferenceObjective, Tag("preference")],
        Discriminator(_family),
        OF_TRAINING,
    ]
    pairs: Annotated[
        Pairs,
        IfChosen("objective.link"),
        OF_TRAINING,
        InWords(default="none; with a preference algorithm dataset if data is given, else policy"),
    ] = NoPairs()
    trainer: Annotated[TrainerChoice, BY_ALL, YOUNGER] = BY_BENCH
    train: Annotated[TrainSpec, OF_TRAINING]
    eval: Annotated[EvalSpec, Acts("evaluate", any_trainer=True)]
    budget: Annotated[BudgetSpec, OF_DRAWING] = BudgetSpec()
    checkpoint: Annotated[str | None, InWords(type=lambda: "null | model"), IfChosen(), OF_CELL] = Field(
        None,
        description="a model that is evaluated without any training: a model.source, a model's folder, a cell or one "
        "of its checkpoints; set `checkpoint` in the sweep",
    )
    seed: Annotated[int, InWords(default="one of the sweep's seeds"), OF_CELL] = Field(
        ge=0, description="seed of all random choices in a cell; set `seeds` in the sweep, or --seeds"
    )

    def contradictions(self) -> Iterator[str]:
        yield from clashes(self)

    @property
    def checkpoint_folder(self) -> Path | None:
        """The folder of the cell checkpoint that is evaluated.

        None if the cell trains, or if the evaluated model comes from a model.source.
        """
        folder = Path(self.checkpoint or "")
        return folder if folder.is_absolute() else None

    def own_files(self) -> Iterator[str]:
        """Yield the user's own task and template files that are named by a relative path without `..`."""
        for name in (self.task.train, *self.eval.tasks, *self.templates):
            file = without_family(name)
            path = Path(file)
            if path.suffix in (".yaml", ".yml") and not path.is_absolute() and ".." not in path.parts:
                yield file

    @property
    def scorer_templates(self) -> dict[str, str]:
        """The prompt templates of the models that score completions, by their names in the training hash."""
        return {name: template for part in self.reward.scored for name, template in part.templates(self).items()}

    @property
    def templates(self) -> list[str]:
        teacher = self.teacher
        others = [] if teacher.type == "none" or teacher.template is None else [teacher.template]
        others += self.scorer_templates.values()
        cold_start = [recipe.template for recipe in self.cold_starts]
        return [self.task.template, self.eval.template, *cold_start, *others]

    @property
    def cold_starts(self) -> list[SupervisedColdStart]:
        """The supervised cold starts of the policy and of its teacher."""
        of_teacher = [] if self.teacher.type == "none" else [self.teacher.cold_start]
        return [recipe for recipe in (self.model.cold_start, *of_teacher) if recipe.type == "sft"]

    @property
    def training_steps(self) -> int:
        """The most steps that a cell trains for, or 0 if it evaluates a checkpoint."""
        return 0 if self.checkpoint else self.train.steps

    @property
    def distils(self) -> Literal["none", "reward", "loss"]:
        """Where the teacher's distribution enters the objective, or "none" if it does not."""
        return self.objective.distill.where if isinstance(self.objective, Objective) else "none"

    @property
    def model_teacher(self) -> ModelTeacher:
        """The teacher of the cell. Raises TypeError if the cell has none."""
        if not isinstance(self.teacher, ModelTeacher):
            raise TypeError("no teacher: nothing is distilled")
        return self.teacher

    @property
    def start_teaches(self) -> bool:
        """True if the teacher is the starting policy, so that it needs no weights of its own."""
        teacher = self.teacher
        return teacher.type == "model" and teacher.source is None and teacher.cold_start.type == "none"

    @property
    def teacher_template(self) -> str:
        """The prompt template of the teacher. Raises TypeError if the cell has no teacher."""
        return self.model_teacher.template or self.task.template

    @property
    def policy_gradient(self) -> Objective:
        """The objective of a cell that is trained on rewards. Raises TypeError if the cell is trained on pairs."""
        if not isinstance(self.objective, Objective):
            raise TypeError("a preference objective where a policy-gradient objective is needed")
        return self.objective

    @property
    def preference(self) -> PreferenceObjective:
        """The objective of a cell that is trained on pairs. Raises TypeError if the cell is trained on rewards."""
        if isinstance(self.objective, Objective):
            raise TypeError("a policy-gradient objective where a preference objective is needed")
        return self.objective

    @property
    def environment(self) -> Environment | None:
        """The environment that answers the turns of completions in training, or None if completions have one turn."""
        environment, max_turns = get_task(self.task.train).environment, self.rollout.max_turns
        return environment if environment is None or max_turns is None else replace(environment, max_turns=max_turns)

    @property
    def rollout_grader(self) -> str:
        """The grader of completions sampled in training. Raises TypeError if there is none."""
        if self.reward.grader is None:
            raise TypeError("no grader: nothing is drawn in training that it could grade")
        return self.reward.grader

    @property
    def judges(self) -> list[Asking]:
        """The file-based judges that a cell asks, as graders or for reward parts."""
        of_parts = [] if self.checkpoint else self.reward.asked_judges.values()
        return [judge for judge in (*map(judge_of, self.graders), *of_parts) if judge is not None]

    @property
    def runs_code(self) -> bool:
        return any(map(runs_code, self.graders))

    @property
    def graders(self) -> dict[str | None, None]:
        """The graders that the cell uses, each once. They are the keys; all values are None."""
        return dict.fromkeys([self.eval.grader] if self.checkpoint else [self.reward.grader, self.eval.grader])

    @property
    def optimizer_steps_per_rollout(self) -> int:
        return self.train.updates_per_rollout * self.train.epochs


_SHOWN = 3


def recorded_spec(cell: CellRecord) -> RunSpec:
    """Return the spec with which a recorded cell was run.

    Raises DamagedRecordError if spec.json is missing or damaged. Raises RefusedError if this version of bench does not
    know its fields, or if the cell was imported, because its settings are then those of another tool.
    """
    from pydantic import ValidationError

    if "imported" in cell.spec:
        raise RefusedError("config.cell_was_imported", path=cell.path)
    try:
        return RunSpec.model_validate(cell.spec)
    except ValidationError as error:
        fields = [".".join(map(str, one["loc"])) for one in error.errors()]
        more = f" and {len(fields) - _SHOWN} more" if len(fields) > _SHOWN else ""
        raise RefusedError(
            "config.spec_of_other_version", path=cell.path / "spec.json", keys=", ".join(fields[:_SHOWN]), more=more
        ) from None
