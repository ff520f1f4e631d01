"""A pass with shared prompts is the same as one over padded rows."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import PreTrainedModel

from harness.models.start import set_activation_checkpointing
from harness.training import prefix_attention as attention_choice
from harness.training import sequences as sequences_module
from harness.training.prefix_attention import (
    ATTENTION,
    BLOCK_FILL,
    MASK_ALIGNMENT,
    PrefixLayout,
    collect,
    shares_prompts,
    spread,
)
from harness.training.sequences import BatchPart, Sequences, score_completions
from tests.harness.training import rollouts
from tests.harness.training.causal_models import causal_model

SHARING: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "qwen2": ("Qwen2", {}),
    "qwen2 with a window": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", {}),
    "gemma3": ("Gemma3Text", {"head_dim": 8, "sliding_window": 3, "layer_types": ["sliding_attention"] * 2}),
    "gemma3, mixed": (
        "Gemma3Text",
        {"head_dim": 8, "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "mistral": ("Mistral", {"sliding_window": 3}),
    "gpt2": ("GPT2", {}),
}


def counted(model: PreTrainedModel) -> list[int]:
    """The number of tokens of each pass through the decoder, from now on."""
    tokens: list[int] = []
    embedding = model.get_decoder().get_input_embeddings()
    embedding.register_forward_hook(lambda module, args, output: tokens.append(args[0].numel()))
    return tokens


def padded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequences_module, "shares_prompts", lambda decoder: False)


def hidden_and_gradient(model: PreTrainedModel, made: Sequences, rows: Tensor) -> tuple[Tensor, Tensor]:
    model.zero_grad(set_to_none=True)
    part = BatchPart.of([model], made, rows, rollouts.PAD)
    hidden, mask = part.hidden(model), part.mask
    weights = torch.linspace(-1, 2, hidden.numel()).view_as(hidden)
    (hidden * weights)[mask].sum().backward()  # type: ignore[no-untyped-call]
    return hidden.detach()[mask], rollouts.gradient(model)


@pytest.mark.parametrize("name", SHARING)
def test_hidden_states_and_gradients_are_those_of_padded_rows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    architecture, knobs = SHARING[name]
    model, made = causal_model(architecture, **knobs), rollouts.sequences()
    assert shares_prompts(model.get_decoder())
    tokens = counted(model)
    rows = torch.tensor([9, 2, 5, 8, 1, 0, 15, 13, 14, 3])
    hidden, gradient = hidden_and_gradient(model, made, rows)
    distinct = {tuple(made.prompts[row]) for row in rows.tolist()}
    assert tokens == [sum(map(len, distinct)) + int((made.lengths[rows] - 1).sum())]
    padded(monkeypatch)
    expected, expected_gradient = hidden_and_gradient(model, made, rows)
    assert tokens[1] > tokens[0]
    torch.testing.assert_close(hidden, expected, atol=1e-5, rtol=1e-4)
    assert (gradient - expected_gradient).norm() < 2e-6 * expected_gradient.norm()
    assert expected_gradient.norm() > 1


def test_a_window_matters_here() -> None:
    """Without it the tests of windows would show nothing."""
    made, rows = rollouts.sequences(), torch.arange(16)
    narrow, wide = (
        causal_model("Gemma3Text", head_dim=8, sliding_window=window, layer_types=["sliding_attention"] * 2)
        for window in (3, 60)
    )
    narrow.load_state_dict(wide.state_dict())
    (one, _), (other, _) = (hidden_and_gradient(model, made, rows) for model in (narrow, wide))
    assert (one - other).norm() > 0.01 * other.norm()


def test_repeated_passes_are_identical() -> None:
    model, made = rollouts.model(), rollouts.sequences()
    first, again = (hidden_and_gradient(model, made, torch.arange(16)) for _ in range(2))
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])


def test_half_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    model, made = causal_model("Llama", torch.bfloat16), rollouts.sequences()
    assert shares_prompts(model.get_decoder())
    logps, entropy = score_completions(model, made, torch.arange(16), 1.0, rollouts.PAD)
    assert logps.dtype == entropy.dtype == torch.float32
    padded(monkeypatch)
    expected, _ = score_completions(model, made, torch.arange(16), 1.0, rollouts.PAD)
    assert float((logps - expected).detach().abs().mean()) < 0.05


class TestWhatCannotShare:
    """It takes the other way, with the same results."""

    def assert_alone(self, model: PreTrainedModel) -> None:
        assert not shares_prompts(model.get_decoder())
        made = rollouts.sequences()
        hidden = BatchPart.of([model], made, torch.tensor([4, 5]), rollouts.PAD).hidden(model)
        for index, row in enumerate((4, 5)):
            prompt, length = list(made.prompts[row]), int(made.lengths[row])
            tokens = torch.tensor([prompt + made.completions[row, :length].tolist()])
            alone = model.get_decoder()(tokens).last_hidden_state[0, len(prompt) - 1 : -1]
            torch.testing.assert_close(hidden[index, :length], alone, atol=1e-5, rtol=1e-4)

    def test_attention_that_torch_does_not_do(self) -> None:
        self.assert_alone(causal_model("Gemma2", attn_implementation="eager"))

    def test_layers_that_mix_tokens(self) -> None:
        model = causal_model("Llama")

        def mixing(module: torch.nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
            return output + 0.1 * output.cumsum(1)

        model.get_decoder().layers[0].mlp.register_forward_hook(mixing)
        assert not shares_prompts(model.get_decoder())

    def test_layers_that_hand_nothing_down(self) -> None:
        model = causal_model("Llama")

        def without(module: torch.nn.Module, args: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            options.pop("prefix_layout", None)
            return args, options

        for layer in model.get_decoder().layers:
            layer.register_forward_pre_hook(without, with_kwargs=True)
        self.assert_alone(model)


def test_the_decoders_own_attention_is_back_afterwards() -> None:
    model, made = causal_model("Llama"), rollouts.sequences()
    BatchPart.of([model], made, torch.arange(4), rollouts.PAD).hidden(model)
    assert model.config._attn_implementation == "sdpa"
    seen = []

    def failing(module: torch.nn.Module, args: Any) -> None:
        seen.append(model.config._attn_implementation)
        raise KeyError("on purpose")

    model.get_decoder().layers[1].register_forward_pre_hook(failing)
    with pytest.raises(KeyError, match="on purpose"):
        BatchPart.of([model], made, torch.arange(4), rollouts.PAD).hidden(model)
    assert seen == [ATTENTION]
    assert model.config._attn_implementation == "sdpa"


class TestActivationCheckpointing:
    @pytest.mark.parametrize("way", ["shared", "padded"])
    @pytest.mark.parametrize("architecture", ["Llama", "Qwen3", "GPT2"])
    def test_gradients_are_the_same(self, architecture: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
        model, made, rows = causal_model(architecture), rollouts.sequences(), torch.arange(16)
        assert shares_prompts(model.get_decoder())
        if way == "padded":
            padded(monkeypatch)
        calls: list[int] = []
        attention = torch.nn.functional.scaled_dot_product_attention

        def counted(*given: Any, **options: Any) -> Tensor:
            calls.append(1)
            return attention(*given, **options)

        monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", counted)
        expected = hidden_and_gradient(model, made, rows)
        once = len(calls)
        set_activation_checkpointing(model, on=True)
        got = hidden_and_gradient(model, made, rows)
        assert torch.equal(got[0], expected[0])
        assert torch.equal(got[1], expected[1])
        assert len(calls) - once == 2 * once  # once more in the backward pass
        assert not any(module.training for module in model.modules())
        assert model.config._attn_implementation == "sdpa"

    def test_dropout_stays_off(self) -> None:
        dropout: dict[str, Any] = {"embd_pdrop": 0.5, "attn_pdrop": 0.5, "resid_pdrop": 0.5}
        model, made, rows = causal_model("GPT2", **dropout), rollouts.sequences(), torch.arange(16)
        expected = hidden_and_gradient(model, made, rows)
        set_activation_checkpointing(model, on=True)
        assert torch.equal(hidden_and_gradient(model, made, rows)[1], expected[1])

    def test_layers_are_in_evaluation_mode_while_they_run_and_afterwards(self) -> None:
        """Some apply dropout of their own."""
        model, made, rows = rollouts.model(), rollouts.sequences(), torch.arange(4)
        shares_prompts(model.get_decoder())
        set_activation_checkpointing(model, on=True)
        first, second = model.get_decoder().layers
        functions = [first._gradient_checkpointing_func, second._gradient_checkpointing_func]
        modes: list[bool] = []
        first.self_attn.register_forward_hook(lambda *call: modes.append(first.training))
        BatchPart.of([model], made, rows, rollouts.PAD).hidden(model)
        assert modes == [False]
        first.mlp.register_forward_hook(lambda *call: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            BatchPart.of([model], made, rows, rollouts.PAD).hidden(model)
        assert not second.training
        assert [first._gradient_checkpointing_func, second._gradient_checkpointing_func] == functions

    def test_nothing_is_kept_for_later_without_gradient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model, made = rollouts.model(), rollouts.sequences()
        set_activation_checkpointing(model, on=True)
        monkeypatch.setattr(attention_choice, "checkpoint", None)
        with torch.no_grad():
            BatchPart.of([model], made, torch.arange(4), rollouts.PAD).hidden(model)

    def test_a_pass_of_another_kind_may_come_before_the_backward_pass(self) -> None:
        """What is computed again then uses the attention of its own forward pass."""
        model, made, rows = rollouts.model(), rollouts.sequences(), torch.arange(8)
        _, expected = hidden_and_gradient(model, made, rows)
        set_activation_checkpointing(model, on=True)
        model.zero_grad(set_to_none=True)
        part = BatchPart.of([model], made, rows, rollouts.PAD)
        hidden, mask = part.hidden(model), part.mask
        model(torch.tensor([[3, 4, 5]]))
        weights = torch.linspace(-1, 2, hidden.numel()).view_as(hidden)
        (hidden * weights)[mask].sum().backward()  # type: ignore[no-untyped-call]
        assert torch.equal(rollouts.gradient(model), expected)


def test_a_copy_has_its_own_verdict() -> None:
    model = causal_model("Llama")
    assert shares_prompts(model.get_decoder())
    twin: PreTrainedModel = copy.deepcopy(model)
    hook: Callable[..., Tensor] = lambda module, args, output: output + output.cumsum(1)  # noqa: E731
    twin.get_decoder().layers[0].mlp.register_forward_hook(hook)
    assert not shares_prompts(twin.get_decoder())
    assert shares_prompts(model.get_decoder())


def layout() -> PrefixLayout:
    """Prompts 10 11 12 and 20; completions of 3, 1, 4 and 0 tokens, the second and third of the first prompt."""
    return PrefixLayout.of(
        prompts=torch.tensor([[10, 11, 12], [20, 0, 0]]),
        prompt_lengths=torch.tensor([3, 1]),
        prompt_of_row=torch.tensor([1, 0, 0, 1]),
        completions=torch.tensor([[1, 2, 3, 0], [4, 0, 0, 0], [5, 6, 7, 8], [0, 0, 0, 0]]),
        lengths=torch.tensor([3, 1, 4, 0]),
    )


def test_every_token_that_predicts_something_is_there_once() -> None:
    made = layout()
    assert made.tokens.tolist() == [10, 11, 12, 20, 1, 2, 5, 6, 7]
    assert made.positions.tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 5]
    assert made.tokens[made.predictors[0, :3]].tolist() == [20, 1, 2]
    assert made.tokens[made.predictors[1, :1]].tolist() == [12]
    assert made.tokens[made.predictors[2]].tolist() == [12, 5, 6, 7]


def test_completions_are_in_blocks_by_length_without_empty_ones() -> None:
    made = layout()
    (block,) = made.blocks[1:]
    assert block.lengths.tolist() == [2, 3]
    assert block.prompts is not None and block.prompts.tolist() == [1, 0]
    assert made.prompts.lengths.tolist() == [3, 1]


@given(st.lists(st.integers(0, 40), min_size=1, max_size=30))
def test_blocks_hold_all_completions_and_little_padding(lengths: list[int]) -> None:
    made = PrefixLayout.of(
        torch.tensor([[9]]),
        torch.tensor([1]),
        torch.zeros(len(lengths), dtype=torch.int64),
        torch.zeros((len(lengths), max(1, *lengths)), dtype=torch.int64),
        torch.tensor(lengths),
    )
    completions = made.blocks[1:]
    fed = [length for block in completions for length in block.lengths.tolist()]
    assert fed == sorted(length - 1 for length in lengths if length > 1)
    assert len(made.tokens) == 1 + sum(fed)
    assert all(block.lengths.min() >= BLOCK_FILL * block.width for block in completions)
    assert len(completions) <= 7


def test_blocks_are_padded_behind_their_tokens_and_a_row_attends_to_its_prompt_and_itself() -> None:
    made = layout()
    assert [(len(block.lengths), block.width) for block in made.blocks] == [(2, 3), (2, 3)]
    assert made.padded.tolist() == [0, 1, 2, 3, 6, 7, 9, 10, 11]
    hidden = -1
    seen_of_prompts, seen_of_rows = made.attended.view(-1, 3)[:2].clone(), made.attended.view(-1, 6)[1:].clone()
    seen_of_prompts[1, 1:] = seen_of_rows[0, 1:3] = seen_of_rows[0, 5] = hidden
    assert seen_of_prompts.tolist() == [[0, 1, 2], [3, hidden, hidden]]
    assert seen_of_rows.tolist() == [[3, hidden, hidden, 4, 5, hidden], [0, 1, 2, 6, 7, 8]]
    assert made.attended.max() < len(made.tokens)


@pytest.mark.parametrize("move", [lambda rows, places: spread(rows, places, 6), collect])
def test_gradients_of_moving_rows(move: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
    rows, places = torch.randn(3, 2, dtype=torch.float64, requires_grad=True), torch.tensor([2, 0, 1])
    assert torch.autograd.gradcheck(lambda rows: move(rows, places), rows)


def seen(additive: Tensor | None) -> Tensor:
    """1 where a mask adds nothing, 0 where it hides; its rows are as far apart as CUDA's kernels want them."""
    assert additive is not None
    assert all(stride % MASK_ALIGNMENT == 0 for stride in additive.stride()[:-1])
    assert torch.equal(additive.isinf(), additive != 0)
    return (additive == 0).int()


def test_masks_in_full() -> None:
    made = layout()
    mask = seen(made.attention_mask(made.blocks[1], None, torch.float32))
    assert mask.shape == (2, 1, 3, 6)
    # The first row follows the prompt of one token, the second that of three.
    assert mask[0, 0].tolist() == [[1, 0, 0, 1, 0, 0], [1, 0, 0, 1, 1, 0], [1, 0, 0, 1, 1, 1]]
    assert mask[1, 0].tolist() == [[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1]]
    assert made.attention_mask(made.prompts, None, torch.float32) is None
    assert made.attention_mask(made.prompts, 3, torch.float32) is None


def test_masks_of_a_window() -> None:
    made = layout()
    additive = made.attention_mask(made.blocks[1], 2, torch.bfloat16)
    mask = seen(additive)
    assert mask[0, 0].tolist() == [[1, 0, 0, 1, 0, 0], [0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 1, 1]]
    assert mask[1, 0].tolist() == [[0, 0, 1, 1, 0, 0], [0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 1, 1]]
    assert additive is not None and additive.dtype == torch.bfloat16
    assert additive is made.attention_mask(made.blocks[1], 2, torch.bfloat16), "one for all layers"
    prompts = made.attention_mask(made.prompts, 2, torch.float32)
    assert prompts is not None
    assert seen(prompts)[0, 0].tolist() == [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
