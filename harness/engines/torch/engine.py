"""The torch engine: samples with the trainer's own modules, so that no second copy of the weights must be synced.

A call is split into chunks of prompts whose keys and values fit in memory. `ChunkDecoding` samples a chunk: a prefill,
followed by decoding steps. The batch shrinks as samples end. A prompt is computed once for all its samples. On a CPU,
the tokens that samples have in common are also computed once. `DrawnSamples` is the host's record of each sample.

Shapes: P prompts, n samples per prompt, W tokens of the longest prompt, N samples, t tokens sampled so far, T tokens of
the longest completion.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import reduce
from operator import add
from time import perf_counter

import torch
from torch import Tensor
from transformers import PreTrainedModel

from harness.engines.base import (
    Completions,
    GenerationCost,
    OnFinished,
    SamplingParams,
    ends_with_stop,
    require_steady_positions,
)
from harness.engines.torch.decoding import Batches, Decoder, DecodingBatch
from harness.engines.torch.passes import (
    EAGER,
    GRAPHS,
    BatchShapes,
    LayerMasks,
    Layers,
    OneTokenPass,
    one_token_at_a_time,
    prefill,
)
from harness.engines.torch.sizes import CACHE_BYTES_CPU, MAX_ROWS
from harness.errors import RefusedError
from harness.models.language_model import require_answerable

CACHE_FRAC_CUDA = 0.15
"""Fraction of the GPU's memory for the keys and values of one batch."""
LEAVE_AT_FRAC = 0.25
"""Idle rows are removed once they are this fraction of the batch. Removal copies the cache of the other rows."""


class TorchEngine:
    """An `Engine` for a Hugging Face causal LM with full or sliding-window attention.

    On CUDA, the tensors of a batch and the graphs of its steps are kept between calls. Between calls, the model's
    weights may be written in place. If they are replaced, the graphs are recorded again.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        pad_token_id: int,
        eos_token_ids: Sequence[int],
        decode: Callable[[list[int]], str],
        shapes: BatchShapes | None = None,
    ) -> None:
        """Prepare a model for decoding.

        decode: maps token ids to text; called only if there are stop strings.
        shapes: default: the fastest for the model's device.
        Raises RefusedError if the engine does not support the model.
        """
        require_steady_positions(model)
        self._model = model
        self._pad = pad_token_id
        self._eos_token_ids = list(eos_token_ids)
        self._decode = decode
        self._shapes = shapes or (GRAPHS if model.device.type == "cuda" else EAGER)
        eos = torch.tensor(self._eos_token_ids, device=model.device)
        self.one_token_pass = OneTokenPass(model)
        self._most_rows: int | None = None
        """The limit of rows per chunk after memory ran out, or None if it has not run out."""
        self._batches = Batches(Decoder(model, self.one_token_pass, LayerMasks(model), eos), self._shapes)

    @torch.inference_mode()
    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        keys: Tensor,
        params: SamplingParams,
        on_finished: OnFinished | None = None,
    ) -> Completions:
        require_answerable(self._model, prompts, params.max_completion_tokens)
        longest_prompt = max(len(prompt) for prompt in prompts)
        rows = self._shapes.rows_within(max_rows(self._model, longest_prompt + params.max_completion_tokens))
        self._batches.begin_call()
        chunks: list[tuple[tuple[Tensor, Tensor, Tensor, Tensor], GenerationCost]] = []
        samples, done = keys.shape[1], 0
        while done < keys.numel():
            some, of_each = self._next_chunk(done, samples, rows)
            drawn = DrawnSamples(
                keys[some, of_each].numel(),
                params.max_completion_tokens,
                self._eos_token_ids,
                params.stop,
                self._decode,
                on_finished,
                done,
            )
            try:
                chunks.append(self._draw_chunk(prompts[some], keys[some, of_each], params, drawn))
                done += keys[some, of_each].numel()
                continue
            except torch.OutOfMemoryError as error:
                reason = str(error).splitlines()[0] if str(error) else "out of memory"
            # Outside the handler, because its traceback keeps the tensors of the failed chunk alive.
            self._halve_rows(keys[some, of_each].numel(), reason)
            # The retry samples the failed chunk again, but must not report a sample twice.
            on_finished = drawn.untold
        self._batches.end_call()
        tokens, logps, lengths, truncated = (
            torch.cat(parts) for parts in zip(*[result for result, _ in chunks], strict=True)
        )
        tokens, logps = tokens[:, : lengths.max()], logps[:, : lengths.max()]
        padding = torch.arange(tokens.shape[1]) >= lengths[:, None]
        return Completions(
            tokens.masked_fill_(padding, self._pad),
            logps.masked_fill_(padding, 0.0),
            lengths,
            truncated,
            reduce(add, [cost for _, cost in chunks]),
        )

    def _next_chunk(self, done: int, samples: int, rows: int) -> tuple[slice, slice]:
        """Return the next chunk after `done` samples, as a slice of prompts and a slice of each prompt's samples.

        samples: samples per prompt. rows: maximum rows per chunk. A chunk has all samples of its prompts, unless memory
        has limited the rows to fewer than one prompt's samples.
        """
        first, sample = divmod(done, samples)
        most = rows if self._most_rows is None else min(rows, self._most_rows)
        if sample == 0 and (self._most_rows is None or most >= samples):
            return slice(first, first + max(1, most // samples)), slice(None)
        return slice(first, first + 1), slice(sample, sample + most)

    def _halve_rows(self, rows: int, reason: str) -> None:
        """Limit chunks to half of `rows` from now on. Raises RefusedError if `rows` is 1."""
        if rows == 1:
            raise RefusedError("engines.out_of_memory_drawing", reason=reason)
        self._most_rows = rows // 2
        warnings.warn(
            f"out of memory with {rows} completions drawn at once ({reason}): going on with {self._most_rows}, which "
            "changes results by no more than rounding",
            stacklevel=3,
        )
        self._batches.forget()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _draw_chunk(
        self, prompts: Sequence[Sequence[int]], keys: Tensor, params: SamplingParams, drawn: DrawnSamples
    ) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor], GenerationCost]:
        """Sample one chunk, recording it in `drawn`. Returns `drawn.result()` and the cost."""
        started_s = self._now_s()
        decoding = ChunkDecoding(self._batches, self._shapes, drawn, params)
        decoding.begin(self._model, self._pad, prompts, keys)
        prefilled_s = self._now_s()
        with one_token_at_a_time(self._model):
            decoding.finish()
        drawn.finish()
        decoded_s = self._now_s()
        result = drawn.result()
        return result, GenerationCost(
            prefill_s=prefilled_s - started_s,
            decode_s=decoded_s - prefilled_s,
            slots=decoding.slots,
            occupied=decoding.occupied(lengths=result[2]),
        )

    def _now_s(self) -> float:
        if self._model.device.type == "cuda":
            torch.cuda.synchronize(self._model.device)
        return perf_counter()


def max_rows(model: PreTrainedModel, tokens_a_row: int) -> int:
    """Return the maximum number of rows whose keys and values fit in memory.

    On a given machine this is the same in every run, so that runs are reproducible.
    """
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    bytes_a_token = 2 * config.num_hidden_layers * heads * head_size * model.dtype.itemsize
    if model.device.type == "cuda":
        # A fraction of the total memory, not of the free memory, which changes from run to run.
        budget = int(CACHE_FRAC_CUDA * torch.cuda.get_device_properties(model.device).total_memory)
    else:
        budget = CACHE_BYTES_CPU
    return max(1, min(MAX_ROWS, int(budget // (bytes_a_token * tokens_a_row))))


class ChunkDecoding:
    """Samples the completions of one chunk. Call `begin` once, then `finish` once."""

    def __init__(self, batches: Batches, shapes: BatchShapes, drawn: DrawnSamples, params: SamplingParams) -> None:
        self._batches, self._shapes, self._drawn, self._params = batches, shapes, drawn, params
        self._tokens = 1
        self.slots = 0
        """Number of rows computed, summed over all passes except the prefill."""
        self._shared_slots, self._shared_tokens = 0, 1

    def begin(self, model: PreTrainedModel, pad_token_id: int, prompts: Sequence[Sequence[int]], keys: Tensor) -> None:
        """Compute each prompt once, and sample the first token for each of its keys [P, n]."""
        samples = keys.shape[1]
        shares = self._shapes.shares_prefixes and samples > 1
        rows_a_prompt = 1 if shares else samples
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        self._width = int(lengths.max())
        # The last token is never fed to the model, so it needs no column.
        self._most_columns = self._width + self._params.max_completion_tokens - 1
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
        # `draw` expects the logits of rows: one row per prompt if its samples share it, else one row per sample.
        batch.draw(torch.cat(logits).repeat_interleave(rows_a_prompt, dim=0), self._params)
        self._batch = batch

    def finish(self) -> None:
        """Sample all tokens after the first."""
        while (running := self._running()) and self._tokens < self._params.max_completion_tokens:
            ahead = min(self._shapes.look_every_tokens, self._params.max_completion_tokens - self._tokens)
            batch = self._batch = self._next_batch(running, ahead)
            for _ in range(ahead):
                batch.step(self._params, self._shapes.read_columns(self._width + self._tokens, batch.columns))
                self._tokens += 1
                self.slots += batch.rows
        self._collect()

    def occupied(self, lengths: Tensor) -> int:
        """Return how many of the computed rows produced a token of a completion. lengths [N]: tokens per sample."""
        # Once no row is shared, each token of a completion takes one row.
        return self._shared_slots + int((lengths - self._shared_tokens).clamp_min(0).sum())

    def _running(self) -> int:
        batch = self._batch
        if self._params.stop:
            stopped = self._drawn.stopped(*self._so_far())
            batch.ended[: batch.count] |= stopped.to(batch.ended.device)
        return batch.count - int(batch.ended[: batch.count].sum())

    def _next_batch(self, running: int, ahead: int) -> DecodingBatch:
        """Return the batch for the next steps: a new one if samples diverge, many rows are idle or columns run out."""
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
        # Collect the tokens before samples leave, because afterwards the host's record no longer matches this batch.
        self._drawn.keep(survivors.samples.cpu())
        following = self._new_batch(batch.cache.buffers, running, len(survivors.rows), used)
        following.take_over(batch, survivors, used)
        return following

    def _worth_leaving(self, needed_rows: int) -> bool:
        rows = self._batch.rows
        return self._shapes.rows(needed_rows) < rows and needed_rows <= (1 - LEAVE_AT_FRAC) * rows

    def _new_batch(self, like: Layers, samples: int, rows: int, used_columns: int) -> DecodingBatch:
        limit = self._params.max_completion_tokens
        return self._batches.make(like, samples, rows, used_columns, self._most_columns, limit)

    def _so_far(self) -> tuple[Tensor, Tensor]:
        """Return the tokens and log-probs [t, n] that the batch has sampled so far."""
        batch = self._batch
        return batch.tokens[: self._tokens, : batch.count], batch.logps[: self._tokens, : batch.count]

    def _collect(self) -> None:
        self._drawn.collect(*self._so_far())


class DrawnSamples:
    """The host's record of N samples: their tokens and log-probs, and which samples are still in the batch."""

    def __init__(
        self,
        samples: int,
        max_tokens: int,
        eos_token_ids: Sequence[int],
        stop: tuple[str, ...],
        decode: Callable[[list[int]], str],
        on_finished: OnFinished | None = None,
        first_row: int = 0,
    ) -> None:
        """Start with all samples in the batch.

        decode: maps token ids to text; called only if there are stop strings.
        on_finished: called once for each sample, when it leaves the batch or in `finish`.
        first_row: the row number that is reported for the first sample.
        """
        self._tokens = torch.zeros((samples, max_tokens), dtype=torch.int64)
        self._logps = torch.zeros((samples, max_tokens))
        self._eos = torch.tensor(list(eos_token_ids))
        self._stop, self._decode = stop, decode
        self._on_finished, self._first_row = on_finished, first_row
        self._told: set[int] = set()
        self._stop_lengths = torch.full((samples,), max_tokens + 1)
        self._collected = 0
        self._in_batch = torch.arange(samples)

    def collect(self, tokens: Tensor, logps: Tensor) -> None:
        """Copy to the host what the batch has sampled so far: tokens and log-probs, both [t, n]."""
        new = slice(self._collected, len(tokens))
        self._tokens[self._in_batch, new] = tokens[new].T.cpu()
        self._logps[self._in_batch, new] = logps[new].T.cpu()
        self._collected = len(tokens)

    def stopped(self, tokens: Tensor, logps: Tensor) -> Tensor:
        """Collect, and return a bool mask [n] of the batch's samples whose text contains a stop string."""
        first_new = self._collected
        self.collect(tokens, logps)
        for sample in self._in_batch.tolist():
            # This sample stopped in an earlier call.
            if self._stop_lengths[sample] <= first_new:
                continue
            drawn = self._tokens[sample, : self._collected].tolist()
            for end in range(first_new + 1, self._collected + 1):
                if ends_with_stop(drawn[:end], self._stop, self._decode):
                    self._stop_lengths[sample] = end
                    break
        return self._stop_lengths[self._in_batch] <= self._collected

    def keep(self, places: Tensor) -> None:
        """Keep only the batch's samples at these int64 indices, and report the others as finished."""
        left = torch.ones(len(self._in_batch), dtype=torch.bool)
        left[places] = False
        self._tell(self._in_batch[left])
        self._in_batch = self._in_batch[places]

    def finish(self) -> None:
        """Report the samples that are still in the batch as finished."""
        self._tell(self._in_batch)

    def _tell(self, samples: Tensor) -> None:
        if self._on_finished is None:
            return
        lengths, truncated = self._ends(samples)
        for sample, length, cut in zip(samples.tolist(), lengths.tolist(), truncated.tolist(), strict=True):
            self._told.add(self._first_row + sample)
            self._on_finished(self._first_row + sample, self._tokens[sample, :length].tolist(), cut)

    def untold(self, row: int, tokens: list[int], truncated: bool) -> None:
        """Report a sample unless it was reported before. This is the on_finished of a retry of these samples."""
        if self._on_finished is not None and row not in self._told:
            self._on_finished(row, tokens, truncated)

    def result(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return tokens [N, T], logps [N, T], lengths [N] and truncated [N]. Entries beyond a length are undefined."""
        return self._tokens, self._logps, *self._ends(torch.arange(len(self._tokens)))

    def _ends(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        """Return `lengths` and `truncated` of these samples, from the tokens collected so far."""
        limit = self._tokens.shape[1]
        is_eos = torch.isin(self._tokens[samples, : self._collected], self._eos)
        # argmax finds the first end-of-sequence token. limit + 1 means that there is none.
        eos_lengths = torch.where(is_eos.any(1), is_eos.int().argmax(1) + 1, limit + 1)
        ends = torch.minimum(eos_lengths, self._stop_lengths[samples])
        return ends.clamp_max(limit), ends > limit
