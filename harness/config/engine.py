"""Which engines can draw completions, and what the rest must know of one before it is made.

An engine is a module or a folder of `harness/engines/`, or a plug-in: what stands at its top level is an
`EngineBackend`, whose `make` imports the rest. Nothing here and nothing at that top level imports torch.
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
"""`rollout.engine` where the device decides."""


@dataclass(frozen=True)
class DrawingLoad:
    """What an engine holds and draws at once, for an estimate of its memory."""

    device: Device
    rollout: RolloutSpec
    weights_bytes: int
    cache_bytes_per_token: int
    """Keys and values of one token in all layers."""
    logits_bytes_per_sample: int
    """Logits of one token, as the model computes them and in float32."""
    batches: tuple[tuple[int, int], ...]
    """Samples, and tokens of a prompt with its completion: of the largest batch of training and of evaluation."""


@dataclass(frozen=True)
class EngineMemory:
    """What an engine takes, by name. parts_bytes: from its making on; drawing_bytes: only while it draws. device_frac:
    the share of the device's memory that it takes besides; frac_only_drawing: only while it draws."""

    parts_bytes: Mapping[str, float] = field(default_factory=dict)
    drawing_bytes: Mapping[str, float] = field(default_factory=dict)
    device_frac: float = 0.0
    frac_only_drawing: bool = False


def _refuses_nothing(rollout: RolloutSpec, device: str) -> str | None:
    return None


def _takes_no_memory(load: DrawingLoad) -> EngineMemory:
    return EngineMemory()


@dataclass(frozen=True, kw_only=True)
class EngineBackend:
    """A kind of engine, by the name that `rollout.engine` gives it."""

    name: str
    title: str
    """Its name in sentences."""
    description: str
    make: Callable[..., Any]
    """make(language_model, model, rollout) -> `harness.engines.base.Engine`.

    language_model: says which tokens pad and end a completion, and decodes; model: whose weights completions are drawn
    from (the language model's own, or another with its tokens); rollout: the section of the spec. Raises
    RefusedError if the engine is not installed or cannot run this model.
    """
    devices: tuple[Device, ...] = ("cpu", "cuda")
    default_on: tuple[Device, ...] = ()
    """The devices on which `auto` means this engine."""
    holds_copy: bool = False
    """Whether it computes with a copy of the weights and code of its own. Then the copy must be synced before
    completions are drawn, log-probs must be compared with the model's after each sync (`harness.engines.parity`), and
    rounding differs from the trainer's."""
    head_dtypes: tuple[str, ...] = ("model",)
    """The values of `model.head_dtype` that it can draw with."""
    knobs: tuple[str, ...] = ()
    """Fields of `rollout` that this engine alone reads."""
    refusal: Callable[[RolloutSpec, str], str | None] = _refuses_nothing
    """refusal(rollout, device) -> why it cannot draw so, with the remedy; None if it can."""
    memory: Callable[[DrawingLoad], EngineMemory] = _takes_no_memory

    @property
    def summary(self) -> str:
        """What it is and where it draws, in a line."""
        default = f" (the default on {' and '.join(self.default_on)})" if self.default_on else ""
        return f"{self.description}; on {', '.join(self.devices)}{default}"


ENGINES: Kind[EngineBackend] = Kind(
    "engine", lambda thing: isinstance(thing, EngineBackend), "harness.engines", "bench ls engines"
)


def engine_on(device: str, engine: str) -> str:
    """`rollout.engine` with auto resolved: the default of the device. Raises UnknownNameError."""
    if engine != AUTO:
        return ENGINES.find(engine).name
    kind = device.partition(":")[0]
    return next(name for name, backend in ENGINES.all().items() if kind in backend.default_on)


def fields_of_other_engines(engine: str) -> list[str]:
    """Fields of `rollout` that this engine does not read, since they are another's; with `auto` any may be read."""
    if engine == AUTO:
        return []
    own = ENGINES.find(engine).knobs
    return [knob for backend in ENGINES.all().values() for knob in backend.knobs if knob not in own]
