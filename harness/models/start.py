"""The starting weights of cells: loaded once by each worker, and restored before each cell.

A cell's model may have adapters and activation checkpointing. With activation checkpointing, the backward pass
recomputes a decoder layer's activations instead of keeping them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from harness.config.machine import device_kind, dtype_on
from harness.config.model import Lora
from harness.config.run_spec import RunSpec
from harness.errors import RefusedError
from harness.executors.slots import gpu_share, show_only
from harness.models.language_model import ChatTemplate, LanguageModel, load_model
from harness.models.lora import add_adapters, reset_adapters
from harness.models.precision import DTYPES, set_head_dtype

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_Loaded = tuple[str, str, torch.dtype, ChatTemplate, bool]


class StartingPoint:
    """Keeps the models of the last cell, so that the next cell need not load them again.

    It keeps the last model, an unchanged copy of its weights in the host's memory, its last adapters, and the last
    frozen generator and teacher. `get` and `for_training` return models that share one set of weights. Each call of
    either resets these weights.
    """

    def __init__(self) -> None:
        self._loaded: _Loaded | None = None
        self._language_model: LanguageModel | None = None
        self._weights: dict[str, Tensor] = {}
        self._adapted: tuple[tuple[Lora, str], PreTrainedModel] | None = None
        self._frozen: dict[str, tuple[_Loaded, LanguageModel]] = {}

    def get(self, spec: RunSpec, source: str, float32: bool = False) -> LanguageModel:
        """Return the source's model with its starting weights, on the spec's device and without adapters.

        The device `auto` means cuda if there is a CUDA device.
        float32: load the weights in float32 instead of the spec's dtype.
        Raises RefusedError if the source cannot be loaded or the device is missing.
        """
        device = _device(spec.train.device)
        dtype = torch.float32 if float32 else DTYPES[dtype_on(device, spec.model.dtype)]
        loaded = (source, device, dtype, spec.model.chat_template, spec.model.trust_remote_code)
        if self._language_model is None or self._loaded != loaded:
            # Free the last model first, because both may not fit in memory.
            self._language_model, self._adapted, self._weights = None, None, {}
            self._language_model = load_model(*loaded)
            self._weights = {
                name: _host_copy(weight) for name, weight in self._language_model.model.state_dict().items()
            }
            self._loaded = loaded
        model = self._language_model.model
        # Written in place, because the adapted copy shares these tensors.
        for name, weight in model.state_dict().items():
            weight.copy_(self._weights[name], non_blocking=True)
        model.zero_grad(set_to_none=True)
        model.requires_grad_(True)
        set_activation_checkpointing(model, on=False)
        set_head_dtype(model, spec.model.head_dtype)
        return self._language_model

    def release(self) -> None:
        """Free all models, because another program needs the machine's memory."""
        self.__init__()  # type: ignore[misc]
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def generator(self, spec: RunSpec) -> LanguageModel | None:
        """Return the frozen model that the spec's `reward.vr_cli.generator` names, or None if the spec needs none.

        The model has the policy's device and dtype. Raises RefusedError as `get` does.
        """
        source = spec.reward.generator
        if source is None:
            return None
        return self._kept_frozen("generator", spec, source, "auto")

    def for_training(self, spec: RunSpec, source: str) -> LanguageModel:
        """Return the model of `get`, ready for training: with the spec's adapters and activation checkpointing.

        The adapters are initialised from the spec's seed. Raises RefusedError as `get` does, or if the adapters do not
        fit this model.
        """
        language_model = self.get(spec, source)
        lora = spec.model.lora
        if isinstance(lora, Lora):
            # The head is part of the key, because a copy with adapters has its own head module.
            made_for = (lora, spec.model.head_dtype)
            if self._adapted is None or self._adapted[0] != made_for:
                self._adapted = (made_for, add_adapters(language_model.model, lora))
            language_model.model.requires_grad_(False)
            model = self._adapted[1]
            reset_adapters(model, spec.seed)
            language_model = replace(language_model, model=model)
        set_activation_checkpointing(language_model.model, spec.train.activation_checkpointing)
        return language_model

    def teacher(self, spec: RunSpec, source: str) -> LanguageModel:
        """Return the frozen teacher from this source, with the trained model's device and dtype.

        The last teacher is kept for the next cell. Raises RefusedError as `get` does.
        """
        return self._kept_frozen("teacher", spec, source, spec.model.chat_template)

    def _kept_frozen(
        self, role: Literal["generator", "teacher"], spec: RunSpec, source: str, chat_template: ChatTemplate
    ) -> LanguageModel:
        """Return the source's frozen model. Each role keeps its last model until another model is requested."""
        device = _device(spec.train.device)
        dtype = DTYPES[dtype_on(device, spec.model.dtype)]
        loaded: _Loaded = (source, device, dtype, chat_template, spec.model.trust_remote_code)
        if role not in self._frozen or self._frozen[role][0] != loaded:
            # Free the old model first, because both may not fit in memory.
            self._frozen.pop(role, None)
            language_model = load_model(*loaded)
            language_model.model.requires_grad_(False)
            self._frozen[role] = loaded, language_model
        frozen = self._frozen[role][1]
        set_head_dtype(frozen.model, spec.model.head_dtype)
        return frozen


def _host_copy(weight: Tensor) -> Tensor:
    """Copy a weight to the host. A GPU's weight goes to pinned memory, so that it can be copied back asynchronously."""
    return torch.empty(weight.shape, dtype=weight.dtype, pin_memory=weight.is_cuda).copy_(weight)


def _device(device: str) -> str:
    """Return "cpu" or "cuda", and limit this process to its GPU and its share of that GPU's memory.

    Raises RefusedError if the spec wants a CUDA device and there is none.
    """
    device = device_kind(show_only(device), torch.cuda.is_available)
    if device == "cpu":
        return device
    if not torch.cuda.is_available():
        raise RefusedError("models.cuda_device_missing")
    if (share := gpu_share()) < 1:
        torch.cuda.set_per_process_memory_fraction(share)
    return device


def set_activation_checkpointing(model: PreTrainedModel, on: bool) -> None:
    """Switch activation checkpointing on or off, by setting an attribute of the model's layers.

    transformers reads the attribute only in training mode, which also turns dropout on. Models are in evaluation mode
    here, so `harness.training.prefix_attention` reads it in training passes. Sampling is not affected.
    Raises RefusedError if transformers does not support checkpointing for this architecture.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if on and not layers:
        raise RefusedError("models.activation_checkpointing_not_supported", model=type(model).__name__)
    for layer in layers:
        layer.gradient_checkpointing = on
        layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)
