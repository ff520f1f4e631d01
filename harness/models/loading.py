"""Loads a model and its tokenizer through transformers, and explains why a source cannot be loaded."""

from __future__ import annotations

import copy
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from evals.hub import offline_without_network
from harness.config.model_source import ModelSource
from harness.errors import RefusedError

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

Part = Literal["config", "tokenizer", "weights"]


def load_pretrained(
    parsed: ModelSource, dtype: torch.dtype, trust_remote_code: bool
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a causal language model onto the CPU, with weights in this dtype, and its tokenizer.

    Raises RefusedError if the source is missing, unreachable, damaged or incomplete, is not a causal language model, or
    contains code while trust_remote_code is False.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    where = _where(parsed) | {"trust_remote_code": trust_remote_code}
    with _quietly(), offline_without_network() if parsed.kind == "hf" else nullcontext():
        # The parts are loaded separately, so that an error names the part that failed.
        with _refusing(parsed, "config"):
            config = AutoConfig.from_pretrained(**where)
        with _refusing(parsed, "tokenizer"):
            tokenizer = AutoTokenizer.from_pretrained(**where)
        with _refusing(parsed, "weights"):
            model, info = AutoModelForCausalLM.from_pretrained(
                **where, config=config, dtype=dtype, output_loading_info=True, ignore_mismatched_sizes=True
            )
    # transformers initialises weights at random if the file lacks them or has them in another size.
    for what, names in (("lacks", info["missing_keys"]), ("has other sizes for", info["mismatched_keys"])):
        if names:
            listed = sorted(name if isinstance(name, str) else name[0] for name in names)
            raise RefusedError(
                "models.weights_do_not_fit",
                source=parsed,
                difference=what,
                n_weights=len(listed),
                model=type(model).__name__,
                weights=", ".join(listed[:3]),
            )
    return (_unquantised(model, config, dtype) if parsed.kind == "gguf" else model), tokenizer


def require_shapes(folder: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise RefusedError if the folder's weights cannot belong to a model with these shapes.

    This is raised if the folder contains adapters or no safetensors, or if a file is incomplete or has a weight of
    another shape. Only the headers of the files are read.
    """
    from safetensors import SafetensorError, safe_open

    _require_weights(folder)
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as weights:
                found = {name: tuple(weights.get_slice(name).get_shape()) for name in weights.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise RefusedError("models.weights_file_incomplete", path=path, error=error) from None
        for name, shape in found.items():
            if shapes.get(name, shape) != shape:
                raise RefusedError(
                    "models.weight_shape_differs",
                    path=path,
                    weight=name,
                    shape=list(shape),
                    start_shape=list(shapes[name]),
                )


def _require_weights(folder: Path) -> None:
    if (folder / "adapter_config.json").exists():
        raise RefusedError("models.adapters_not_merged", folder=folder)
    if not any(folder.glob("*.safetensors")):
        raise RefusedError("models.safetensors_missing", folder=folder)


def weights_in(folder: Path, model: PreTrainedModel) -> dict[str, Tensor]:
    """Return the weights that `save_pretrained` wrote into a folder, on the CPU and in the model's dtype.

    Raises RefusedError if the folder contains adapters or no safetensors, or weights that do not fit the model.
    """
    from safetensors import SafetensorError

    _require_weights(folder)
    try:
        with _quietly():
            loaded, info = type(model).from_pretrained(
                folder,
                config=copy.deepcopy(model.config),
                dtype=model.dtype,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                use_safetensors=True,
            )
    except (OSError, ValueError, LookupError, SafetensorError, RuntimeError) as error:
        raise RefusedError("models.weights_not_loadable", folder=folder, error=str(error).splitlines()[0]) from error
    for what, key in (
        ("lacks", "missing_keys"),
        ("has unknown", "unexpected_keys"),
        ("has other sizes for", "mismatched_keys"),
    ):
        if names := sorted(name if isinstance(name, str) else name[0] for name in info[key]):
            raise RefusedError(
                "models.weights_differ_from_start",
                folder=folder,
                difference=what,
                n_weights=len(names),
                weights=", ".join(names[:3]),
            )
    weights: dict[str, Tensor] = loaded.state_dict()
    return weights


def hub_commit(parsed: ModelSource) -> str | None:
    """Return the commit that a hub source's branch or tag resolved to, or None if the source is not on the hub."""
    from transformers.utils.hub import cached_file, extract_commit_hash

    if parsed.kind != "hf":
        return None
    config = cached_file(parsed.name, "config.json", revision=parsed.revision or "main", local_files_only=True)
    return str(extract_commit_hash(config, None))


def _where(parsed: ModelSource) -> dict[str, object]:
    if parsed.kind == "hf":
        return {"pretrained_model_name_or_path": parsed.name, "revision": parsed.revision or "main"}
    parsed.require()
    if parsed.kind == "gguf":
        return {"pretrained_model_name_or_path": str(parsed.path.parent), "gguf_file": parsed.path.name}
    return {"pretrained_model_name_or_path": str(parsed.path)}


@contextmanager
def _quietly() -> Iterator[None]:
    """Hide transformers' progress bars, and its warnings about faults that raise RefusedError here."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


@contextmanager
def _refusing(parsed: ModelSource, part: Part) -> Iterator[None]:
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, ValueError, LookupError, ImportError, SafetensorError, struct.error) as error:
        raise _refusal(parsed, part, error) from error


def _refusal(parsed: ModelSource, part: Part, error: Exception) -> RefusedError:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if "trust_remote_code" in str(error):
        return RefusedError("models.own_code_not_trusted", source=parsed)
    if parsed.kind == "hf":
        return RefusedError("models.part_not_loadable_from_hub", source=parsed, part=part, reason=reason)
    if parsed.kind == "gguf":
        architecture, has_tokenizer = gguf_architecture(parsed.path)
        if part == "tokenizer" and not has_tokenizer:
            return RefusedError("models.gguf_without_tokenizer", source=parsed, architecture=architecture)
        return RefusedError(
            "models.gguf_part_not_loadable", source=parsed, part=part, reason=reason, architecture=architecture
        )
    return RefusedError("models.part_not_loadable", source=parsed, part=part, reason=reason)


def _unquantised(model: PreTrainedModel, config: PretrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """Return the same model without its quantization config, because transformers refuses to save a quantised model."""
    from transformers import AutoModelForCausalLM

    config.quantization_config = None
    fresh: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)
    fresh.load_state_dict(model.state_dict())
    fresh.generation_config = model.generation_config
    return fresh


_TOKENS = "tokenizer.ggml.tokens"


def gguf_architecture(path: Path) -> tuple[str, bool]:
    """Return a GGUF file's `general.architecture`, and whether the file contains a tokenizer.

    This reads the complete file, which takes seconds. Raises RefusedError if the file is damaged or the package `gguf`
    is not installed.
    """
    try:
        from gguf import GGUFReader
    except ImportError:
        raise RefusedError("models.gguf_not_installed", path=path) from None
    try:
        fields = GGUFReader(path).fields
        return str(fields["general.architecture"].contents()), _TOKENS in fields
    except (ValueError, LookupError) as error:
        raise RefusedError("models.gguf_file_incomplete", path=path, n_bytes=path.stat().st_size, error=error) from None
