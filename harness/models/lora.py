"""Low-rank adapters (LoRA, Hu et al. 2106.09685) through peft: W x + (alpha / rank) B A x, with only A and B trained.

`add_adapters` puts them on a model, and `reset_adapters` sets them from a seed. `merged_copy` returns the plain model
that the adapted one is equal to, for engines to sample from.
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
    """Within the model."""
    base: nn.Linear
    """The layer itself, frozen."""
    A: nn.Parameter
    """[rank, inputs]."""
    B: nn.Parameter
    """[outputs, rank]."""
    scale: float
    """alpha / rank."""

    def merged_weight(self) -> Tensor:
        """Return base + scale * B A [outputs, inputs], computed in float32 and rounded to the base's dtype once."""
        weight = self.base.weight
        return torch.addmm(weight.float(), self.B.float(), self.A.float(), alpha=self.scale).to(weight.dtype)


def add_adapters(model: PreTrainedModel, lora: Lora) -> PreTrainedModel:
    """Return the same model with adapters, which `reset_adapters` sets.

    It shares every weight with `model`; these take no gradient from then on, in either. Adapters are in the dtype of
    what they adapt. Raises RefusedError if peft is not installed, or if a name in lora.target_modules is not a linear
    layer.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError:
        raise RefusedError("models.peft_not_installed") from None
    _require_targets(model, lora)
    # Weights that the memo already holds are shared instead of copied.
    adapted: PreTrainedModel = copy.deepcopy(model, {id(weight): weight for weight in model.parameters()})
    adapted.requires_grad_(False)
    config = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=list(lora.target_modules), lora_dropout=0.0)
    # peft samples A from the global generator, which must stay as it was. `reset_adapters` sets A from the seed.
    with torch.random.fork_rng(devices=[]):
        inject_adapter_in_model(config, adapted.get_decoder(), _ADAPTER)
    return adapted


def reset_adapters(model: PreTrainedModel, seed: int) -> None:
    """Set A to the initial values of the seed and B to zero, so that the model equals its base.

    A is uniform in +-1 / sqrt(inputs), as in peft and the reference implementation, and depends on the seed alone.
    Layers of two models that have the same name and shape get the same A.
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
    """Return the adapted layers of a model that `add_adapters` made, or of a copy of it."""
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
    """Replace adapted layers by their bases, in place."""
    for layer in adapted_layers(model):
        model.set_submodule(layer.name, layer.base)
    del model.get_decoder().peft_config


class MergedWeights:
    """A plain copy of an adapted model, with the weights of the base plus the adapters' product.

    Weights that are not adapted are shared, since training never writes to them. Merging in place and back again would
    drift by rounding. Here the base is never written, and each merge begins from it.
    """

    def __init__(self, adapted: PreTrainedModel) -> None:
        # No reference to the adapted model itself: it is the weak key under which this object is kept.
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
        """Merge again if an adapter or its base has been written since the last time."""
        version = weight_version(self._sources)
        if version == self._version:
            return
        for layer in self._layers:
            self.model.get_submodule(layer.name).weight.copy_(layer.merged_weight())
        self._version = version


_merged: WeakKeyDictionary[PreTrainedModel, MergedWeights] = WeakKeyDictionary()


def merged_copy(adapted: PreTrainedModel) -> MergedWeights:
    """Return the merged copy of an adapted model: one for all engines over it."""
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
