"""What is evaluated: a model by its source, its folder or its file, or what a cell has trained."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.config.hashing import NUMERICS_VERSION, digest, starting_point_hash
from harness.config.model import Lora
from harness.config.model_source import parse_source
from harness.config.resolve import Layer, resolve
from harness.config.run_spec import RunSpec, recorded_spec, resolved_for_machine
from harness.errors import RefusedError
from harness.plan.memory import cuda_available
from harness.records import CellRecord
from harness.records.cell import is_cell_directory_name
from harness.records.files import read_json

if TYPE_CHECKING:
    from harness.models.language_model import LanguageModel

_BARE_MODEL: dict[str, Any] = {
    "algorithm": "grpo",
    "task.train": "arithmetic",
    "rollout.prompts_per_step": 1,
    "rollout.samples_per_prompt": 2,
    "rollout.max_completion_tokens": 1,
    "train.steps": 1,
    "train.learning_rate": 1e-6,
    "eval.max_completion_tokens": 1,
    "eval.problems": 1,
}
"""What a spec must say of training; a model that is only evaluated reads none of it."""


@dataclass(frozen=True)
class Subject:
    """label: names it in folders and tables. spec: how it is loaded (`model`, `rollout.engine`, `train.device`), with
    nothing left to the machine. checkpoint: the folder of a cell's checkpoint, or None for the spec's model itself."""

    label: str
    spec: RunSpec
    checkpoint: Path | None = None

    @property
    def cell(self) -> CellRecord | None:
        """The cell that trained it."""
        return CellRecord.at(self.checkpoint.parents[1]) if self.checkpoint else None

    @property
    def checkpoint_step(self) -> int | None:
        """After how many steps the cell was as it is evaluated."""
        return int(read_json(self.checkpoint / "checkpoint.json")["step"]) if self.checkpoint else None

    @property
    def moves(self) -> bool:
        """Whether the same name may stand for other weights tomorrow."""
        return self.checkpoint is None and parse_source(self.spec.model.source).moves

    def fingerprint(self) -> str:
        """Identifies the weights: equal for equal files, wherever they lie.

        Raises RefusedError if local files are missing.
        """
        if self.checkpoint is None:
            return parse_source(self.spec.model.source).fingerprint()
        weights = read_json(self.checkpoint / "checkpoint.json")["blake2b"]["weights.safetensors"]
        # Adapters mean nothing without what they were put on.
        return digest([weights, starting_point_hash(self.spec)]) if self._has_adapters else str(weights)

    def conditions(self, seed: int) -> dict[str, Any]:
        """What of a model and the machine that runs it can change a sample, whatever the prompt. seed: of the noise.

        Raises RefusedError for a model's files that are not there.
        """
        spec = self.spec
        return {
            "model": {
                "weights": self.fingerprint(),
                "dtype": spec.model.dtype,
                "chat_template": spec.model.chat_template,
            },
            "seed": seed,
            "engine": spec.rollout.engine,
            "device": spec.train.device.partition(":")[0],
            "numerics": NUMERICS_VERSION,
        }

    def load(self) -> LanguageModel:
        """Raises RefusedError for a model that cannot be loaded, or a checkpoint that is damaged."""
        from harness.models.start import StartingPoint
        from harness.run.cell_job import load_trained

        if self.checkpoint is None:
            return StartingPoint().get(self.spec, self.spec.model.source)
        return load_trained(self.spec, self.checkpoint, self.checkpoint.parents[4], StartingPoint())

    @property
    def _has_adapters(self) -> bool:
        return isinstance(self.spec.model.lora, Lora)


def find_subject(given: str, engine: str, device: str, dtype: str, as_trained: bool = False) -> Subject:
    """The subject of a `model.source`, a model's folder, a .gguf file, a cell's folder (its newest checkpoint) or the
    folder of one checkpoint.

    as_trained: for a cell, `auto` is what it was trained with, not what suits this machine.

    Raises RefusedError for what is none of these.
    """
    machine = {"rollout.engine": engine, "train.device": device, "model.dtype": dtype}
    path = Path(given).expanduser()
    if path.is_dir() and ((path / "checkpoint.json").is_file() or (path / "checkpoints").is_dir()):
        asked = {knob: None if as_trained and value == "auto" else value for knob, value in machine.items()}
        return _trained(path.resolve(), asked)
    source = given
    if path.is_dir():
        source = f"path:{given}"
    elif path.is_file() and path.suffix == ".gguf":
        source = f"gguf:{given}"
    elif ":" not in given:
        raise RefusedError(
            f"{given!r} is not a model: there is no such folder or .gguf file. Give a folder that `save_pretrained` "
            "wrote, a .gguf file, a cell or a checkpoint under runs/, builtin:tiny or hf:<id>[@<revision>]."
        )
    parsed = parse_source(source)
    if parsed.kind != "hf":
        parsed.require()
    layers = [Layer("evaluation", _BARE_MODEL), Layer("command line", {"model.source": source, **machine})]
    spec = resolved_for_machine(resolve(layers, seed=0), cuda_available())
    name = parsed.name if parsed.kind in ("hf", "builtin") else parsed.path.resolve().stem
    return Subject("_".join(name.split("/")), spec)


def _trained(path: Path, machine: dict[str, str | None]) -> Subject:
    """machine: knobs set differently from training; None leaves one as it was."""
    from harness.training.checkpoint import checkpoint_folders

    if not (path / "checkpoint.json").is_file():
        folders = checkpoint_folders(path / "checkpoints")
        if not folders:
            raise RefusedError(f"{path}: the cell has no checkpoint yet. Let `bench run` train it first.")
        path = folders[-1]
    folder = path.parent.parent
    if not is_cell_directory_name(folder.name):
        raise RefusedError(
            f"{path} is a checkpoint of no cell: {folder} is not named <arm>-s<seed>-<hash10>. Give a cell's folder as "
            "`bench run` named it, or a checkpoint in it."
        )
    cell = CellRecord.at(folder)
    as_trained = recorded_spec(cell)
    changed: dict[str, Any] = {}
    for knob, value in machine.items():
        if value is not None:
            section, field = knob.split(".")
            changed[section] = getattr(as_trained, section).model_copy(update={field: value})
    spec = as_trained.model_copy(update=changed)
    return Subject(f"{cell.path.name}-{path.name}", resolved_for_machine(spec, cuda_available()), path)
