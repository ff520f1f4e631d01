from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import RefusedError
from harness.models.language_model import LanguageModel, load_model
from harness.models.tiny import tiny_model, tiny_tokenizer
from tests.harness.models.folders import chat_folder, chat_tokenizer, tiny_folder


def refused(folder: Path, match: str) -> None:
    with pytest.raises(RefusedError, match=match) as refusal:
        load_model(f"path:{folder}")
    assert str(refusal.value).startswith(f"model.source path:{folder}: ")


class TestTokensThatTheModelDoesNotKnow:
    def test_are_refused(self, tmp_path: Path) -> None:
        tokenizer = tiny_tokenizer()
        tokenizer.add_tokens(["much", "more"])
        folder = chat_folder(tmp_path / "m", tokenizer, rows=21)
        refused(
            folder, r"knows 2 tokens that the model has no embedding for, up to 'more' with id 22; the model has 21"
        )

    def test_may_stand_for_other_media_but_not_be_in_a_prompt(self, tmp_path: Path) -> None:
        tokenizer = tiny_tokenizer()
        tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
        made = load_model(f"path:{chat_folder(tmp_path / 'm', tokenizer, rows=21)}")
        assert "no prompt may hold <image>: the model has no embedding for it" in made.remarks()
        assert made.encode("1+1=") == [4, 13, 4, 14]
        with pytest.raises(RefusedError, match=r"a prompt holds <image>, a token that the model has no embedding for"):
            made.encode("1<image>1")
        assert LanguageModel(made.model, tokenizer).unknown_tokens == frozenset()

    @pytest.mark.parametrize("rows", [21, 24, 64])
    def test_more_embeddings_than_tokens_are_fine(self, tmp_path: Path, rows: int) -> None:
        made = load_model(f"path:{chat_folder(tmp_path / 'm', tiny_tokenizer(), rows=rows)}")
        assert made.model.get_input_embeddings().weight.shape[0] == rows
        assert made.decode([4, rows - 1, 5]) == ("1t2" if rows == 21 else "12"), "an id without text is no text"


class TestTheEndOfSequence:
    def test_outside_the_vocabulary_is_refused(self, tmp_path: Path) -> None:
        folder = tiny_folder(tmp_path / "m", {"generation_config.json": {"eos_token_id": [1, 21]}})
        refused(folder, r"its end-of-sequence token has id 21, but the model's vocabulary ends at 20")

    def test_that_is_the_last_of_the_vocabulary_is_not(self, tmp_path: Path) -> None:
        folder = tiny_folder(tmp_path / "m", {"generation_config.json": {"eos_token_id": [20]}})
        assert load_model(f"path:{folder}").eos_token_ids == [1, 20]

    def test_that_the_tokenizer_does_not_hold_is_refused(self, tmp_path: Path) -> None:
        """transformers adds it behind the vocabulary."""
        folder = tiny_folder(tmp_path / "m", {"tokenizer_config.json": {"eos_token": "</s>"}})
        refused(folder, r"its end-of-sequence token has id 21, but the model's vocabulary ends at 20")

    def test_that_no_file_names_is_refused(self, tmp_path: Path) -> None:
        none = {"generation_config.json": {"eos_token_id": None}, "config.json": {"eos_token_id": None}}
        refused(tiny_folder(tmp_path / "m", none | {"tokenizer_config.json": {"eos_token": None}}), "could ever end")

    def test_after_every_text_is_refused(self, tmp_path: Path) -> None:
        from tokenizers.processors import TemplateProcessing

        tokenizer = tiny_tokenizer()
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single="$A <eos>", special_tokens=[("<eos>", 1)]
        )
        refused(chat_folder(tmp_path / "m", tokenizer), "puts an end-of-sequence token after every text")


class TestPadding:
    def test_outside_the_vocabulary_is_refused(self, tmp_path: Path) -> None:
        tokenizer = chat_tokenizer(special=(), pad_token="<padding>")
        tokenizer.chat_template = None
        folder = chat_folder(tmp_path / "m", tokenizer, rows=21)
        refused(folder, r"its padding token has id 21, but the model's vocabulary ends at 20")

    def test_that_is_missing_is_replaced_and_said(self, tmp_path: Path) -> None:
        folder = tiny_folder(tmp_path / "m", {"tokenizer_config.json": {"pad_token": None}})
        made = load_model(f"path:{folder}")
        assert made.pad_token_id == 1
        assert "the tokenizer has no padding token; <eos> takes its place, masked everywhere" in made.remarks()


def test_the_account_is_of_what_is_used() -> None:
    account = LanguageModel(tiny_model(seed=0), tiny_tokenizer()).account()
    assert account["architecture"] == "LlamaForCausalLM"
    assert account["vocabulary_tokens"] == len(tiny_tokenizer())
    assert (account["dtype"], account["eos_token_ids"], account["pad_token_id"]) == ("float32", [1], 0)
