from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from harness.models.language_model import TokenCharacters, load_model

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
