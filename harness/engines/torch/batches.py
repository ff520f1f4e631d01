"""Where decoding batches come from: made anew on a CPU, kept with their graphs on CUDA.

Which shapes decoding batches have, and how often the host looks at what was drawn.

A CUDA graph is of one shape and runs without the host: there shapes are few and looks rare. Run eagerly, both are free.

Decoding steps recorded as CUDA graphs: a token costs the host one launch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from harness.engines.base import SamplingParams
from harness.engines.torch.cache import Arena, Layers
from harness.engines.torch.decoding import Decoder, DecodingBatch

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


# Run eagerly, a batch has room for so many more tokens: few, as rows leave and attention is faster on dense memory.
EAGER_ROOM_TOKENS = 8


@dataclass(frozen=True)
class BatchShapes:
    """bucketed: sizes are those of a geometric ladder, not exact. look_every_tokens: after so many
    tokens the host learns which samples have ended."""

    bucketed: bool
    look_every_tokens: int

    @property
    def shares_prefixes(self) -> bool:
        """Whether samples with the same tokens so far share a row: the host must look at every token to part them."""
        return not self.bucketed and self.look_every_tokens == 1

    def rows(self, needed: int) -> int:
        """Rows of a batch that needs so many."""
        return 1 << (needed - 1).bit_length() if self.bucketed else needed

    def columns(self, used: int, most: int) -> int:
        """Columns of a batch's cache with so many in use, of which there will be `most`."""
        if self.bucketed:
            return _column_bucket(most)
        return min(most, used + max(EAGER_ROOM_TOKENS, self.look_every_tokens))

    def read_columns(self, used: int, columns: int) -> int:
        """Of a batch's columns those that attention reads."""
        return min(_column_bucket(used), columns) if self.bucketed else used


def _column_bucket(size: int) -> int:
    """A power of two from 64 on, or the middle of two."""
    power = max(64, 1 << (size - 1).bit_length())
    return power * 3 // 4 if power > 64 and size <= power * 3 // 4 else power


EAGER = BatchShapes(bucketed=False, look_every_tokens=1)
GRAPHS = BatchShapes(bucketed=True, look_every_tokens=16)


class GraphedBatch(DecodingBatch):
    """A batch whose steps are replayed, by a graph for each way of sampling and number of columns that are read.

    A graph holds the addresses of the batch's tensors and of the model's weights: those may be written, not replaced.
    pool: memory for the passing tensors of all graphs (torch.cuda.MemPool); they can share it because no
    two run at once and none reads what another left there.
    """

    def __init__(
        self, decoder: Decoder, like: Layers, rows: int, columns: int, max_tokens: int, pool: torch.cuda.MemPool | None
    ) -> None:
        super().__init__(decoder, like, rows, rows, columns, max_tokens, Arena())
        self._pool = pool
        self._graphs: dict[tuple[SamplingParams, int], torch.cuda.CUDAGraph] = {}

    def step(self, params: SamplingParams, read_columns: int) -> None:
        if graph := self._graphs.get((params, read_columns)):
            graph.replay()
            return
        # The first step runs eagerly on a side stream, which sets up what may not be set up while recording; recording
        # itself computes nothing (https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs).
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            super().step(params, read_columns)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        pool = None if self._pool is None else self._pool.id
        with torch.cuda.graph(graph, pool=pool):  # type: ignore[arg-type]  # torch types the id of a pool in two ways
            super().step(params, read_columns)
        self._graphs[params, read_columns] = graph
