"""GGUF files that do not load: what is wrong with one, in its own terms. Reading one whole takes seconds."""

from __future__ import annotations

from pathlib import Path

from harness.errors import RefusedError

_TOKENS = "tokenizer.ggml.tokens"


def gguf_architecture(path: Path) -> tuple[str, bool]:
    """`general.architecture` of a whole GGUF file, and whether the file holds a tokenizer.

    Raises RefusedError if the file is damaged, or the package `gguf` is missing.
    """
    try:
        from gguf import GGUFReader
    except ImportError:
        raise RefusedError(
            f"model.source gguf:{path}: reading it needs the package gguf, which is not installed. Run: pip install "
            "gguf"
        ) from None
    try:
        fields = GGUFReader(path).fields
        return str(fields["general.architecture"].contents()), _TOKENS in fields
    except (ValueError, LookupError) as error:
        raise RefusedError(
            f"model.source gguf:{path}: is not a whole GGUF file ({path.stat().st_size} bytes; {error}). Download it "
            "again, or give another model."
        ) from None
