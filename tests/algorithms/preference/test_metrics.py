from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings

from algorithms import PreferenceObjective, preset, presets
from algorithms.catalogue import PreferencePreset
from algorithms.preference import combine_preference_metrics, preference_metric_names
from tests.algorithms.preference.cases import DPO, Pairs, points, random_pairs

ALWAYS = {
    "loss/preference",
    *(f"rewards/{name}" for name in ("chosen", "rejected", "margin", "accuracy")),
    *(f"logps/{side}_{how}" for side in ("chosen", "rejected") for how in ("sum", "mean")),
    "len/chosen",
    "len/rejected",
}


def two_pairs() -> Pairs:
    chosen = torch.tensor([[-1.0, -2.0], [-3.0, -9.0]], dtype=torch.float64, requires_grad=True)
    rejected = torch.tensor([[-4.0, -2.0], [-1.0, -1.0]], dtype=torch.float64, requires_grad=True)
    ones = torch.ones(2, 2, dtype=torch.float64)
    mask = torch.tensor([[True, True], [True, False]])
    return Pairs(chosen, rejected, mask, ones.bool(), -ones, -2 * ones)


def test_what_they_are() -> None:
    """Log-ratios: chosen -3 + 2 and -3 + 1, rejected -6 + 4 and -2 + 4."""
    metrics = two_pairs().loss(preset("dpo", nll_coef=0.5)).metrics
    assert metrics == pytest.approx(
        {
            "loss/preference": metrics["loss/preference"],
            "loss/nll": 0.5 * 6 / 3,
            "rewards/chosen": 0.1 * -1.5,
            "rewards/rejected": 0.0,
            "rewards/margin": 0.1 * -1.5,
            "rewards/accuracy": 0.5,
            "logps/chosen_sum": -3.0,
            "logps/chosen_mean": (-1.5 - 3) / 2,
            "logps/rejected_sum": -4.0,
            "logps/rejected_mean": -2.0,
            "len/chosen": 1.5,
            "len/rejected": 2.0,
        }
    )


@pytest.mark.parametrize("name", presets("preference"))
def test_terms_add_up_to_the_loss(name: PreferencePreset) -> None:
    loss = random_pairs(0).loss(preset(name), kl_reference=torch.tensor(0.1))
    terms = [value for key, value in loss.metrics.items() if key.startswith("loss/")]
    assert sum(terms) == pytest.approx(loss.value.item())
    assert len(terms) == 1 + (preset(name).nll_coef > 0)


@given(points())
@settings(max_examples=25, deadline=None)
def test_names_are_known_before_the_first_update(objective: PreferenceObjective) -> None:
    metrics = random_pairs(0).loss(objective, kl_reference=torch.tensor(0.1)).metrics
    assert preference_metric_names(objective) == tuple(metrics)
    extra = ({"loss/nll"} if objective.nll_coef else set()) | ({"kl/zero_point"} if objective.link == "kto" else set())
    assert set(metrics) == ALWAYS | extra


def test_the_estimate_of_z_is_named_as_such() -> None:
    assert "kl/zero_point_in_batch" in random_pairs(0).loss(preset("kto")).metrics
    assert "kl/zero_point" not in random_pairs(0).loss(preset("kto")).metrics


def test_before_the_first_step_accuracy_is_a_half() -> None:
    pairs = random_pairs(0)
    start = Pairs(
        pairs.ref_chosen_logp,
        pairs.ref_rejected_logp,
        pairs.chosen_mask,
        pairs.rejected_mask,
        pairs.ref_chosen_logp,
        pairs.ref_rejected_logp,
    )
    assert start.loss(DPO).metrics["rewards/accuracy"] == 0.5


def test_rewards_are_of_what_the_link_sees() -> None:
    pairs = random_pairs(1)
    chosen, _ = pairs.log_ratios()
    assert pairs.loss(DPO).metrics["rewards/chosen"] == pytest.approx(0.1 * chosen.mean().item())
    per_token = chosen / pairs.chosen_mask.sum(1)
    assert pairs.loss(preset("dpo_norm")).metrics["rewards/chosen"] == pytest.approx(5 * per_token.mean().item())
    mean = pairs.loss(DPO).metrics["logps/chosen_mean"]
    assert pairs.loss(preset("simpo")).metrics["rewards/chosen"] == pytest.approx(2 * mean)


def test_losses_are_means_over_steps_and_the_rest_over_pairs() -> None:
    steps = [random_pairs(seed, rows).loss(preset("rpo")) for seed, rows in ((0, 2), (1, 6))]
    combined = combine_preference_metrics(steps, steps=2)
    for name in ("loss/preference", "loss/nll"):
        assert combined[name] == pytest.approx(sum(step.metrics[name] for step in steps) / 2)
    for name in ALWAYS - {"loss/preference"}:
        assert combined[name] == pytest.approx((2 * steps[0].metrics[name] + 6 * steps[1].metrics[name]) / 8)


def test_a_zero_point_counts_as_often_as_it_was_used() -> None:
    few, many = (
        random_pairs(0, rows).loss(preset("kto"), kl_reference=torch.tensor(z)) for rows, z in ((1, 1.0), (3, 2.0))
    )
    assert combine_preference_metrics([few, many], steps=2)["kl/zero_point"] == pytest.approx(1.75)


def test_nothing_in_a_trace_takes_a_gradient() -> None:
    loss = random_pairs(0).loss(preset("kto", nll_coef=1.0))
    trace = loss.trace
    tensors = [*trace.log_ratios, *trace.logp_sums, *trace.logp_means, *trace.lengths_tokens, *trace.shares.values()]
    assert trace.zero_point is not None
    assert not any(tensor.requires_grad for tensor in [*tensors, trace.zero_point])
    assert loss.metrics is loss.metrics
