"""The declaration of an engine: what the rest of bench must know of it before it is made.

An engine is a module or a folder of `harness/engines/`, or a plug-in. At its top level it has an `EngineBackend`, whose
`make` imports the rest. Neither this module nor that top level imports torch.
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
"""The value of `rollout.engine` that lets the device decide."""


@dataclass(frozen=True)
class DrawingLoad:
    """What an engine holds and samples at once, for an estimate of its memory."""

    device: Device
    rollout: RolloutSpec
    weights_bytes: int
    cache_bytes_per_token: int
    """Keys and values of one token in all layers."""
    logits_bytes_per_sample: int
    """Logits of one token, as the model computes them and in float32."""
    batches: tuple[tuple[int, int], ...]
    """(samples, tokens of a prompt with its completion): of the largest batch of training, and of evaluation."""


@dataclass(frozen=True)
class EngineMemory:
    """The memory of an engine, each part by name."""

    parts_bytes: Mapping[str, float] = field(default_factory=dict)
    """Held from the moment the engine is made."""
    drawing_bytes: Mapping[str, float] = field(default_factory=dict)
    """Held only while it samples."""
    device_frac: float = 0.0
    """The share of the device's memory that it takes besides."""
    frac_only_drawing: bool = False
    """True if it takes that share only while it samples."""


@dataclass(frozen=True, kw_only=True)
class EngineBackend:
    """A kind of engine."""

    name: str
    """The value of `rollout.engine` that chooses it."""
    title: str
    """Its name in sentences."""
    description: str
    make: Callable[..., Any]
    """make(language_model, model, rollout) -> `harness.engines.base.Engine`.

    language_model: pads, ends and decodes completions. model: the weights that sample, the language model's own or
    another model's with its tokens. rollout: the section of the spec. Raises RefusedError if the engine is not
    installed or cannot run this model.
    """
    devices: tuple[Device, ...] = ("cpu", "cuda")
    default_on: tuple[Device, ...] = ()
    """The devices on which `auto` means this engine."""
    holds_copy: bool = False
    """True if it computes with a copy of the weights and code of its own. The copy must then be synced before each
    sampling, and log-probs compared with the model's after each sync (`harness.engines.parity`). Its rounding differs
    from the trainer's."""
    head_dtypes: tuple[str, ...] = ("model",)
    """The values of `model.head_dtype` that it can sample with."""
    knobs: tuple[str, ...] = ()
    """Fields of `rollout` that only this engine reads."""
    refusal: Callable[[RolloutSpec, str], str | None] = lambda rollout, device: None
    """refusal(rollout, device) -> why it cannot sample so, with the remedy; None if it can."""
    memory: Callable[[DrawingLoad], EngineMemory] = lambda load: EngineMemory()

    @property
    def summary(self) -> str:
        """One line: what it is and on which devices it samples."""
        default = f" (the default on {' and '.join(self.default_on)})" if self.default_on else ""
        return f"{self.description}; on {', '.join(self.devices)}{default}"


ENGINES: Kind[EngineBackend] = Kind(
    "engine", lambda thing: isinstance(thing, EngineBackend), "harness.engines", "bench ls engines"
)


def engine_on(device: str, engine: str) -> str:
    """Resolve `auto` in `rollout.engine` to the default of the device. Raises UnknownNameError."""
    if engine != AUTO:
        return ENGINES.find(engine).name
    # `cuda:1` is a device of the kind `cuda`.
    kind = device.partition(":")[0]
    return next(name for name, backend in ENGINES.all().items() if kind in backend.default_on)


def fields_of_other_engines(engine: str) -> list[str]:
    """Return the fields of `rollout` that this engine does not read, since they are another's.

    With `auto` any of them may be read.
    """
    if engine == AUTO:
        return []
    own = ENGINES.find(engine).knobs
    return [knob for backend in ENGINES.all().values() for knob in backend.knobs if knob not in own]
