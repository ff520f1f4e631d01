"""Checkpoint folders with something changed, made of the built-in tiny model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from harness.config.model_source import TINY
from harness.models.tiny import tiny_tokenizer

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tiny_folder(path: Path, changes: dict[str, dict[str, Any]] | None = None, without: str | None = None) -> Path:
    """A copy of the tiny checkpoint; `changes`: file -> fields; without one of its files."""
    shutil.copytree(TINY, path)
    for name, fields in (changes or {}).items():
        settings = json.loads((path / name).read_text())
        (path / name).write_text(json.dumps(settings | fields))
    if without is not None:
        (path / without).unlink()
    return path


def chat_tokenizer(template: str = CHATML, special: tuple[str, ...] = ("<|im_start|>", "<|im_end|>"), **fields: Any):
    """The tiny tokenizer with a chat template, and with tokens for what that one writes."""
    tokenizer: PreTrainedTokenizerBase = tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": list(special)} | fields)
    tokenizer.chat_template = template
    return tokenizer


def chat_folder(path: Path, tokenizer: PreTrainedTokenizerBase, rows: int | None = None, **generation: Any) -> Path:
    """A random tiny model whose vocabulary has `rows` tokens (default: as many as the tokenizer), saved with it."""
    from transformers import GenerationConfig, LlamaForCausalLM

    from harness.models.tiny import tiny_model

    config = tiny_model(seed=0).config
    config.vocab_size = len(tokenizer) if rows is None else rows
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(**generation)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path
