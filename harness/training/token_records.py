"""What an update saw of every token, for whoever asks later: the report on single words, and replays.

Which characters of a completion's text each of its tokens wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from algorithms import Loss
from algorithms.diagnostics import treatment
from harness.training.rollout_batch import ScoredRollout
from harness.training.scoring import RolloutScores


class MicroLoss(NamedTuple):
    """The loss of a micro-batch, and its rows (int64 [B]) in the rollout batch."""

    rows: Tensor
    loss: Loss


class OptimizerPass(NamedTuple):
    """One optimiser step: its rows (int64 indices), and the losses of those among them that could act."""

    rows: Tensor
    parts: list[MicroLoss]


def token_columns(
    rollout: ScoredRollout, scores: RolloutScores, advantage: Tensor, passes: Sequence[OptimizerPass]
) -> list[dict[str, Any]]:
    """For each of the N rows its columns of rollouts/*.parquet; see `harness.records.rollouts`.

    scores: before the first optimiser step; advantage [N, T]: of the first pass over the rows; passes: all optimiser
    steps, in their order.
    """
    lengths = rollout.sequences.lengths.tolist()
    columns: list[dict[str, Any]] = [
        {
            "token/logp": logp[:length],
            "token/entropy": entropy[:length],
            "token/advantage": advantages[:length],
            "token/update": [],
            "token/log_ratio": [],
            "token/clipped": [],
            "token/masked": [],
        }
        for logp, entropy, advantages, length in zip(
            scores.logps.numpy(), scores.entropy.numpy(), advantage.cpu().numpy(), lengths, strict=True
        )
    ]
    for update, taken in enumerate(passes):
        acted = {row: seen for part in taken.parts for row, seen in _seen(part, rollout).items()}
        for row in taken.rows.tolist():
            columns[row]["token/update"].append(update)
            # A row that cannot act is not scored again: what it would have shown is not known.
            for name, values in acted.get(row, _NOT_SEEN).items():
                columns[row][name].append(None if values is None else values[: lengths[row]])
    return columns


_NOT_SEEN = dict.fromkeys(("token/log_ratio", "token/clipped", "token/masked"))


def _seen(part: MicroLoss, rollout: ScoredRollout) -> dict[int, dict[str, Any]]:
    """By row, what the loss saw of its tokens: arrays that are at least as long as the completion."""
    trace, treated = part.loss.trace, treatment(part.loss.trace)
    width = trace.mask.shape[1]
    # Tokens of a completion that were out of the loss from the beginning are masked like those that it took out.
    masked = treated.masked.cpu() | ~rollout.loss_mask[part.rows, :width]
    arrays = zip(
        part.rows.tolist(),
        trace.log_ratio.float().cpu().numpy(),
        treated.clipped.cpu().numpy(),
        masked.numpy(),
        strict=True,
    )
    return {row: dict(zip(_NOT_SEEN, values, strict=True)) for row, *values in arrays}


_UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""What a decoder writes for the bytes of a character that is not complete yet."""

Decode = Callable[[Sequence[int]], str]


class TokenCharacters:
    """Counts characters by token, for any tokenizer that can decode.

    Most tokens write the same text wherever they stand after the first, which is remembered; completions for which the
    remembered pieces do not add up to the text are decoded token by token.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._pieces: dict[int, str] = {}

    def of(self, tokens: Sequence[int], text: str) -> list[int]:
        """Characters of `text`, which is decode(tokens), that each token completes; they add up to its length.

        0 for a special token and for one that only begins a character.
        """
        if not tokens:
            return []
        pieces = [self._decode(tokens[:1]), *(self._piece(token) for token in tokens[1:])]
        if "".join(pieces) == text:
            return [len(piece) for piece in pieces]
        return self._one_by_one(tokens, text)

    def _piece(self, token: int) -> str:
        """The text of a token behind another: some tokenizers drop the space before the first one."""
        if token not in self._pieces:
            self._pieces[token] = self._decode([token, token])[len(self._decode([token])) :]
        return self._pieces[token]

    def _one_by_one(self, tokens: Sequence[int], text: str) -> list[int]:
        """As text is streamed: what a token adds to the tokens since the last but one at which all was complete."""
        counts: list[int] = []
        start = complete = written = 0
        for end in range(1, len(tokens) + 1):
            before = self._decode(tokens[start:complete])
            added = self._decode(tokens[start:end])[len(before) :]
            if not added or added.endswith(_UNFINISHED) or not text.startswith(added, written):
                counts.append(0)
                continue
            counts.append(len(added))
            written += len(added)
            start, complete = complete, end
        # What no token completes, such as half a character at the limit, is the last one's.
        counts[-1] += len(text) - written
        return counts
