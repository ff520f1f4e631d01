from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from harness.training.pairs import PairBatch, unrelated, zero_point
from harness.training.sequences import Scorer
from tests.harness.run.small import small_spec
from tests.harness.training import rollouts
from tests.harness.training.pair_batches import PAIRS, moved_model, pair_batch

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


def scorer(policy: PreTrainedModel, settings: dict[str, object]) -> Scorer:
    return Scorer(
        policy, None, small_spec({"algorithm": "kto", "train.micro_batch_tokens": 40} | settings), rollouts.PAD
    )


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize(("logp", "of_completion"), [("sum", torch.sum), ("mean", torch.mean)])
def test_is_the_mean_log_ratio_of_unrelated_completions(
    logp: str, of_completion: Callable[[Tensor], Tensor], temperature: float
) -> None:
    """Of either sign: it is for the loss to bound it at 0."""
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
