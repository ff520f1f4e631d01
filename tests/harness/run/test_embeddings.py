"""Tokens of reflection words in a plane, against a naive search for neighbours and the eigenvectors of a covariance."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from harness.models.language_model import load_model
from harness.run.embeddings import NEIGHBOURS, FollowedTokens, principal_axes, word_tokens
from harness.training.checkpoint import load_latest
from tests.harness.run.small import trained, trained_and_killed


@given(st.integers(0, 10_000), st.integers(3, 9), st.integers(2, 7))
@settings(max_examples=25)
def test_the_axes_are_eigenvectors_of_the_covariance_and_have_a_sign(seed: int, n: int, dims: int) -> None:
    rows = torch.from_numpy(np.random.default_rng(seed).normal(size=(n, dims)) * np.arange(1, dims + 1) ** 2)
    axes = principal_axes(rows)
    values, vectors = np.linalg.eigh(np.cov(rows.numpy().T))
    for axis, vector in zip(axes.numpy(), vectors.T[::-1], strict=False):
        assert abs(axis @ vector) == pytest.approx(1, abs=1e-6)
        assert axis[np.abs(axis).argmax()] > 0
    assert torch.allclose(principal_axes(rows.flip(0)), axes) and torch.allclose(principal_axes(-rows), axes)
    spread = ((rows - rows.mean(0)) @ axes.T).var(0, correction=1)
    assert spread.tolist() == pytest.approx(values[::-1][:2].tolist())


def tokens_of(texts: list[str], unknown: int, without_embedding: frozenset[int] = frozenset()) -> dict[str, str]:
    """word_tokens of a tokenizer that takes the longest of these texts, or <unk>."""

    def encode(text: str, add_special_tokens: bool) -> dict[str, list[int]]:
        tokens: list[int] = []
        while text:
            fitting = [one for one in texts if text.startswith(one)]
            taken = max(fitting, key=len) if fitting else text[0]
            tokens.append(texts.index(taken) if fitting else unknown)
            text = text[len(taken) :]
        return {"input_ids": tokens}

    tokenizer = Mock(side_effect=encode, unk_token_id=unknown)
    model: Any = SimpleNamespace(
        tokenizer=tokenizer, unknown_tokens=without_embedding, decode=lambda ids: texts[ids[0]]
    )
    return {texts[token]: word for token, word in word_tokens(model).items()}


def test_single_tokens_count_with_a_space_or_a_capital_and_else_the_pieces_of_the_shortest_form() -> None:
    texts = ["Wait", " wait", "W", "a", "i", "t", " ", "Re", "check", " Re", "H"]
    assert tokens_of(texts, unknown=99) == {"Wait": "Wait", " wait": "Wait", "Re": "Recheck", "check": "Recheck"}
    assert tokens_of(["However"], unknown=99) == {"However": "However"}
    assert tokens_of(["x"], unknown=99) == {}
    assert tokens_of(["However", "Wait"], 99, frozenset({0})) == {"Wait": "Wait"}


def test_the_nearest_others_are_followed_too() -> None:
    model = load_model("builtin:tiny")
    followed = FollowedTokens.of(model)
    vocabulary = model.tokenizer.get_vocab()
    letters = [vocabulary[letter] for letter in "wait"]
    assert followed.words == dict.fromkeys(letters, "Wait") | dict.fromkeys([*followed.words][4:])
    weight = model.model.get_input_embeddings().weight.detach()
    nearest: set[int] = set()
    for letter in letters:
        cosine = {
            token: float(functional.cosine_similarity(weight[letter], weight[token], dim=0))
            for token in vocabulary.values()
            if token not in letters and token not in model.tokenizer.all_special_ids
        }
        nearest.update(sorted(cosine, key=lambda token: -cosine[token])[:NEIGHBOURS])
    assert {token for token, word in followed.words.items() if word is None} == nearest
    assert followed.texts[:4] == [*"wait"]


@pytest.mark.slow
def test_a_cell_records_both_ends_and_a_resumed_one_the_same(tmp_path: Path) -> None:
    quick = {"train.learning_rate": 3e-3, "eval.every": 0}
    whole, killed = trained_and_killed(tmp_path, quick, before_step=4)
    assert killed.read_embeddings() == []
    assert trained(killed.path, quick).read_embeddings() == whole.read_embeddings()

    start = load_model("builtin:tiny").model.get_input_embeddings().weight.detach().double()
    checkpoint = load_latest(whole.checkpoints, lambda checkpoint: None)
    assert checkpoint is not None
    end = checkpoint.weights["model.embed_tokens.weight"].double()
    rows = whole.read_embeddings()
    tokens = [row["token"] for row in rows]
    centred, axes = start[tokens] - start[tokens].mean(0), principal_axes(start[tokens])
    places = torch.tensor([[row["start_x"], row["start_y"], row["end_x"], row["end_y"]] for row in rows]).double()
    assert torch.allclose(places[:, :2], centred @ axes.T, atol=1e-6)
    steps = end[tokens] - start[tokens]
    assert torch.allclose(places[:, 2:] - places[:, :2], steps @ axes.T, atol=1e-6)
    assert [row["moved"] for row in rows] == pytest.approx(steps.norm(dim=1).tolist(), rel=1e-6)
    assert min(row["moved"] for row in rows) > 0
    assert [row["centre_distance"] for row in rows] == pytest.approx(centred.norm(dim=1).tolist(), rel=1e-6)
    assert "embeddings.jsonl" in whole.read_status()["records"]


@pytest.mark.slow
def test_with_adapters_no_embedding_moves(tmp_path: Path) -> None:
    cell = trained(tmp_path, {"model.lora.type": "lora", "train.steps": 2, "eval.every": 0})
    rows = cell.read_embeddings()
    assert rows and all(row["moved"] == 0 for row in rows)
