"""Starting weights of cells: loaded once a worker, copied back before each cell."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.errors import RefusedError
from harness.models.language_model import LanguageModel, load_model
from harness.spec.run_spec import RunSpec


class StartingPoint:
    """Holds the last model that was asked for and a pristine copy of its weights."""

    def __init__(self) -> None:
        self._source: tuple[str, str] | None = None
        self._language_model: LanguageModel | None = None
        self._weights: dict[str, Tensor] = {}

    def for_training(self, spec: RunSpec, source: str) -> LanguageModel:
        """As `get`, ready to be trained as the spec says."""
        return self.get(spec, source)

    def get(self, spec: RunSpec, source: str, float32: bool = False) -> LanguageModel:
        """The model of a source on the spec's device (`auto`: cuda where there is one), with its starting weights, in
        the spec's dtype or in float32.

        Raises RefusedError for a source that cannot be loaded or a device that is not there.
        """
        device = _resolve(spec.train.device)
        if self._language_model is None or self._source != (source, device):
            self._language_model = load_model(source, device)
            self._weights = {name: weight.clone() for name, weight in self._language_model.model.state_dict().items()}
            self._source = (source, device)
        else:
            self._language_model.model.load_state_dict(self._weights)
            self._language_model.model.zero_grad(set_to_none=True)
        return self._language_model


def _resolve(device: str) -> str:
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise RefusedError(f"train.device is {device}, but torch sees no CUDA device here. Use --set train.device=cpu.")
    return device
