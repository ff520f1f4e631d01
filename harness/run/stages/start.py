"""The stages that make weights before cells start: those of the policy and of its teacher.

The weights come from a cold start, or from a GGUF file, which takes half a minute to dequantise. They are saved in a
folder that loads quickly.
"""

from __future__ import annotations

from pathlib import Path

from harness.config.hashing import starting_point_hash, teacher_hash
from harness.config.model import ColdStart, ModelTeacher, SupervisedColdStart
from harness.config.model_source import parse_source
from harness.config.run_spec import RunSpec
from harness.records.files import write_folder
from harness.run.stages import Stage, StageContext, source_of_start


def _must_be_made(source: str, recipe: ColdStart) -> bool:
    return recipe.type != "none" or parse_source(source).kind == "gguf"


def _make(path: Path, context: StageContext, source: str, recipe: ColdStart) -> None:
    from harness.training.cold_start import fine_tune

    language_model = context.starting_point.get(context.spec, source, float32=True)
    if isinstance(recipe, SupervisedColdStart):
        fine_tune(language_model, recipe, lambda step, steps, loss: context.tell_progress(step, steps))
    write_folder(path, language_model.save)


def _make_start(path: Path, context: StageContext) -> None:
    _make(path, context, context.spec.model.source, context.spec.model.cold_start)


def _teacher_must_be_made(spec: RunSpec) -> bool:
    teacher = spec.teacher
    if not isinstance(teacher, ModelTeacher) or spec.start_teaches:
        return False
    return _must_be_made(teacher.source or spec.model.source, teacher.cold_start)


def _make_teacher(path: Path, context: StageContext) -> None:
    """Make the teacher's weights from its own source, or from the student's starting weights."""
    teacher = context.spec.model_teacher
    source = source_of_start(context.spec, context.home) if teacher.source is None else teacher.source
    _make(path, context, source, teacher.cold_start)


START = Stage(
    "start",
    "cold start",
    needed=lambda spec: _must_be_made(spec.model.source, spec.model.cold_start),
    key=lambda spec: f"start-{starting_point_hash(spec)[:16]}",
    make=_make_start,
    reads=(),
)

TEACHER = Stage(
    "teacher",
    "preparing the teacher",
    needed=_teacher_must_be_made,
    key=lambda spec: f"teacher-{teacher_hash(spec)[:16]}",
    make=_make_teacher,
)
