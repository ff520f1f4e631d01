"""The starting weights of cells: loaded once by each worker, and copied back before each cell.

A cell's model may have adapters and activation checkpointing. With the latter, a decoder layer's activations are
recomputed in the backward pass instead of being kept.
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
    """Holds the models of the last cell, so that the next cell need not load them again.

    These are the last model, an untouched copy of its weights in the host's memory, its last adapters, and the last
    frozen generator and teacher. There is one set of weights: `get` and `for_training` return models that share it, and
    the next call of either resets it.
    """

    def __init__(self) -> None:
        self._loaded: _Loaded | None = None
        self._language_model: LanguageModel | None = None
        self._weights: dict[str, Tensor] = {}
        self._adapted: tuple[tuple[Lora, str], PreTrainedModel] | None = None
        self._frozen: dict[str, tuple[_Loaded, LanguageModel]] = {}

    def get(self, spec: RunSpec, source: str, float32: bool = False) -> LanguageModel:
        """Return the model of a source with its starting weights, without adapters, on the spec's device.

        The device `auto` is cuda if there is one. The dtype is the spec's or float32. Raises RefusedError for a source
        that cannot be loaded or a device that is missing.
        """
        device = _device(spec.train.device)
        dtype = torch.float32 if float32 else DTYPES[dtype_on(device, spec.model.dtype)]
        loaded = (source, device, dtype, spec.model.chat_template, spec.model.trust_remote_code)
        if self._language_model is None or self._loaded != loaded:
            # Free the last one first: memory may not hold both.
            self._language_model, self._adapted, self._weights = None, None, {}
            self._language_model = load_model(*loaded)
            self._weights = {
                name: _host_copy(weight) for name, weight in self._language_model.model.state_dict().items()
            }
            self._loaded = loaded
        model = self._language_model.model
        # Written in place: the adapted copy shares these tensors.
        for name, weight in model.state_dict().items():
            weight.copy_(self._weights[name], non_blocking=True)
        model.zero_grad(set_to_none=True)
        model.requires_grad_(True)
        set_activation_checkpointing(model, on=False)
        set_head_dtype(model, spec.model.head_dtype)
        return self._language_model

    def release(self) -> None:
        """Forget all models: another program needs the memory of the machine."""
        self.__init__()  # type: ignore[misc]
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def generator(self, spec: RunSpec) -> LanguageModel | None:
        """Return the frozen model that the spec's `reward.vr_cli.generator` names, or None if it names none.

        It is on the device and in the dtype of the policy. Raises as `get`.
        """
        source = spec.reward.generator
        if source is None:
            return None
        return self._kept_frozen("generator", spec, source, "auto")

    def for_training(self, spec: RunSpec, source: str) -> LanguageModel:
        """Return the model as `get` does, ready for training: with the spec's adapters and activation checkpointing.

        The spec's seed sets the adapters. Raises RefusedError also for adapters that cannot be put on this model.
        """
        language_model = self.get(spec, source)
        lora = spec.model.lora
        if isinstance(lora, Lora):
            # The head is part of the key: a copy with adapters has a head module of its own.
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
        """Return the frozen teacher of this source, on the device and in the dtype of the trained model.

        The last teacher is kept for the next cell. Raises RefusedError as `get`.
        """
        return self._kept_frozen("teacher", spec, source, spec.model.chat_template)

    def _kept_frozen(
        self, role: Literal["generator", "teacher"], spec: RunSpec, source: str, chat_template: ChatTemplate
    ) -> LanguageModel:
        """Return the frozen model of a source; each role keeps its model until another one is requested."""
        device = _device(spec.train.device)
        dtype = DTYPES[dtype_on(device, spec.model.dtype)]
        loaded: _Loaded = (source, device, dtype, chat_template, spec.model.trust_remote_code)
        if role not in self._frozen or self._frozen[role][0] != loaded:
            # Free the old one first: memory may not hold both.
            self._frozen.pop(role, None)
            language_model = load_model(*loaded)
            language_model.model.requires_grad_(False)
            self._frozen[role] = loaded, language_model
        frozen = self._frozen[role][1]
        set_head_dtype(frozen.model, spec.model.head_dtype)
        return frozen


def _host_copy(weight: Tensor) -> Tensor:
    """Copy a weight to the host: a GPU's into pinned memory, from where it returns without waiting."""
    return torch.empty(weight.shape, dtype=weight.dtype, pin_memory=weight.is_cuda).copy_(weight)


def _device(device: str) -> str:
    """Return `cpu` or `cuda`, and raise RefusedError if there is no CUDA device but the spec wants one.

    From now on, this process takes no more of a GPU's memory than its share, and sees no other GPU.
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
    """Mark the model's layers, in place; raise RefusedError for an architecture that transformers does not checkpoint.

    transformers heeds the mark only in training mode, where dropout acts too. Models are in evaluation mode here, and
    `harness.training.prefix_attention` heeds the mark in training passes. Sampling from the same layers is not
    affected.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if on and not layers:
        raise RefusedError("models.activation_checkpointing_not_supported", model=type(model).__name__)
    for layer in layers:
        layer.gradient_checkpointing = on
        layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)
