"""Log-probs of completions, and micro-batches of rows that share prompts."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor
from transformers import PreTrainedModel

from harness.training.optimizer import grouped_micro_batches
from harness.training.reference import exact_kl
from harness.training.sequences import BatchPart, PassTokens, Sequences, score_completions, score_hidden
from tests.harness.training import rollouts
from tests.harness.training.causal_models import KNOBS, causal_model
from tests.harness.training.pair_batches import pair_batch

ROWS = st.lists(st.tuples(st.integers(1, 9000), st.integers(1, 30)), min_size=1, max_size=30)


def of_lengths(rows: list[tuple[int, int]]) -> Sequences:
    prompts = [[3] * prompt for prompt, _ in rows]
    lengths = torch.tensor([length for _, length in rows])
    return Sequences(prompts, torch.zeros((len(rows), int(lengths.max())), dtype=torch.int64), lengths)


@given(ROWS, st.integers(1, 20_000), st.sets(st.integers(0, 29)))
@example([(8193, 1), (1, 2)], 16_389, {0, 1})  # a long prompt must not pass for a long completion
def test_micro_batches_partition_the_rows_within_the_budget(
    rows: list[tuple[int, int]], budget_tokens: int, chosen: set[int]
) -> None:
    wanted = [row for row in range(len(rows)) if row in chosen]
    batches = of_lengths(rows).micro_batches(torch.tensor(wanted, dtype=torch.int64), budget_tokens)
    assert sorted(row for batch in batches for row in batch.tolist()) == sorted(wanted)
    for batch in batches:
        padded = len(batch) * (max(rows[row][0] for row in batch) + max(rows[row][1] for row in batch))
        assert padded <= budget_tokens or len(batch) == 1


def test_micro_batches_are_sorted_by_length() -> None:
    lengths = [5, 1, 9, 3, 7, 1]
    batches = of_lengths([(2, length) for length in lengths]).micro_batches(torch.arange(6), budget_tokens=14)
    assert [[lengths[row] for row in batch] for batch in batches] == [[1, 1], [3, 5], [7], [9]]


def test_a_large_budget_makes_one_batch() -> None:
    assert len(of_lengths([(3, 4)] * 7).micro_batches(torch.arange(7), 10_000)) == 1


def test_mask() -> None:
    made = Sequences([[3]] * 3, torch.zeros((3, 4), dtype=torch.int64), torch.tensor([1, 4, 2]))
    assert made.mask.int().tolist() == [[1, 0, 0, 0], [1, 1, 1, 1], [1, 1, 0, 0]]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs_do_not_depend_on_padding(temperature: float) -> None:
    model, made = rollouts.model(), rollouts.sequences()
    rows = torch.arange(len(made.prompts))
    with torch.inference_mode():
        logps, _ = score_completions(model, made, rows, temperature, pad_token_id=rollouts.PAD)
        other_pad, _ = score_completions(model, made, rows, temperature, pad_token_id=7)
    assert torch.equal(logps, other_pad)
    for row in rows.tolist():
        length = int(made.lengths[row])
        with torch.inference_mode():
            expected = rollouts.completion_logps(model, made, row, temperature)
        torch.testing.assert_close(logps[row, :length], expected, atol=1e-5, rtol=0)
        assert (logps[row, length:] == 0).all()


def test_a_subset_of_rows_in_any_order() -> None:
    model, made = rollouts.model(), rollouts.sequences()
    with torch.inference_mode():
        every, entropies = score_completions(model, made, torch.arange(len(made.prompts)), 1.0, rollouts.PAD)
        rows = torch.tensor([9, 2, 5])
        some, some_entropies = score_completions(model, made, rows, 1.0, rollouts.PAD)
    longest = int(made.lengths[rows].max())
    assert some.shape == (3, longest)
    torch.testing.assert_close(some, every[rows, :longest], atol=1e-5, rtol=0)
    torch.testing.assert_close(some_entropies, entropies[rows, :longest], atol=1e-5, rtol=0)


def test_entropy_is_of_the_whole_distribution() -> None:
    model, made, temperature = rollouts.model(), rollouts.sequences(), 0.7
    logps, entropy = score_completions(model, made, torch.tensor([4]), temperature, rollouts.PAD)
    assert logps.requires_grad
    assert not entropy.requires_grad
    prompt, length = list(made.prompts[4]), int(made.lengths[4])
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + made.completions[4, :length].tolist()])).logits[0, len(prompt) - 1 : -1]
        distribution = torch.softmax(logits / temperature, -1)
        expected = -(distribution * distribution.log()).sum(-1)
    torch.testing.assert_close(entropy[0, :length], expected, atol=1e-5, rtol=0)
    assert float(entropy.max()) > 0.1


def row_by_row(model: PreTrainedModel, made: Sequences, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies [N, T] from the model's own logits: one forward pass a row, without padding."""
    logps = torch.zeros(made.completions.shape)
    entropy = torch.zeros(made.completions.shape)
    for row, length in enumerate(made.lengths.tolist()):
        logits = model(torch.tensor([[*made.prompts[row], *made.completions[row, :length].tolist()]])).logits[0]
        every = torch.log_softmax(logits[len(made.prompts[row]) - 1 :][:length].float() / temperature, 1)
        logps[row, :length] = every[range(length), made.completions[row, :length]]
        entropy[row, :length] = -(every.exp() * every).sum(1)
    return logps, entropy


@pytest.mark.parametrize("architecture", KNOBS)
def test_scores_and_gradients_are_those_of_the_models_own_logits(architecture: str) -> None:
    model, made = causal_model(architecture), rollouts.sequences()
    weights = torch.linspace(-1, 2, made.completions.numel()).view_as(made.completions)
    expected = row_by_row(model, made, 0.7)
    torch.autograd.backward((expected[0] * weights + expected[1]).sum())
    other = copy.deepcopy(model)
    for weight in other.parameters():
        weight.grad = None

    rows = torch.arange(len(made.prompts))
    scores = score_completions(other, made, rows, 0.7, rollouts.PAD, chunk_tokens=7, entropy_grad=True)
    torch.testing.assert_close(scores, expected, atol=2e-5, rtol=1e-5)
    torch.autograd.backward((scores[0] * weights + scores[1]).sum())
    largest = max(float(weight.grad.abs().max()) for weight in model.parameters() if weight.grad is not None)
    for (name, weight), twin in zip(model.named_parameters(), other.parameters(), strict=True):
        if weight.grad is not None:  # tied: embedding and head are one weight, and share the gradient
            assert twin.grad is not None
            torch.testing.assert_close(twin.grad, weight.grad, atol=1e-4 * largest, rtol=1e-3, msg=name)


def test_bfloat16_weights_give_float32_scores() -> None:
    model, made = causal_model("Llama", torch.bfloat16), rollouts.sequences()
    rows = torch.arange(len(made.prompts))
    scores = score_completions(model, made, rows, 1.0, rollouts.PAD)
    assert [score.dtype for score in scores] == [torch.float32] * 2
    torch.autograd.backward(scores[0].sum())
    assert model.lm_head.weight.grad.dtype == torch.bfloat16
    exact = score_completions(causal_model("Llama"), made, rows, 1.0, rollouts.PAD)
    assert float((scores[0] - exact[0]).detach().abs().mean()) < 0.05


def test_a_trunk_can_be_shared() -> None:
    model, made = causal_model("Qwen2"), rollouts.sequences()
    rows = torch.tensor([9, 2, 5])
    part = BatchPart.of([model], made, rows, rollouts.PAD)
    hidden, completions, mask = part.hidden(model), part.completions, part.mask
    longest = int(made.lengths[rows].max())
    assert hidden.shape == (3, longest, 16)
    assert torch.equal(completions, made.completions[rows, :longest])
    assert torch.equal(mask, made.mask[rows, :longest])
    for index, row in enumerate(rows.tolist()):
        prompt, length = list(made.prompts[row]), int(made.lengths[row])
        tokens = torch.tensor([prompt + made.completions[row, :length].tolist()])
        alone = model.get_decoder()(tokens).last_hidden_state[0, len(prompt) - 1 : -1]
        torch.testing.assert_close(hidden[index, :length], alone, atol=1e-5, rtol=1e-4)

    both = score_hidden(model, hidden, part, 0.7)
    torch.testing.assert_close(both, score_completions(model, made, rows, 0.7, rollouts.PAD), atol=0, rtol=0)
    value_gradient = torch.autograd.grad(hidden[mask].square().sum(), model.model.embed_tokens.weight)[0]
    assert value_gradient.abs().max() > 0


def test_scores_are_repeatable_and_the_chunk_size_moves_only_rounding() -> None:
    model, made = rollouts.model(), rollouts.sequences()
    rows = torch.arange(len(made.prompts))
    with torch.inference_mode():
        first = score_completions(model, made, rows, 0.7, rollouts.PAD, chunk_tokens=16)
        again = score_completions(model, made, rows, 0.7, rollouts.PAD, chunk_tokens=16)
        assert torch.equal(first[0], again[0])
        assert torch.equal(first[1], again[1])
        for chunk_tokens in (1, 5, 1000):
            scores = score_completions(model, made, rows, 0.7, rollouts.PAD, chunk_tokens=chunk_tokens)
            torch.testing.assert_close(scores, first, atol=1e-5, rtol=0)


def test_rows_without_a_token() -> None:
    model, some = rollouts.model(), Sequences([[3, 4], [5]], torch.tensor([[6, 7], [0, 0]]), torch.tensor([2, 0]))
    logps, entropy = score_completions(model, some, torch.tensor([0, 1]), 1.0, rollouts.PAD, entropy_grad=True)
    assert logps[1].tolist() == entropy[1].tolist() == [0, 0]
    torch.autograd.backward((logps + entropy).sum())
    assert rollouts.gradient(model).isfinite().all()
    assert rollouts.gradient(model).abs().max() > 0

    model.zero_grad()
    logps, entropy = score_completions(model, some, torch.tensor([1]), 1.0, rollouts.PAD)
    assert logps.shape == entropy.shape == (1, 0)
    torch.autograd.backward(logps.sum())
    assert (rollouts.gradient(model) == 0).all()
    assert exact_kl(model, model, some, torch.tensor([1]), 1.0, rollouts.PAD).shape == (1, 0)


@pytest.mark.parametrize("rows", [[], [0, 1]])
def test_no_rows_and_empty_prompts_are_errors(rows: list[int]) -> None:
    made = Sequences([[3], []], torch.tensor([[6], [7]]), torch.tensor([1, 1]))
    with pytest.raises(ValueError, match="empty prompt"):
        score_completions(rollouts.model(), made, torch.tensor(rows, dtype=torch.int64), 1.0, rollouts.PAD)


def test_exact_kl() -> None:
    model, reference, made = causal_model("Llama"), causal_model("Gemma2"), rollouts.sequences()
    rows = torch.tensor([9, 2, 5, 11])
    kl = exact_kl(model, reference, made, rows, 0.7, rollouts.PAD, chunk_tokens=3)
    assert not kl.requires_grad
    for index, row in enumerate(rows.tolist()):
        prompt, length = list(made.prompts[row]), int(made.lengths[row])
        tokens = torch.tensor([prompt + made.completions[row, :length].tolist()])
        with torch.no_grad():
            logps, reference_logps = (
                torch.log_softmax(either(tokens).logits[0, len(prompt) - 1 : -1] / 0.7, 1)
                for either in (model, reference)
            )
        expected = (logps.exp() * (logps - reference_logps)).sum(1)
        torch.testing.assert_close(kl[index, :length], expected, atol=1e-4, rtol=1e-4)
        assert (kl[index, length:] == 0).all()
    assert float(kl.max()) > 0.1
    assert (exact_kl(model, model, made, rows, 0.7, rollouts.PAD) == 0).all()


GROUPS = st.lists(
    st.tuples(st.integers(1, 60), st.lists(st.integers(0, 40), min_size=1, max_size=6)), min_size=1, max_size=12
)


@given(GROUPS, st.integers(1, 300), st.sets(st.integers(0, 80)))
def test_rows_are_within_the_budget_and_groups_whole(
    groups: list[tuple[int, list[int]]], budget_tokens: int, left_out: set[int]
) -> None:
    group_of_row = [group for group, (_, lengths) in enumerate(groups) for _ in lengths]
    prompts, lengths = [prompt for prompt, _ in groups], [length for _, lengths in groups for length in lengths]
    rows = [row for row in range(len(lengths)) if row not in left_out]
    batches = grouped_micro_batches(
        torch.tensor(rows, dtype=torch.int64), group_of_row, prompts, lengths, budget_tokens
    )
    assert sorted(row for batch in batches for row in batch.tolist()) == rows
    parts_of: dict[int, int] = {}
    for batch in batches:
        members = {group_of_row[row] for row in batch.tolist()}
        size = sum(prompts[group] for group in members) + sum(lengths[row] for row in batch.tolist())
        assert size <= budget_tokens or len(batch) == 1
        for group in members:
            parts_of[group] = parts_of.get(group, 0) + 1
    for group, parts in parts_of.items():
        size = prompts[group] + sum(lengths[row] for row in rows if group_of_row[row] == group)
        assert parts == 1 or size > budget_tokens


def test_batches_are_of_about_equal_size() -> None:
    """Twelve groups of 10 tokens under a budget of 100: two of 60, not 100 and 20."""
    batches = grouped_micro_batches(torch.arange(24), [row // 2 for row in range(24)], [4] * 12, [3] * 24, 100)
    assert [len(batch) for batch in batches] == [12, 12]


def test_sequences_share_equal_prompts_whatever_their_place() -> None:
    made = Sequences([[3, 4], [5], [3, 4]], torch.tensor([[6, 7], [8, 0], [9, 9]]), torch.tensor([2, 1, 2]))
    assert made.distinct_prompts.of_row.tolist() == [0, 1, 0]
    assert made.distinct_prompts.lengths.tolist() == [2, 1]
    assert made.distinct_prompts.tokens.tolist() == [[3, 4], [5, 0]]
    assert [batch.tolist() for batch in made.micro_batches(torch.arange(3), 6, shared=True)] == [[0, 2], [1]]
    assert made.micro_batches(torch.arange(0), 6, shared=True) == []


def test_tokens_of_a_pass() -> None:
    """Two prompts of 2 and 1 tokens; completions of which all but the last token is fed: 1, 0 and 3."""
    made = Sequences([[3, 4], [5], [3, 4]], torch.zeros((3, 4), dtype=torch.int64), torch.tensor([2, 0, 4]))
    assert made.pass_tokens(torch.arange(3), shared=True) == PassTokens(computed=7, padding=0)
    assert made.pass_tokens(torch.arange(3), shared=False) == PassTokens(computed=15, padding=15 - 3 - 1 - 5)
    assert made.pass_tokens(torch.tensor([1]), shared=True) == PassTokens(computed=1, padding=0)


def test_pairs_share_their_prompt_and_both_sides_count() -> None:
    pairs = pair_batch()
    batches = pairs.micro_batches(torch.arange(8), 50, shared=True)
    assert sorted(pair for batch in batches for pair in batch.tolist()) == list(range(8))
    assert len(batches) == 2
    for batch in batches:
        rows = pairs.rows(batch)
        every = pairs.sequences.distinct_prompts
        prompts = every.lengths[torch.unique(every.of_row[rows])]
        assert int(prompts.sum() + pairs.sequences.lengths[rows].sum()) <= 50
