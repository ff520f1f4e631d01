from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid
from transformers import PreTrainedModel

from algorithms import PreferenceObjective
from harness.config.run_spec import RunSpec
from harness.training.optimizer import DivergedError, mini_batches
from harness.training.preference_update import PairBatch, PreferenceUpdate
from harness.training.reference import exact_kl, frozen_copy
from harness.training.sequences import score_completions
from harness.training.update_report import StepReport
from tests.harness.run.small import small_spec
from tests.harness.training import rollouts
from tests.harness.training.pair_batches import PAIRS, moved_model, pair_batch, part, token_logps
from tests.harness.training.test_pairs import naive_zero_point
from tests.harness.training.test_policy_update import assert_close_gradient


def spec(settings: dict[str, Any] | None = None) -> RunSpec:
    return small_spec({"algorithm": "dpo", "train.max_grad_norm": 1e9, "train.learning_rate": 1e-3} | (settings or {}))


def updated(
    settings: dict[str, Any] | None = None, pairs: PairBatch | None = None
) -> tuple[PreTrainedModel, StepReport]:
    """One batch on a policy that has left the starting weights, which are the reference."""
    policy, start = moved_model(), frozen_copy(rollouts.model())
    update = PreferenceUpdate(policy, spec(settings), rollouts.PAD, start, start)
    return policy, update.run(pairs or pair_batch(), step=1)


@dataclasses.dataclass(frozen=True)
class Naive:
    """Token log-probs of every completion: of the policy with gradient, of the reference without."""

    chosen: list[Tensor]
    rejected: list[Tensor]
    ref_chosen: list[Tensor]
    ref_rejected: list[Tensor]
    zero_point: float

    @classmethod
    def of(cls, policy: PreTrainedModel, start: PreTrainedModel, pairs: PairBatch, temperature: float) -> Naive:
        chosen, rejected = (token_logps(policy, side, temperature) for side in (pairs.chosen, pairs.rejected))
        with torch.no_grad():
            ref_chosen, ref_rejected = (
                token_logps(start, side, temperature) for side in (pairs.chosen, pairs.rejected)
            )
        z = naive_zero_point(policy, start, pairs, temperature, torch.sum)
        return cls(chosen, rejected, ref_chosen, ref_rejected, z)

    def log_ratios(self) -> tuple[Tensor, Tensor]:
        chosen = torch.stack([a.sum() - b.sum() for a, b in zip(self.chosen, self.ref_chosen, strict=True)])
        rejected = torch.stack([a.sum() - b.sum() for a, b in zip(self.rejected, self.ref_rejected, strict=True)])
        return chosen, rejected

    def means(self) -> tuple[Tensor, Tensor]:
        return torch.stack([a.mean() for a in self.chosen]), torch.stack([a.mean() for a in self.rejected])

    def nll(self) -> Tensor:
        return -torch.cat(self.chosen).mean()


def naive_dpo(made: Naive, knobs: PreferenceObjective) -> Tensor:
    chosen, rejected = made.log_ratios()
    return -logsigmoid(knobs.beta * (chosen - rejected)).mean()


def naive_simpo(made: Naive, knobs: PreferenceObjective) -> Tensor:
    chosen, rejected = made.means()
    return -logsigmoid(knobs.beta * (chosen - rejected) - knobs.margin).mean()


def naive_orpo(made: Naive, knobs: PreferenceObjective) -> Tensor:
    odds = [mean - torch.log1p(-mean.exp()) for mean in made.means()]
    return made.nll() - knobs.beta * logsigmoid(odds[0] - odds[1]).mean()


def naive_kto(made: Naive, knobs: PreferenceObjective) -> Tensor:
    chosen, rejected = made.log_ratios()
    z = max(0.0, made.zero_point)
    sides = torch.cat([torch.sigmoid(knobs.beta * (chosen - z)), torch.sigmoid(knobs.beta * (z - rejected))])
    return 1 - sides.mean()


def naive_rpo(made: Naive, knobs: PreferenceObjective) -> Tensor:
    return naive_dpo(made, knobs) + made.nll()


def naive_aot(made: Naive, knobs: PreferenceObjective) -> Tensor:
    def margins(chosen: list[Tensor], rejected: list[Tensor]) -> Tensor:
        return torch.stack([a.sum() - b.sum() for a, b in zip(chosen, rejected, strict=True)]).sort().values

    quantiles = margins(made.chosen, made.rejected) - margins(made.ref_chosen, made.ref_rejected)
    return -logsigmoid(knobs.beta * quantiles).mean()


NAIVE: dict[str, tuple[dict[str, Any], Callable[[Naive, PreferenceObjective], Tensor]]] = {
    "dpo": ({"algorithm": "dpo"}, naive_dpo),
    "simpo": ({"algorithm": "simpo"}, naive_simpo),
    "orpo": ({"algorithm": "orpo"}, naive_orpo),
    "kto": ({"algorithm": "kto"}, naive_kto),
    "rpo": ({"algorithm": "rpo"}, naive_rpo),
    "aot": ({"algorithm": "dpo", "objective.matching": "sorted"}, naive_aot),
}


@pytest.mark.parametrize("name", NAIVE)
def test_the_gradient_is_that_of_a_naive_implementation(name: str) -> None:
    """Pair by pair without padding or micro-batches, the formula written out."""
    settings, loss_of = NAIVE[name]
    settings = settings | {"rollout.temperature": 0.7, "train.micro_batch_tokens": 60}
    policy, report = updated(settings)
    other, pairs = moved_model(), pair_batch()
    loss = loss_of(Naive.of(other, rollouts.model(), pairs, 0.7), spec(settings).preference)
    loss.backward()  # type: ignore[no-untyped-call]
    assert_close_gradient(rollouts.gradient(policy), rollouts.gradient(other))
    assert report.metrics["loss"] == pytest.approx(loss.item(), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("updates", "epochs"), [(1, 1), (2, 1), (4, 2)])
def test_optimiser_steps_are_those_of_a_naive_implementation(updates: int, epochs: int) -> None:
    """Both means, over pairs and over chosen tokens, are of the step's own."""
    settings = {"algorithm": "rpo", "train.updates_per_rollout": updates, "train.epochs": epochs}
    policy, report = updated(settings)
    other, start, pairs = moved_model(), rollouts.model(), pair_batch()
    optimizer = torch.optim.AdamW(other.parameters(), lr=1e-3, weight_decay=0.0)
    norms = []
    for epoch in range(epochs):
        for rows in mini_batches(pairs.groups, spec(settings), 1, epoch):
            optimizer.zero_grad()
            made = Naive.of(other, start, part(pairs, rows), 1.0)
            naive_rpo(made, spec(settings).preference).backward()  # type: ignore[no-untyped-call]
            norms.append(float(rollouts.gradient(other).norm()))
            optimizer.step()
    assert len(norms) == report.metrics["optimizer_steps"] == updates * epochs
    assert_close_gradient(rollouts.gradient(policy), rollouts.gradient(other), tolerance=1e-3)
    assert report.metrics["grad_norm"] == pytest.approx(sum(norms) / len(norms), rel=1e-4)
    moved = (rollouts.weights(other) - rollouts.weights(moved_model())).norm()
    assert (rollouts.weights(policy) - rollouts.weights(other)).norm() < 0.02 * moved


@pytest.mark.slow
@pytest.mark.parametrize("updates", [1, 2])
@pytest.mark.parametrize("name", NAIVE)
def test_micro_batches_do_not_change_the_update(name: str, updates: int) -> None:
    settings = NAIVE[name][0] | {"train.updates_per_rollout": updates}
    whole, whole_report = updated({**settings, "train.micro_batch_tokens": 100_000})
    split, split_report = updated({**settings, "train.micro_batch_tokens": 30})
    assert_close_gradient(rollouts.gradient(split), rollouts.gradient(whole), tolerance=1e-3)
    assert split_report.metrics.keys() == whole_report.metrics.keys()
    for metric, value in whole_report.metrics.items():
        expected = None if value is None else pytest.approx(value, rel=1e-3, abs=2e-5)
        assert split_report.metrics[metric] == expected, metric


class TestReference:
    def brought(self, temperature: float = 1.0) -> PairBatch:
        """With the log-probs of the starting weights, and something else in their padding."""
        pairs = pair_batch()
        logps = torch.full(pairs.sequences.completions.shape, math.nan)
        for row, tokens in enumerate(token_logps(rollouts.model(), pairs.sequences, temperature)):
            logps[row, : len(tokens)] = tokens.detach()
        return dataclasses.replace(pairs, ref_logps=logps)

    def test_log_probs_that_the_batch_brings_are_those_that_would_be_computed(self) -> None:
        policy = moved_model()
        report = PreferenceUpdate(policy, spec(), rollouts.PAD).run(self.brought(), step=1)
        computed, expected = updated()
        assert_close_gradient(rollouts.gradient(policy), rollouts.gradient(computed))
        assert report.metrics["rewards/chosen"] == pytest.approx(expected.metrics["rewards/chosen"], rel=1e-4)

    def test_log_probs_that_the_batch_brings_are_used_instead(self) -> None:
        """The starting weights' ones, although the policy at hand as the reference is another."""
        policy, reference = moved_model(), frozen_copy(moved_model())
        report = PreferenceUpdate(policy, spec(), rollouts.PAD, None, reference).run(self.brought(), step=1)
        assert abs(float(report.metrics["rewards/chosen"] or 0)) > 1e-3

    def test_is_needed_where_the_objective_has_one(self) -> None:
        with pytest.raises(ValueError, match="ref_chosen_logp is missing"):
            PreferenceUpdate(rollouts.model(), spec(), rollouts.PAD).run(pair_batch(), step=1)

    def test_is_not_run_where_the_objective_has_none(self) -> None:
        def refuse(*_: object) -> None:
            raise AssertionError("a forward pass of the reference")

        reference = frozen_copy(rollouts.model())
        reference.get_decoder().register_forward_pre_hook(refuse)
        simpo = PreferenceUpdate(moved_model(), spec({"algorithm": "simpo"}), rollouts.PAD, None, reference)
        assert simpo.run(pair_batch(), step=1).metrics["optimizer_steps"] == 1
        with pytest.raises(AssertionError, match="forward pass of the reference"):
            PreferenceUpdate(moved_model(), spec(), rollouts.PAD, None, reference).run(pair_batch(), step=1)

    def test_a_policy_that_is_its_reference_is_indifferent(self) -> None:
        start = rollouts.model()
        update = PreferenceUpdate(start, spec(), rollouts.PAD, None, frozen_copy(start))
        metrics = update.run(pair_batch(), step=1).metrics
        assert metrics["loss"] == pytest.approx(math.log(2), abs=1e-5)
        assert metrics["rewards/margin"] == pytest.approx(0, abs=1e-5)


def test_the_zero_point_is_that_of_the_weights_at_each_optimiser_step() -> None:
    """The metric is a mean over them."""
    settings = {"algorithm": "kto", "train.learning_rate": 1e-4}
    once, _ = updated(settings)
    _, report = updated({**settings, "train.epochs": 2})
    first, second = (
        naive_zero_point(policy, rollouts.model(), pair_batch(), 1.0, torch.sum) for policy in (moved_model(), once)
    )
    assert min(first, second) > 0.1 and abs(first - second) > 0.02
    assert report.metrics["kl/zero_point"] == pytest.approx((first + second) / 2, rel=1e-4)


def test_the_zero_point_of_a_step_is_of_its_own_pairs() -> None:
    """Half of the prompts a step: the step's last prompt is followed by its first."""
    settings = {"algorithm": "kto", "train.updates_per_rollout": 2, "train.learning_rate": 1e-12}
    pairs = pair_batch()
    steps = mini_batches(pairs.groups, spec(settings), 1, 0)
    expected = []
    for rows in steps:
        z = naive_zero_point(moved_model(), rollouts.model(), part(pairs, rows), 1.0, torch.sum)
        expected.append(max(0.0, z))
    _, report = updated(settings)
    assert report.metrics["kl/zero_point"] == pytest.approx(sum(expected) / len(expected), rel=1e-4)


class TestWithoutPairs:
    @pytest.mark.parametrize("algorithm", ["dpo", "kto", "rpo"])
    def test_no_optimiser_step_is_taken(self, algorithm: str) -> None:
        settings = {"algorithm": algorithm, "train.weight_decay": 0.5}
        policy, start = moved_model(), frozen_copy(rollouts.model())
        update = PreferenceUpdate(policy, spec(settings), rollouts.PAD, start, start)
        metrics = update.run(part(pair_batch(), torch.tensor([], dtype=torch.long)), step=1).metrics
        assert torch.equal(rollouts.weights(policy), rollouts.weights(moved_model()))
        assert update.state_dict()["optimizer"]["state"] == {}
        known = {"optimizer_steps": 0, "tokens_in_loss": 0, "learning_rate": 1e-3}
        assert metrics == dict.fromkeys(metrics) | known
        assert metrics.keys() == update.run(pair_batch(), step=2).metrics.keys()


def test_a_resumed_update_goes_on_bit_for_bit() -> None:
    settings = {"train.weight_decay": 0.1, "train.updates_per_rollout": 2}
    unbroken, start = moved_model(), frozen_copy(rollouts.model())
    trained = PreferenceUpdate(unbroken, spec(settings), rollouts.PAD, start, start)
    trained.run(pair_batch(), step=1)
    resumed = rollouts.model()
    resumed.load_state_dict(unbroken.state_dict())
    continued = PreferenceUpdate(resumed, spec(settings), rollouts.PAD, start, start)
    continued.load_state_dict(copy.deepcopy(trained.state_dict()))
    fresh = rollouts.twin(unbroken)
    second = [update.run(pair_batch(seed=1), step=2).metrics for update in (trained, continued)]
    assert second[0] == second[1]
    assert torch.equal(rollouts.weights(resumed), rollouts.weights(unbroken))
    PreferenceUpdate(fresh, spec(settings), rollouts.PAD, start, start).run(pair_batch(seed=1), step=2)
    assert not torch.equal(rollouts.weights(fresh), rollouts.weights(unbroken))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["dpo", "simpo", "kto", "orpo", "ipo"])
def test_the_margin_grows(algorithm: str) -> None:
    policy = rollouts.model()
    start = frozen_copy(policy)
    settings = {"algorithm": algorithm, "train.learning_rate": 3e-4}
    update = PreferenceUpdate(policy, spec(settings), rollouts.PAD, None, start)
    metrics = [update.run(pair_batch(), step).metrics for step in range(1, 5)]
    margins = [float(row["rewards/margin"] or 0) for row in metrics]
    assert margins == sorted(margins)
    assert margins[-1] > margins[0] + 1e-3


class TestDivergence:
    def test_a_policy_without_probabilities(self) -> None:
        policy, start = rollouts.model(), frozen_copy(rollouts.model())
        with torch.no_grad():
            policy.get_input_embeddings().weight.fill_(math.nan)
        with pytest.raises(DivergedError):
            PreferenceUpdate(policy, spec(), rollouts.PAD, None, start).run(pair_batch(), step=1)

    def test_an_infinite_gradient_leaves_the_weights(self) -> None:
        policy, start = rollouts.model(), frozen_copy(rollouts.model())
        next(policy.parameters()).register_hook(lambda gradient: gradient * math.inf)
        with pytest.raises(DivergedError, match="norm"):
            PreferenceUpdate(policy, spec(), rollouts.PAD, None, start).run(pair_batch(), step=1)
        assert torch.equal(rollouts.weights(policy), rollouts.weights(rollouts.model()))

    def test_an_infinite_loss_leaves_the_weights(self) -> None:
        """Its gradient can be finite: a rejected completion that the reference holds to be impossible."""
        pairs = pair_batch()
        logps = torch.zeros(pairs.sequences.completions.shape)
        rejected = pairs.sequences.mask & (torch.arange(len(logps)) >= len(pairs))[:, None]
        impossible = dataclasses.replace(pairs, ref_logps=logps.masked_fill(rejected, -math.inf))
        policy = rollouts.model()
        with pytest.raises(DivergedError, match="loss is inf"):
            PreferenceUpdate(policy, spec(), rollouts.PAD).run(impossible, step=1)
        assert torch.equal(rollouts.weights(policy), rollouts.weights(rollouts.model()))


class TestMetrics:
    @pytest.mark.slow
    @pytest.mark.parametrize(("updates", "epochs"), [(1, 1), (2, 1), (1, 2)])
    def test_entropy_is_that_of_the_policy_before_the_first_optimiser_step(self, updates: int, epochs: int) -> None:
        settings = {"rollout.temperature": 0.7, "train.updates_per_rollout": updates, "train.epochs": epochs}
        metrics = updated(settings | {"train.learning_rate": 1e-2})[1].metrics
        policy, sequences = moved_model(), pair_batch().sequences
        with torch.no_grad():
            scored = [
                score_completions(policy, sequences, torch.tensor([row]), 0.7, rollouts.PAD) for row in range(2 * PAIRS)
            ]
        logps, entropy = (torch.cat([of_row[index][0] for of_row in scored]) for index in (0, 1))
        assert len(entropy) == metrics["tokens_in_loss"] == int(sequences.lengths.sum())
        assert metrics["entropy/full"] == pytest.approx(float(entropy.mean()), rel=1e-4)
        assert metrics["entropy/sampled"] == pytest.approx(float(-logps.mean()), rel=1e-4)

    def test_losses_are_means_over_optimiser_steps(self) -> None:
        still = {"algorithm": "rpo", "train.learning_rate": 1e-12}
        once, thrice = (updated(still | {"train.epochs": epochs})[1].metrics for epochs in (1, 3))
        for name in ("loss", "loss/preference", "loss/nll"):
            assert thrice[name] == pytest.approx(once[name], rel=1e-5)

    def test_the_distance_to_the_start_is_measured_on_both_sides(self) -> None:
        """On 2 of 16 rows: the first pair's chosen completion and its rejected one."""
        metrics = updated({"train.reference_rows": 2})[1].metrics
        sequences, rows = pair_batch().sequences, torch.tensor([0, PAIRS])
        kl = exact_kl(moved_model(), rollouts.model(), sequences, rows, 1.0, rollouts.PAD)
        assert metrics["kl/exact_start"] == pytest.approx(float(kl.sum() / sequences.lengths[rows].sum()), rel=1e-4)
        assert metrics["kl/sequence_start"] == pytest.approx(float(kl.sum(1).mean()), rel=1e-4)
        logps = updated({"train.reference_rows": 2, "train.updates_per_rollout": 2})[1].metrics["kl/k1_start"]
        assert metrics["kl/k1_start"] == pytest.approx(logps, rel=1e-4)

    @pytest.mark.parametrize("with_start", [True, False])
    def test_the_distance_is_not_measured_where_it_is_not_asked_for(self, with_start: bool) -> None:
        policy, start = moved_model(), frozen_copy(rollouts.model())
        settings = {"train.reference_rows": 0} if with_start else {}
        update = PreferenceUpdate(policy, spec(settings), rollouts.PAD, start if with_start else None, start)
        assert not [name for name in update.run(pair_batch(), step=1).metrics if name.endswith("_start")]

    def test_clipping(self) -> None:
        norm = float(updated()[1].metrics["grad_norm"] or 0)
        policy, report = updated({"train.max_grad_norm": norm / 4})
        assert float(rollouts.gradient(policy).norm()) == pytest.approx(norm / 4, rel=1e-4)
        assert report.metrics["grad_norm"] == pytest.approx(norm, rel=1e-5)
        assert (report.metrics["grad_clipped_frac"], updated()[1].metrics["grad_clipped_frac"]) == (1, 0)

    def test_the_schedule_is_applied_and_reported(self) -> None:
        policy, report = updated({"train.steps": 4, "train.warmup_steps": 2})
        assert report.metrics["learning_rate"] == 5e-4
        moved = (rollouts.weights(policy) - rollouts.weights(moved_model())).abs().max()
        assert float(moved) == pytest.approx(5e-4, rel=1e-2)  # Adam's first step is the learning rate


@pytest.mark.parametrize(("reset", "steps"), [("never", 4), ("per_rollout", 2)])
def test_the_optimisers_state_lives_as_long_as_asked(reset: str, steps: int) -> None:
    policy, start = moved_model(), frozen_copy(rollouts.model())
    settings = {"train.optimizer_reset": reset, "train.updates_per_rollout": 2}
    update = PreferenceUpdate(policy, spec(settings), rollouts.PAD, None, start)
    for step in (1, 2):
        update.run(pair_batch(), step)
    assert {int(state["step"]) for state in update.state_dict()["optimizer"]["state"].values()} == {steps}
