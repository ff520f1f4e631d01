"""Decoding steps recorded as CUDA graphs: a token costs the host one launch."""

from __future__ import annotations

import torch

from harness.rollouts.decoding import Decoder, DecodingBatch
from harness.rollouts.engine import SamplingParams
from harness.rollouts.static_cache import Arena, Layers


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
