"""Pairs as one batch of rows, and the zero point of KTO."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import PreTrainedModel

from harness.training.preference_update import PairBatch, unrelated, zero_point
from harness.training.sequences import Sequences, SequenceScorer
from tests.harness.run.small import small_spec
from tests.harness.training import rollouts
from tests.harness.training.pair_batches import PAIRS, moved_model, pair_batch


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


ALL = torch.arange(PAIRS)


def naive_zero_point(
    policy: PreTrainedModel,
    start: PreTrainedModel,
    pairs: PairBatch,
    temperature: float,
    of_completion: Callable[[Tensor], Tensor],
) -> float:
    """With two pairs a prompt the next other prompt is two further for the first of them, and one for the second."""
    log_ratios = []
    for row in range(len(pairs)):
        other = (row + (2 if row % 2 == 0 else 1)) % len(pairs)
        tokens = pairs.chosen.completions[other, : int(pairs.chosen.lengths[other])]
        ids = torch.tensor([[*pairs.chosen.prompts[row], *tokens.tolist()]])
        with torch.no_grad():
            of_policy, of_start = (
                torch.log_softmax(model(ids).logits[0, -len(tokens) - 1 : -1].double() / temperature, -1)
                .gather(1, tokens[:, None])
                .flatten()
                for model in (policy, start)
            )
        log_ratios.append(float(of_completion(of_policy - of_start)))
    return sum(log_ratios) / len(log_ratios)


def scorer(policy: PreTrainedModel, settings: dict[str, object]) -> SequenceScorer:
    return SequenceScorer(
        policy, None, small_spec({"algorithm": "kto", "train.micro_batch_tokens": 40} | settings), rollouts.PAD
    )


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize(("logp", "of_completion"), [("sum", torch.sum), ("mean", torch.mean)])
def test_is_the_mean_log_ratio_of_unrelated_completions(
    logp: str, of_completion: Callable[[Tensor], Tensor], temperature: float
) -> None:
    """It may have either sign: the loss bounds it at 0."""
    settings = {"objective.logp": logp, "rollout.temperature": temperature}
    moved, start, pairs = moved_model(), rollouts.model(), pair_batch()
    z = zero_point(pairs, ALL, scorer(moved, settings), start)
    assert float(z) == pytest.approx(naive_zero_point(moved, start, pairs, temperature, of_completion), rel=1e-4)
    assert float(zero_point(pairs, ALL, scorer(start, settings), moved)) == pytest.approx(-float(z), rel=1e-4)
    assert abs(float(z)) > 1e-2
    assert not z.requires_grad


def test_is_0_where_nothing_is_unrelated() -> None:
    pairs = dataclasses.replace(pair_batch(), groups=torch.zeros(PAIRS, dtype=torch.long))
    assert zero_point(pairs, ALL, scorer(moved_model(), {}), rollouts.model()) == 0


def test_needs_a_reference() -> None:
    with pytest.raises(ValueError, match="link=kto without a reference"):
        zero_point(pair_batch(), ALL, scorer(rollouts.model(), {}), None)


def test_the_next_other_prompt_follows_cyclically() -> None:
    pairs = dataclasses.replace(pair_batch(), groups=torch.tensor([7, 7, 7, 4, 4, 9, 7, 7]))
    for chosen, others in (
        ([0, 1, 2, 3, 4, 5, 6, 7], [3, 3, 3, 5, 5, 6, 3, 3]),
        ([5, 2, 0], [2, 5, 5]),
        ([1, 4], [4, 1]),
    ):
        made = unrelated(pairs, torch.tensor(chosen))
        assert made is not None
        assert made.prompts == [pairs.chosen.prompts[row] for row in chosen]
        assert torch.equal(made.completions, pairs.chosen.completions[others])
        assert torch.equal(made.lengths, pairs.chosen.lengths[others])
    assert unrelated(pairs, torch.tensor([0, 2, 6])) is None
    assert unrelated(pairs, torch.tensor([3])) is None
