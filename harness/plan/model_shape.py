"""The shape of a model, read from its configuration alone: the number of parameters, and the sizes of its activations.

The configuration is a config.json or the header of a GGUF file. Versions 2 and 3 of the GGUF format are supported
(https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). The package gguf could read it too, but takes 5 to 40 s.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from harness.config.model import Lora
from harness.config.model_source import TINY, parse_source

_QWEN2_0_5B = {
    "model_type": "qwen2",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 151_936,
    "tie_word_embeddings": True,
}
_QWEN2_1_5B = _QWEN2_0_5B | {
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
}
# The models of the shipped profiles, from their config.json on the hub, so that a plan needs no network.
_KNOWN: dict[str, Mapping[str, object]] = {
    "HuggingFaceTB/SmolLM2-135M-Instruct": {
        "model_type": "llama",
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49_152,
        "tie_word_embeddings": True,
    },
    "Qwen/Qwen2.5-0.5B-Instruct": _QWEN2_0_5B,
    "Qwen/Qwen2.5-1.5B-Instruct": _QWEN2_1_5B,
    "Qwen/Qwen2.5-Math-1.5B": _QWEN2_1_5B,
}
_QKV_BIAS = ("qwen2",)
_QK_NORM = ("qwen3", "gemma3", "gemma3_text")
_FOUR_NORMS = ("gemma3", "gemma3_text")
_KNOWN_TYPES = ("llama", "mistral", *_QKV_BIAS, *_QK_NORM)


@dataclass(frozen=True)
class ModelShape:
    """A decoder with grouped-query attention and a gated MLP. Sizes are numbers of elements."""

    layers: int
    hidden: int
    intermediate: int
    attention: int
    """Number of heads x head size."""
    key_value: int
    """Number of key-value heads x head size."""
    head_size: int
    vocabulary: int
    tied_head: bool
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    layer_norms: int = 2
    """The number of norms in each layer that are as wide as the layer's input."""
    context_tokens: int | None = None
    """The most tokens of a sequence; None if the configuration does not state it."""

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> ModelShape | None:
        """Return the shape that a config.json describes, or None for an unknown architecture."""
        text: Mapping[str, Any] = config.get("text_config", config)
        kind = text.get("model_type", "")
        if kind not in _KNOWN_TYPES:
            return None
        heads, hidden = text["num_attention_heads"], text["hidden_size"]
        # Newer models state the head size. Older configurations imply it.
        head_size = text.get("head_dim") or hidden // heads
        has_bias = bool(text.get("attention_bias"))
        return cls(
            layers=text["num_hidden_layers"],
            hidden=hidden,
            intermediate=text["intermediate_size"],
            attention=heads * head_size,
            key_value=(text.get("num_key_value_heads") or heads) * head_size,
            head_size=head_size,
            vocabulary=text["vocab_size"],
            tied_head=bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", kind in _FOUR_NORMS))),
            qkv_bias=kind in _QKV_BIAS or has_bias,
            output_bias=has_bias,
            mlp_bias=bool(text.get("mlp_bias")),
            qk_norm=kind in _QK_NORM,
            layer_norms=4 if kind in _FOUR_NORMS else 2,
            context_tokens=text.get("max_position_embeddings"),
        )

    @property
    def parameters(self) -> int:
        """The number of parameters. An output head that is tied to the embeddings counts once."""
        embeddings = self.vocabulary * self.hidden * (1 if self.tied_head else 2)
        return embeddings + self.layers * self.layer_parameters + self.hidden

    @property
    def layer_matrices(self) -> int:
        d, i, a, kv = self.hidden, self.intermediate, self.attention, self.key_value
        # Queries and output, then keys and values, then gate, up and down of the MLP.
        return 2 * d * a + 2 * d * kv + 3 * d * i

    @property
    def layer_parameters(self) -> int:
        d, i, a, kv = self.hidden, self.intermediate, self.attention, self.key_value
        attention = (a + 2 * kv if self.qkv_bias else 0) + (d if self.output_bias else 0)
        mlp = 2 * i + d if self.mlp_bias else 0
        norms = self.layer_norms * d + (2 * self.head_size if self.qk_norm else 0)
        return self.layer_matrices + attention + mlp + norms

    @property
    def saved_parameters(self) -> int:
        """The number of parameters in saved weights, in which a tied head is stored separately from the embeddings."""
        return self.parameters + (self.vocabulary * self.hidden if self.tied_head else 0)

    def adapter_parameters(self, lora: Lora) -> int:
        """Return the number of adapter parameters: rank x (inputs + outputs) per adapted layer (arXiv:2106.09685)."""
        d, i, a, kv = self.hidden, self.intermediate, self.attention, self.key_value
        ends = {
            "q_proj": d + a, "k_proj": d + kv, "v_proj": d + kv, "o_proj": a + d,
            "gate_proj": d + i, "up_proj": d + i, "down_proj": i + d,
        }  # fmt: skip
        return lora.rank * self.layers * sum(ends.get(module, 0) for module in lora.target_modules)


def find_shape(source: str) -> ModelShape | None:
    """Return the shape of `model.source`, from local files or from the built-in list.

    None if its configuration is not available locally or its architecture is unknown. Neither weights nor the network
    are used.
    """
    parsed = parse_source(source)
    config: Mapping[str, object] | None
    match parsed.kind:
        case "builtin" | "scratch":
            config = _read(TINY / "config.json")
        case "path":
            config = _read(parsed.path / "config.json")
        case "hf":
            config = _cached(parsed.name, parsed.revision) or _KNOWN.get(parsed.name)
        case "gguf":
            config = read_config(parsed.path)
    return None if config is None else ModelShape.of_config(config)


def _read(path: Path) -> Mapping[str, Any] | None:
    """Return the content of a config.json, or None if it cannot be read."""
    try:
        config: Mapping[str, object] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return config


def _cached(name: str, revision: str | None) -> Mapping[str, object] | None:
    """Return a model's configuration from the hub's local cache, or None if it is not cached."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, "config.json", revision=revision)
    return _read(Path(found)) if isinstance(found, str) else None


_MAGIC = b"GGUF"
_STRING, _ARRAY = 8, 9
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Maps the type of a value to its format in `struct`."""
_NAMES = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length",
}
"""Maps a key of config.json to the part of the GGUF key that follows the architecture's name."""


def read_config(path: Path) -> Mapping[str, object] | None:
    """Return the model's shape in the form of a config.json.

    None if the file does not have the complete header of a language model.
    """
    try:
        with path.open("rb") as file:
            values, tensors = _read_header(file)
    except (OSError, struct.error, UnicodeDecodeError, KeyError):
        return None
    kind = values.get("general.architecture")
    config = {name: values[f"{kind}.{key}"] for name, key in _NAMES.items() if f"{kind}.{key}" in values}
    vocabulary = values.get("tokenizer.ggml.tokens")
    if kind is None or vocabulary is None:
        return None
    # An untied head is stored as a separate tensor.
    return {
        "model_type": kind,
        **config,
        "vocab_size": vocabulary,
        "tie_word_embeddings": "output.weight" not in tensors,
    }


def _read_header(file: BinaryIO) -> tuple[dict[str, object], set[str]]:
    """Return the header's values by key, and the names of the tensors. The value of an array is its length.

    Raises KeyError if the magic bytes are wrong or a type is unknown.
    """
    if file.read(4) != _MAGIC:
        raise KeyError(_MAGIC)
    _, n_tensors, n_values = struct.unpack("<IQQ", file.read(20))
    values = {_string(file): _value(file, _number(file, "I")) for _ in range(n_values)}
    tensors = set()
    for _ in range(n_tensors):
        tensors.add(_string(file))
        file.seek(8 * _number(file, "I") + 4 + 8, 1)  # dimensions, type, offset
    return values, tensors


def _number(file: BinaryIO, form: str) -> Any:
    return struct.unpack(f"<{form}", file.read(struct.calcsize(f"<{form}")))[0]


def _string(file: BinaryIO) -> str:
    """Read a string: its length in bytes, followed by UTF-8."""
    return file.read(_number(file, "Q")).decode()


def _value(file: BinaryIO, kind: int) -> Any:
    """Read a value of this type. For an array, return only its length."""
    if kind == _STRING:
        return _string(file)
    if kind != _ARRAY:
        return _number(file, _NUMBERS[kind])
    of, length = _number(file, "I"), _number(file, "Q")
    # Arrays such as a vocabulary's scores are long, so numbers are skipped instead of read. Strings must be read one by
    # one, because their lengths differ.
    if of in _NUMBERS:
        file.seek(length * struct.calcsize(f"<{_NUMBERS[of]}"), 1)
    else:
        for _ in range(length):
            _value(file, of)
    return length
