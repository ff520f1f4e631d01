"""Attention masks of decoding, ready-made in the form that a model takes, so that it makes none for every token."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from harness.errors import RefusedError


class LayerMasks:
    """Which columns each layer of a model sees. RefusedError for one with layers other than full or sliding-window
    attention."""

    def __init__(self, model: PreTrainedModel) -> None:
        config = model.config.get_text_config()
        window = getattr(config, "sliding_window", None)
        # A model whose layers differ takes a mask for each kind of them, any other one mask.
        self._one_kind = not hasattr(config, "layer_types")
        if self._one_kind:
            self._windows = {"all": window}
            return
        known = {"full_attention": None, "sliding_attention": window}
        kinds = sorted(set(config.layer_types))
        if unknown := [kind for kind in kinds if kind not in known]:
            raise RefusedError(
                f"{type(model).__name__} has layers of the kind {', '.join(unknown)}, but the torch engine decodes "
                "full and sliding-window attention only. Use a model of another architecture, or rollout.engine=vllm."
            )
        self._windows = {kind: known[kind] for kind in kinds}

    def of(self, visible: Tensor, column: Tensor, numbers: Tensor) -> Tensor | dict[str, Tensor]:
        """Additive masks [R, 1, 1, S] for queries in column `column` [1].

        visible [R, S]: 0 in columns of a row's tokens, -inf elsewhere; numbers [S]: 0, 1, 2, ...
        """
        masks = {
            kind: (visible if window is None else visible.masked_fill(numbers <= column - window, -torch.inf))[
                :, None, None
            ]
            for kind, window in self._windows.items()
        }
        return masks["all"] if self._one_kind else masks
