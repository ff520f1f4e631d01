"""Where decoding batches come from: made anew on a CPU, kept with their graphs on CUDA."""

from __future__ import annotations

import torch

from harness.rollouts.batch_shapes import BatchShapes
from harness.rollouts.cuda_graphs import GraphedBatch
from harness.rollouts.decoding import Decoder, DecodingBatch
from harness.rollouts.static_cache import Arena, Layers

# Memory for caches that is kept from call to call on a CPU: for small models, where fresh memory would cost more time
# than what is done with it.
KEPT_BYTES = 2**26


class Batches:
    """Makes the batches of one engine. At most two of them may be in use at a time: one, and the next one."""

    def __init__(self, decoder: Decoder, shapes: BatchShapes) -> None:
        self._decoder, self._shapes = decoder, shapes
        self._on_cuda = decoder.model.device.type == "cuda"
        self._arenas = [Arena(), Arena()]
        self._graphed: dict[int, GraphedBatch] = {}
        # An object, not a handle: a pool whose last graph is gone may not be recorded into again unless it is held.
        self._pool = torch.cuda.MemPool() if self._on_cuda else None
        self._weight_addresses: list[int] = []

    def begin_call(self) -> None:
        """Forget what holds the addresses of weights that have been replaced."""
        if self._on_cuda:
            addresses = [weight.data_ptr() for weight in self._decoder.model.parameters()]
            if addresses != self._weight_addresses:
                self._graphed.clear()
                self._weight_addresses = addresses

    def end_call(self) -> None:
        if sum(arena.bytes for arena in self._arenas) > KEPT_BYTES:
            self._arenas = [Arena(), Arena()]

    def make(self, like: Layers, samples: int, rows: int, used: int, most: int, max_tokens: int) -> DecodingBatch:
        """A batch for so many samples in so many rows, with `used` of at most `most` columns in use. `like`: keys and
        values of the same heads."""
        columns = self._shapes.columns(used, most)
        if not self._shapes.bucketed:
            self._arenas.reverse()
            return DecodingBatch(self._decoder, like, samples, rows, columns, max_tokens, self._arenas[0])
        if self._on_cuda:
            batch: DecodingBatch = self._graphed_batch(like, rows, columns, max_tokens)
        else:
            batch = DecodingBatch(self._decoder, like, rows, rows, columns, max_tokens, Arena())
        batch.cache.zero_beyond(used)
        return batch

    def _graphed_batch(self, like: Layers, rows: int, columns: int, max_tokens: int) -> GraphedBatch:
        """The one of so many rows, of which a larger one takes the place if its tensors are too small."""
        batch = self._graphed.get(rows)
        if batch is None or batch.columns < columns or len(batch.tokens) < max_tokens:
            self._graphed.pop(rows, None)  # its memory is free before the next one's is taken
            del batch
            batch = GraphedBatch(self._decoder, like, rows, columns, max_tokens, self._pool)
            self._graphed[rows] = batch
        return batch
