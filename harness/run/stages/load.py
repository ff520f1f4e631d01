"""The first stage: load the model once, to find early whether it can be loaded. Nothing is stored."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from harness.config.run_spec import RunSpec
from harness.rewards.parts.verifier_free import VrCli
from harness.run.data_checks import require_gold_texts, require_room_for_completions, require_room_for_teacher
from harness.run.stages import Stage, StageContext, stages_of_cell

if TYPE_CHECKING:
    from harness.models.language_model import LanguageModel


def what_may_be_refused(spec: RunSpec) -> tuple[object, ...]:
    """Return the settings that loading checks. Specs with the same settings are checked once."""
    rollout, train = spec.rollout, spec.train
    drawing = (rollout.engine, rollout.vllm_memory_frac, rollout.max_completion_tokens, rollout.temperature)
    prompts = (spec.task, spec.eval, spec.pairs.type, spec.reward.grader)
    gold = (*sorted(spec.reward.gold_parts), spec.reward.of(VrCli))
    asking = [(*asked.items(), part) for part in spec.reward.scored if (asked := part.templates(spec))]
    models = (spec.model, spec.teacher, spec.checkpoint)
    return *models, drawing, prompts, gold, *asking, train.device, train.activation_checkpointing


def _load(path: Path, context: StageContext) -> None:
    from evals.grading.asked_model import messenger
    from harness.run.checkpoint_cell import load_as_it_is
    from harness.training.token_scores import output_head

    spec = context.spec
    context.tell_progress(0, 0)
    for judge in spec.judges:
        messenger().require(judge)
    if spec.checkpoint:
        language_model = load_as_it_is(spec, context.starting_point)
    else:
        language_model = context.starting_point.for_training(spec, spec.model.source)
        # This raises for a model that computes its logits in an unknown way.
        output_head(language_model.model)
        _require_teacher(context, language_model)
    require_room_for_completions(spec, language_model)
    for stage in stages_of_cell(spec) if not spec.checkpoint else ():
        stage.require_model(spec, language_model)
    require_gold_texts(spec, language_model, context.starting_point.generator(spec))
    # Creating an engine raises if the engine cannot run the model.
    context.engine(language_model)
    for remark in language_model.remarks():
        context.tell({"remark": remark})


def _require_teacher(context: StageContext, student: LanguageModel) -> None:
    """Raise RefusedError if the teacher does not suit the student.

    This is so if it cannot be loaded, has another vocabulary, or has too short a context. Raises EvalError if its
    prompt shows a solution and a problem has none.
    """
    from harness.models.language_model import require_same_vocabulary
    from harness.training.token_scores import output_head

    spec = context.spec
    if spec.teacher.type == "none":
        return
    teacher = student
    if spec.teacher.source is not None:
        teacher = context.starting_point.teacher(spec, spec.teacher.source)
        require_same_vocabulary(student, teacher, spec.teacher.source)
        output_head(teacher.model)
    require_room_for_teacher(spec, teacher)


LOAD = Stage(
    "load",
    "loading the model",
    needed=lambda spec: True,
    key=lambda spec: "",
    make=_load,
    reads=(),
    for_cells=False,
)
