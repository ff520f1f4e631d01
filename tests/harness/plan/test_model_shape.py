"""Parameter counts against transformers' own models, and where a configuration is found."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from harness.config.model import Lora
from harness.models.language_model import load_model
from harness.plan.model_shape import ModelShape, find_shape
from harness.plan.profile import profile_layer
from harness.plan.sweep_file import SHIPPED, shipped

SMALL = {
    "vocab_size": 101,
    "hidden_size": 32,
    "intermediate_size": 72,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
ARCHITECTURES: dict[str, tuple[Any, dict[str, Any]]] = {
    "llama": (transformers.LlamaConfig, {"tie_word_embeddings": False}),
    "llama, biases": (transformers.LlamaConfig, {"attention_bias": True, "mlp_bias": True}),
    "llama, wide heads": (transformers.LlamaConfig, {"head_dim": 24}),
    "mistral": (transformers.MistralConfig, {}),
    "qwen2": (transformers.Qwen2Config, {"tie_word_embeddings": True}),
    "qwen3": (transformers.Qwen3Config, {"head_dim": 24}),
    "gemma3": (transformers.Gemma3TextConfig, {"head_dim": 24}),
}


def count(model: torch.nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters())


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_count_is_exact(name: str) -> None:
    kind, more = ARCHITECTURES[name]
    config = kind(**SMALL, **more)
    shape = ModelShape.of_config(config.to_dict())
    assert shape is not None
    assert shape.parameters == count(transformers.AutoModelForCausalLM.from_config(config))


def test_the_built_in_model() -> None:
    shape = find_shape("builtin:tiny")
    assert shape is not None
    assert shape.parameters == count(load_model("builtin:tiny").model)
    assert (shape.context_tokens, find_shape("scratch:tiny")) == (128, shape)


def test_models_of_the_shipped_profiles_are_known_without_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    counts = {}
    for path in shipped(SHIPPED / "profiles").values():
        source = profile_layer(path).settings["model"]["source"]
        shape = find_shape(source)
        assert shape is not None, source
        counts[source.partition("@")[0]] = shape.parameters
    # From the model cards: 0.49 B and 1.54 B.
    assert counts["hf:Qwen/Qwen2.5-0.5B-Instruct"] == 494_032_768
    assert counts["hf:Qwen/Qwen2.5-1.5B-Instruct"] == counts["hf:Qwen/Qwen2.5-Math-1.5B"] == 1_543_714_304
    assert counts["hf:HuggingFaceTB/SmolLM2-135M-Instruct"] == 134_515_008


def test_a_folder_of_ones_own(tmp_path: Path) -> None:
    config: dict[str, Any] = {**SMALL, "model_type": "qwen2"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert find_shape(f"path:{tmp_path}") == ModelShape.of_config(config)
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "mamba"}))
    assert find_shape(f"path:{tmp_path}") is None, "an architecture that is not known here"
    (tmp_path / "config.json").write_text("{")
    for source in (f"path:{tmp_path}", "path:nowhere", "gguf:nowhere.gguf", "hf:nobody/nothing"):
        assert find_shape(source) is None


def test_the_local_cache_of_the_hub_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = tmp_path / "models--me--mine" / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps({**SMALL, "model_type": "llama"}))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.file_download.constants.HF_HUB_CACHE", str(tmp_path))
    assert find_shape(f"hf:me/mine@{'a' * 40}") == ModelShape.of_config({**SMALL, "model_type": "llama"})


def test_adapters_are_counted_as_peft_makes_them() -> None:
    peft = pytest.importorskip("peft")
    config = transformers.Qwen2Config(**SMALL, head_dim=24)
    shape = ModelShape.of_config(config.to_dict())
    assert shape is not None
    for modules in (Lora().target_modules, ("q_proj", "down_proj")):
        model = transformers.AutoModelForCausalLM.from_config(config)
        adapted = peft.get_peft_model(model, peft.LoraConfig(r=5, target_modules=list(modules)))
        trained = sum(weight.numel() for weight in adapted.parameters() if weight.requires_grad)
        assert shape.adapter_parameters(Lora(rank=5, target_modules=modules)) == trained


def test_the_shape_in_a_gguf_file_is_read_from_its_header(tmp_path: Path) -> None:
    """As config.json says it: Llama with two key-value heads, 7 tokens, and a tied head unless there is a tensor."""
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf(["token_embd.weight"]))
    shape = find_shape(f"gguf:{path}")
    assert shape == ModelShape(3, 8, 16, 8, 4, 2, 7, True, context_tokens=64)
    path.write_bytes(gguf(["token_embd.weight", "output.weight"]))
    assert find_shape(f"gguf:{path}") == replace(shape, tied_head=False)
    path.write_bytes(gguf(["token_embd.weight"])[:-60])
    assert find_shape(f"gguf:{path}") is None, "torn"


def gguf(tensors: list[str]) -> bytes:
    """A header of version 3 as the format's specification has it, written independently of the reader."""

    def text(word: str) -> bytes:
        return struct.pack("<Q", len(word)) + word.encode()

    numbers = {"embedding_length": 8, "feed_forward_length": 16, "block_count": 3, "context_length": 64}
    numbers |= {"attention.head_count": 4, "attention.head_count_kv": 2}
    values = [text("general.architecture") + struct.pack("<I", 8) + text("llama")]
    values += [text(f"llama.{name}") + struct.pack("<II", 4, value) for name, value in numbers.items()]
    values += [text("llama.rope.freq_base") + struct.pack("<If", 6, 1e4)]
    values += [text("tokenizer.ggml.scores") + struct.pack("<IIQ7f", 9, 6, 7, *range(7))]
    values += [text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 7) + b"".join(map(text, "abcdefg"))]
    infos = [text(name) + struct.pack("<IQQIQ", 2, 8, 7, 0, 0) for name in tensors]
    counts = struct.pack("<IQQ", 3, len(tensors), len(values))
    return b"GGUF" + counts + b"".join(values) + b"".join(infos)
