from __future__ import annotations

import math

import pytest
import torch
from transformers import PreTrainedModel

from algorithms import Objective, preset
from harness.training.reference import (
    Measured,
    RenewedCopy,
    frozen_copy,
    kl_reference,
    measure,
    start_metrics,
)
from harness.training.sequences import SequenceScorer, rows_to_measure
from tests.harness.run.small import small_spec
from tests.harness.training import rollouts


def kl(**knobs: object):
    return preset(
        "grpo", Objective, **{"kl.where": "loss", **{f"kl.{name}": value for name, value in knobs.items()}}
    ).kl


def test_a_frozen_copy_stays() -> None:
    policy = rollouts.model()
    copied = frozen_copy(policy)
    before = rollouts.weights(copied).clone()
    change(policy)
    assert torch.equal(rollouts.weights(copied), before)
    assert not any(weight.requires_grad for weight in copied.parameters())
    assert all(weight.requires_grad for weight in policy.parameters())


def change(policy: PreTrainedModel) -> None:
    with torch.no_grad():
        for weight in policy.parameters():
            weight.add_(1)


def test_a_renewed_copy_is_the_policy_that_began_the_round() -> None:
    policy = rollouts.model()
    copied = RenewedCopy(policy, every_steps=2)
    for step, begins in ((1, True), (2, False), (3, True), (4, False)):
        copied.begin(step, policy)
        assert torch.equal(rollouts.weights(copied.policy), rollouts.weights(policy)) == begins
        change(policy)
    resumed = RenewedCopy(rollouts.model(), every_steps=2)
    resumed.load_state_dict(copied.state_dict())
    assert torch.equal(rollouts.weights(resumed.policy), rollouts.weights(copied.policy))


class TestKlReference:
    def test_none_is_kept_where_none_is_needed(self) -> None:
        policy = rollouts.model()
        assert kl_reference(preset("grpo", Objective).kl, policy, None) is None
        assert kl_reference(kl(reference="iteration_start"), policy, None) is None

    def test_the_initial_copy_is_shared(self) -> None:
        policy = rollouts.model()
        initial = frozen_copy(policy)
        assert kl_reference(kl(), policy, initial) is initial
        alone = kl_reference(kl(), policy, None)
        assert isinstance(alone, PreTrainedModel)
        assert torch.equal(rollouts.weights(alone), rollouts.weights(policy))

    def test_a_renewed_one_is_not_the_initial_copy(self) -> None:
        policy = rollouts.model()
        initial = frozen_copy(policy)
        reference = kl_reference(kl(reference="refreshed", refresh_every_steps=2), policy, initial)
        assert isinstance(reference, RenewedCopy) and reference.policy is not initial
        change(policy)
        reference.begin(2, policy)
        assert torch.equal(rollouts.weights(reference.policy), rollouts.weights(initial))
        reference.begin(3, policy)
        assert torch.equal(rollouts.weights(reference.policy), rollouts.weights(policy))
        assert not torch.equal(rollouts.weights(initial), rollouts.weights(policy))


def test_rows_are_spread_over_the_batch() -> None:
    assert rows_to_measure(16, 4).tolist() == [0, 4, 8, 12]
    assert rows_to_measure(3, 8).tolist() == [0, 1, 2]
    assert rows_to_measure(5, 0).tolist() == []
    assert rows_to_measure(0, 4).tolist() == []


def test_measured_kl_is_that_of_the_distributions() -> None:
    policy, reference = rollouts.model(), frozen_copy(rollouts.model())
    with torch.no_grad():
        for weight in policy.parameters():
            weight.mul_(1.1)
    sequences = rollouts.sequences()
    rows = torch.tensor([2, 9])
    spec = small_spec({"rollout.temperature": 0.7, "train.logits_chunk_tokens": 64})
    measured = measure(SequenceScorer(policy, None, spec, rollouts.PAD), reference, sequences, rows)
    assert measured.mask.any(1).nonzero()[:, 0].tolist() == [2, 9]
    expected_kl, expected_logps = [], []
    for row in rows.tolist():
        prompt, length = list(sequences.prompts[row]), int(sequences.lengths[row])
        tokens = sequences.completions[row, :length]
        ids = torch.tensor([prompt + tokens.tolist()])
        with torch.no_grad():
            p, q = (
                torch.log_softmax(model(ids).logits[0, len(prompt) - 1 : -1].double() / 0.7, -1)
                for model in (policy, reference)
            )
        expected_kl += (p.exp() * (p - q)).sum(-1).tolist()
        expected_logps += q.gather(1, tokens[:, None])[:, 0].tolist()
    assert measured.kl.tolist() == pytest.approx(expected_kl, rel=1e-3, abs=1e-5)
    assert min(expected_kl) > 1e-4
    assert measured.reference_logps.tolist() == pytest.approx(expected_logps, rel=1e-4)


def test_metrics_in_closed_form() -> None:
    mask = torch.tensor([[True, False], [False, True]])
    measured = Measured(mask, torch.tensor([-1.0, -1.0]), torch.tensor([0.5, 0.7]))
    metrics = start_metrics(torch.tensor([[0.0, 9.0], [9.0, -1.0]]), measured)
    assert metrics["kl/exact_start"] == pytest.approx(0.6)
    assert metrics["kl/k1_start"] == pytest.approx(0.5)
    assert metrics["kl/k2_start"] == pytest.approx(0.25)
    assert metrics["kl/k3_start"] == pytest.approx(math.exp(-1) / 2)


def test_the_kl_of_a_completion_is_the_sum_over_its_tokens() -> None:
    """Only measured completions count, here one of two tokens and one of one."""
    mask = torch.tensor([[True, True], [False, False], [True, False]])
    measured = Measured(mask, torch.zeros(3), torch.tensor([0.5, 0.7, 0.3]))
    metrics = start_metrics(torch.zeros(3, 2), measured)
    assert metrics["kl/sequence_start"] == pytest.approx((0.5 + 0.7 + 0.3) / 2)
    assert metrics["kl/exact_start"] == pytest.approx((0.5 + 0.7 + 0.3) / 3)


def test_nothing_measured_is_none() -> None:
    measured = Measured(torch.ones(1, 1, dtype=torch.bool), torch.zeros(1), torch.zeros(1))
    assert start_metrics(torch.zeros(1, 1), None) == dict.fromkeys(start_metrics(torch.zeros(1, 1), measured))
