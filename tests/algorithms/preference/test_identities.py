"""What must hold between objectives, and between inputs, whatever the numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithms import PreferenceObjective, presets
from tests.algorithms.preference.cases import DPO, Pairs, preset, random_pairs

seeds = st.integers(0, 10_000)
PAIRWISE: tuple[str, ...] = (
    "dpo",
    "ipo_sum",
    "cdpo",
    "robust_dpo",
    "hinge",
    "exo",
)


def shifted(pairs: Pairs, nats: float) -> Pairs:
    """The log-ratios of all completions raised by as much, through the first token of each reference."""
    first = torch.zeros_like(pairs.ref_chosen_logp), torch.zeros_like(pairs.ref_rejected_logp)
    for tensor in first:
        tensor[:, 0] = nats
    return replace(
        pairs,
        ref_chosen_logp=pairs.ref_chosen_logp - first[0],
        ref_rejected_logp=pairs.ref_rejected_logp - first[1],
    )


def assert_same(one: PreferenceObjective, other: PreferenceObjective, pairs: Pairs) -> None:
    """In value and gradient."""
    a, b = pairs.loss(one, kl_reference=torch.tensor(0.3)), pairs.loss(other, kl_reference=torch.tensor(0.3))
    torch.testing.assert_close(a.value, b.value)
    for gradient, expected in zip(pairs.gradients(a), pairs.gradients(b), strict=True):
        torch.testing.assert_close(gradient, expected)


@given(seeds)
@settings(max_examples=8, deadline=None)
def test_what_is_off_is_dpo(seed: int) -> None:
    pairs = random_pairs(seed)
    for other in (
        preset("cdpo", label_smoothing=0.0),
        preset("robust_dpo", label_smoothing=0.0),
        preset("rpo", nll_coef=0.0),
        preset("dpop", positive_penalty=0.0, beta=0.1),
        preset("dpo", reference="round_start"),
    ):
        assert_same(DPO, other, pairs)


@given(seeds)
@settings(max_examples=8, deadline=None)
def test_simpo_with_the_reference_subtracted_and_no_margin_is_dpo_norm(seed: int) -> None:
    pairs = random_pairs(seed)
    subtracted = replace(
        pairs,
        chosen_logp=(pairs.chosen_logp - pairs.ref_chosen_logp).detach(),
        rejected_logp=(pairs.rejected_logp - pairs.ref_rejected_logp).detach(),
    ).as_leaves()
    simpo = subtracted.loss(preset("simpo", margin=0.0, beta=5.0))
    normalised = pairs.loss(preset("dpo_norm"))
    torch.testing.assert_close(simpo.value, normalised.value)
    for gradient, expected in zip(subtracted.gradients(simpo), pairs.gradients(normalised), strict=True):
        torch.testing.assert_close(gradient, expected)


@given(seeds)
@settings(max_examples=8, deadline=None)
def test_completions_of_one_token_know_no_length(seed: int) -> None:
    pairs = random_pairs(seed)
    short = Pairs(*(tensor[:, :1] for tensor in vars(pairs).values())).as_leaves()
    assert_same(preset("dpo"), preset("dpo", logp="mean"), short)
    assert_same(preset("ipo"), preset("ipo_sum"), short)
    assert_same(preset("dpo"), preset("dpo", ld_alpha=0.3), short)


@given(name=st.sampled_from(PAIRWISE), seed=seeds, nats=st.floats(-5, 5))
@settings(max_examples=50, deadline=None)
def test_pairwise_links_do_not_see_a_common_shift(name: str, seed: int, nats: float) -> None:
    pairs = random_pairs(seed)
    torch.testing.assert_close(pairs.loss(preset(name)).value, shifted(pairs, nats).loss(preset(name)).value)


@pytest.mark.parametrize("name", ["kto", "apo_zero", "sppo_hard", "nca", "dpop"])
def test_the_others_do(name: str) -> None:
    pairs, z = random_pairs(3), torch.zeros(())
    before = pairs.loss(preset(name), kl_reference=z).value
    after = shifted(pairs, -2.0).loss(preset(name), kl_reference=z).value
    assert not torch.isclose(before, after)


@given(seeds)
@settings(max_examples=8, deadline=None)
def test_swapping_the_sides_turns_the_sign(seed: int) -> None:
    pairs = random_pairs(seed)
    swapped = pairs.swapped()
    rewards, turned = pairs.loss(DPO).metrics, swapped.loss(DPO).metrics
    assert rewards["rewards/margin"] == pytest.approx(-turned["rewards/margin"])
    assert rewards["rewards/accuracy"] == pytest.approx(1 - turned["rewards/accuracy"])
    # -log sigmoid(-h) + log sigmoid(h) = h, the mean logit.
    difference = swapped.loss(DPO).value - pairs.loss(DPO).value
    assert difference.item() == pytest.approx(rewards["rewards/margin"])
    for gradient, of_swapped in zip(
        pairs.gradients(pairs.loss(preset("dpo", label_smoothing=0.3))),
        pairs.gradients(swapped.loss(preset("dpo", label_smoothing=0.3))),
        strict=True,
    ):
        assert ((gradient * of_swapped) <= 0).all()


@given(name=st.sampled_from(presets("preference")), seed=seeds)
@settings(max_examples=60, deadline=None)
def test_chosen_goes_up_and_rejected_goes_down(name: str, seed: int) -> None:
    """Near the reference, where every loss still wants more; the descent direction is minus the gradient."""
    pairs = random_pairs(seed, drift=0.05)
    chosen, rejected = pairs.gradients(pairs.loss(preset(name), kl_reference=torch.zeros(())))
    assert (chosen[pairs.chosen_mask] < 0).all()
    assert (rejected[pairs.rejected_mask] > 0).all()
    assert not chosen[~pairs.chosen_mask].any() and not rejected[~pairs.rejected_mask].any()


@given(seeds)
@settings(max_examples=10, deadline=None)
def test_dpop_is_dpo_above_the_reference_and_steeper_below(seed: int) -> None:
    pairs = random_pairs(seed)
    chosen_log_ratio, _ = pairs.log_ratios()
    plain, penalised = preset("dpo"), preset("dpo", positive_penalty=4.0)
    for row, log_ratio in enumerate(chosen_log_ratio.tolist()):
        one = pairs.take(torch.tensor([row]))
        a, b = one.loss(plain).value, one.loss(penalised).value
        assert torch.equal(a, b) if log_ratio >= 0 else b > a


def test_dpop_has_its_penalty_inside_the_sigmoid_and_under_beta() -> None:
    pairs = random_pairs(11)
    chosen, rejected = pairs.log_ratios()
    assert (chosen < 0).any() and (chosen > 0).any()
    logits = 0.3 * (chosen - rejected - 50 * torch.relu(-chosen))
    expected = torch.nn.functional.softplus(-logits).mean()
    torch.testing.assert_close(pairs.loss(preset("dpop")).value, expected)


def test_sorting_compares_ranks_instead_of_pairs() -> None:
    pairs = random_pairs(5)
    chosen, rejected = pairs.log_ratios()
    of_policy = (pairs.chosen_logp * pairs.chosen_mask).sum(1) - (pairs.rejected_logp * pairs.rejected_mask).sum(1)
    of_reference = of_policy - (chosen - rejected)
    for matching, difference in (
        ("sorted", of_policy.sort().values - of_reference.sort().values),
        ("sorted_unpaired", chosen.sort().values - rejected.sort().values),
    ):
        loss = pairs.loss(preset("dpo", matching=matching)).value
        torch.testing.assert_close(loss, torch.nn.functional.softplus(-0.1 * difference).mean())
        assert not torch.isclose(loss, pairs.loss(DPO).value)
        assert_same(preset("dpo", matching=matching), DPO, pairs.take(torch.tensor([2])))
