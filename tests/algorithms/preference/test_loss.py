from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from algorithms import PreferenceObjective, presets, with_overrides
from algorithms.preference import (
    combine_preference_metrics,
    couples_pairs,
    preference_loss,
    preference_metric_names,
)
from tests.algorithms.preference.cases import DPO, Pairs, points, preset, random_pairs

Z = torch.tensor(0.4, dtype=torch.float64)


def assert_adds_up(objective: PreferenceObjective, pairs: Pairs, parts: list[Tensor]) -> None:
    whole = pairs.loss(objective, kl_reference=Z)
    step: dict[str, Any] = {
        "kl_reference": Z,
        "step_pairs": len(pairs.chosen_logp),
        "step_chosen_tokens": int(pairs.chosen_mask.sum()),
    }
    shares = [pairs.take(part).loss(objective, **step) for part in parts]
    torch.testing.assert_close(sum(share.value for share in shares), whole.value)
    gradients = [pairs.gradients(share) for share in shares]
    for side, expected in enumerate(pairs.gradients(whole)):
        torch.testing.assert_close(torch.stack([gradient[side] for gradient in gradients]).sum(0), expected)
    assert combine_preference_metrics(shares) == pytest.approx(whole.metrics)


@st.composite
def splits(draw: st.DrawFn, rows: int) -> list[Tensor]:
    """The numbers of some rows in any order, in any number of parts."""
    order = draw(st.permutations(range(rows)))
    cuts = sorted(draw(st.sets(st.integers(1, rows - 1))))
    return [torch.tensor(order[i:j]) for i, j in zip([0, *cuts], [*cuts, rows], strict=True)]


@given(name=st.sampled_from(presets("preference")), seed=st.integers(0, 10_000), parts=splits(6))
@settings(max_examples=60, deadline=None)
def test_any_split_into_micro_batches_adds_up(name: str, seed: int, parts: list[Tensor]) -> None:
    assert_adds_up(preset(name), random_pairs(seed), parts)


@given(objective=points(), seed=st.integers(0, 10_000), parts=splits(6))
@settings(max_examples=40, deadline=None)
def test_any_split_adds_up_at_any_point_that_does_not_couple_pairs(
    objective: PreferenceObjective, seed: int, parts: list[Tensor]
) -> None:
    if not couples_pairs(objective):
        assert_adds_up(objective, random_pairs(seed), parts)


@pytest.mark.parametrize("matching", ["sorted", "sorted_unpaired"])
def test_what_couples_pairs_cannot_be_split(matching: str) -> None:
    objective, pairs = preset("dpo", matching=matching), random_pairs(0)
    assert couples_pairs(objective)
    assert pairs.loss(objective, step_pairs=6).value.equal(pairs.loss(objective).value)
    with pytest.raises(
        ValueError, match=f"matching={matching} sorts the pairs of the whole optimiser step.* 2 of the 6 pairs"
    ):
        pairs.take(torch.tensor([0, 1])).loss(objective, step_pairs=6)


def test_only_matching_couples_pairs() -> None:
    assert not any(couples_pairs(preset(name)) for name in presets("preference"))


def test_what_the_mask_hides_does_not_count() -> None:
    for name in presets("preference"):
        pairs = random_pairs(7)
        hidden = replace(
            pairs,
            **{
                f"{prefix}{side}_logp": torch.where(getattr(pairs, f"{side}_mask"), logp.detach(), junk)
                for prefix, junk in (("", torch.nan), ("ref_", torch.inf))
                for side in ("chosen", "rejected")
                for logp in [getattr(pairs, f"{prefix}{side}_logp")]
            },
        ).as_leaves()
        loss, expected = (given.loss(preset(name), kl_reference=Z) for given in (hidden, pairs))
        assert torch.equal(loss.value, expected.value)
        assert loss.metrics == expected.metrics
        for gradient, plain in zip(hidden.gradients(loss), pairs.gradients(expected), strict=True):
            assert torch.equal(gradient, plain)


def test_half_precision_counts_as_single() -> None:
    for name in presets("preference"):
        pairs = random_pairs(8)
        half = Pairs(
            *(tensor if tensor.dtype == torch.bool else tensor.detach().bfloat16() for tensor in vars(pairs).values())
        ).as_leaves()
        single = Pairs(
            *(tensor if tensor.dtype == torch.bool else tensor.detach().float() for tensor in vars(half).values())
        )
        loss = half.loss(preset(name), kl_reference=Z.bfloat16())
        assert loss.value.dtype == torch.float32
        torch.testing.assert_close(loss.value, single.loss(preset(name), kl_reference=Z.bfloat16()).value)


def test_no_pairs_have_no_loss_and_no_metrics() -> None:
    for name in presets("preference"):
        pairs = random_pairs(0)
        nothing = pairs.take(torch.tensor([], dtype=torch.long))
        loss = nothing.loss(preset(name))
        assert loss.value.item() == 0 and loss.metrics == {}
        assert not torch.cat([gradient.flatten() for gradient in pairs.gradients(loss)]).any()
        with_them = combine_preference_metrics([loss, pairs.loss(preset(name), kl_reference=Z)])
        assert with_them == pairs.loss(preset(name), kl_reference=Z).metrics


def test_masks_may_be_numbers() -> None:
    pairs = random_pairs(1)
    numbers = replace(pairs, chosen_mask=pairs.chosen_mask.float(), rejected_mask=pairs.rejected_mask.long())
    assert torch.equal(numbers.loss(preset("rpo")).value, pairs.loss(preset("rpo")).value)


def test_the_reference_and_z_have_no_gradient() -> None:
    pairs = random_pairs(2)
    reference = pairs.ref_chosen_logp.clone().requires_grad_()
    z = Z.clone().requires_grad_()
    loss = replace(pairs, ref_chosen_logp=reference).loss(preset("kto"), kl_reference=z)
    assert not any(
        gradient is not None for gradient in torch.autograd.grad(loss.value, (reference, z), allow_unused=True)
    )


def test_the_estimate_of_z_has_no_gradient_and_is_at_least_zero() -> None:
    pairs = random_pairs(4)
    kto = preset("kto")
    chosen, rejected = pairs.log_ratios()
    mean = torch.cat([chosen, rejected]).mean()
    for sides in (pairs, replace(pairs, ref_chosen_logp=pairs.ref_chosen_logp - 5), _above(pairs)):
        ratios = torch.cat(sides.log_ratios())
        given = sides.loss(kto, kl_reference=ratios.mean().clamp(min=0))
        estimated = sides.loss(kto)
        torch.testing.assert_close(estimated.value, given.value)
        for gradient, expected in zip(sides.gradients(estimated), sides.gradients(given), strict=True):
            torch.testing.assert_close(gradient, expected)
    assert pairs.loss(kto).metrics["kl/zero_point_in_batch"] == pytest.approx(max(0.0, mean.item()))
    assert pairs.loss(kto, kl_reference=torch.tensor(-3.0)).metrics["kl/zero_point"] == 0
    assert pairs.loss(kto, kl_reference=torch.tensor([[0.25]])).metrics["kl/zero_point"] == 0.25


def _above(pairs: Pairs) -> Pairs:
    """Log-ratios whose mean is negative."""
    return replace(pairs, ref_chosen_logp=pairs.ref_chosen_logp + 5, ref_rejected_logp=pairs.ref_rejected_logp + 5)


def test_what_the_objective_does_not_need_is_not_looked_at() -> None:
    pairs = random_pairs(0)
    simpo = preset("simpo")
    with_reference = pairs.loss(simpo, kl_reference=Z)
    without = preference_loss(simpo, pairs.chosen_logp, pairs.rejected_logp, pairs.chosen_mask, pairs.rejected_mask)
    assert torch.equal(with_reference.value, without.value)
    assert with_reference.metrics == without.metrics


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"chosen_logp": torch.zeros(6)}, r"chosen_logp has shape \[6\]; it must be \[P, T\]"),
        ({"rejected_mask": torch.ones(6, 4)}, r"rejected_mask has shape \[6, 4\]; it must be that of rejected_logp"),
        ({"chosen_mask": torch.full((6, 7), 0.5)}, "chosen_mask has values other than 0 and 1"),
        (
            {"chosen_logp": torch.zeros(5, 7), "chosen_mask": torch.ones(5, 7)},
            "chosen_logp has 5 rows and rejected_logp",
        ),
        ({"ref_chosen_logp": None}, "ref_chosen_logp is missing: objective.reference=initial subtracts"),
        ({"ref_rejected_logp": None}, "ref_rejected_logp is missing"),
        (
            {"ref_rejected_logp": torch.zeros(6, 7)},
            r"ref_rejected_logp has shape \[6, 7\]; it must be that of rejected",
        ),
        (
            {"rejected_mask": torch.ones(6, 5) * torch.tensor([1, 0, 1, 0, 1, 1])[:, None]},
            "rejected_mask has no tokens in rows 1, 3, but a pair needs two completions; leave these pairs out",
        ),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        replace(random_pairs(0), **change).loss(DPO)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"kl_reference": torch.zeros(2)}, r"kl_reference has shape \[2\]; it must be a single number"),
        (
            {"step_pairs": 5, "step_chosen_tokens": 300},
            "step_pairs=5, but this micro-batch alone has 6; give the count",
        ),
        ({"step_pairs": 6, "step_chosen_tokens": 3}, "step_chosen_tokens=3, but this micro-batch alone has"),
        ({"step_chosen_tokens": 300}, "step_chosen_tokens=300 without step_pairs: give both"),
        ({"step_pairs": 12, "kl_reference": Z}, "step_pairs=12 without step_chosen_tokens: nll_coef=1 averages over"),
        ({"step_pairs": 12, "step_chosen_tokens": 300}, "kl_reference is missing: link=kto .* 6 of the 12 pairs"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        random_pairs(0).loss(with_overrides(preset("kto"), {"nll_coef": 1.0}), **arguments)


def test_without_a_likelihood_term_the_steps_tokens_are_not_needed() -> None:
    pairs = random_pairs(0)
    torch.testing.assert_close(pairs.loss(DPO, step_pairs=12).value, pairs.loss(DPO).value / 2)


def test_rpo_averages_over_tokens_and_not_over_completions() -> None:
    pairs = random_pairs(9)
    likelihood = pairs.loss(preset("rpo")).value - pairs.loss(DPO).value
    torch.testing.assert_close(likelihood, -pairs.chosen_logp[pairs.chosen_mask].mean())


def test_ld_weighs_what_is_beyond_the_shorter_side() -> None:
    ones = torch.ones(1, 4, dtype=torch.float64)
    pairs = Pairs(-ones, -2 * ones[:, :2], ones, ones[:, :2], 0 * ones, 0 * ones[:, :2])
    metrics = pairs.loss(preset("dpo", ld_alpha=0.25, beta=1.0)).metrics
    assert metrics["rewards/chosen"] == pytest.approx(-2.5)
    assert metrics["rewards/rejected"] == pytest.approx(-4.0)
    assert metrics["logps/chosen_sum"] == pytest.approx(-4.0)


def test_wpo_weighs_by_both_mean_probabilities_without_gradient() -> None:
    pairs = random_pairs(6)
    weighted = preset("dpo", weighting="wpo", nll_coef=0.5)
    terms = []
    for row in range(6):
        one = pairs.take(torch.tensor([row]))
        means = [
            logp[mask].mean()
            for logp, mask in zip(
                (one.chosen_logp, one.rejected_logp), (one.chosen_mask, one.rejected_mask), strict=True
            )
        ]
        terms.append(one.loss(DPO).value * (means[0] + means[1]).exp().detach())
    expected = torch.stack(terms).mean() - 0.5 * pairs.chosen_logp[pairs.chosen_mask].mean()
    loss = pairs.loss(weighted)
    torch.testing.assert_close(loss.value, expected)
    (gradient,) = torch.autograd.grad(expected, pairs.chosen_logp)
    torch.testing.assert_close(pairs.gradients(loss)[0], gradient)


# Metrics

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


def test_terms_add_up_to_the_loss() -> None:
    for name in presets("preference"):
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
