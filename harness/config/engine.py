"""The declaration of an engine: what the rest of bench must know about it before it is created.

An engine is a module or a folder of `harness/engines/`, or a plug-in. At its top level it defines an `EngineBackend`,
whose `make` imports the rest. Neither this module nor that top level imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from harness.plugins import Kind

if TYPE_CHECKING:
    from harness.config.rollout import RolloutSpec

Device = Literal["cpu", "cuda"]
AUTO = "auto"
"""The value of `rollout.engine` that chooses the default engine of the device."""


@dataclass(frozen=True)
class DrawingLoad:
    """The sizes that decide an engine's memory: what it keeps, and how much it samples at once."""

    device: Device
    rollout: RolloutSpec
    weights_bytes: int
    cache_bytes_per_token: int
    """The size of one token's keys and values over all layers."""
    logits_bytes_per_sample: int
    """The size of one token's logits, in the model's dtype and again in float32."""
    batches: tuple[tuple[int, int], ...]
    """Pairs (samples, tokens of a prompt with its completion): the largest batch of training and that of evaluation."""


@dataclass(frozen=True)
class EngineMemory:
    """The memory of an engine, as named parts."""

    parts_bytes: Mapping[str, float] = field(default_factory=dict)
    """The parts that the engine holds from its creation on."""
    drawing_bytes: Mapping[str, float] = field(default_factory=dict)
    """The parts that it holds only while it samples."""
    device_frac: float = 0.0
    """The fraction of the device's memory that the engine takes in addition to these parts."""
    frac_only_drawing: bool = False
    """True if the engine takes that fraction only while it samples."""


@dataclass(frozen=True, kw_only=True)
class EngineBackend:
    name: str
    """The value of `rollout.engine` that selects this engine."""
    title: str
    """The engine's name in messages."""
    description: str
    make: Callable[..., Any]
    """make(language_model, model, rollout) -> `harness.engines.base.Engine`.

    language_model: pads, ends and decodes completions.
    model: the weights that sample: those of the language model, or another model's with the same tokens.
    rollout: the section of the spec.
    Raises RefusedError if the engine is not installed or cannot run this model.
    """
    devices: tuple[Device, ...] = ("cpu", "cuda")
    default_on: tuple[Device, ...] = ()
    """The devices on which this engine is the default."""
    holds_copy: bool = False
    """True if the engine computes with its own copy of the weights and its own code. If so, the copy must be synced
    before each sampling. After each sync, its log-probs must be compared with the model's
    (`harness.engines.parity`), because it rounds differently from the trainer.
    """
    head_dtypes: tuple[str, ...] = ("model",)
    """The values of `model.head_dtype` that the engine can sample with."""
    knobs: tuple[str, ...] = ()
    """The fields of `rollout` that only this engine reads."""
    refusal: Callable[[RolloutSpec, str], str | None] = lambda rollout, device: None
    """refusal(rollout, device) -> why the engine cannot sample with these settings and the remedy, or None if it can.
    """
    memory: Callable[[DrawingLoad], EngineMemory] = lambda load: EngineMemory()

    @property
    def summary(self) -> str:
        default = f" (the default on {' and '.join(self.default_on)})" if self.default_on else ""
        return f"{self.description}; on {', '.join(self.devices)}{default}"


ENGINES: Kind[EngineBackend] = Kind(
    "engine", lambda thing: isinstance(thing, EngineBackend), "harness.engines", "bench ls engines"
)


def engine_on(device: str, engine: str) -> str:
    """Return the engine's name, with `auto` resolved to the default of the device. Raises UnknownNameError."""
    if engine != AUTO:
        return ENGINES.find(engine).name
    # `cuda:1` is a device of the kind `cuda`.
    kind = device.partition(":")[0]
    return next(name for name, backend in ENGINES.all().items() if kind in backend.default_on)


def fields_of_other_engines(engine: str) -> list[str]:
    """Return the fields of `rollout` that belong to other engines and that this engine does not read.

    The list is empty for `auto`, which may choose any engine.
    """
    if engine == AUTO:
        return []
    own = ENGINES.find(engine).knobs
    return [knob for backend in ENGINES.all().values() for knob in backend.knobs if knob not in own]
