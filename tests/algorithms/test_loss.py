from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from algorithms import Coefficients, Objective, StepSize, TokenBatch, policy_loss, preset, presets, with_overrides
from algorithms.aggregation import AGGREGATIONS, Aggregation
from algorithms.loss import aggregate
from algorithms.rules import RATIOS
from tests.algorithms.cases import (
    EVERY_AGGREGATION,
    GRPO,
    every_term,
    gradients,
    identify,
    objectives,
    random_batch,
    take,
    value_and_gradient,
    with_selection,
)
from tests.refusals import refuses

EVERYWHERE = pytest.mark.parametrize("aggregation", EVERY_AGGREGATION)
CRITIC: dict[str, object] = {"baseline": "critic", "scale": "none"}
seeds = st.integers(0, 2**31)


def without(batch: TokenBatch, name: str) -> TokenBatch:
    count = name.removeprefix("step.")
    change: dict[str, Any] = {name: None}
    if batch.step is not None and count != name:
        change = {"step": batch.step._replace(**{count: None})}
    return replace(batch, **change)


def in_micro_batches(objective: Objective, batch: TokenBatch, micro_batch: Tensor) -> Tensor:
    """The sum of the shares of four micro-batches, some of which may be empty; micro_batch [B] says where rows go."""
    batch = with_selection(objective, batch)
    parts = [take(batch, (micro_batch == index).nonzero().flatten(), micro_batches=4) for index in range(4)]
    return torch.stack([policy_loss(objective, part).value for part in parts]).sum()


def assert_same_gradients(ours: Tensor, expected: Tensor, batch: TokenBatch, objective: Objective) -> None:
    for one, other in zip(gradients(ours, batch), gradients(expected, batch), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9, msg=identify(objective))


@pytest.mark.parametrize("aggregation", [name for name, one in AGGREGATIONS.items() if not one.depends_on_split])
@settings(max_examples=2, deadline=None)
@given(seed=seeds, micro_batch=st.lists(st.integers(0, 3), min_size=8, max_size=8).map(torch.tensor))
def test_micro_batches_sum_to_the_step(aggregation: Aggregation, seed: int, micro_batch: Tensor) -> None:
    """Hence rows may also come in any order."""
    batch = random_batch(seed)
    for objective in objectives(aggregation):
        value, total = policy_loss(objective, batch).value, in_micro_batches(objective, batch, micro_batch)
        torch.testing.assert_close(total, value, rtol=1e-9, atol=1e-9, msg=identify(objective))
        assert_same_gradients(total, value, batch, objective)


def test_micro_token_mean_depends_on_the_split() -> None:
    """It is the mean over micro-batches of each one's own mean, so that tokens of short micro-batches weigh more."""
    batch = random_batch(1)
    halves = (torch.arange(4), torch.arange(4, 8))
    tokens = [int(batch.mask[rows].sum()) for rows in halves]
    assert tokens[0] != tokens[1]
    for objective in objectives("micro_token_mean"):
        if objective.entropy.bonus > 0 or objective.baseline == "critic":
            continue  # These terms are means over the step whatever the aggregation.
        token_mean = with_overrides(objective, {"aggregation": "token_mean"})
        selected = with_selection(objective, batch)
        whole, split = (in_micro_batches(objective, batch, part) for part in (torch.zeros(8), torch.arange(8) // 4))
        own = [
            policy_loss(token_mean, replace(take(selected, rows), step=StepSize(tokens=count))).value
            for rows, count in zip(halves, tokens, strict=True)
        ]
        torch.testing.assert_close(split * 4, own[0] + own[1], rtol=1e-9, atol=1e-9, msg=identify(objective))
        torch.testing.assert_close(whole * 4, policy_loss(token_mean, batch).value, rtol=1e-9, atol=1e-9)


def test_padding_never_leaks() -> None:
    batch = random_batch(1)
    garbage = torch.tensor([math.nan, math.inf, -math.inf, 1e30, math.nan, math.inf])

    def soil(name: str) -> Any:
        return torch.where(batch.mask, getattr(batch, name), garbage).detach()

    soiled = replace(
        batch,
        **{name: soil(name) for name in ("old_logp", "ref_logp", "sampler_logp", "old_values", "returns")},
        **{name: soil(name).requires_grad_() for name in ("logp", "entropy", "values", "divergence")},
        advantages=torch.where(batch.mask, batch.advantages[:, None], garbage),
    )
    for objective in every_term():
        clean, dirty = policy_loss(objective, batch), policy_loss(objective, soiled)
        assert dirty.value == clean.value, identify(objective)
        assert dirty.metrics == clean.metrics
        for ours, expected in zip(gradients(dirty.value, soiled), gradients(clean.value, batch), strict=True):
            assert (ours == expected).all(), identify(objective)
            assert (ours[~batch.mask] == 0).all()


@pytest.mark.parametrize("rows", [0, 3])
def test_a_batch_without_a_token_adds_nothing(rows: int) -> None:
    batch = replace(take(random_batch(2), torch.arange(rows)), step=None, group_tokens=None)
    batch = replace(batch, mask=torch.zeros_like(batch.mask))
    for objective in every_term():
        with torch.autograd.set_detect_anomaly(True):  # A NaN inside the backward pass is an error here.
            value = policy_loss(objective, batch).value
            assert value == 0, identify(objective)
            for gradient in gradients(value, batch):
                assert (gradient == 0).all(), identify(objective)


@settings(max_examples=4, deadline=None)
@given(seed=seeds, aggregation=st.sampled_from(EVERY_AGGREGATION))
def test_extreme_log_probs_give_finite_gradients(seed: int, aggregation: Aggregation) -> None:
    """float32, with tokens that are certain, or all but impossible, under each of the policies."""
    generator = torch.Generator().manual_seed(seed)
    scale = torch.tensor([0.0, 1e-6, 1.0, 90.0, 1e4])

    def extreme() -> Any:
        return -scale[torch.randint(0, 5, (8, 6), generator=generator)] * torch.rand(8, 6, generator=generator)

    batch = random_batch(seed)
    assert batch.values is not None
    batch = replace(
        batch,
        logp=extreme().requires_grad_(),
        **{name: extreme() for name in ("old_logp", "ref_logp", "sampler_logp")},
        advantages=batch.advantages.float(),
        values=(100 * batch.values).detach().float().requires_grad_(),
    )
    for objective in objectives(aggregation):
        loss = policy_loss(objective, batch)
        assert loss.value.isfinite(), identify(objective)
        for gradient in gradients(loss.value, batch):
            assert gradient.isfinite().all(), identify(objective)
        assert all(map(math.isfinite, loss.metrics.values()))


@EVERYWHERE
def test_entropy_bonus_and_value_loss_are_means_over_tokens_whatever_the_aggregation(aggregation: str) -> None:
    batch = random_batch(5)
    assert batch.entropy is not None and batch.values is not None and batch.returns is not None
    objective = with_overrides(GRPO, {"aggregation": aggregation})
    plain = policy_loss(objective, batch).value
    for with_bonus in (
        policy_loss(with_overrides(objective, {"entropy.bonus": 0.4}), batch).value,
        policy_loss(objective, batch, Coefficients(entropy=0.4, kl=0.0)).value,
    ):
        torch.testing.assert_close(with_bonus, plain - 0.4 * batch.entropy[batch.mask].mean())
        torch.testing.assert_close(gradients(with_bonus, batch)[1], -0.4 * batch.mask.double() / batch.mask.sum())
    critic = with_overrides(objective, CRITIC | {"critic.value_clip": None, "critic.coef": 0.7})
    squares = ((batch.values - batch.returns) ** 2 / 2)[batch.mask]
    torch.testing.assert_close(policy_loss(critic, batch).value, plain + 0.7 * squares.mean())
    assert policy_loss(critic, replace(batch, values=None)).value == plain


@pytest.mark.parametrize("reference", ["initial", "iteration_start"])
def test_kl_takes_its_coefficient_and_its_reference(reference: str) -> None:
    batch = random_batch(6)
    assert batch.ref_logp is not None
    objective = with_overrides(
        GRPO, {"kl.where": "loss", "kl.estimator": "k2", "kl.beta": 0.3, "kl.reference": reference}
    )
    plain, _ = value_and_gradient(GRPO, batch)
    lengths = batch.mask.sum(1).clamp(min=1)
    reference_logp = batch.ref_logp if reference == "initial" else batch.old_logp
    kl = ((((batch.logp - reference_logp) ** 2 / 2) * batch.mask).sum(1) / lengths).mean().detach()
    torch.testing.assert_close(policy_loss(objective, batch).value.detach(), plain + 0.3 * kl)
    adapted = policy_loss(objective, batch, Coefficients(entropy=0.0, kl=0.9)).value.detach()
    torch.testing.assert_close(adapted, plain + 0.9 * kl)


def test_sampler_weights_multiply_the_policy_term_only() -> None:
    batch = random_batch(7)
    weights = {"sampler_correction.type": "token_truncate", "sampler_correction.weight_max": 0.5}
    # A sampler that thought everything less likely by a factor e: every raw weight is e, every weight 0.5.
    batch = replace(batch, sampler_logp=batch.old_logp - 1)
    other_terms = {"kl.where": "loss", "sequence_penalty": 0.7, "entropy.bonus": 0.4}
    plain = policy_loss(with_overrides(GRPO, other_terms), batch).trace.shares
    weighted = policy_loss(with_overrides(GRPO, other_terms | weights), batch).trace.shares
    assert {name: float(weighted[name] / plain[name]) for name in plain} == pytest.approx(
        {"policy": 0.5, "kl": 1, "sequence_penalty": 1, "entropy": 1}
    )


def test_a_selected_token_without_policy_gradient_stays_in_the_denominator() -> None:
    batch = replace(random_batch(8), selected=torch.ones(8, 6, dtype=torch.bool))
    clip_cov, top_entropy, kl_cov = (
        with_overrides(GRPO, {"select.type": kind, **coef})
        for kind, coef in (("clip_cov", {}), ("top_entropy", {}), ("kl_cov", {"select.coef": 0.6}))
    )
    plain, _ = value_and_gradient(GRPO, batch)
    assert policy_loss(clip_cov, batch).value == 0
    assert policy_loss(top_entropy, batch).value == plain
    drift = ((batch.logp - batch.old_logp).abs() * batch.mask).sum(1) / batch.mask.sum(1).clamp(min=1)
    torch.testing.assert_close(policy_loss(kl_cov, batch).value, plain + 0.6 * drift.mean())
    none_selected = replace(batch, selected=torch.zeros(8, 6, dtype=torch.bool))
    assert policy_loss(clip_cov, none_selected).value == policy_loss(kl_cov, none_selected).value == plain
    assert policy_loss(top_entropy, none_selected).value == 0


@pytest.mark.parametrize("ratio", RATIOS)
def test_log_ratios_are_clamped_before_the_exponential(ratio: str) -> None:
    """Beyond exp(+-20) nothing overflows and no gradient passes through the ratio."""
    low, high = torch.full((1, 2), -800.0, dtype=torch.float64), torch.full((1, 2), -1.0, dtype=torch.float64)
    batch = TokenBatch(
        logp=torch.cat([high, low]).requires_grad_(),
        old_logp=torch.cat([low, high]),
        mask=torch.ones(2, 2),
        advantages=torch.ones(2, dtype=torch.float64),
    )
    objective = with_overrides(GRPO, {"ratio": ratio, "rule.type": "weighted"})
    value, gradient = value_and_gradient(objective, batch)
    metrics = policy_loss(objective, batch).metrics
    assert metrics["ratio/max"] == pytest.approx(math.exp(20), rel=1e-12)
    assert metrics["kl/k1_old"] == 0
    assert value.item() == pytest.approx(-(math.exp(20) + math.exp(-20)) / 2, rel=1e-12)
    assert (gradient == 0).all()


def test_half_precision_counts_as_float32() -> None:
    batch = random_batch(9)
    narrow: dict[str, Any] = {
        name: getattr(batch, name).bfloat16() for name in ("logp", "old_logp", "ref_logp", "sampler_logp")
    }
    halves, floats = replace(batch, **narrow), replace(batch, **{name: one.float() for name, one in narrow.items()})
    for objective in objectives("token_mean"):
        assert policy_loss(objective, halves).metrics == policy_loss(objective, floats).metrics
        assert policy_loss(objective, halves).value == policy_loss(objective, floats).value


def test_a_nan_inside_the_mask_is_not_hidden() -> None:
    batch = random_batch(5)
    logp = batch.logp.detach().clone()
    logp[tuple(batch.mask.nonzero()[0])] = math.nan
    for objective in objectives("token_mean", "seq_mean_token_mean"):
        if objective.select.type != "top_entropy":  # The token may not be among those that count.
            assert policy_loss(objective, replace(batch, logp=logp)).value.isnan(), identify(objective)


def test_advantages_by_completion_or_by_token() -> None:
    batch = random_batch(6)
    by_token = replace(batch, advantages=batch.advantages[:, None].expand_as(batch.logp))
    for objective in objectives("token_mean"):
        assert policy_loss(objective, batch).value == policy_loss(objective, by_token).value


def test_gradients_flow_to_the_current_policy_alone() -> None:
    batch = random_batch(7)
    constants = ("old_logp", "advantages", "ref_logp", "sampler_logp", "old_values", "returns")
    batch = replace(batch, **{name: getattr(batch, name).requires_grad_() for name in constants})
    for objective in objectives("token_mean"):
        policy_loss(objective, batch).value.backward()  # type: ignore[no-untyped-call]
    assert all(getattr(batch, name).grad is None for name in constants)
    assert all(getattr(batch, name).grad is not None for name in ("logp", "entropy", "values", "divergence"))


WHOLE = random_batch(8)
PART = take(WHOLE, torch.arange(4))


@pytest.mark.parametrize(
    ("overrides", "batch", "lacking", "code"),
    [
        ({"aggregation": "constant_length"}, WHOLE, "max_completion_tokens", "limit_missing"),
        ({"aggregation": "group_token_mean"}, WHOLE, "groups", "groups_missing"),
        ({"kl.where": "loss"}, WHOLE, "ref_logp", "field_missing"),
        ({"entropy.bonus": 0.1}, WHOLE, "entropy", "field_missing"),
        ({"select.type": "top_entropy"}, WHOLE, "entropy", "entropy_missing"),
        ({"sampler_correction.type": "token_band"}, WHOLE, "sampler_logp", "field_missing"),
        (CRITIC, WHOLE, "old_values", "field_missing"),
        (CRITIC, WHOLE, "returns", "field_missing"),
        ({"distill.where": "loss"}, WHOLE, "divergence", "field_missing"),
        ({"aggregation": "token_mean"}, PART, "step.tokens", "count_missing"),
        ({"aggregation": "micro_token_mean"}, PART, "step.micro_batches", "count_missing"),
        ({"aggregation": "group_token_mean"}, PART, "step.groups", "count_missing"),
        ({"aggregation": "group_token_mean"}, PART, "group_tokens", "count_missing"),
        ({"aggregation": "seq_mean_token_mean"}, PART, "step.sequences", "count_missing"),
        ({"aggregation": "seq_mean_token_sum"}, PART, "step.sequences", "count_missing"),
        ({"aggregation": "constant_length"}, PART, "step.sequences", "count_missing"),
        ({"entropy.bonus": 0.1}, PART, "step.tokens", "count_missing"),
        ({"select.type": "kl_cov"}, replace(PART, selected=WHOLE.mask[:4]), "selected", "selection_missing"),
    ],
)
def test_what_a_term_needs_is_named(overrides: dict[str, object], batch: TokenBatch, lacking: str, code: str) -> None:
    objective = with_overrides(GRPO, overrides)
    assert policy_loss(objective, batch).value.isfinite()
    named = {"field_missing": "name", "count_missing": "field"}
    with refuses(ValueError, f"algorithms.{code}", **({named[code]: lacking} if code in named else {})):
        policy_loss(objective, without(batch, lacking))


def test_what_no_term_needs_may_be_absent() -> None:
    names = ("ref_logp", "sampler_logp", "entropy", "divergence", "values", "groups", "max_completion_tokens")
    nothing: dict[str, Any] = dict.fromkeys(names)
    bare = replace(WHOLE, **nothing)
    assert policy_loss(GRPO, bare).value == policy_loss(GRPO, WHOLE).value
    to_the_start = with_overrides(GRPO, {"kl.where": "loss", "kl.reference": "iteration_start"})
    assert policy_loss(to_the_start, bare).value == policy_loss(to_the_start, WHOLE).value


def test_every_preset_has_a_loss() -> None:
    for name in presets("policy_gradient"):
        value, gradient = value_and_gradient(preset(name, Objective), random_batch(10))
        assert value.isfinite() and gradient.abs().max() > 0, name


# What a batch must be

FOUR_ROWS = random_batch(0, rows=4, width=5)
TOKENS = int(FOUR_ROWS.mask.sum())
MISSHAPEN = {
    "logp": [4],
    "old_logp": [4, 6],
    "mask": [5, 4],
    "advantages": [5],
    "groups": [4, 1],
    "group_tokens": [5],
    **{name: [4, 1] for name in ("ref_logp", "sampler_logp", "entropy", "divergence", "selected")},
    **{name: [4, 1] for name in ("values", "old_values", "returns")},
}


@pytest.mark.parametrize(
    ("change", "code", "fields"),
    [
        *(({name: torch.zeros(shape)}, "shape", {"name": name, "shape": shape}) for name, shape in MISSHAPEN.items()),
        ({"mask": torch.full((4, 5), 0.5)}, "mask_not_binary", {}),
        ({"step_sequences": 3}, "step_too_small", {"name": "step.sequences", "count": 3, "here": 4}),
        ({"step_tokens": TOKENS - 1}, "step_too_small", {"name": "step.tokens", "count": TOKENS - 1, "here": TOKENS}),
        ({"step_tokens": 0}, "count_below_one", {"name": "step.tokens"}),
        ({"max_completion_tokens": 0}, "count_below_one", {"name": "max_completion_tokens"}),
        ({"step": StepSize(groups=0)}, "count_below_one", {"name": "step.groups"}),
        ({"step_tokens": 99, "step": StepSize()}, "step_given_twice", {}),
        ({"selected": torch.zeros(4, 5)}, "selected_not_bool", {}),
        ({"group_tokens": FOUR_ROWS.mask.sum(1) - 1}, "group_tokens_too_few", {}),
    ],
)
def test_a_batch_that_does_not_fit_together_is_refused(
    change: dict[str, Any], code: str, fields: dict[str, object]
) -> None:
    with refuses(ValueError, f"algorithms.{code}", **fields):
        replace(FOUR_ROWS, **change)


def test_a_step_is_given_as_such_or_by_its_two_counts() -> None:
    assert FOUR_ROWS.step is None, "it is a whole step"
    assert replace(FOUR_ROWS, step_sequences=4, step_tokens=TOKENS).step == StepSize(sequences=4, tokens=TOKENS)
    assert replace(FOUR_ROWS, step_sequences=100).step == StepSize(sequences=100)
    part = replace(FOUR_ROWS, step=StepSize(100, 1000, 25, 10))
    assert replace(part, mask=part.mask).step == part.step


# Aggregation

LOSSES = torch.tensor([[1.0, 2.0, 3.0], [10.0, 90.0, 90.0], [90.0, 90.0, 90.0], [7.0, 5.0, 90.0]])
OF_FOUR = replace(
    random_batch(0, rows=4, width=3),
    mask=torch.tensor([[1, 1, 1], [1, 0, 0], [0, 0, 0], [1, 1, 0]]),
    groups=torch.tensor([8, 5, 3, 8]),
    max_completion_tokens=5,
)
STEP = replace(
    OF_FOUR,
    step=StepSize(sequences=12, tokens=40, groups=6, micro_batches=4),
    group_tokens=torch.tensor([10, 1, 0, 10]),
)


@pytest.mark.parametrize(
    ("aggregation", "alone", "in_step"),
    [
        ("token_mean", 28 / 6, 28 / 40),
        ("micro_token_mean", 28 / 6, 28 / 6 / 4),
        ("group_token_mean", ((6 + 12) / 5 + 10) / 3, ((6 + 12) / 10 + 10) / 6),
        ("seq_mean_token_mean", (2 + 10 + 6) / 4, (2 + 10 + 6) / 12),
        ("seq_mean_token_sum", 28 / 4, 28 / 12),
        ("constant_length", 28 / (4 * 5), 28 / (12 * 5)),
    ],
)
def test_aggregations_by_hand(aggregation: Aggregation, alone: float, in_step: float) -> None:
    """The masked 90s do not count; the fully masked completion counts among completions, and its group among groups."""
    assert aggregate(LOSSES, aggregation, OF_FOUR).item() == pytest.approx(alone)
    assert aggregate(LOSSES, aggregation, STEP).item() == pytest.approx(in_step)
