"""A float32 output head over narrower layers, and copies of a model in another dtype."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from harness.config.model import Lora
from harness.config.rollout import RolloutSpec
from harness.engines.base import Completions, SamplingParams, make_engine
from harness.models.language_model import LanguageModel, load_model
from harness.models.lora import add_adapters, reset_adapters
from harness.models.precision import DTYPES, Float32Head, RoundedWeights, set_head_dtype
from harness.models.start import StartingPoint
from harness.training.sequences import Sequences, score_completions
from tests.harness.run.small import small_spec

PROMPTS = [[4, 13, 5, 14], [6, 14, 7, 13, 9, 14]]
KEYS = torch.arange(16).view(2, 8)
PARAMS = SamplingParams(max_completion_tokens=24)


def tiny(dtype: torch.dtype = torch.float32) -> LanguageModel:
    return load_model("builtin:tiny", dtype=dtype)


def drawn(language_model: LanguageModel, dtype: str = "trainer") -> Completions:
    rollout = RolloutSpec.model_validate({"max_completion_tokens": 24, "dtype": dtype})
    return make_engine(rollout, language_model).generate(PROMPTS, KEYS, PARAMS)


def mismatch(model: PreTrainedModel, completions: Completions) -> Tensor:
    """|trainer - sampler| of each drawn token's log-prob."""
    prompts = [prompt for prompt in PROMPTS for _ in range(KEYS.shape[1])]
    sequences = Sequences(prompts, completions.tokens, completions.lengths)
    rows = torch.arange(len(prompts))
    with torch.no_grad():
        logps, _ = score_completions(model, sequences, rows, 1.0, pad_token_id=0)
    return (logps - completions.logps)[sequences.mask].abs()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_completions_are_those_of_a_model_in_that_dtype(dtype: str) -> None:
    language_model = tiny()
    rounded = drawn(language_model, dtype)
    expected = drawn(tiny(DTYPES[dtype]))
    assert torch.equal(rounded.tokens, expected.tokens) and torch.equal(rounded.logps, expected.logps)
    assert {weight.dtype for weight in language_model.model.parameters()} == {torch.float32}, "the trainer's stay"
    assert not torch.equal(rounded.logps, drawn(language_model).logps)


def test_the_trainers_own_dtype_needs_no_copy() -> None:
    language_model = tiny()
    assert type(make_engine(RolloutSpec(max_completion_tokens=8, dtype="float32"), language_model)) is type(
        make_engine(RolloutSpec(max_completion_tokens=8), language_model)
    )


def test_the_copy_follows_the_weights() -> None:
    language_model = tiny()
    engine = make_engine(RolloutSpec(max_completion_tokens=24, dtype="bfloat16"), language_model)
    before = engine.generate(PROMPTS, KEYS, PARAMS)
    with torch.no_grad():
        for weight in language_model.model.parameters():
            weight.mul_(1.25)
    after = engine.generate(PROMPTS, KEYS, PARAMS)
    assert torch.equal(after.logps, drawn(language_model, "bfloat16").logps)
    assert not torch.equal(after.logps, before.logps)


def test_adapters_are_merged_before_they_are_rounded() -> None:
    language_model = tiny()
    adapted = add_adapters(language_model.model, Lora(rank=4, alpha=8.0))
    reset_adapters(adapted, seed=0)
    engine = make_engine(
        RolloutSpec(max_completion_tokens=24, dtype="bfloat16"), replace(language_model, model=adapted)
    )
    assert torch.equal(engine.generate(PROMPTS, KEYS, PARAMS).logps, drawn(language_model, "bfloat16").logps)
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_B" in name:
                weight.fill_(0.02)
    assert not torch.equal(engine.generate(PROMPTS, KEYS, PARAMS).logps, drawn(language_model, "bfloat16").logps)


def test_a_rounded_copy_keeps_ties_and_the_dtype_of_buffers() -> None:
    model = tiny().model
    rounded = RoundedWeights(model, torch.bfloat16).model
    assert rounded.get_input_embeddings().weight is rounded.get_output_embeddings().weight
    assert {weight.dtype for weight in rounded.parameters()} == {torch.bfloat16}
    assert {buffer.dtype for buffer in rounded.buffers()} == {torch.float32}
    own, copied = dict(model.named_parameters()), dict(rounded.named_parameters())
    assert own.keys() == copied.keys()
    assert all(torch.equal(copied[name], weight.bfloat16()) for name, weight in own.items())
    assert not any(weight.requires_grad for weight in rounded.parameters())


class TestFloat32Head:
    def test_changes_the_product_alone(self) -> None:
        model = tiny(torch.bfloat16).model
        weight, state = model.get_output_embeddings().weight, model.state_dict().keys()
        set_head_dtype(model, "float32")
        head = model.get_output_embeddings()
        assert type(head) is Float32Head and head.weight is weight is model.get_input_embeddings().weight
        assert model.state_dict().keys() == state
        tokens = torch.tensor([PROMPTS[0]])
        with torch.no_grad():
            hidden, logits = model.get_decoder()(input_ids=tokens).last_hidden_state, model(input_ids=tokens).logits
        assert logits.dtype == torch.float32
        torch.testing.assert_close(logits.double(), hidden.double() @ weight.detach().double().T, rtol=1e-5, atol=1e-6)
        set_head_dtype(model, "model")
        assert type(model.get_output_embeddings()) is nn.Linear
        assert model.get_output_embeddings().weight is weight

    def test_brings_sampler_and_trainer_together(self) -> None:
        """What is left is the rounding of the layers, which the two compute in another order."""
        found = {}
        for head_dtype in ("model", "float32"):
            language_model = tiny(torch.bfloat16)
            set_head_dtype(language_model.model, head_dtype)
            found[head_dtype] = float(mismatch(language_model.model, drawn(language_model)).mean())
        assert 0 < found["float32"] < 0.9 * found["model"]

    def test_is_that_of_every_model_of_a_cell_and_leaves_with_it(self) -> None:
        start = StartingPoint()
        wanted = {"model.dtype": "bfloat16", "model.head_dtype": "float32"}
        for settings, head in ((wanted, Float32Head), ({"model.dtype": "bfloat16"}, nn.Linear)):
            for lora in ({}, {"model.lora": {"type": "lora", "rank": 2}}):
                spec = small_spec(settings | lora)
                policy = start.for_training(spec, spec.model.source)
                assert type(policy.model.get_output_embeddings()) is head
                rollout = RolloutSpec(max_completion_tokens=8, dtype="float16")
                engine = make_engine(rollout, policy)
                drawing = engine._engine._engine if lora else engine._engine  # type: ignore[attr-defined]
                assert type(drawing._model.get_output_embeddings()) is head, "also in copies that are drawn from"
            assert type(start.teacher(spec, "scratch:tiny").model.get_output_embeddings()) is head
