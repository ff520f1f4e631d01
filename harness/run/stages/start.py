"""The weights that reinforcement learning starts from, where they have to be made: by a cold start, or from a GGUF
file, which takes half a minute to dequantise. They end up in a folder that loads quickly."""

from __future__ import annotations

from pathlib import Path

from harness.config.hashing import starting_point_hash
from harness.config.model import SupervisedColdStart
from harness.config.model_source import parse_source
from harness.config.run_spec import RunSpec
from harness.records.files import write_folder
from harness.run.stages import Stage, StageContext


def _needed(spec: RunSpec) -> bool:
    return spec.model.cold_start.type != "none" or parse_source(spec.model.source).kind == "gguf"


def _make(path: Path, context: StageContext) -> None:
    from harness.training.cold_start import run_cold_start

    recipe = context.spec.model.cold_start
    language_model = context.starting_point.get(context.spec, context.spec.model.source, float32=True)
    if isinstance(recipe, SupervisedColdStart):
        run_cold_start(language_model, recipe, lambda step, steps, loss: context.tell_progress(step, steps, loss=loss))
    write_folder(path, language_model.save)


START = Stage(
    "start",
    "cold start",
    needed=_needed,
    key=lambda spec: f"start-{starting_point_hash(spec)[:16]}",
    make=_make,
    reads=(),
)
