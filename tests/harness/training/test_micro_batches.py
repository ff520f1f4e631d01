"""Micro-batches of rows that share prompts; those of padded rows are tested with `Sequences`."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.training.sequences import PassTokens, Sequences, grouped_micro_batches
from tests.harness.training.pair_batches import pair_batch

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
