"""The completions of some prompts from the first token to the last: prefill, then steps of ever smaller batches.

Shapes: P prompts, n samples a prompt, W longest prompt.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from harness.rollouts.batch_shapes import BatchShapes
from harness.rollouts.batches import Batches
from harness.rollouts.decoding import DecodingBatch
from harness.rollouts.drawn_samples import DrawnSamples
from harness.rollouts.engine import SamplingParams
from harness.rollouts.prefill import prefill
from harness.rollouts.static_cache import Layers

# Rows that are no longer needed leave when they are this share of the batch: leaving copies the cache of the others.
LEAVE_AT_FRAC = 0.25


class ChunkDecoding:
    """Draws samples of some prompts. `begin`, then `finish`, once each."""

    def __init__(self, batches: Batches, shapes: BatchShapes, drawn: DrawnSamples, params: SamplingParams) -> None:
        self._batches, self._shapes, self._drawn, self._params = batches, shapes, drawn, params
        self._tokens = 1
        self.slots = 0
        """Rows of all passes together, the prefill aside."""
        self._shared_slots, self._shared_tokens = 0, 1

    def begin(self, model: PreTrainedModel, pad_token_id: int, prompts: Sequence[Sequence[int]], keys: Tensor) -> None:
        """Compute each prompt once, and draw the first token for each of its keys [P, n]."""
        samples = keys.shape[1]
        shares = self._shapes.shares_prefixes and samples > 1
        rows_a_prompt = 1 if shares else samples
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        self._width = int(lengths.max())
        self._most_columns = self._width + self._params.max_completion_tokens - 1  # the last token is not fed
        batch, logits = None, []
        for part in prefill(model, prompts, pad_token_id):
            if batch is None:
                batch = self._new_batch(part.layers, keys.numel(), len(prompts) * rows_a_prompt, self._width)
            batch.cache.fill(part.layers, part.first * rows_a_prompt, rows_a_prompt)
            logits.append(part.logits)
        assert batch is not None, "there is at least one prompt"
        batch.start(
            lengths.repeat_interleave(rows_a_prompt).to(model.device),
            self._width,
            keys.reshape(-1).to(model.device),
            torch.arange(len(prompts), device=model.device).repeat_interleave(samples) if shares else None,
        )
        batch.draw(torch.cat(logits).repeat_interleave(rows_a_prompt, dim=0), self._params)
        self._batch = batch

    def finish(self) -> None:
        """Draw the other tokens."""
        while (running := self._running()) and self._tokens < self._params.max_completion_tokens:
            ahead = min(self._shapes.look_every_tokens, self._params.max_completion_tokens - self._tokens)
            batch = self._batch = self._next_batch(running, ahead)
            for _ in range(ahead):
                batch.step(self._params, self._shapes.read_columns(self._width + self._tokens, batch.columns))
                self._tokens += 1
                self.slots += batch.rows
        self._collect()

    def occupied(self, lengths: Tensor) -> int:
        """Rows of all passes that gave a token that counts, the samples being of these lengths."""
        # Once no row is shared, each token that counts is one row's.
        return self._shared_slots + int((lengths - self._shared_tokens).clamp_min(0).sum())

    def _running(self) -> int:
        batch = self._batch
        if self._params.stop:
            stopped = self._drawn.stopped(*self._so_far())
            batch.ended[: batch.count] |= stopped.to(batch.ended.device)
        return batch.count - int(batch.ended[: batch.count].sum())

    def _next_batch(self, running: int, ahead: int) -> DecodingBatch:
        """The batch to go on with: the same one, unless samples part, enough rows are idle or columns run out."""
        batch = self._batch
        used = self._width + self._tokens - 1
        full = used + ahead > batch.columns
        if batch.row_of_sample is None:
            if not full and not self._worth_leaving(running):
                return batch
            survivors = batch.survivors(self._tokens)
        else:
            survivors = batch.survivors(self._tokens)
            self._shared_slots += len(survivors.rows)
            self._shared_tokens = self._tokens + 1
            if not full and not survivors.part and not self._worth_leaving(len(survivors.rows)):
                batch.feed(survivors)
                return batch
        self._collect()
        self._drawn.keep(survivors.samples.cpu())
        rows = len(survivors.rows)
        if batch.row_of_sample is None:
            rows = min(self._shapes.rows(rows), batch.rows)
        following = self._new_batch(batch.cache.buffers, running, rows, used)
        following.take_over(batch, survivors, used)
        return following

    def _worth_leaving(self, needed_rows: int) -> bool:
        rows = self._batch.rows
        return self._shapes.rows(needed_rows) < rows and needed_rows <= (1 - LEAVE_AT_FRAC) * rows

    def _new_batch(self, like: Layers, samples: int, rows: int, used_columns: int) -> DecodingBatch:
        limit = self._params.max_completion_tokens
        return self._batches.make(like, samples, rows, used_columns, self._most_columns, limit)

    def _so_far(self) -> tuple[Tensor, Tensor]:
        """The batch's tokens and log-probs [t, n] that are drawn."""
        batch = self._batch
        return batch.tokens[: self._tokens, : batch.count], batch.logps[: self._tokens, : batch.count]

    def _collect(self) -> None:
        self._drawn.collect(*self._so_far())
