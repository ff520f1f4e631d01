"""A causal language model with its tokenizer, loaded from any `model.source`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from evals.prompts import Message
from harness.errors import RefusedError
from harness.models.source import ModelSource, parse_source

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class LanguageModel:
    """A model in evaluation mode (dropout off: sampler and trainer must agree) and its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase

    @property
    def eos_token_ids(self) -> list[int]:
        """Every token that ends a completion: the tokenizer's and those of the generation config."""
        configured = self.model.generation_config.eos_token_id if self.model.generation_config else None
        ids = configured if isinstance(configured, list) else [configured]
        return sorted({token for token in [self.tokenizer.eos_token_id, *ids] if token is not None})

    @property
    def pad_token_id(self) -> int:
        """The id in padded positions. They are masked everywhere, so any valid id serves where none is defined."""
        pad = self.tokenizer.pad_token_id
        return self.eos_token_ids[0] if pad is None else int(pad)

    def encode(self, prompt: str | list[Message]) -> list[int]:
        """Token ids of a rendered prompt. Messages pass through the tokenizer's chat template where it has one; without
        one their contents are joined by blank lines."""
        if not isinstance(prompt, str):
            if self.tokenizer.chat_template:
                text = self.tokenizer.apply_chat_template(list(prompt), add_generation_prompt=True, tokenize=False)
                return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
            prompt = "\n\n".join(message["content"] for message in prompt) + "\n\n"
        return list(self.tokenizer(prompt)["input_ids"])

    def encode_completion(self, text: str) -> list[int]:
        """Token ids of a completion that is given, to be learned: its text and one end-of-sequence token, the
        tokenizer's own where it has one."""
        own = self.tokenizer.eos_token_id
        tokens: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return [*tokens, self.eos_token_ids[0] if own is None else int(own)]

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of token ids without special tokens."""
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def save(self, folder: Path) -> None:
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


def load_model(source: str, device: str = "cpu") -> LanguageModel:
    """Load `model.source` in float32.

    Raises RefusedError, with the remedy, for a source that is missing, unreachable or without an end-of-sequence token.
    """
    language_model = _load(parse_source(source), source)
    if not language_model.eos_token_ids:
        raise RefusedError(
            f"model.source {source}: neither tokenizer nor generation config names an end-of-sequence token, so no "
            "completion could ever end. Set eos_token in its tokenizer_config.json."
        )
    language_model.model.eval().to(device)
    return language_model


def _load(parsed: ModelSource, source: str) -> LanguageModel:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    if parsed.kind == "scratch":
        from harness.models.tiny import tiny_model, tiny_tokenizer

        return LanguageModel(tiny_model(seed=0), tiny_tokenizer())
    if parsed.kind != "hf":
        parsed.require()
    where: dict[str, Any]
    if parsed.kind == "hf":
        where = {"pretrained_model_name_or_path": parsed.name, "revision": parsed.revision}
    elif parsed.kind == "gguf":
        where = {"pretrained_model_name_or_path": str(parsed.path.parent), "gguf_file": parsed.path.name}
    else:
        where = {"pretrained_model_name_or_path": str(parsed.path)}
    try:
        config = AutoConfig.from_pretrained(**where)
        model = AutoModelForCausalLM.from_pretrained(**where, config=config, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(**where)
    except (OSError, ValueError) as error:
        remedy = (
            "Check the id, or give a local copy: --set model.source=path:<dir> or gguf:<file>."
            if parsed.kind == "hf"
            else "It must be a causal language model with its tokenizer that this transformers version knows."
        )
        raise RefusedError(f"model.source {source}: cannot be loaded ({_first_line(error)}). {remedy}") from error
    if parsed.kind == "gguf":
        # The loaded model is marked as quantised, which forbids saving; a fresh one of the same shape is not.
        config.quantization_config = None
        fresh = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        fresh.load_state_dict(model.state_dict())
        fresh.generation_config = model.generation_config
        model = fresh
    return LanguageModel(model, tokenizer)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def weights_digest(weights: Mapping[str, Tensor]) -> str:
    """blake2b over names and bytes of weights, in the order of their names."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(weights):
        digest.update(name.encode())
        digest.update(weights[name].detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
