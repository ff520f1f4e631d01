"""The input embeddings of reflection words, projected on one plane, at the start and at the end of training.

The tokens of these words and their nearest neighbours are followed. Shapes: W tokens of words, N followed tokens, V
vocabulary, D hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from harness.models.language_model import LanguageModel
from harness.records.embeddings import REFLECTION_WORDS, EmbeddedToken, write_embeddings

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NEIGHBOURS = 3
"""The number of other tokens that are followed for each word token: those with the largest cosine at the start."""
CHUNK_TOKENS = 8192
"""Rows of the vocabulary compared at once. Comparing all at once would need another float32 copy of the matrix."""


@dataclass(frozen=True)
class FollowedTokens:
    """The tokens of reflection words and their nearest neighbours, as at the start of training."""

    words: dict[int, str | None]
    """Maps each token to its reflection word, the words' tokens first. Neighbours map to None."""
    texts: list[str]
    start: Tensor
    """The embeddings at the start, float64 [N, D]."""

    @classmethod
    def of(cls, start: LanguageModel) -> FollowedTokens:
        """Find the tokens of a policy with its starting weights; none if the tokenizer cannot encode the words."""
        of_words = word_tokens(start)
        words: dict[int, str | None] = {**of_words}
        if of_words:
            words |= dict.fromkeys(_nearest(start, [*of_words]))
        return cls(words, [start.decode([token]) for token in words], _rows(start.model, [*words]))

    def write(self, path: Path, model: PreTrainedModel) -> None:
        """Record the positions of the tokens in the model with its current weights.

        If there are no tokens, no file is written.
        """
        if self.words:
            write_embeddings(path, self._placed(_rows(model, [*self.words])))

    def _placed(self, end: Tensor) -> list[EmbeddedToken]:
        centre = self.start.mean(0)
        # Start and end use the same axes and centre, those of the start, so that a distance in the plane is movement.
        axes = principal_axes(self.start)
        starts, ends = ((rows - centre) @ axes.T for rows in (self.start, end))
        distances, moved = (self.start - centre).norm(dim=1), (end - self.start).norm(dim=1)
        columns = (starts.tolist(), ends.tolist(), distances.tolist(), moved.tolist())
        return [
            EmbeddedToken(
                token=token,
                text=text,
                word=word,
                start_x=start_x,
                start_y=start_y,
                end_x=end_x,
                end_y=end_y,
                centre_distance=distance,
                moved=length,
            )
            for (token, word), text, (start_x, start_y), (end_x, end_y), distance, length in zip(
                self.words.items(), self.texts, *columns, strict=True
            )
        ]


def word_tokens(model: LanguageModel) -> dict[int, str]:
    """Map each token that spells a reflection word to the word.

    A word may be at the start of a text or after a space, with or without a capital. If no form of it is a single
    token, the tokens of the shortest form are used.
    """
    unknown = model.tokenizer.unk_token_id
    found: dict[int, str] = {}
    for word in REFLECTION_WORDS:
        # A form with a token that has no embedding in the model is left out, because `encode_text` would refuse it.
        forms = [
            model.tokenizer(space + form, add_special_tokens=False)["input_ids"]
            for form in (word, word.lower())
            for space in ("", " ")
        ]
        known = [form for form in forms if unknown not in form and model.unknown_tokens.isdisjoint(form)]
        single = [form for form in known if len(form) == 1]
        for token in (token for form in single or sorted(known, key=len)[:1] for token in form):
            # One of the tokens of a word may be only a space.
            if model.decode([token]).strip():
                found.setdefault(token, word)
    return found


def principal_axes(rows: Tensor) -> Tensor:
    """Return the first two principal components [2, D] of rows [N, D], as unit vectors.

    The sign of a singular vector is arbitrary, so it is chosen to make the largest loading positive.
    """
    axes = torch.linalg.svd(rows - rows.mean(0), full_matrices=False).Vh[:2]
    largest = axes.gather(1, axes.abs().argmax(1, keepdim=True))
    signed: Tensor = axes * largest.sign()
    return signed


def _nearest(model: LanguageModel, tokens: list[int]) -> list[int]:
    """Return the nearest neighbours of each of these tokens by cosine, each neighbour once.

    The tokens themselves and special tokens are left out.
    """
    weight: Tensor = model.model.get_input_embeddings().weight.detach()
    wanted = functional.normalize(weight[tokens].float(), dim=1)
    parts = [functional.normalize(part.float(), dim=1) @ wanted.T for part in torch.split(weight, CHUNK_TOKENS)]
    cosines = torch.cat(parts).T.cpu()  # [W, V]
    # The matrix may have more or fewer rows than the tokenizer has tokens.
    readable = {token for token in model.tokenizer.get_vocab().values() if token < len(weight)}
    candidates = sorted(readable - {*tokens, *model.tokenizer.all_special_ids})
    # A stable sort of the sorted candidates breaks ties by the token id.
    order = cosines[:, candidates].argsort(dim=1, descending=True, stable=True)[:, :NEIGHBOURS]
    return list(dict.fromkeys(candidates[place] for place in order.flatten().tolist()))


def _rows(model: PreTrainedModel, tokens: list[int]) -> Tensor:
    """Return the input embeddings of tokens, float64 [N, D] on the CPU."""
    weight: Tensor = model.get_input_embeddings().weight.detach()
    return weight[tokens].cpu().double()
