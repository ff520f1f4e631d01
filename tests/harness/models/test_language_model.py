from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import GenerationConfig

from evals.prompts import Message
from evals.tasks import get_task
from harness.config.model_source import TINY
from harness.errors import RefusedError
from harness.models.language_model import LanguageModel, load_model, weights_digest
from harness.models.tiny import CHARACTERS, CONTEXT_TOKENS, tiny_model, tiny_tokenizer

TOKENIZER = tiny_tokenizer()


@pytest.fixture(scope="module")
def tiny() -> LanguageModel:
    return load_model("builtin:tiny")


class TestBuiltinTiny:
    def test_is_small(self, tiny: LanguageModel) -> None:
        parameters = sum(weight.numel() for weight in tiny.model.parameters())
        assert 0.2e6 < parameters < 0.3e6
        assert sum(file.stat().st_size for file in TINY.iterdir()) <= 2e6

    def test_is_in_float32_and_evaluation_mode(self, tiny: LanguageModel) -> None:
        assert {weight.dtype for weight in tiny.model.parameters()} == {torch.float32}
        assert not tiny.model.training

    def test_names_its_special_tokens(self, tiny: LanguageModel) -> None:
        assert (tiny.pad_token_id, tiny.eos_token_ids) == (0, [1])
        assert tiny.model.config.max_position_embeddings == CONTEXT_TOKENS

    def test_solves_some_of_its_task(self, tiny: LanguageModel) -> None:
        """By greedy decoding; what it does not solve is left to reinforcement learning."""
        problems = list(get_task("arithmetic").split("test").load())[:40]
        right = 0
        for problem in problems:
            ids = torch.tensor([tiny.encode(problem.problem)])
            out = tiny.model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=40)
            right += tiny.decode(out[0, ids.shape[1] :].tolist()).rpartition("#")[2] == problem.answer
        assert 4 <= right <= 39

    def test_every_problem_is_in_its_alphabet_and_context(self, tiny: LanguageModel) -> None:
        for split in ("train", "test"):
            for problem in get_task("arithmetic").split(split).load():
                assert problem.solution is not None
                assert (
                    tiny.decode(tiny.encode(problem.problem + problem.solution)) == problem.problem + problem.solution
                )
                assert len(problem.problem) + 40 <= CONTEXT_TOKENS


@given(st.text(alphabet=CHARACTERS))
def test_tokenizer_round_trip(text: str) -> None:
    tokens = TOKENIZER(text)["input_ids"]
    assert len(tokens) == len(text)
    assert TOKENIZER.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False) == text


def test_save_and_load(tiny: LanguageModel, tmp_path: Path) -> None:
    tiny.save(tmp_path / "saved")
    loaded = load_model(f"path:{tmp_path / 'saved'}")
    assert weights_digest(loaded.model.state_dict()) == weights_digest(tiny.model.state_dict())
    assert (loaded.pad_token_id, loaded.eos_token_ids) == (tiny.pad_token_id, tiny.eos_token_ids)
    assert loaded.encode("3+4=") == tiny.encode("3+4=")
    assert loaded.decode(loaded.encode("7#7")) == "7#7"


def test_scratch_is_fixed_by_its_seed() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one = tiny_model(seed=0)
    assert torch.equal(torch.rand(3), expected), "the global generator must stay as it was"
    digests = [weights_digest(model.state_dict()) for model in (one, tiny_model(0), tiny_model(1))]
    assert digests[0] == digests[1] != digests[2]
    assert weights_digest(load_model("scratch:tiny").model.state_dict()) == digests[0]


def test_without_an_end_of_sequence_it_is_refused(tmp_path: Path) -> None:
    shutil.copytree(TINY, tmp_path / "endless")
    for name, key in (
        ("tokenizer_config.json", "eos_token"),
        ("generation_config.json", "eos_token_id"),
        ("config.json", "eos_token_id"),
    ):
        path = tmp_path / "endless" / name
        settings = json.loads(path.read_text())
        settings[key] = None
        path.write_text(json.dumps(settings))
    with pytest.raises(RefusedError, match="end-of-sequence"):
        load_model(f"path:{tmp_path / 'endless'}")


@pytest.mark.parametrize(("own", "ending"), [("<eos>", 1), (None, 0)])
def test_a_given_completion_ends_with_the_tokenizers_own_end(own: str | None, ending: int) -> None:
    """Where it has one, whatever else ends a completion by the generation config."""
    model, tokenizer = tiny_model(seed=0), tiny_tokenizer()
    model.generation_config = GenerationConfig(eos_token_id=[0, 2])
    tokenizer.eos_token = own
    language_model = LanguageModel(model, tokenizer)
    assert language_model.encode_completion("1,3#3") == [*language_model.encode("1,3#3"), ending]


def test_messages_without_a_chat_template_are_joined(tiny: LanguageModel) -> None:
    messages: list[Message] = [{"role": "system", "content": "1+1"}, {"role": "user", "content": "2+2="}]
    assert tiny.encode(messages) == tiny.encode("1+1\n\n2+2=\n\n")


class TestWeightsDigest:
    def test_covers_names_bytes_and_order_of_names_only(self) -> None:
        a, b = torch.arange(4.0), torch.ones(2)
        digest = weights_digest({"a": a, "b": b})
        assert weights_digest({"b": b, "a": a}) == digest
        assert weights_digest({"a": a, "c": b}) != digest
        assert weights_digest({"a": a.nextafter(torch.tensor(9.0)), "b": b}) != digest
