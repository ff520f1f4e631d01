"""The model is loaded once before anything else, which shows early whether it can be. Nothing is kept."""

from __future__ import annotations

from pathlib import Path

from harness.config.run_spec import RunSpec
from harness.run.data_checks import require_room_for_completions
from harness.run.stages import Stage, StageContext


def what_may_be_refused(spec: RunSpec) -> tuple[object, ...]:
    """What loading looks at: specs that are alike in it are tried once."""
    rollout, train = spec.rollout, spec.train
    drawing = (rollout.engine, rollout.vllm_memory_frac, rollout.max_completion_tokens, rollout.temperature)
    prompts = (spec.task, spec.eval, spec.pairs.type)
    return spec.model, spec.checkpoint, drawing, prompts, train.device, train.activation_checkpointing


def _load(path: Path, context: StageContext) -> None:
    from harness.run.cell_job import load_as_it_is
    from harness.training.token_scores import output_head

    spec = context.spec
    context.tell_progress(0, 0)
    if spec.checkpoint:
        language_model = load_as_it_is(spec, context.starting_point)
    else:
        language_model = context.starting_point.for_training(spec, spec.model.source)
        output_head(language_model.model)
    require_room_for_completions(spec, language_model)
    context.engine(language_model)
    for remark in language_model.remarks():
        context.tell_progress(0, 0, remark=remark)


LOAD = Stage(
    "load",
    "loading the model",
    needed=lambda spec: True,
    key=lambda spec: "",
    make=_load,
    reads=(),
    for_cells=False,
)
