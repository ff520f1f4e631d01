"""Low-rank adapters (LoRA, Hu et al. 2106.09685) through peft: W x + (alpha / rank) B A x, with only A and B trained.

`add_adapters` adds adapters to a model, and `reset_adapters` initialises them from a seed. `merged_copy` returns an
equivalent model without adapters, for engines to sample from.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from harness.config.model import Lora
from harness.errors import RefusedError
from harness.models.language_model import weight_version
from harness.random_keys import random_key

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_ADAPTER = "default"


@dataclass(frozen=True)
class AdaptedLayer:
    """A linear layer of a model and its trained adapter."""

    name: str
    """The layer's name within the model."""
    base: nn.Linear
    """The frozen layer itself."""
    A: nn.Parameter
    """[rank, inputs]."""
    B: nn.Parameter
    """[outputs, rank]."""
    scale: float
    """alpha / rank."""

    def merged_weight(self) -> Tensor:
        """Return base + scale * B A [outputs, inputs], computed in float32 and rounded once to the base's dtype."""
        weight = self.base.weight
        return torch.addmm(weight.float(), self.B.float(), self.A.float(), alpha=self.scale).to(weight.dtype)


def add_adapters(model: PreTrainedModel, lora: Lora) -> PreTrainedModel:
    """Return a copy of the model with adapters, which `reset_adapters` must still initialise.

    The copy shares all weights with `model`. From then on, these weights are frozen in both. An adapter has the dtype
    of the layer that it adapts.
    Raises RefusedError if peft is not installed, or if a name in lora.target_modules is not a linear layer.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError:
        raise RefusedError("models.peft_not_installed") from None
    _require_targets(model, lora)
    # deepcopy shares the objects that are already in its memo, here all weights.
    adapted: PreTrainedModel = copy.deepcopy(model, {id(weight): weight for weight in model.parameters()})
    adapted.requires_grad_(False)
    config = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=list(lora.target_modules), lora_dropout=0.0)
    # peft initialises A from the global generator, whose state must not change. `reset_adapters` overwrites A.
    with torch.random.fork_rng(devices=[]):
        inject_adapter_in_model(config, adapted.get_decoder(), _ADAPTER)
    return adapted


def reset_adapters(model: PreTrainedModel, seed: int) -> None:
    """Initialise A from the seed and set B to zero, so that the model equals its base.

    A is uniform in +-1 / sqrt(inputs), as in peft and the reference implementation. It depends only on the seed and on
    the layer's name and shape.
    """
    with torch.no_grad():
        for layer in adapted_layers(model):
            generator = torch.Generator().manual_seed(random_key(seed, "init", example=layer.name))
            layer.A.copy_((2 * torch.rand(layer.A.shape, generator=generator) - 1) / math.sqrt(layer.A.shape[1]))
            layer.B.zero_()
            layer.A.grad = layer.B.grad = None


def has_adapters(model: PreTrainedModel) -> bool:
    return hasattr(model.get_decoder(), "peft_config")


def adapted_layers(model: PreTrainedModel) -> list[AdaptedLayer]:
    """Return the adapted layers of a model from `add_adapters`, or of a copy of such a model."""
    from peft.tuners.lora import LoraLayer

    return [
        AdaptedLayer(
            name,
            module.get_base_layer(),
            module.lora_A[_ADAPTER].weight,
            module.lora_B[_ADAPTER].weight,
            module.scaling[_ADAPTER],
        )
        for name, module in model.named_modules()
        if isinstance(module, LoraLayer)
    ]


def remove_adapters(model: PreTrainedModel) -> None:
    """Replace each adapted layer by its base layer, in place."""
    for layer in adapted_layers(model):
        model.set_submodule(layer.name, layer.base)
    del model.get_decoder().peft_config


class MergedWeights:
    """A copy of an adapted model without adapters, whose weights are base + scale * B A.

    Weights without adapters are shared with the adapted model, because training never writes to them. Each merge starts
    from the base, which is never changed. Merging in place and undoing it would drift by rounding.
    """

    def __init__(self, adapted: PreTrainedModel) -> None:
        # This object must not refer to the adapted model, which is its weak key in `_merged`.
        self._layers = adapted_layers(adapted)
        self._sources = nn.ParameterList(
            weight for layer in self._layers for weight in (layer.base.weight, layer.A, layer.B)
        )
        merged = {id(layer.base.weight) for layer in self._layers}
        self.model: PreTrainedModel = copy.deepcopy(
            adapted, {id(weight): weight for weight in adapted.parameters() if id(weight) not in merged}
        )
        remove_adapters(self.model)
        self._version: int | None = None

    @torch.no_grad()
    def refresh(self) -> None:
        """Merge again if an adapter or its base has changed since the last merge."""
        version = weight_version(self._sources)
        if version == self._version:
            return
        for layer in self._layers:
            self.model.get_submodule(layer.name).weight.copy_(layer.merged_weight())
        self._version = version


_merged: WeakKeyDictionary[PreTrainedModel, MergedWeights] = WeakKeyDictionary()


def merged_copy(adapted: PreTrainedModel) -> MergedWeights:
    """Return the merged copy of an adapted model. All engines for this model share it."""
    if adapted not in _merged:
        _merged[adapted] = MergedWeights(adapted)
    return _merged[adapted]


def _require_targets(model: PreTrainedModel, lora: Lora) -> None:
    linear = {
        name.rpartition(".")[2] for name, module in model.get_decoder().named_modules() if isinstance(module, nn.Linear)
    }
    missing = [name for name in lora.target_modules if name not in linear]
    if missing:
        raise RefusedError(
            "models.unknown_lora_targets",
            targets=", ".join(missing),
            model=type(model).__name__,
            known=", ".join(sorted(linear)) or "none",
        )
