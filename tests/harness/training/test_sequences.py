from __future__ import annotations

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from harness.training.sequences import Sequences, score_completions
from tests.harness.training import rollouts

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
