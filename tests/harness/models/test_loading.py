from __future__ import annotations

import builtins
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFWriter

from evals.prompts import Message
from harness.config.model_source import TINY
from harness.errors import RefusedError
from harness.models.language_model import load_model, weights_digest
from tests.fetch_model import NAME
from tests.harness.models.folders import tiny_folder
from tests.refusals import refuses

pytestmark = pytest.mark.slow

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def refused(source: str, code: str, **fields: object) -> None:
    with refuses(RefusedError, f"models.{code}", **fields) as refusal:
        load_model(source)
    assert str(refusal.value).startswith(f"model.source {source}: ")


class TestAFolder:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_loads_in_the_dtype(self, dtype: torch.dtype) -> None:
        model = load_model("builtin:tiny", dtype=dtype).model
        assert {weight.dtype for weight in model.parameters()} == {dtype}
        expected = load_model("builtin:tiny").model.state_dict()
        assert all(torch.equal(weight, expected[name].to(dtype)) for name, weight in model.state_dict().items())

    @pytest.mark.parametrize(("file", "part"), [("config.json", "config"), ("tokenizer.json", "tokenizer")])
    def test_with_a_file_that_is_no_json_is_refused(self, tmp_path: Path, file: str, part: str) -> None:
        folder = tiny_folder(tmp_path / "m")
        (folder / file).write_text("{torn")
        refused(f"path:{folder}", "part_not_loadable", part=part)

    def test_that_is_not_whole_is_refused(self, tmp_path: Path) -> None:
        folder = tiny_folder(tmp_path / "m", without="tokenizer.json")
        refused(f"path:{folder}", "part_not_loadable", part="tokenizer")
        file = tiny_folder(tmp_path / "n") / "model.safetensors"
        file.write_bytes(file.read_bytes()[:400_000])
        refused(f"path:{file.parent}", "part_not_loadable", part="weights")

    @pytest.mark.parametrize(
        ("config", "code", "fields"),
        [
            ({"model_type": "nonsense"}, "part_not_loadable", {"part": "config"}),
            # Weights that are lacking are not made up.
            ({"tie_word_embeddings": False}, "weights_do_not_fit", {"n_weights": 1, "weights": "lm_head.weight"}),
            ({"intermediate_size": 270}, "weights_do_not_fit", {"n_weights": 6, "model": "LlamaForCausalLM"}),
        ],
    )
    def test_whose_config_is_of_another_model_is_refused(
        self, tmp_path: Path, config: dict[str, Any], code: str, fields: dict[str, object]
    ) -> None:
        refused(f"path:{tiny_folder(tmp_path / 'm', {'config.json': config})}", code, **fields)


class TestCodeThatComesWithAModel:
    def test_runs_only_if_the_spec_says_so(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
        monkeypatch.syspath_prepend(str(tmp_path / "modules"))
        code = {"AutoConfig": "mine.MineConfig", "AutoModelForCausalLM": "mine.MineForCausalLM"}
        folder = tiny_folder(tmp_path / "m", {"config.json": {"model_type": "mine_of_bench", "auto_map": code}})
        (folder / "mine.py").write_text(
            "from transformers import LlamaConfig, LlamaForCausalLM\n"
            "class MineConfig(LlamaConfig):\n    model_type = 'mine_of_bench'\n"
            "class MineForCausalLM(LlamaForCausalLM):\n    config_class = MineConfig\n"
        )
        refused(f"path:{folder}", "own_code_not_trusted")
        made = load_model(f"path:{folder}", trust_remote_code=True)
        assert type(made.model).__name__ == "MineForCausalLM"
        assert weights_digest(made.model.state_dict()) == weights_digest(load_model("builtin:tiny").model.state_dict())


class TestTheHub:
    """Offline: what cannot be reached, and what is in the local cache."""

    @pytest.fixture(autouse=True)
    def offline(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
        return tmp_path / "hub"

    @pytest.fixture
    def cached(self, offline: Path) -> None:
        repository = offline / "models--org--tiny"
        shutil.copytree(TINY, repository / "snapshots" / COMMIT)
        (repository / "refs").mkdir()
        for name in ("main", "v1"):
            (repository / "refs" / name).write_text(COMMIT)

    @pytest.mark.parametrize("source", ["hf:org/unknown", "hf:org/unknown@v2"])
    def test_what_cannot_be_reached_is_refused_with_what_to_give_instead(self, source: str) -> None:
        refused(source, "part_not_loadable_from_hub")

    @pytest.mark.usefixtures("cached")
    @pytest.mark.parametrize("source", ["hf:org/tiny", "hf:org/tiny@main", "hf:org/tiny@v1", f"hf:org/tiny@{COMMIT}"])
    def test_what_is_cached_loads(self, source: str) -> None:
        made = load_model(source)
        assert weights_digest(made.model.state_dict()) == weights_digest(load_model("builtin:tiny").model.state_dict())
        assert made.account()["commit"] == COMMIT

    @pytest.mark.usefixtures("cached")
    def test_another_revision_than_the_cached_one_is_refused(self) -> None:
        refused("hf:org/tiny@v2", "part_not_loadable_from_hub")


def write_gguf(path: Path, architecture: str, tokens: list[str] | None = None) -> Path:
    writer = GGUFWriter(path, architecture)
    writer.add_block_count(1)
    if tokens is not None:
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list(tokens)
        writer.add_token_types([1] * len(tokens))
        writer.add_token_merges([])
    writer.add_tensor("token_embd.weight", np.zeros((8, 4), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


class TestAGguf:
    @pytest.mark.parametrize("tokens", [["a", "b"], None])
    def test_of_an_unknown_architecture_is_refused_with_it(self, tmp_path: Path, tokens: list[str] | None) -> None:
        source = f"gguf:{write_gguf(tmp_path / 'a.gguf', 'nonsense', tokens)}"
        refused(source, "gguf_part_not_loadable", architecture="nonsense")

    def test_without_a_tokenizer_is_refused(self, tmp_path: Path) -> None:
        source = f"gguf:{write_gguf(tmp_path / 'a.gguf', 'llama')}"
        refused(source, "gguf_without_tokenizer", architecture="llama")

    @pytest.mark.parametrize("kept", [0, 10, 150, -100])
    def test_that_is_cut_short_is_refused(self, tmp_path: Path, kept: int) -> None:
        path = write_gguf(tmp_path / "a.gguf", "llama", ["a", "b"])
        path.write_bytes(path.read_bytes()[:kept])
        refused(f"gguf:{path}", "gguf_file_incomplete", n_bytes=path.stat().st_size)

    def test_that_is_something_else_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "a.gguf").write_bytes(b"no such thing" * 100)
        refused(f"gguf:{tmp_path}/a.gguf", "gguf_file_incomplete", n_bytes=1300)

    def test_without_the_package_is_refused_with_the_command(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = write_gguf(tmp_path / "a.gguf", "llama", ["a", "b"])
        real = builtins.__import__

        def without_gguf(name: str, *args: Any, **options: Any) -> Any:
            if name == "gguf":
                raise ImportError("No module named 'gguf'")
            return real(name, *args, **options)

        def unavailable(*args: Any, **options: Any) -> Any:
            raise ImportError("Please install torch and gguf")

        monkeypatch.setattr("transformers.AutoConfig.from_pretrained", unavailable)
        monkeypatch.setattr(builtins, "__import__", without_gguf)
        refused(f"gguf:{path}", "gguf_not_installed")

    @pytest.mark.long
    def test_of_a_real_model_loads_and_saves(self, tmp_path: Path) -> None:
        folder = os.environ.get("BENCH_MODELS")
        if not folder or not (Path(folder) / NAME).is_file():
            pytest.skip(f"needs {NAME} in $BENCH_MODELS")
        made = load_model(f"gguf:{Path(folder) / NAME}")
        assert made.chat_template == "tokenizer"
        assert made.eos_token_ids == [2]
        messages: list[Message] = [{"role": "user", "content": "hi"}]
        assert made.encode(messages)[0] == made.tokenizer.convert_tokens_to_ids("<|im_start|>")
        made.save(tmp_path / "saved")
        again = load_model(f"path:{tmp_path / 'saved'}")
        assert weights_digest(again.model.state_dict()) == weights_digest(made.model.state_dict())
        assert again.encode(messages) == made.encode(messages)
        assert again.eos_token_ids == made.eos_token_ids
