"""The torch engine: samples from the trainer's own modules, so there is no second copy of the weights to keep in step.

A prompt is computed once for all its samples, on a CPU also what they have drawn alike, and rows leave the batch when
they finish.
"""

from __future__ import annotations

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
    require_answerable,
    require_steady_positions,
)
from harness.engines.torch.attention import OneTokenPass, one_token_at_a_time
from harness.engines.torch.batches import EAGER, GRAPHS, Batches
from harness.engines.torch.cache import LayerMasks
from harness.engines.torch.chunks import ChunkDecoding, DrawnSamples
from harness.engines.torch.decoding import Decoder

# Samples decoded together. More cost memory and gain little once the matrix products are large enough.
MAX_ROWS = 1024
# Keys and values of the samples decoded together, in bytes: on a CPU, and as a share of a GPU's memory.
CACHE_BYTES_CPU = 4 * 2**30
CACHE_FRAC_CUDA = 0.15


class TorchEngine:
    """Engine (see `harness.engines.base`) over a Hugging Face causal LM with full or sliding-window attention.

    On CUDA the tensors of a batch and the graphs of its steps are kept from call to call. The model's weights may be
    written in place at any time between calls; a model whose weights are replaced gets new graphs.
    decode: token ids -> text; only called where `stop` strings are given.

    RefusedError for a model that it cannot decode.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        pad_token_id: int,
        eos_token_ids: Sequence[int],
        decode: Callable[[list[int]], str],
    ) -> None:
        require_steady_positions(model)
        self._model = model
        self._pad = pad_token_id
        self._eos_token_ids = list(eos_token_ids)
        self._decode = decode
        self._shapes = GRAPHS if model.device.type == "cuda" else EAGER
        eos = torch.tensor(self._eos_token_ids, device=model.device)
        self.one_token_pass = OneTokenPass(model)
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
        rows = max_rows(self._model, longest_prompt + params.max_completion_tokens)
        prompts_a_chunk = max(1, rows // keys.shape[1])
        self._batches.begin_call()
        chunks = []
        for first in range(0, len(prompts), prompts_a_chunk):
            last = first + prompts_a_chunk
            drawn = DrawnSamples(
                keys[first:last].numel(),
                params.max_completion_tokens,
                self._eos_token_ids,
                params.stop,
                self._decode,
                on_finished,
                first * keys.shape[1],
            )
            chunks.append(self._draw_chunk(prompts[first:last], keys[first:last], params, drawn))
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

    def _draw_chunk(
        self, prompts: Sequence[Sequence[int]], keys: Tensor, params: SamplingParams, drawn: DrawnSamples
    ) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor], GenerationCost]:
        """What `DrawnSamples.result` says of the chunk, and its cost."""
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
    """Rows whose keys and values may be held at once; the same in every run on a machine, so that runs are too."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    bytes_a_token = 2 * config.num_hidden_layers * heads * head_size * model.dtype.itemsize
    if model.device.type == "cuda":
        budget = int(CACHE_FRAC_CUDA * torch.cuda.get_device_properties(model.device).total_memory)
    else:
        budget = CACHE_BYTES_CPU
    return max(1, min(MAX_ROWS, int(budget // (bytes_a_token * tokens_a_row))))
