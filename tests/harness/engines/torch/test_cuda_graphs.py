"""The bookkeeping around CUDA graphs, with a stand-in for torch.cuda whose graphs are steps that run eagerly.

What the stand-in cannot tell is whether CUDA would record the step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.engines.base import Completions, SamplingParams
from harness.engines.torch import decoding
from harness.engines.torch import engine as torch_engine
from harness.engines.torch.decoding import DecodingBatch
from harness.engines.torch.engine import TorchEngine
from harness.engines.torch.passes import GRAPHS
from harness.models.language_model import LanguageModel, load_model
from harness.shelves.engine_contract import PROBLEMS, keys

PARAMS = SamplingParams(40)


class StandIn:
    """Recording runs the step and then puts everything back, as recording computes nothing; replaying runs it again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.recorded = self.replayed = 0
        self._step = DecodingBatch.step
        self._last: tuple[Any, ...] = ()

        def noted(batch: DecodingBatch, params: SamplingParams, read_columns: int) -> None:
            self._last = (batch, params, read_columns)
            self._step(batch, params, read_columns)

        monkeypatch.setattr(DecodingBatch, "step", noted)
        stand_ins = {
            "CUDAGraph": lambda: SimpleNamespace(),
            "Stream": lambda: SimpleNamespace(wait_stream=lambda other: None),
            "current_stream": lambda: SimpleNamespace(wait_stream=lambda other: None),
            "stream": lambda stream: contextlib.nullcontext(),
            "graph": self._record,
        }
        for name, stand_in in stand_ins.items():
            monkeypatch.setattr(torch.cuda, name, stand_in)

    @contextlib.contextmanager
    def _record(self, graph: SimpleNamespace, pool: object) -> Iterator[None]:
        batch = self._last[0]
        before = [tensor.clone() for tensor in tensors(batch)]
        yield
        for tensor, value in zip(tensors(batch), before, strict=True):
            tensor.copy_(value)
        self.recorded += 1
        arguments = self._last

        def replay() -> None:
            self._step(*arguments)
            self.replayed += 1

        graph.replay = replay


def tensors(batch: DecodingBatch) -> list[Tensor]:
    own = [value for value in vars(batch).values() if isinstance(value, Tensor)]
    return own + [tensor for layer in batch.cache.buffers for tensor in layer]


@pytest.fixture(scope="module")
def tiny() -> LanguageModel:
    return load_model("builtin:tiny")


@pytest.fixture
def graphed(tiny: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> TorchEngine:
    monkeypatch.setattr(torch_engine, "EAGER", GRAPHS)
    engine = TorchEngine(tiny.model, tiny.pad_token_id, tiny.eos_token_ids, tiny.decode)
    engine._batches._on_cuda = True
    return engine


def draw(engine: TorchEngine, tiny: LanguageModel, params: SamplingParams = PARAMS, problems: int = 6) -> Completions:
    return engine.generate([tiny.encode(problem) for problem in PROBLEMS[:problems]], keys(problems), params)


@pytest.mark.slow
def test_replayed_steps_draw_the_same(
    tiny: LanguageModel, graphed: TorchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the first call, at those that find every graph made, and where sampling, limits and batches differ."""
    eager = TorchEngine(tiny.model, tiny.pad_token_id, tiny.eos_token_ids, tiny.decode)
    calls = [(PARAMS, 6), (PARAMS, 6), (SamplingParams(40, 0.7, top_k=5), 6), (SamplingParams(90), 6), (PARAMS, 3)]
    expected = [draw(eager, tiny, *call) for call in calls]
    cuda = StandIn(monkeypatch)
    recorded = []
    for call, wanted in zip(calls, expected, strict=True):
        drawn = draw(graphed, tiny, *call)
        assert torch.equal(drawn.tokens, wanted.tokens)
        assert torch.equal(drawn.truncated, wanted.truncated)
        torch.testing.assert_close(drawn.logps, wanted.logps, atol=1e-5, rtol=0)
        recorded.append(cuda.recorded)
    assert recorded[0] == recorded[1] < recorded[2] < recorded[3], "a second call like the first records nothing"
    assert cuda.replayed > 5 * cuda.recorded


def test_replaced_weights_get_new_graphs(
    tiny: LanguageModel, graphed: TorchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = StandIn(monkeypatch)
    draw(graphed, tiny)
    once = cuda.recorded
    norm = tiny.model.get_decoder().norm
    original = norm.weight
    norm.weight = torch.nn.Parameter(original.detach().clone())
    draw(graphed, tiny)
    norm.weight = original
    assert cuda.recorded == 2 * once


@pytest.mark.slow
def test_calls_of_all_sizes_share_the_memory_of_the_largest(
    tiny: LanguageModel, graphed: TorchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda, eager = StandIn(monkeypatch), TorchEngine(tiny.model, tiny.pad_token_id, tiny.eos_token_ids, tiny.decode)
    draw(graphed, tiny, problems=6)
    arena = graphed._batches._arenas[0]
    kept, addresses = arena.bytes, [block.data_ptr() for block in arena._blocks]
    for problems in (5, 3, 4, 1, 6, 2):
        drawn, wanted = draw(graphed, tiny, problems=problems), draw(eager, tiny, problems=problems)
        assert torch.equal(drawn.tokens, wanted.tokens)
    assert graphed._batches._arenas[0].bytes == kept
    assert [block.data_ptr() for block in arena._blocks] == addresses
    batches = graphed._batches._graphed
    assert all(GRAPHS.rows(rows) == rows for rows in batches)
    assert {batch.cache.buffers[0][0].data_ptr() for batch in batches.values()} == {addresses[0]}
    recorded = cuda.recorded
    draw(graphed, tiny, problems=5)
    assert cuda.recorded == recorded


def test_graphs_beyond_the_most_are_forgotten(
    tiny: LanguageModel, graphed: TorchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = StandIn(monkeypatch)
    monkeypatch.setattr(decoding, "MOST_GRAPHS", 2)
    draw(graphed, tiny, problems=6)
    assert len(graphed._batches._graphs) == 2
    expected = draw(TorchEngine(tiny.model, tiny.pad_token_id, tiny.eos_token_ids, tiny.decode), tiny, problems=6)
    recorded = cuda.recorded
    assert torch.equal(draw(graphed, tiny, problems=6).tokens, expected.tokens)
    assert cuda.recorded > recorded
