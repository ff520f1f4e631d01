from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.training.pairs import PairBatch
from harness.training.sequences import Sequences
from tests.harness.training.pair_batches import PAIRS, pair_batch


def side(prompts: list[int], lengths: list[int]) -> Sequences:
    """Prompts and completions of these lengths."""
    width = max(lengths)
    return Sequences([[3] * tokens for tokens in prompts], torch.full((len(lengths), width), 4), torch.tensor(lengths))


def test_both_sides_as_one_batch() -> None:
    pairs = pair_batch()
    assert pairs.chosen.completions.shape != pairs.rejected.completions.shape
    picked = torch.tensor([5, 1])
    both = pairs.sequences.rows(pairs.rows(picked))
    assert both.lengths.tolist() == [*pairs.chosen.lengths[picked].tolist(), *pairs.rejected.lengths[picked].tolist()]
    for half, of_side in ((slice(0, 2), pairs.chosen), (slice(2, 4), pairs.rejected)):
        expected = of_side.rows(picked)
        assert both.prompts[half] == expected.prompts
        width = expected.completions.shape[1]
        assert torch.equal(both.completions[half, :width], expected.completions)
        assert not both.completions[half, width:].any()


def test_log_probs_of_the_reference_go_with_their_tokens() -> None:
    made = pair_batch()
    assert made.ref_logps is None
    chosen, rejected = (-torch.rand(of_side.completions.shape) for of_side in (made.chosen, made.rejected))
    logps = PairBatch(made.chosen, made.rejected, made.groups, chosen, rejected).ref_logps
    assert logps is not None
    assert logps.shape == made.sequences.completions.shape
    assert torch.equal(logps[:PAIRS, : chosen.shape[1]], chosen)
    assert torch.equal(logps[PAIRS:, : rejected.shape[1]], rejected)


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=12),
    st.integers(1, 200),
)
def test_micro_batches_hold_every_pair_once_within_the_budget(sizes: list[tuple[int, int, int]], budget: int) -> None:
    prompts, chosen, rejected = (list(column) for column in zip(*sizes, strict=True))
    pairs = PairBatch(side(prompts, chosen), side(prompts, rejected), torch.arange(len(sizes)))
    micros = pairs.micro_batches(torch.arange(len(sizes)), budget)
    assert sorted(torch.cat(micros).tolist()) == list(range(len(sizes)))
    longer = [max(lengths) for lengths in zip(chosen, rejected, strict=True)]
    order = [longer[pair] for micro in micros for pair in micro.tolist()]
    assert order == sorted(order)
    for micro in micros:
        both = pairs.sequences.rows(pairs.rows(micro))
        padded = len(both.lengths) * (max(map(len, both.prompts)) + int(both.lengths.max()))
        assert len(micro) == 1 or padded <= budget


def test_micro_batches_are_filled() -> None:
    """Two pairs of 2 x (1 + 3) padded tokens fit into 16, three do not."""
    pairs = PairBatch(side([1] * 4, [3, 1, 3, 2]), side([1] * 4, [1, 3, 2, 3]), torch.arange(4))
    assert [len(micro) for micro in pairs.micro_batches(torch.arange(4), 16)] == [2, 2]
    assert [len(micro) for micro in pairs.micro_batches(torch.arange(4), 15)] == [1, 1, 1, 1]
    assert [micro.tolist() for micro in pairs.micro_batches(torch.tensor([2]), 1)] == [[2]]
