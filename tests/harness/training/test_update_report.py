"""What an update tells besides the metrics of its loss, also of a model in half precision, and what it keeps of
tokens."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from harness.training import policy_update, sequences, update_report
from harness.training.optimizer import mini_batches
from harness.training.policy_update import PolicyUpdate
from harness.training.sequences import Scores, Sequences, SequenceScorer
from harness.training.update_report import mismatch_metrics, row_weights
from tests.harness.run.small import small_spec
from tests.harness.training import rollouts
from tests.harness.training.rollouts import GROUPS, REWARDS, SAMPLES
from tests.harness.training.test_policy_update import ZERO_REWARDS, spec, update


@pytest.mark.parametrize(("factor", "share"), [(1.9, 0), (2.1, 0.25), (1 / 1.9, 0), (1 / 2.1, 0.25)])
def test_the_tail_of_the_mismatch_is_a_share_of_tokens(factor: float, share: float) -> None:
    trainer = torch.tensor([math.log(factor), 0.0, 0.1, -0.1]) - 3
    metrics = mismatch_metrics(trainer, torch.full((4,), -3.0))
    assert metrics["mismatch/tail_frac"] == share
    assert mismatch_metrics(torch.zeros(0), torch.zeros(0)).keys() == metrics.keys()


@pytest.mark.slow
@given(st.lists(st.tuples(st.floats(-3, 3, width=16), st.integers(1, 4)), min_size=1, max_size=40))
def test_a_token_that_counts_twice_is_two_tokens(tokens: list[tuple[float, int]]) -> None:
    ratios, counts = torch.tensor([ratio for ratio, _ in tokens]), torch.tensor([count for _, count in tokens])
    weighted = mismatch_metrics(ratios, torch.zeros(len(ratios)), counts.float())
    repeated = ratios.repeat_interleave(counts)
    expected = mismatch_metrics(repeated, torch.zeros(len(repeated)))
    assert weighted == pytest.approx(expected, rel=1e-4, abs=1e-5)
    nearest_rank = repeated.exp().kthvalue(math.ceil(0.99 * len(repeated))).values
    assert weighted["mismatch/ratio_p99"] == pytest.approx(float(nearest_rank))


class TestSampleOfIdleRows:
    def test_stands_for_all_idle_rows(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(update_report, "IDLE_ROWS", 3)
        acting = torch.tensor([True] * 5 + [False] * 9)
        weights = row_weights(acting)
        assert weights.tolist() == [1] * 5 + [3, 0, 0] * 3
        assert row_weights(acting[:7]).tolist() == [1] * 7, "few enough to be scored, all of them"
        assert row_weights(~acting[:5]).sum() == 5

    @pytest.mark.parametrize("records_tokens", [False, True])
    def test_is_what_the_metrics_stand_on(self, monkeypatch: pytest.MonkeyPatch, records_tokens: bool) -> None:
        """Half of the idle rows are scored, or all where tokens are recorded: the metrics are the same."""
        monkeypatch.setattr(update_report, "IDLE_ROWS", SAMPLES // 2)
        scored: list[Tensor] = []
        original = SequenceScorer.fill

        def fill(scorer: SequenceScorer, scores: Scores, sequences: Sequences, rows: Tensor) -> None:
            scored.append(rows)
            original(scorer, scores, sequences, rows)

        monkeypatch.setattr(SequenceScorer, "fill", fill)
        policy = rollouts.model()
        rollout = rollouts.rollout(policy)
        limit = 20_000 if records_tokens else 0
        report = PolicyUpdate(policy, spec({"train.token_records_max_tokens": limit}), rollouts.PAD).run(
            rollout, step=1
        )
        assert [len(rows) for rows in scored] == [SAMPLES if records_tokens else SAMPLES // 2]
        assert report.metrics["scored_rows"] == (GROUPS - 1) * SAMPLES + SAMPLES // 2
        idle = SAMPLES + torch.arange(SAMPLES // 2) * SAMPLES // (SAMPLES // 2)
        weights = torch.ones(N)
        weights[SAMPLES : 2 * SAMPLES] = 0
        weights[idle] = SAMPLES / len(idle)
        weights = weights[:, None] * rollout.sequences.mask
        surprisal = -(rollout.sampler_logps * weights).sum() / weights.sum()
        assert report.metrics["entropy/sampled"] == pytest.approx(float(surprisal), rel=1e-4)


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


N = GROUPS * SAMPLES


def recorded(settings: dict[str, Any]) -> tuple[list[dict[str, Any]], Any, Any]:
    """The records of one update of the random policy, its metrics and its rollout."""
    policy = rollouts.model()
    rollout = rollouts.rollout(policy)
    spec = small_spec({"train.learning_rate": 3e-3, "train.max_grad_norm": 1e9, **settings})
    report = PolicyUpdate(policy, spec, rollouts.PAD).run(rollout, step=1)
    assert report.tokens is not None
    return report.tokens, report.metrics, rollout


@pytest.mark.parametrize("budget", [24, 512])
def test_what_was_known_before_the_update(budget: int) -> None:
    """However the rows were split: the policy's own log-probs, and advantages by hand, for each of its tokens."""
    tokens, _, rollout = recorded({"train.micro_batch_tokens": budget})
    lengths = rollout.sequences.lengths.tolist()
    grouped = torch.tensor(REWARDS).view(GROUPS, SAMPLES)
    expected = ((grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-6)).flatten().tolist()
    for row, record in enumerate(tokens):
        assert {len(record[name]) for name in ("token/logp", "token/entropy", "token/advantage")} == {lengths[row]}
        np.testing.assert_allclose(record["token/logp"], rollout.sampler_logps[row, : lengths[row]], atol=1e-5)
        np.testing.assert_allclose(record["token/advantage"], expected[row], rtol=1e-5)
        assert (record["token/entropy"] > 0).all()


@pytest.mark.parametrize(("updates", "epochs"), [(1, 1), (2, 1), (2, 2)])
def test_each_optimiser_step_of_a_row(updates: int, epochs: int) -> None:
    """The number of the step; ratios that are 1 at the first and elsewhere as the metrics say; nothing of rows that
    cannot act."""
    tokens, metrics, rollout = recorded({"train.updates_per_rollout": updates, "train.epochs": epochs})
    spec = small_spec({"train.updates_per_rollout": updates, "train.epochs": epochs})
    for epoch in range(epochs):
        for index, rows in enumerate(mini_batches(rollout.groups, spec, step=1, epoch=epoch)):
            assert {tokens[row]["token/update"][epoch] for row in rows.tolist()} == {epoch * updates + index}
    seen: list[float] = []
    for row, record in enumerate(tokens):
        acted = row // SAMPLES != 1
        assert [values is not None for values in record["token/log_ratio"]] == [acted] * epochs
        for number, values in zip(record["token/update"], record["token/log_ratio"], strict=True):
            if values is not None:
                assert len(values) == rollout.sequences.lengths[row]
                assert (np.abs(values).max() > 1e-4) == (number > 0)
                seen += np.exp(values).tolist()
    assert np.mean(seen) == pytest.approx(metrics["ratio/mean"], rel=1e-5)
    assert np.max(seen) == pytest.approx(metrics["ratio/max"], rel=1e-5)


def test_what_the_rule_clipped() -> None:
    """The share is that of the metrics, and each clipped token is beyond the bound to which its advantage pulls."""
    clip = {"objective.rule.clip_low": 0.02, "objective.rule.clip_high": 0.05}
    tokens, metrics, _ = recorded({"train.epochs": 2, "train.updates_per_rollout": 2} | clip)
    seen = clipped = 0
    for record in tokens:
        passes = zip(record["token/log_ratio"], record["token/clipped"], record["token/masked"], strict=True)
        for log_ratio, bounded, masked in passes:
            if log_ratio is None:
                continue
            up = record["token/advantage"] > 0
            np.testing.assert_array_equal(bounded, np.where(up, np.exp(log_ratio) > 1.05, np.exp(log_ratio) < 0.98))
            assert not masked.any()
            seen += len(bounded)
            clipped += int(bounded.sum())
    assert clipped > 0
    total = metrics["clip/low_frac_sign_aware"] + metrics["clip/high_frac_sign_aware"]
    assert clipped / seen == pytest.approx(total, rel=1e-5)


def test_what_never_entered_the_loss_is_masked() -> None:
    policy = rollouts.model()
    rollout = rollouts.rollout(policy)
    rollout.loss_mask[0] = False
    rollout.loss_mask[1, 0] = False
    # Every row acts where a KL is in the loss.
    spec = small_spec({"objective.kl.where": "loss", "objective.kl.reference": "iteration_start"})
    tokens: Any = PolicyUpdate(policy, spec, rollouts.PAD).run(rollout, step=1).tokens
    assert tokens[0]["token/masked"] == [None]
    masked = tokens[1]["token/masked"][0]
    assert masked[0] and not masked[1:].any()


@pytest.mark.parametrize("limit", [0, -1])
def test_off_and_off_beyond_a_size(limit: int) -> None:
    """-1: one token fewer than the batch has."""
    policy = rollouts.model()
    rollout = rollouts.rollout(policy)
    size = int(rollout.sequences.lengths.sum())

    def tokens(most: int) -> object:
        spec = small_spec({"train.token_records_max_tokens": most})
        return PolicyUpdate(rollouts.model(), spec, rollouts.PAD).run(rollout, step=1).tokens

    assert tokens(size) is not None
    assert tokens(0 if limit == 0 else size - 1) is None


@pytest.mark.slow
def test_training_does_not_notice() -> None:
    weights = []
    for most in (0, 20_000):
        policy = rollouts.model()
        spec = small_spec({"train.token_records_max_tokens": most, "train.epochs": 2})
        PolicyUpdate(policy, spec, rollouts.PAD).run(rollouts.rollout(policy), step=1)
        weights.append(rollouts.weights(policy))
    assert torch.equal(*weights)
