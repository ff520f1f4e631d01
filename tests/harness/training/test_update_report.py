"""What an update tells besides the metrics of its loss; and a model in half precision."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from harness.training import policy_update, sequences
from harness.training.policy_update import PolicyUpdate
from harness.training.update_report import mismatch_metrics
from tests.harness.training import rollouts
from tests.harness.training.rollouts import SAMPLES
from tests.harness.training.test_policy_update import ZERO_REWARDS, spec, update


@pytest.mark.parametrize(("factor", "share"), [(1.9, 0), (2.1, 0.25), (1 / 1.9, 0), (1 / 2.1, 0.25)])
def test_the_tail_of_the_mismatch_is_a_share_of_tokens(factor: float, share: float) -> None:
    trainer = torch.tensor([math.log(factor), 0.0, 0.1, -0.1]) - 3
    metrics = mismatch_metrics(trainer, torch.full((4,), -3.0))
    assert metrics["mismatch/tail_frac"] == share
    assert mismatch_metrics(torch.zeros(0), torch.zeros(0)).keys() == metrics.keys()


class TestPhases:
    def test_the_backward_passes_are_part_of_the_update(self) -> None:
        _, report = update({"train.epochs": 2})
        assert 0 < report.backward_s < report.update_s
        assert update(rewards=ZERO_REWARDS)[1].backward_s == 0

    def test_no_padding_passes_where_prompts_are_shared(self) -> None:
        _, report = update({"train.micro_batch_tokens": 77})
        assert (report.padding_frac, report.micro_batch_tokens, report.notes) == (0, 77, [])
        assert update(rewards=ZERO_REWARDS)[1].padding_frac is None

    def test_padding_is_counted_where_it_passes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in (sequences, policy_update):
            monkeypatch.setattr(module, "shares_prompts", lambda decoder: False)
        policy = rollouts.model()
        rollout = rollouts.rollout(policy)
        seen: list[Tensor] = []
        embedding = policy.get_decoder().get_input_embeddings()
        trained = PolicyUpdate(policy, spec({"train.micro_batch_tokens": 50}), rollouts.PAD)
        embedding.register_forward_hook(
            lambda module, args, output: seen.append(args[0]) if torch.is_grad_enabled() else None
        )
        report = trained.run(rollout, step=1)
        computed = sum(tokens.numel() for tokens in seen)
        real = sum(
            len(prompt) + int(length) - 1
            for row, (prompt, length) in enumerate(
                zip(rollout.sequences.prompts, rollout.sequences.lengths, strict=True)
            )
            if row // SAMPLES != 1
        )
        assert report.padding_frac == pytest.approx(1 - real / computed)
        assert computed > real


def test_a_model_in_half_precision_makes_a_step() -> None:
    policy = rollouts.model().to(torch.bfloat16)
    rollout = rollouts.rollout(policy)
    before = rollouts.weights(policy).clone()
    report = PolicyUpdate(policy, spec({"train.epochs": 2}), rollouts.PAD).run(rollout, step=1)
    exact = update({"train.epochs": 2})[1]
    assert policy.dtype == torch.bfloat16
    assert not torch.equal(rollouts.weights(policy), before)
    assert report.metrics["grad_norm"] == pytest.approx(float(exact.metrics["grad_norm"] or 0), rel=0.1)
    assert report.metrics["entropy/full"] == pytest.approx(float(exact.metrics["entropy/full"] or 0), rel=0.05)
