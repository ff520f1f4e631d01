"""What is particular to the torch engine: rows that leave, and chunks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from harness.models.language_model import LanguageModel
from harness.rollouts import torch_engine
from harness.rollouts.engine import Completions, Engine, SamplingParams
from tests.harness.rollouts.test_engine import PROBLEMS, keys

PARAMS = SamplingParams(40)


def draw(engine: Engine, language_model: LanguageModel) -> Completions:
    return engine.generate([language_model.encode(problem) for problem in PROBLEMS], keys(), PARAMS)


def assert_same(one: Completions, other: Completions) -> None:
    assert torch.equal(one.tokens, other.tokens)
    assert torch.equal(one.lengths, other.lengths)
    assert torch.equal(one.truncated, other.truncated)
    torch.testing.assert_close(one.logps, other.logps, atol=1e-5, rtol=0)


@pytest.mark.parametrize("leave_at_frac", [0.0, 0.5, 1.1])
def test_rows_that_leave_do_not_change_the_others(
    engine: Engine, language_model: LanguageModel, monkeypatch: pytest.MonkeyPatch, leave_at_frac: float
) -> None:
    """0: a row leaves at once; 1.1: none ever does."""
    expected = draw(engine, language_model)
    monkeypatch.setattr(torch_engine, "LEAVE_AT_FRAC", leave_at_frac)
    assert_same(draw(engine, language_model), expected)


def test_finished_rows_leave_the_batch(engine: Engine, language_model: LanguageModel) -> None:
    """In no model call have a quarter of the rows ended already; but not every row that ends costs a copy of the cache.
    The prefill aside, call t is fed token t of each row, and goes on with the rows that are longer than that."""
    batches: list[int] = []

    def count(module: torch.nn.Module, arguments: tuple[object, ...], inputs: dict[str, Tensor]) -> None:
        batches.append(len(inputs["input_ids"]))

    hook = language_model.model.register_forward_pre_hook(count, with_kwargs=True)
    drawn = draw(engine, language_model)
    hook.remove()
    rows = batches[1:]
    running = [int((drawn.lengths > fed).sum()) for fed in range(1, len(rows) + 1)]
    assert running[0] > 2 * running[-1]
    assert all(left > 0.75 * row for left, row in zip(running, rows, strict=True))
    assert len(set(rows)) < len(set(running))


@pytest.mark.parametrize("max_rows", [1, 5, 8])
def test_chunks_do_not_change_the_samples(
    engine: Engine, language_model: LanguageModel, monkeypatch: pytest.MonkeyPatch, max_rows: int
) -> None:
    expected = draw(engine, language_model)
    monkeypatch.setattr(torch_engine, "MAX_ROWS", max_rows)
    assert_same(draw(engine, language_model), expected)


def test_the_model_is_sampled_as_it_is_now(engine: Engine, language_model: LanguageModel) -> None:
    """No second copy of the weights."""
    before = draw(engine, language_model)
    weight = language_model.model.get_input_embeddings().weight
    original = weight.detach().clone()
    with torch.no_grad():
        weight.mul_(0.5)
    changed = draw(engine, language_model)
    with torch.no_grad():
        weight.copy_(original)
    assert not torch.equal(before.tokens, changed.tokens)
    assert_same(draw(engine, language_model), before)
