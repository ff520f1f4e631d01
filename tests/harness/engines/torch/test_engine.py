"""What is particular to the torch engine: shared rows, rows that leave, chunks, shapes, memory, attention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from harness.engines.base import Completions, SamplingParams
from harness.engines.torch import decoding
from harness.engines.torch import engine as torch_engine
from harness.engines.torch import passes as model_passes
from harness.engines.torch.engine import ChunkDecoding, TorchEngine, max_rows
from harness.engines.torch.passes import (
    EAGER,
    GRAPHS,
    ONE_TOKEN_ATTENTION,
    Arena,
    BatchShapes,
    StaticCache,
    one_token_attention,
)
from harness.engines.torch.sizes import MAX_ROWS
from harness.errors import RefusedError
from harness.models.language_model import LanguageModel
from harness.shelves.engine_contract import PROBLEMS, keys, repeated, rows_of
from tests.refusals import refuses

PARAMS = SamplingParams(40)


def torch_engine_of(language_model: LanguageModel) -> TorchEngine:
    return TorchEngine(
        language_model.model, language_model.pad_token_id, language_model.eos_token_ids, language_model.decode
    )


def draw(language_model: LanguageModel, params: SamplingParams = PARAMS) -> Completions:
    prompts = [language_model.encode(problem) for problem in PROBLEMS]
    return torch_engine_of(language_model).generate(prompts, keys(), params)


def assert_same(one: Completions, other: Completions) -> None:
    assert torch.equal(one.tokens, other.tokens)
    assert torch.equal(one.lengths, other.lengths)
    assert torch.equal(one.truncated, other.truncated)
    torch.testing.assert_close(one.logps, other.logps, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "params", [PARAMS, SamplingParams(40, 0.0), SamplingParams(1), SamplingParams(40, stop=("#1",))]
)
@pytest.mark.parametrize("shapes", [GRAPHS, BatchShapes(False, 1000), BatchShapes(True, 1)])
def test_shapes_and_looks_do_not_change_the_samples(
    language_model: LanguageModel, monkeypatch: pytest.MonkeyPatch, shapes: BatchShapes, params: SamplingParams
) -> None:
    """Those of CUDA among them, run eagerly."""
    expected = draw(language_model, params)
    monkeypatch.setattr(torch_engine, "EAGER", shapes)
    assert_same(draw(language_model, params), expected)


@pytest.mark.slow
@pytest.mark.parametrize("leave_at_frac", [0.0, 0.5, 1.1])
@pytest.mark.parametrize("shapes", [EAGER, BatchShapes(False, 2)])
def test_rows_that_leave_do_not_change_the_others(
    language_model: LanguageModel, monkeypatch: pytest.MonkeyPatch, leave_at_frac: float, shapes: BatchShapes
) -> None:
    """0: a row leaves at once; 1.1: none ever does on its own account."""
    expected = draw(language_model)
    monkeypatch.setattr(torch_engine, "LEAVE_AT_FRAC", leave_at_frac)
    monkeypatch.setattr(torch_engine, "EAGER", shapes)
    assert_same(draw(language_model), expected)


@pytest.mark.parametrize(
    ("where", "name", "value"),
    [
        (torch_engine, "MAX_ROWS", 1),
        (torch_engine, "MAX_ROWS", 9),
        (model_passes, "PREFILL_TOKENS", 30),
        (model_passes, "LEAST_COLUMNS", 8),
        (decoding, "KEPT_BYTES", 0),
        (decoding, "KEPT_BYTES", 2**40),
    ],
)
def test_chunks_and_memory_do_not_change_the_samples(
    language_model: LanguageModel, monkeypatch: pytest.MonkeyPatch, where: object, name: str, value: int
) -> None:
    expected = draw(language_model)
    monkeypatch.setattr(where, name, value)
    assert_same(draw(language_model), expected)


def test_an_earlier_call_leaves_nothing_behind(language_model: LanguageModel) -> None:
    prompts = [language_model.encode(problem) for problem in PROBLEMS]
    engine = torch_engine_of(language_model)
    engine.generate(prompts[::-1], keys() + 1, PARAMS)
    engine.generate(prompts[:1], keys()[:1], SamplingParams(60))
    assert_same(engine.generate(prompts, keys(), PARAMS), draw(language_model))


@given(st.lists(st.integers(0, 30), min_size=1))
def test_rows_stay_where_they_are(sources: list[int]) -> None:
    rows = torch.tensor(sorted(sources))
    moved = rows[decoding._in_place(rows)].tolist()
    assert sorted(moved) == rows.tolist()
    assert all(moved[row] == row for row in sources if row < len(sources))


@pytest.mark.parametrize("shapes", [EAGER, GRAPHS])
def test_what_was_in_memory_is_never_read(
    language_model: LanguageModel, monkeypatch: pytest.MonkeyPatch, shapes: BatchShapes
) -> None:
    class Dirty(Arena):
        def tensor(self, like: Tensor, shape: tuple[int, ...]) -> Tensor:
            return super().tensor(like, shape).fill_(torch.nan)

    expected = draw(language_model)
    monkeypatch.setattr(torch_engine, "EAGER", shapes)
    monkeypatch.setattr(decoding, "Arena", Dirty)
    assert_same(draw(language_model), expected)


@pytest.fixture
def passes(language_model: LanguageModel) -> Iterator[list[tuple[int, int]]]:
    """(rows, tokens a row) of each call of the model."""
    shapes: list[tuple[int, int]] = []

    def note(module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        shapes.append((arguments[0].shape[0], arguments[0].shape[1]))

    hook = language_model.model.get_decoder().layers[0].register_forward_pre_hook(note)
    yield shapes
    hook.remove()


def without_the_comparison(passes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The first step of an engine is computed in two ways."""
    assert passes[1] == passes[2]
    return passes[:1] + passes[2:]


def test_what_samples_have_in_common_is_computed_once(
    language_model: LanguageModel, passes: list[tuple[int, int]]
) -> None:
    """In no pass is a quarter of the rows idle; but not every row that ends costs a copy of the cache."""
    drawn = draw(language_model)
    (prompts, _), *steps = without_the_comparison(passes)
    assert prompts == len(PROBLEMS)
    starts = list(enumerate(rows_of(drawn)))
    needed = [
        len({(index // 4, *row[:fed]) for index, row in starts if len(row) > fed}) for fed in range(1, len(steps) + 1)
    ]
    rows = [count for count, _ in steps]
    assert all(tokens == 1 for _, tokens in steps)
    assert needed[0] < len(starts), "some samples must begin alike for this test to say anything"
    assert all(need > 0.75 * row for need, row in zip(needed, rows, strict=True))
    assert needed != rows
    assert (drawn.cost.slots, drawn.cost.occupied) == (sum(rows), sum(needed))


def test_finished_rows_leave_the_batch(
    language_model: LanguageModel, passes: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where each sample has its own row, looked at every fourth token."""
    monkeypatch.setattr(torch_engine, "EAGER", BatchShapes(False, 4))
    drawn = draw(language_model)
    rows = [count for count, _ in without_the_comparison(passes)[1:]]
    running = [int((drawn.lengths > fed).sum()) for fed in range(1, len(rows) + 1)]
    looked_at = slice(None, None, 4)
    assert running[0] > 2 * running[-1]
    assert all(left > 0.75 * row for left, row in zip(running[looked_at], rows[looked_at], strict=True))
    assert len(set(rows)) < len(set(running))
    assert (drawn.cost.slots, drawn.cost.occupied) == (sum(rows), sum(running))


def test_greedy_samples_of_a_prompt_are_one_row(
    language_model: LanguageModel, passes: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As nobody parts, all rows stay, if they do not leave on their own account."""
    monkeypatch.setattr(torch_engine, "LEAVE_AT_FRAC", 1.1)
    drawn = draw(language_model, SamplingParams(40, temperature=0))
    rows = [count for count, _ in without_the_comparison(passes)[1:]]
    assert set(rows) == {len(PROBLEMS)}
    assert drawn.lengths.min() < drawn.lengths.max()
    assert rows_of(drawn) == [row for row in rows_of(drawn)[::4] for _ in range(4)]
    assert max(rows for rows, _ in passes) == len(PROBLEMS)


def test_caches_that_follow_each_other_take_the_same_memory() -> None:
    like, column = [(torch.zeros(1, 2, 1, 4), torch.zeros(1, 2, 1, 4))], torch.zeros(1, dtype=torch.int64)
    arena = Arena()
    taken = [StaticCache(like, rows, 5, column, arena).buffers[0] for rows in (6, 3, 6)]
    assert arena.bytes == 2 * 6 * 2 * 5 * 4 * 4
    assert len({keys.data_ptr() for keys, _ in taken}) == 1
    assert len({pointer.data_ptr() for pair in taken for pointer in pair}) == 2
    assert StaticCache(like, 7, 5, column, arena).buffers[0][0].shape == (7, 2, 5, 4)


def test_memory_bounds_the_rows(language_model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and values of two layers of four heads in float32."""
    bytes_a_token = 2 * 2 * 4 * language_model.model.config.head_dim * 4
    monkeypatch.setattr(torch_engine, "CACHE_BYTES_CPU", 7 * 50 * bytes_a_token)
    assert max_rows(language_model.model, 50) == 7
    assert max_rows(language_model.model, 51) == 6
    assert max_rows(language_model.model, 5000) == 1
    monkeypatch.undo()
    assert max_rows(language_model.model, 50) == MAX_ROWS


def test_the_model_keeps_its_attention(language_model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[str] = []

    def note(module: nn.Module, arguments: tuple[object, ...]) -> None:
        used.append(language_model.model.config._attn_implementation)

    hook = language_model.model.get_decoder().layers[0].register_forward_pre_hook(note)
    draw(language_model)
    assert used == ["sdpa"] + [ONE_TOKEN_ATTENTION] * (len(used) - 1)
    monkeypatch.setattr("harness.engines.torch.decoding.sample", lambda *arguments: 1 / len(used[3:]))
    used.clear()
    with pytest.raises(ZeroDivisionError):
        draw(language_model)
    hook.remove()
    assert language_model.model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("heads", [2, 6])
def test_attention_is_that_of_torch(heads: int) -> None:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(5, heads, 1, 8, generator=generator)
    key, value = (torch.randn(5, 2, 9, 8, generator=generator) for _ in range(2))
    mask = torch.zeros(5, 1, 1, 9).masked_fill(torch.rand(5, 1, 1, 9, generator=generator) < 0.4, -torch.inf)
    mask[..., -1] = 0
    attended, _ = one_token_attention(nn.Identity(), query, key, value, mask, scaling=0.3)
    expected = nn.functional.scaled_dot_product_attention(query, key, value, mask, scale=0.3, enable_gqa=True)
    torch.testing.assert_close(attended, expected.transpose(1, 2))
    for option in ({"softcap": 20.0}, {"position_bias": mask}):
        with refuses(RefusedError, "engines.attention_not_supported", module="Identity"):
            one_token_attention(nn.Identity(), query, key, value, mask, 0.3, **option)


def test_shape_ladder() -> None:
    assert [GRAPHS.rows(needed) for needed in (1, 2, 3, 5, 7, 64, 65, 97)] == [1, 2, 3, 6, 8, 64, 96, 128]
    assert [GRAPHS.rows_within(limit) for limit in (1, 5, 47, 48, 1024)] == [1, 4, 32, 48, 1024]
    assert [GRAPHS.columns(10, most) for most in (1, 64, 65, 96, 97, 129, 200)] == [64, 64, 96, 96, 128, 192, 256]
    assert (GRAPHS.read_columns(65, 256), GRAPHS.read_columns(65, 80)) == (96, 80)
    assert (EAGER.rows(65), EAGER.read_columns(65, 80)) == (65, 65)
    assert EAGER.columns(10, 1000) > 10
    assert EAGER.columns(10, 12) == 12


def test_samples_do_not_depend_on_sharing(language_model: LanguageModel) -> None:
    """A prompt given for each sample shares nothing with the others."""
    prompts = repeated([language_model.encode(problem) for problem in PROBLEMS])
    single = torch_engine_of(language_model).generate(prompts, keys().reshape(-1, 1), PARAMS)
    assert_same(draw(language_model), single)


def test_any_of_several_end_of_sequence_tokens_frees_a_row(language_model: LanguageModel) -> None:
    never = language_model.tokenizer.unk_token_id
    prompts = [language_model.encode(problem) for problem in PROBLEMS]
    expected = draw(language_model)
    assert never not in expected.tokens
    for ends in ([never, *language_model.eos_token_ids], [*language_model.eos_token_ids, never]):
        engine = TorchEngine(language_model.model, language_model.pad_token_id, ends, language_model.decode)
        drawn = engine.generate(prompts, keys(), PARAMS)
        assert_same(drawn, expected)
        assert drawn.cost.slots == expected.cost.slots


@pytest.mark.parametrize("stop", [(), ("=",)])
def test_samples_are_told_of_as_they_leave_the_batch(language_model: LanguageModel, stop: tuple[str, ...]) -> None:
    """Each once, as it is in the result; short ones before the longest has ended."""
    engine = torch_engine_of(language_model)
    prompts = [language_model.encode(f"{number}+{number}=") for number in range(8)]
    noise = torch.arange(32).view(8, 4)
    told: list[tuple[int, list[int], bool]] = []
    steps_at: list[int] = []
    forward = engine.one_token_pass.__class__.__call__

    def counted(*given: Any) -> Tensor:
        steps_at.append(len(told))
        return forward(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.one_token_pass.__class__, "__call__", counted)
        drawn = engine.generate(prompts, noise, SamplingParams(60, stop=stop), lambda *sample: told.append(sample))
    expected = [
        (row, tokens[:length], cut)
        for row, (tokens, length, cut) in enumerate(
            zip(drawn.tokens.tolist(), drawn.lengths.tolist(), drawn.truncated.tolist(), strict=True)
        )
    ]
    assert sorted(told) == expected
    assert steps_at and 0 < steps_at[-1] < 32


@pytest.mark.slow
def test_memory_that_runs_out_halves_the_rows(language_model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """The samples are the same, and each is told of once, also those that had ended when memory ran out; the rows stay
    few."""
    prompts = [language_model.encode(problem) for problem in PROBLEMS]
    expected = torch_engine_of(language_model).generate(prompts, keys(), PARAMS)
    finish, drawn = ChunkDecoding.finish, []

    def failing(chunk: ChunkDecoding) -> None:
        finish(chunk)
        drawn.append(len(chunk._drawn._tokens))
        if len(chunk._drawn._tokens) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(ChunkDecoding, "finish", failing)
    engine, told = torch_engine_of(language_model), []
    with pytest.warns(UserWarning, match="out of memory with .* completions drawn at once"):
        got = engine.generate(prompts, keys(), PARAMS, lambda row, tokens, cut: told.append(row))
    assert torch.equal(got.tokens, expected.tokens)
    # Fewer rows at once are summed in another order.
    torch.testing.assert_close(got.logps, expected.logps, atol=5e-5, rtol=0)
    assert sorted(told) == list(range(keys().numel()))
    drawn.clear()
    engine.generate(prompts, keys(), PARAMS)
    assert max(drawn) <= 3


def test_memory_that_is_too_small_for_one_row(language_model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(chunk: ChunkDecoding) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(ChunkDecoding, "finish", failing)
    with pytest.warns(UserWarning), refuses(RefusedError, "engines.out_of_memory_drawing"):
        draw(language_model)
