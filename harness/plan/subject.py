"""The subject of an evaluation: a model given by its source, folder or file, or a model that a cell has trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from harness.config.hashing import conditions_of_model, run_by
from harness.config.knobs import acts_of, spec_knobs
from harness.config.machine import resolved_for_machine
from harness.config.model_source import parse_source
from harness.config.resolve import Layer, resolve
from harness.config.run_spec import RunSpec, recorded_spec
from harness.errors import RefusedError
from harness.executors.slots import gpu_here
from harness.plugins import user_code
from harness.records import CellRecord
from harness.records.cell import is_cell_directory_name

BARE_MODEL = Layer(
    "evaluation",
    {
        "algorithm": "grpo",
        "model.source": "builtin:tiny",
        "task.train": "arithmetic",
        "rollout.prompts_per_step": 1,
        "rollout.samples_per_prompt": 2,
        "rollout.max_completion_tokens": 1,
        "train.steps": 1,
        "train.learning_rate": 1e-6,
        "eval.max_completion_tokens": 1,
        "eval.problems": 1,
    },
)
"""Training settings that a spec requires. They have no effect on a model that is only evaluated."""


@dataclass(frozen=True)
class Subject:
    label: str
    """The subject's name in folders and tables."""
    spec: RunSpec
    """How the subject is loaded (`checkpoint`, `model`, `rollout.engine`, `train.device`), without any `auto`."""

    @property
    def checkpoint(self) -> Path | None:
        """The folder of the cell checkpoint; None if the subject is the spec's model itself."""
        return self.spec.checkpoint_folder

    @property
    def cell(self) -> CellRecord | None:
        """The cell that trained the subject; None if no cell did."""
        return CellRecord.at(self.checkpoint.parents[1]) if self.checkpoint else None

    @property
    def moves(self) -> bool:
        """True if the subject's name may stand for other weights tomorrow."""
        return self.checkpoint is None and parse_source(self.spec.model.source).moves

    def as_in(self, spec: RunSpec) -> Subject:
        """Return the same weights, to be loaded as another spec says."""
        return replace(self, spec=spec.model_copy(update={"checkpoint": self.spec.checkpoint}))

    def conditions(self, seed: int) -> dict[str, object]:
        """Return everything about the model that can change a sample, as `conditions_of_model`.

        seed: the seed of the noise. Raises RefusedError if files of the model are missing.
        """
        return conditions_of_model(self.spec.model_copy(update={"seed": seed}))


def find_subject(
    given: str,
    engine: str,
    device: str,
    dtype: str,
    as_trained: bool = False,
    on_gpu: Callable[[], bool] = gpu_here,
) -> Subject:
    """Return a subject, given a `model.source`, a model folder, a .gguf file, a cell folder or a checkpoint folder.

    A cell's folder stands for its newest checkpoint.
    as_trained: for a cell, resolve `auto` to the setting of its training instead of the best one for this machine.
    on_gpu: returns whether to evaluate on a GPU if the device is not set.
    Raises RefusedError for anything else.
    """
    machine = {"rollout.engine": engine, "train.device": device, "model.dtype": dtype}
    path = Path(given).expanduser()
    if path.is_dir() and ((path / "checkpoint.json").is_file() or (path / "checkpoints").is_dir()):
        asked = {knob: None if as_trained and value == "auto" else value for knob, value in machine.items()}
        return _trained(path.resolve(), asked, on_gpu)
    source = given
    if path.is_dir():
        source = f"path:{given}"
    elif path.is_file() and path.suffix == ".gguf":
        source = f"gguf:{given}"
    elif ":" not in given:
        raise RefusedError("plan.not_a_model", given=given)
    parsed = parse_source(source)
    # Only local files are checked, because planning does not use the network.
    if parsed.kind != "hf":
        parsed.require()
    layers = [BARE_MODEL, Layer("command line", {"model.source": source, **machine})]
    spec = resolved_for_machine(resolve(layers, seed=0, checkpoint=source), on_gpu)
    name = parsed.name if parsed.kind in ("hf", "builtin") else parsed.path.resolve().stem
    return Subject("_".join(name.split("/")), spec)


def with_its_model(spec: RunSpec, on_gpu: Callable[[], bool]) -> RunSpec:
    """Return a spec that names a checkpoint, with the settings of that model filled in and every `auto` resolved.

    Settings in the spec that determine how the model is loaded take precedence. Raises as `find_subject`.
    """
    if spec.checkpoint is None:
        raise TypeError("the spec trains, and names no checkpoint")
    machine = (spec.rollout.engine, spec.train.device, spec.model.dtype)
    subject = find_subject(spec.checkpoint, *machine, on_gpu=on_gpu)
    of_loading = [knob.removeprefix("model.") for knob in spec_knobs() if _loads_model(knob)]
    # Only explicit settings take precedence: a default of the spec must not replace a setting of the cell's training.
    said = {name: getattr(spec.model, name) for name in of_loading if name in spec.model.model_fields_set}
    found = subject.spec
    changed = spec.model_copy(
        update={
            "checkpoint": found.checkpoint,
            "model": found.model.model_copy(update=said),
            "rollout": spec.rollout.model_copy(update={"engine": found.rollout.engine}),
            "train": spec.train.model_copy(update={"device": found.train.device}),
        }
    )
    return resolved_for_machine(changed, on_gpu)


def _loads_model(knob: str) -> bool:
    """Return whether a knob determines how a model is loaded for any use. model.dtype is left to the machine."""
    return knob.startswith("model.") and acts_of(knob).evaluates and knob != "model.dtype"


def _trained(path: Path, machine: dict[str, str | None], on_gpu: Callable[[], bool]) -> Subject:
    """Return the subject that a cell has trained.

    machine: knobs to set differently from training; None leaves a knob as it was.
    """
    from harness.training.checkpoint import checkpoint_folders

    if not (path / "checkpoint.json").is_file():
        folders = checkpoint_folders(path / "checkpoints")
        if not folders:
            raise RefusedError("plan.no_checkpoint_yet", path=path)
        path = folders[-1]
    folder = path.parent.parent
    if not is_cell_directory_name(folder.name):
        raise RefusedError("plan.checkpoint_of_no_cell", path=path, folder=folder)
    cell = CellRecord.at(folder)
    as_trained = recorded_spec(cell)
    # The spec comes from the cell's folder, so the user must have run the code that it names before.
    for code, name in run_by(as_trained.model_copy(update={"checkpoint": str(path)})).items():
        user_code.require_known(code, name, cell.path / "spec.json")
    changed: dict[str, object] = {"checkpoint": str(path)}
    for knob, value in machine.items():
        if value is not None:
            section, field = knob.split(".")
            changed[section] = getattr(as_trained, section).model_copy(update={field: value})
    spec = as_trained.model_copy(update=changed)
    return Subject(f"{cell.path.name}-{path.name}", resolved_for_machine(spec, on_gpu))
