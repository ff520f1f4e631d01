"""The configuration of a model in a GGUF file, from its header alone: the numbers that `ModelShape` reads.

The format is that of https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3. The package gguf
reads it too, but takes between 5 and 40 s.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

_MAGIC = b"GGUF"
_STRING, _ARRAY = 8, 9
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Type of a value -> its format in `struct`."""
_NAMES = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length",
}
"""Keys of a config.json -> what follows the architecture's name in a GGUF key."""


def read_config(path: Path) -> Mapping[str, Any] | None:
    """What config.json would say of the model's shape; None for what is not the whole header of a language model."""
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
    # A head of its own is a tensor of its own.
    return {
        "model_type": kind,
        **config,
        "vocab_size": vocabulary,
        "tie_word_embeddings": "output.weight" not in tensors,
    }


def _read_header(file: BinaryIO) -> tuple[dict[str, Any], set[str]]:
    """Values by key, of an array its length; and the names of tensors. KeyError for a magic or type that is not one."""
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
    return file.read(_number(file, "Q")).decode()


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == _STRING:
        return _string(file)
    if kind != _ARRAY:
        return _number(file, _NUMBERS[kind])
    of, length = _number(file, "I"), _number(file, "Q")
    if of in _NUMBERS:
        file.seek(length * struct.calcsize(f"<{_NUMBERS[of]}"), 1)
    else:
        for _ in range(length):
            _value(file, of)
    return length
