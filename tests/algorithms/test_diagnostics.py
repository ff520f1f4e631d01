from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithms import (
    Coefficients,
    Objective,
    TokenBatch,
    combine_metrics,
    policy_loss,
    preset,
    presets,
    update_metric_names,
    with_overrides,
)
from algorithms.aggregation import Aggregation
from algorithms.diagnostics import Treatment, treatment
from tests.algorithms.cases import (
    EVERY_AGGREGATION,
    GRPO,
    every_term,
    identify,
    objectives,
    random_batch,
    take,
    with_selection,
)
from tests.refusals import refuses

CLIP_KEYS = {f"clip/{side}_frac_{which}" for side in ("low", "high") for which in ("sign_aware", "any_sign")}
KEYS = {"ratio/mean", "ratio/p99", "ratio/max", "ratio_seq/mean", "ratio_seq/max", "loss/policy"} | {
    f"kl/{estimator}_{policy}" for estimator in ("k1", "k2", "k3") for policy in ("old", "ref")
}


def batch_of(ratios: list[float], advantages: list[float]) -> TokenBatch:
    """One completion a ratio, of one token; a second position is masked."""
    logp = torch.tensor([[math.log(ratio) - 1, 5.0] for ratio in ratios], dtype=torch.float64)
    return TokenBatch(
        logp=logp,
        old_logp=torch.full_like(logp, -1),
        mask=torch.tensor([[1, 0]] * len(ratios)),
        advantages=torch.tensor(advantages, dtype=torch.float64),
    )


def test_by_hand() -> None:
    ratios, advantages = [0.5, 0.5, 0.7, 1.1, 1.5, 1.5, 1.5, 4.0], [-1.0, 1.0, -1.0, 1.0, 1.0, -1.0, 0.0, -1.0]
    objective = with_overrides(GRPO, {"rule.clip_high": 0.3, "rule.dual_clip": 3.0})
    assert policy_loss(objective, batch_of(ratios, advantages)).metrics == pytest.approx(
        {
            "ratio/mean": sum(ratios) / 8,
            "ratio/p99": 4.0,
            "ratio/max": 4.0,
            "ratio_seq/mean": sum(ratios) / 8,
            "ratio_seq/max": 4.0,
            "kl/k1_old": -sum(math.log(ratio) for ratio in ratios) / 8,
            "kl/k2_old": sum(math.log(ratio) ** 2 for ratio in ratios) / 16,
            "kl/k3_old": sum(ratio - 1 - math.log(ratio) for ratio in ratios) / 8,
            "clip/low_frac_sign_aware": 2 / 8,
            "clip/high_frac_sign_aware": 1 / 8,
            "clip/low_frac_any_sign": 3 / 8,
            "clip/high_frac_any_sign": 4 / 8,
            "clip/dual_frac": 1 / 8,
            "loss/policy": (0.8 - 0.5 + 0.8 - 1.1 - 1.3 + 1.5 - 0 + 3.0) / 8,
        }
    )


def test_p99_is_the_nearest_rank() -> None:
    ratios = [1 + i / 1000 for i in range(1, 201)]
    assert policy_loss(GRPO, batch_of(ratios, [1.0] * 200)).metrics["ratio/p99"] == pytest.approx(ratios[197])


def test_ratios_of_completions_and_clip_fractions_of_what_the_rule_clips() -> None:
    """Token ratios 4 and 1/4 of one completion, 2 of another, and an empty one."""
    logp = torch.tensor([[4.0, 0.25], [2.0, 9.0], [9.0, 9.0]], dtype=torch.float64).log()
    mask = torch.tensor([[1, 1], [1, 0], [0, 0]])
    batch = TokenBatch(logp, torch.zeros_like(logp), mask, torch.ones(3, dtype=torch.float64))
    for overrides, above, below in (
        ({"ratio": "token"}, 2 / 3, 1 / 3),
        ({"ratio": "sequence_mean"}, 1 / 3, 0.0),
        ({"ratio": "sequence_mean", "rule.type": "gmpo"}, 2 / 3, 1 / 3),
    ):
        metrics = policy_loss(with_overrides(GRPO, overrides), batch).metrics
        assert (metrics["ratio/max"], metrics["ratio_seq/max"]) == pytest.approx((4, 2))
        assert metrics["ratio_seq/mean"] == pytest.approx(1.5)
        found = metrics["clip/high_frac_any_sign"], metrics["clip/low_frac_any_sign"]
        assert found == pytest.approx((above, below))


def test_kl_to_the_reference_takes_the_tokens_as_the_current_policys() -> None:
    batch = batch_of([1.0, 1.0], [1.0, 1.0])
    batch = replace(batch, ref_logp=batch.logp - torch.tensor([[0.4, math.nan], [-0.2, math.nan]]))
    metrics = policy_loss(GRPO, batch).metrics
    assert metrics["kl/k1_ref"] == pytest.approx(0.1)
    assert metrics["kl/k2_ref"] == pytest.approx((0.08 + 0.02) / 2)
    assert metrics["kl/k3_ref"] == pytest.approx((math.exp(-0.4) - 0.6 + math.exp(0.2) - 1.2) / 2)
    assert metrics["kl/k1_old"] == metrics["kl/k3_old"] == 0


def test_sampler_weights_and_the_selected_fraction() -> None:
    """Raw weights 1, 1 (both of the cap), 3 and 0.2: what lies on a bound is not clipped."""
    batch = batch_of([1.0] * 4, [1.0] * 4)
    raw = torch.tensor([[1.0, math.nan], [1.0, math.nan], [3.0, math.nan], [0.2, math.nan]], dtype=torch.float64)
    weighted = replace(batch, sampler_logp=batch.old_logp - raw.log())
    for overrides, mean, clipped in (
        ({"sampler_correction.type": "token_truncate", "sampler_correction.weight_max": 1.0}, 3.2 / 4, 1 / 4),
        ({"sampler_correction.type": "sequence_band", "sampler_correction.weight_max": 3.5}, 5 / 4, 1 / 4),
    ):
        metrics = policy_loss(with_overrides(GRPO, overrides), weighted).metrics
        assert metrics["sampler/weight_mean"] == pytest.approx(mean)
        assert metrics["sampler/frac_clipped"] == clipped
    selected = replace(batch, selected=torch.tensor([[True, True]] + [[False, True]] * 3))
    assert policy_loss(with_overrides(GRPO, {"select.type": "clip_cov"}), selected).metrics["select/frac"] == 0.25


def test_terms_add_up_to_the_loss() -> None:
    batch = random_batch(4)
    for objective in every_term():
        loss = policy_loss(objective, batch)
        shares = [value for name, value in loss.metrics.items() if name.startswith("loss/")]
        assert sum(shares) == pytest.approx(float(loss.value.detach()))
        assert len(shares) == 1 + (
            (objective.kl.where == "loss")
            + (objective.distill.where == "loss")
            + (objective.sequence_penalty > 0)
            + (objective.entropy.bonus > 0)
            + (objective.baseline == "critic")
        )
        assert all(share != 0 for share in shares)


def test_terms_are_means_over_optimiser_steps() -> None:
    losses = [policy_loss(GRPO, random_batch(seed)) for seed in (1, 2, 3)]
    expected = sum(float(loss.value.detach()) for loss in losses) / 3
    assert combine_metrics(losses, steps=3)["loss/policy"] == pytest.approx(expected)
    assert combine_metrics(losses)["loss/policy"] == pytest.approx(3 * expected)
    assert combine_metrics(losses, steps=3)["ratio/mean"] == combine_metrics(losses)["ratio/mean"]


def test_value_metrics_are_of_the_masks_tokens() -> None:
    logp = torch.zeros(1, 3, dtype=torch.float64)
    batch = TokenBatch(
        logp=logp,
        old_logp=logp,
        mask=torch.tensor([[1, 1, 0]]),
        advantages=torch.ones(1),
        values=torch.tensor([[0.5, 0.1, math.nan]]),
        old_values=torch.tensor([[0.0, 0.0, math.nan]]),
        returns=torch.tensor([[1.0, 1.0, math.nan]]),
    )
    critic = with_overrides(GRPO, {"baseline": "critic", "scale": "none", "critic.value_clip": 0.2})
    metrics = policy_loss(critic, batch).metrics
    assert metrics["value/clip_frac"] == 0.5
    assert metrics["value/mean"] == pytest.approx(0.3)
    assert not any(name.startswith("value/") for name in policy_loss(critic, replace(batch, values=None)).metrics)


@pytest.mark.parametrize(
    ("overrides", "keys"),
    [
        ({"rule.type": "policy_gradient"}, set()),
        ({"rule.type": "sapo"}, set()),
        ({"rule.type": "cispo", "rule.weight_max": 2.0}, CLIP_KEYS),
        ({}, CLIP_KEYS),
        ({"rule.dual_clip": 3.0}, CLIP_KEYS | {"clip/dual_frac"}),
        ({"kl.where": "loss"}, CLIP_KEYS | {"loss/kl"}),
        ({"select.type": "clip_cov"}, CLIP_KEYS | {"select/frac"}),
        ({"sampler_correction.type": "token_band"}, CLIP_KEYS | {"sampler/weight_mean", "sampler/frac_clipped"}),
    ],
)
def test_only_metrics_that_exist_are_there(overrides: dict[str, object], keys: set[str]) -> None:
    batch = random_batch(0)
    assert set(policy_loss(with_overrides(GRPO, overrides), batch).metrics) == KEYS | keys
    without = policy_loss(GRPO, replace(batch, ref_logp=None)).metrics
    assert set(without) == {key for key in KEYS | CLIP_KEYS if not key.endswith("_ref")}


def test_names_are_known_before_the_first_update() -> None:
    to_the_start = {"kl.where": "loss", "kl.reference": "iteration_start"}
    for objective in (
        *(preset(name, Objective) for name in presets("policy_gradient")),
        with_overrides(GRPO, to_the_start),
    ):
        batch = random_batch(4)
        if objective.kl.where == "none" or objective.kl.reference == "iteration_start":
            batch = replace(batch, ref_logp=None)
        bonus = float(objective.entropy.adaptive.type != "none") or objective.entropy.bonus
        metrics = policy_loss(objective, batch, Coefficients(entropy=bonus, kl=0.1)).metrics
        assert update_metric_names(objective) == tuple(metrics), identify(objective)


@pytest.mark.parametrize("aggregation", EVERY_AGGREGATION)
@settings(max_examples=1, deadline=None)
@given(seed=st.integers(0, 2**31), cut=st.integers(0, 8))
def test_micro_batches_combine_to_the_metrics_of_the_step(aggregation: Aggregation, seed: int, cut: int) -> None:
    batch = random_batch(seed)
    rows = (torch.arange(cut), torch.arange(cut, 8))
    for objective in objectives(aggregation):
        selected = with_selection(objective, batch)
        combined = combine_metrics([policy_loss(objective, take(selected, part, 2)) for part in rows])
        expected = policy_loss(objective, selected).metrics
        if objective.token_weight.depends_on_split:
            combined, expected = (
                {name: value for name, value in metrics.items() if not name.startswith("loss/")}
                for metrics in (combined, expected)
            )
        assert combined == pytest.approx(expected)


def test_no_token_no_metric() -> None:
    batch = random_batch(1)
    empty = policy_loss(GRPO, replace(batch, mask=torch.zeros_like(batch.mask)))
    full = policy_loss(GRPO, batch)
    assert empty.metrics == combine_metrics([]) == {}
    assert combine_metrics([empty, full]) == full.metrics


# Treatment

FIVE_RATIOS = torch.tensor([0.5, 0.9, 1.0, 1.15, 3.0], dtype=torch.float64)
"""Ratios of five tokens; `treated` takes them twice, with A > 0 and with A < 0."""


def treated(objective: Objective, **fields: object) -> Treatment:
    logp = FIVE_RATIOS.log().expand(2, 5)
    batch = TokenBatch(
        logp=logp,
        old_logp=torch.zeros(2, 5),
        mask=torch.ones(2, 5),
        advantages=torch.tensor([2.0, -3.0]),
        groups=torch.zeros(2),
        max_completion_tokens=5,
    )
    return treatment(policy_loss(objective, replace(batch, **fields)).trace)  # type: ignore[arg-type]


def places(tokens: torch.Tensor) -> list[list[int]]:
    return [row.nonzero()[:, 0].tolist() for row in tokens]


CISPO = {"rule.type": "cispo", "rule.weight_min": 0.8, "rule.weight_max": 1.1}
SELECTED = {"selected": torch.tensor([[True, False, False, False, True], [False] * 5])}
SAMPLER = {"sampler_logp": torch.tensor([[0.0, -3.0, 0.0, 3.0, 0.0], [0.0] * 5])}
TWO = {"sampler_correction.weight_max": 2.0}
NOWHERE: list[list[int]] = [[], []]


@pytest.mark.parametrize(
    ("overrides", "fields", "clipped", "masked"),
    [
        ({"rule.clip_low": 0.2, "rule.clip_high": 0.1}, {}, [[3, 4], [0]], NOWHERE),
        ({"rule.clip_low": 0.2, "rule.clip_high": 0.3, "rule.dual_clip": 2.0}, {}, [[4], [0, 4]], NOWHERE),
        (CISPO, {}, [[0, 3, 4], [0, 3, 4]], NOWHERE),
        (CISPO | {"rule.mask": "unified"}, {}, NOWHERE, [[3, 4], [0]]),
        ({"rule.type": "gmpo", "ratio": "sequence_mean"}, {}, [[4], [0]], NOWHERE),
        ({"rule.type": "sapo"}, {}, NOWHERE, NOWHERE),
        # A token that is taken out counts as masked, even if it also lies beyond a bound.
        ({"select.type": "clip_cov"}, SELECTED, [[], [0]], [[0, 4], []]),
        ({"select.type": "top_entropy"}, SELECTED, [[4], []], [[1, 2, 3], [0, 1, 2, 3, 4]]),
        ({"select.type": "kl_cov", "rule.type": "weighted"}, SELECTED, NOWHERE, NOWHERE),
        ({"sampler_correction.type": "token_band"} | TWO, SAMPLER, [[4], [0]], [[1, 3], []]),
        ({"sampler_correction.type": "token_truncate"} | TWO, SAMPLER, [[4], [0]], NOWHERE),
        ({"rule.clip_high": 0.1}, {"mask": torch.tensor([[1, 1, 1, 1, 0], [0, 1, 1, 1, 1]])}, [[3], []], NOWHERE),
    ],
)
def test_treatment_by_hand(
    overrides: dict[str, object], fields: dict[str, object], clipped: list[list[int]], masked: list[list[int]]
) -> None:
    got = treated(with_overrides(GRPO, overrides), **fields)
    assert (places(got.clipped), places(got.masked)) == (clipped, masked)


def test_a_trace_must_hold_the_selection() -> None:
    loss = policy_loss(with_overrides(GRPO, {"select.type": "clip_cov"}), random_batch(0))
    with refuses(ValueError, "algorithms.trace_without_selection", select="clip_cov"):
        treatment(replace(loss.trace, selected=None))


def test_what_is_masked_or_clipped_to_nothing_has_no_gradient() -> None:
    """In the policy term alone, a token that is masked, or that ppo_clip clips by its own ratio, has no weight."""
    terms = {"kl.where": "none", "sequence_penalty": 0.0, "entropy.bonus": 0.0}
    batch = random_batch(3)
    batch = replace(batch, logp=batch.logp.detach().requires_grad_())
    for objective in objectives("token_mean"):
        alone = with_overrides(objective, terms | {"select.type": objective.select.type})
        loss = policy_loss(alone, batch)
        (gradient,) = torch.autograd.grad(loss.value, batch.logp)
        got = treatment(loss.trace)
        assert not (got.clipped & got.masked).any()
        if alone.ratio == "token":
            assert not gradient[got.masked].any(), identify(alone)
            # kl_cov's penalty pulls at clipped tokens too.
            if alone.rule.type == "ppo_clip" and alone.select.type != "kl_cov":
                assert not gradient[got.clipped].any(), identify(alone)
