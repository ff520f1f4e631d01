"""Loading, tokens, weights and their versions, and which characters a token wrote."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from torch import nn
from transformers import GenerationConfig

from evals.prompts import Message
from evals.tasks import get_task
from harness.config.model_source import TINY
from harness.errors import RefusedError
from harness.models.language_model import LanguageModel, TokenCharacters, load_model, weight_version, weights_digest
from harness.models.tiny import CHARACTERS, CONTEXT_TOKENS, tiny_model, tiny_tokenizer
from tests.harness.models.folders import chat_folder, chat_tokenizer, tiny_folder
from tests.refusals import refuses

TOKENIZER = tiny_tokenizer()


@pytest.fixture(scope="module")
def tiny() -> LanguageModel:
    return load_model("builtin:tiny")


class TestBuiltinTiny:
    def test_is_small_and_in_evaluation_mode(self, tiny: LanguageModel) -> None:
        parameters = sum(weight.numel() for weight in tiny.model.parameters())
        assert 0.2e6 < parameters < 0.3e6
        assert sum(file.stat().st_size for file in TINY.iterdir()) <= 2e6
        assert {weight.dtype for weight in tiny.model.parameters()} == {torch.float32}
        assert not tiny.model.training
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


def refused(folder: Path, code: str, **fields: object) -> None:
    with refuses(RefusedError, f"models.{code}", **fields) as refusal:
        load_model(f"path:{folder}")
    assert str(refusal.value).startswith(f"model.source path:{folder}: ")


class TestTokensThatTheModelDoesNotKnow:
    def test_are_refused(self, tmp_path: Path) -> None:
        tokenizer = tiny_tokenizer()
        tokenizer.add_tokens(["much", "more"])
        folder = chat_folder(tmp_path / "m", tokenizer, rows=21)
        refused(folder, "tokens_without_embedding", n_unknown=2, token="more", token_id=22, n_embeddings=21)

    def test_may_stand_for_other_media_but_not_be_in_a_prompt(self, tmp_path: Path) -> None:
        tokenizer = tiny_tokenizer()
        tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
        made = load_model(f"path:{chat_folder(tmp_path / 'm', tokenizer, rows=21)}")
        assert any("<image>" in remark for remark in made.remarks())
        assert made.encode("1+1=") == [4, 13, 4, 14]
        with refuses(RefusedError, "models.token_without_embedding", token="<image>"):
            made.encode("1<image>1")
        assert LanguageModel(made.model, tokenizer).unknown_tokens == frozenset()

    @pytest.mark.parametrize("rows", [21, 24, 64])
    def test_more_embeddings_than_tokens_are_fine(self, tmp_path: Path, rows: int) -> None:
        made = load_model(f"path:{chat_folder(tmp_path / 'm', tiny_tokenizer(), rows=rows)}")
        assert made.model.get_input_embeddings().weight.shape[0] == rows
        assert made.decode([4, rows - 1, 5]) == ("1t2" if rows == 21 else "12"), "an id without text decodes to nothing"


OUTSIDE = "special_token_outside_vocabulary"


class TestTheEndOfSequence:
    @pytest.mark.parametrize(
        ("changes", "code", "fields"),
        [
            ({"generation_config.json": {"eos_token_id": [1, 21]}}, OUTSIDE, {"token_id": 21, "last_id": 20}),
            # transformers adds it behind the vocabulary.
            ({"tokenizer_config.json": {"eos_token": "</s>"}}, OUTSIDE, {"token_id": 21, "last_id": 20}),
            (
                {
                    "generation_config.json": {"eos_token_id": None},
                    "config.json": {"eos_token_id": None},
                    "tokenizer_config.json": {"eos_token": None},
                },
                "end_token_missing",
                {},
            ),
        ],
    )
    def test_that_no_file_names_or_the_model_does_not_know_is_refused(
        self, tmp_path: Path, changes: dict[str, dict[str, object]], code: str, fields: dict[str, object]
    ) -> None:
        refused(tiny_folder(tmp_path / "m", changes), code, **fields)

    def test_that_is_the_last_of_the_vocabulary_is_not(self, tmp_path: Path) -> None:
        folder = tiny_folder(tmp_path / "m", {"generation_config.json": {"eos_token_id": [20]}})
        assert load_model(f"path:{folder}").eos_token_ids == [1, 20]

    def test_after_every_text_is_refused(self, tmp_path: Path) -> None:
        from tokenizers.processors import TemplateProcessing

        tokenizer = tiny_tokenizer()
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single="$A <eos>", special_tokens=[("<eos>", 1)]
        )
        refused(chat_folder(tmp_path / "m", tokenizer), "end_token_after_prompts")


class TestPadding:
    def test_outside_the_vocabulary_is_refused(self, tmp_path: Path) -> None:
        tokenizer = chat_tokenizer(special=(), pad_token="<padding>")
        tokenizer.chat_template = None
        folder = chat_folder(tmp_path / "m", tokenizer, rows=21)
        refused(folder, OUTSIDE, special="padding", token_id=21, last_id=20)

    def test_that_is_missing_is_replaced_and_said(self, tmp_path: Path) -> None:
        folder = tiny_folder(tmp_path / "m", {"tokenizer_config.json": {"pad_token": None}})
        made = load_model(f"path:{folder}")
        assert made.pad_token_id == 1
        assert any("<eos>" in remark for remark in made.remarks())


def test_the_account_is_of_what_is_used() -> None:
    account = LanguageModel(tiny_model(seed=0), tiny_tokenizer()).account()
    assert account["architecture"] == "LlamaForCausalLM"
    assert account["vocabulary_tokens"] == len(tiny_tokenizer())
    assert (account["dtype"], account["eos_token_ids"], account["pad_token_id"]) == ("float32", [1], 0)


def optimise(model: nn.Module, foreach: bool) -> None:
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    torch.optim.AdamW(model.parameters(), foreach=foreach).step()


@torch.no_grad()
def write_one(model: nn.Module) -> None:
    next(model.parameters())[0].add_(1.0)


@torch.no_grad()
def copy_all(model: nn.Module) -> None:
    weights: list[torch.Tensor] = list(model.parameters())
    torch._foreach_copy_(weights, [weight + 1 for weight in weights])


CHANGES: dict[str, Callable[[nn.Module], object]] = {
    "AdamW": lambda model: optimise(model, foreach=False),
    "AdamW, foreach": lambda model: optimise(model, foreach=True),
    "load_state_dict": lambda model: model.load_state_dict(model.state_dict()),
    "by hand": write_one,
    "foreach": copy_all,
    "buffer": lambda model: model.get_buffer("running_mean").add_(1.0),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_way_of_writing_is_seen(change: str) -> None:
    model = nn.BatchNorm1d(3)
    before = weight_version(model)
    CHANGES[change](model)
    assert weight_version(model) > before


def test_using_the_weights_is_no_change() -> None:
    model = nn.Linear(3, 2)
    before = weight_version(model)
    with torch.inference_mode():
        model(torch.ones(1, 3))
    model(torch.ones(1, 3)).sum().backward()
    assert weight_version(model) == before


PIECES = [b"Wait", b" wait", b",", b" 1", "é".encode()[:1], "é".encode()[1:], "→".encode()[:2], "→".encode()[2:], b""]


def of_bytes(tokens: Sequence[int]) -> str:
    """As byte-level tokenizers decode; the last piece is a special token."""
    return b"".join(PIECES[token] for token in tokens).decode(errors="replace")


def of_words(tokens: Sequence[int]) -> str:
    """As sentencepiece decodes: the space before the first word is dropped."""
    return "".join(["▁Wait", "▁wait", ",", "▁1"][token] for token in tokens).replace("▁", " ").removeprefix(" ")


@pytest.mark.parametrize(
    ("tokens", "chars"),
    [
        ([0, 2, 3], [4, 1, 2]),
        ([1, 8, 3], [5, 0, 2]),
        ([4, 5, 1], [0, 1, 5]),
        ([0, 6, 7, 2], [4, 0, 1, 1]),
        ([0, 4], [4, 1]),
        ([8], [0]),
        ([], []),
    ],
)
def test_bytes_by_hand(tokens: list[int], chars: list[int]) -> None:
    """A character belongs to the token that completes it; what stays half a character is written as one."""
    assert TokenCharacters(of_bytes).of(tokens, of_bytes(tokens)) == chars


def of_words_and_bytes(tokens: Sequence[int]) -> str:
    """As sentencepiece decodes that falls back to bytes."""
    pieces = [*(word.encode() for word in ("▁Wait", "▁wait", ",")), "→".encode()[:2], "→".encode()[2:]]
    return b"".join(pieces[token] for token in tokens).decode(errors="replace").replace("▁", " ").removeprefix(" ")


def test_the_space_before_the_first_word_is_no_character() -> None:
    tokens = [1, 3, 4, 0, 2, 1]
    assert of_words_and_bytes(tokens) == "wait→ Wait, wait"
    assert TokenCharacters(of_words_and_bytes).of(tokens, of_words_and_bytes(tokens)) == [4, 0, 1, 5, 1, 5]
    assert TokenCharacters(of_words).of([1, 2, 0], of_words([1, 2, 0])) == [4, 1, 5]


@given(st.lists(st.sampled_from(range(len(PIECES))), max_size=12))
def test_they_add_up_to_the_text(tokens: list[int]) -> None:
    text = of_bytes(tokens)
    chars = TokenCharacters(of_bytes).of(tokens, text)
    assert len(chars) == len(tokens) and sum(chars) == len(text) and all(count >= 0 for count in chars)


@pytest.mark.slow
@given(st.lists(st.sampled_from([0, 1, 2, 3]), min_size=1, max_size=12))
def test_the_text_up_to_a_token_is_that_of_the_tokens_up_to_it(tokens: list[int]) -> None:
    for decode in (of_bytes, of_words):
        text = decode(tokens)
        for end, written in enumerate(accumulate(TokenCharacters(decode).of(tokens, text)), start=1):
            assert decode(tokens[:end]) == text[:written]


def test_long_texts_are_not_decoded_again_for_each_token() -> None:
    """Where the remembered pieces do not serve, a few tokens are decoded at a time."""
    decoded = 0

    def counted(tokens: Sequence[int]) -> str:
        nonlocal decoded
        decoded += len(tokens)
        return of_bytes(tokens)

    tokens = [4, 5, 1] * 200
    chars = TokenCharacters(counted).of(tokens, of_bytes(tokens))
    assert chars == [0, 1, 5] * 200
    assert decoded < 20 * len(tokens)


def test_a_real_byte_level_tokenizer() -> None:
    vocabulary = {"W": 0, "ait": 1, "Ġé"[:1]: 2, "Ã": 3, "©": 4}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokens = [0, 1, 2, 3, 4, 0]
    text = tokenizer.decode(tokens)
    assert text == "Wait éW"
    assert TokenCharacters(lambda some: str(tokenizer.decode(list(some)))).of(tokens, text) == [1, 3, 1, 0, 1, 1]


def test_the_built_in_model() -> None:
    tiny = load_model("builtin:tiny")
    tokens = [*tiny.encode("1+2=3#3"), tiny.eos_token_ids[0]]
    assert TokenCharacters(tiny.decode).of(tokens, tiny.decode(tokens)) == [1] * 7 + [0]
