from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithms import Coefficients, Objective, StepSize, TokenBatch, policy_loss, preset, presets, with_overrides
from algorithms.loss import aggregate
from algorithms.objective import Aggregation
from tests.algorithms.cases import (
    AGGREGATIONS,
    EVERY_AGGREGATION,
    GRPO,
    RATIOS,
    gradients,
    identify,
    objectives,
    random_batch,
    reordered,
    take,
    value_and_gradient,
    with_selection,
)

EVERYWHERE = pytest.mark.parametrize("aggregation", EVERY_AGGREGATION)
EVERY_RATIO = pytest.mark.parametrize("ratio", RATIOS)
seeds = st.integers(0, 2**31)
splits = st.lists(st.integers(0, 3), min_size=8, max_size=8).map(torch.tensor)


def without(batch: TokenBatch, name: str) -> TokenBatch:
    count = name.removeprefix("step.")
    change: dict[str, Any] = {name: None}
    if batch.step is not None and count != name:
        change = {"step": batch.step._replace(**{count: None})}
    return replace(batch, **change)


def in_micro_batches(objective: Objective, batch: TokenBatch, micro_batch: torch.Tensor) -> torch.Tensor:
    """The sum of the shares of four micro-batches, some of which may be empty; micro_batch [B] says where rows go."""
    batch = with_selection(objective, batch)
    parts = [take(batch, (micro_batch == index).nonzero().flatten(), micro_batches=4) for index in range(4)]
    return torch.stack([policy_loss(objective, part).value for part in parts]).sum()


@pytest.mark.parametrize("aggregation", [name for name in EVERY_AGGREGATION if name != "micro_token_mean"])
@settings(max_examples=5, deadline=None)
@given(seed=seeds, micro_batch=splits)
def test_micro_batches_sum_to_the_step(aggregation: Aggregation, seed: int, micro_batch: torch.Tensor) -> None:
    batch = random_batch(seed)
    for objective in objectives(aggregation):
        value, total = policy_loss(objective, batch).value, in_micro_batches(objective, batch, micro_batch)
        torch.testing.assert_close(total, value, rtol=1e-9, atol=1e-9, msg=identify(objective))
        for ours, expected in zip(gradients(total, batch), gradients(value, batch), strict=True):
            torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9, msg=identify(objective))


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
        assert not torch.isclose(whole, split, rtol=1e-3), identify(objective)


@EVERYWHERE
@settings(max_examples=5, deadline=None)
@given(seed=seeds, order=st.permutations(range(8)).map(torch.tensor))
def test_rows_may_come_in_any_order(aggregation: Aggregation, seed: int, order: torch.Tensor) -> None:
    batch = random_batch(seed)
    for objective in objectives(aggregation):
        selected = with_selection(objective, batch)
        value, shuffled = (policy_loss(objective, each).value for each in (selected, reordered(selected, order)))
        torch.testing.assert_close(shuffled, value, rtol=1e-9, atol=1e-9, msg=identify(objective))
        for ours, expected in zip(gradients(shuffled, batch), gradients(value, batch), strict=True):
            torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9, msg=identify(objective))


@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, 1e30])
def test_padding_never_leaks(garbage: float) -> None:
    batch = random_batch(1)
    names = ("old_logp", "ref_logp", "sampler_logp", "entropy", "values", "old_values", "returns")
    others: dict[str, Any] = {name: torch.where(batch.mask, getattr(batch, name), garbage).detach() for name in names}
    soiled = replace(
        batch,
        logp=torch.where(batch.mask, batch.logp, garbage).detach().requires_grad_(),
        advantages=torch.where(batch.mask, batch.advantages[:, None], garbage),
        **others,
    )
    soiled = replace(soiled, entropy=_leaf(soiled.entropy), values=_leaf(soiled.values))
    for objective in objectives(*EVERY_AGGREGATION):
        clean, dirty = policy_loss(objective, batch), policy_loss(objective, soiled)
        assert dirty.value == clean.value, identify(objective)
        assert dirty.metrics == clean.metrics
        for ours, expected in zip(gradients(dirty.value, soiled), gradients(clean.value, batch), strict=True):
            assert (ours == expected).all(), identify(objective)
            assert (ours[~batch.mask] == 0).all()


def _leaf(tensor: torch.Tensor | None) -> torch.Tensor:
    assert tensor is not None
    return tensor.requires_grad_()


@pytest.mark.parametrize("rows", [0, 1, 8])
def test_a_batch_without_a_token_adds_nothing(rows: int) -> None:
    batch = reordered(random_batch(2), torch.arange(rows))
    batch = replace(batch, mask=torch.zeros_like(batch.mask))
    for objective in objectives(*EVERY_AGGREGATION):
        with torch.autograd.set_detect_anomaly(True):  # A NaN inside the backward pass is an error here.
            value = policy_loss(objective, batch).value
            assert value == 0, identify(objective)
            for gradient in gradients(value, batch):
                assert (gradient == 0).all(), identify(objective)


@EVERYWHERE
@settings(max_examples=3, deadline=None)
@given(seed=seeds)
def test_extreme_log_probs_give_finite_gradients(aggregation: Aggregation, seed: int) -> None:
    """float32, with tokens that are certain, or all but impossible, under each of the policies."""
    generator = torch.Generator().manual_seed(seed)
    scale = torch.tensor([0.0, 1e-6, 1.0, 90.0, 1e4])

    def extreme() -> torch.Tensor:
        return -scale[torch.randint(0, 5, (8, 6), generator=generator)] * torch.rand(8, 6, generator=generator)

    batch = random_batch(seed)
    assert batch.values is not None
    batch = replace(
        batch,
        logp=extreme().requires_grad_(),
        old_logp=extreme(),
        ref_logp=extreme(),
        sampler_logp=extreme(),
        advantages=batch.advantages.float(),
        values=(100 * batch.values).detach().float().requires_grad_(),
    )
    for objective in objectives(aggregation):
        value = policy_loss(objective, batch).value
        assert value.isfinite(), identify(objective)
        for gradient in gradients(value, batch):
            assert gradient.isfinite().all(), identify(objective)
        assert all(math.isfinite(number) for number in policy_loss(objective, batch).metrics.values())


@pytest.mark.parametrize(("aggregation", "kept"), [("token_mean", 1.0), *((name, 3 / 4) for name in AGGREGATIONS[1:])])
def test_a_fully_masked_completion_stays_in_the_denominator_over_completions(aggregation: str, kept: float) -> None:
    batch = random_batch(3, rows=4)
    batch = replace(batch, mask=torch.tensor([[1] * 6, [1] * 6, [1] * 6, [0] * 6]))
    objective = preset("reinforce", Objective, aggregation=aggregation)
    with_it, _ = value_and_gradient(objective, batch)
    without, _ = value_and_gradient(objective, replace(take(batch, torch.arange(3)), step=StepSize(3, 18)))
    torch.testing.assert_close(with_it, without * kept)


@EVERYWHERE
def test_the_entropy_bonus_is_the_mean_over_tokens_whatever_the_aggregation(aggregation: str) -> None:
    batch = random_batch(5)
    assert batch.entropy is not None
    objective = with_overrides(GRPO, {"aggregation": aggregation})
    plain = policy_loss(objective, batch).value
    for with_bonus in (
        policy_loss(with_overrides(objective, {"entropy.bonus": 0.4}), batch).value,
        policy_loss(objective, batch, Coefficients(entropy=0.4, kl=0.0)).value,
    ):
        torch.testing.assert_close(with_bonus, plain - 0.4 * batch.entropy[batch.mask].mean())
        torch.testing.assert_close(gradients(with_bonus, batch)[1], -0.4 * batch.mask.double() / batch.mask.sum())


@EVERYWHERE
def test_the_value_loss_is_the_mean_over_tokens_whatever_the_aggregation(aggregation: str) -> None:
    batch = random_batch(5)
    values, old_values, returns = batch.values, batch.old_values, batch.returns
    assert values is not None and old_values is not None and returns is not None
    critic: dict[str, object] = {"baseline": "critic", "scale": "none", "aggregation": aggregation}
    objective = with_overrides(GRPO, critic | {"critic.value_clip": None, "critic.coef": 0.7})
    plain = policy_loss(objective, replace(batch, values=None)).value
    squares = ((values - returns) ** 2 / 2)[batch.mask]
    torch.testing.assert_close(policy_loss(objective, batch).value, plain + 0.7 * squares.mean())
    torch.testing.assert_close(policy_loss(with_overrides(GRPO, {"aggregation": aggregation}), batch).value, plain)


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
    clip_cov = with_overrides(GRPO, {"select.type": "clip_cov"})
    top_entropy = with_overrides(GRPO, {"select.type": "top_entropy"})
    kl_cov = with_overrides(GRPO, {"select.type": "kl_cov", "select.coef": 0.6})
    plain, _ = value_and_gradient(GRPO, batch)
    assert policy_loss(clip_cov, batch).value == 0
    assert policy_loss(top_entropy, batch).value == plain
    drift = ((batch.logp - batch.old_logp).abs() * batch.mask).sum(1) / batch.mask.sum(1).clamp(min=1)
    torch.testing.assert_close(policy_loss(kl_cov, batch).value, plain + 0.6 * drift.mean())
    none_selected = replace(batch, selected=torch.zeros(8, 6, dtype=torch.bool))
    assert policy_loss(clip_cov, none_selected).value == policy_loss(kl_cov, none_selected).value == plain
    assert policy_loss(top_entropy, none_selected).value == 0


@EVERY_RATIO
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
    names = ("logp", "old_logp", "ref_logp", "sampler_logp")
    narrow: dict[str, Any] = {name: getattr(batch, name).bfloat16() for name in names}
    halves, floats = (replace(batch, **narrow), replace(batch, **{name: narrow[name].float() for name in names}))
    for objective in objectives("token_mean"):
        assert policy_loss(objective, halves).metrics == policy_loss(objective, floats).metrics
        assert policy_loss(objective, halves).value == policy_loss(objective, floats).value


def test_a_nan_inside_the_mask_is_not_hidden() -> None:
    batch = random_batch(5)
    logp = batch.logp.detach().clone()
    row, column = batch.mask.nonzero()[0]
    logp[row, column] = math.nan
    for objective in objectives(*EVERY_AGGREGATION):
        if objective.select.type != "top_entropy":  # The token may not be among those that count.
            assert policy_loss(objective, replace(batch, logp=logp)).value.isnan(), identify(objective)


def test_advantages_by_completion_or_by_token() -> None:
    batch = random_batch(6)
    by_token = replace(batch, advantages=batch.advantages[:, None].expand_as(batch.logp))
    for objective in objectives(*EVERY_AGGREGATION):
        assert policy_loss(objective, batch).value == policy_loss(objective, by_token).value


def test_gradients_flow_to_the_current_policy_alone() -> None:
    batch = random_batch(7)
    constants = ("old_logp", "advantages", "ref_logp", "sampler_logp", "old_values", "returns")
    batch = replace(batch, **{name: getattr(batch, name).requires_grad_() for name in constants})
    for objective in objectives("token_mean"):
        policy_loss(objective, batch).value.backward()  # type: ignore[no-untyped-call]
    assert all(getattr(batch, name).grad is None for name in constants)
    assert all(getattr(batch, name).grad is not None for name in ("logp", "entropy", "values"))


@pytest.mark.parametrize(
    ("overrides", "lacking", "complaint"),
    [
        ({"aggregation": "constant_length"}, "max_completion_tokens", "aggregation=constant_length .* set TokenBatch"),
        ({"aggregation": "group_token_mean"}, "groups", "aggregation=group_token_mean .* set TokenBatch.groups"),
        ({"kl.where": "loss"}, "ref_logp", "kl.reference=initial needs ref_logp, .* set TokenBatch.ref_logp"),
        ({"entropy.bonus": 0.1}, "entropy", "entropy bonus needs entropy, .* set TokenBatch.entropy"),
        ({"select.type": "top_entropy"}, "entropy", "select.type=top_entropy chooses by entropy"),
        (
            {"sampler_correction.type": "token_band"},
            "sampler_logp",
            "sampler_correction.type=token_band needs sampler_logp, .* set TokenBatch.sampler_logp",
        ),
        ({"baseline": "critic", "scale": "none"}, "old_values", "value loss needs old_values, .* TokenBatch.old_val"),
        ({"baseline": "critic", "scale": "none"}, "returns", "value loss needs returns, .* TokenBatch.returns"),
    ],
)
def test_what_a_term_needs_is_named(overrides: dict[str, object], lacking: str, complaint: str) -> None:
    batch = random_batch(8)
    objective = with_overrides(GRPO, overrides)
    assert policy_loss(objective, batch).value.isfinite()
    with pytest.raises(ValueError, match=complaint):
        policy_loss(objective, without(batch, lacking))


@pytest.mark.parametrize(
    "lacking", ["ref_logp", "sampler_logp", "entropy", "values", "groups", "max_completion_tokens"]
)
def test_what_no_term_needs_may_be_absent(lacking: str) -> None:
    batch = random_batch(8)
    assert policy_loss(GRPO, without(batch, lacking)).value == policy_loss(GRPO, batch).value


def test_kl_to_the_start_of_the_iteration_needs_no_reference() -> None:
    objective = with_overrides(GRPO, {"kl.where": "loss", "kl.reference": "iteration_start"})
    assert policy_loss(objective, replace(random_batch(8), ref_logp=None)).value.isfinite()


def test_a_part_of_a_step_needs_its_selection() -> None:
    objective = with_overrides(GRPO, {"select.type": "kl_cov"})
    part = take(random_batch(8), torch.arange(4))
    with pytest.raises(ValueError, match=r"select.type=kl_cov .* set TokenBatch.selected"):
        policy_loss(objective, part)


@pytest.mark.parametrize(
    ("overrides", "lacking"),
    [
        ({"aggregation": "token_mean"}, "step.tokens"),
        ({"aggregation": "micro_token_mean"}, "step.micro_batches"),
        ({"aggregation": "group_token_mean"}, "step.groups"),
        ({"aggregation": "group_token_mean"}, "group_tokens"),
        ({"aggregation": "seq_mean_token_mean"}, "step.sequences"),
        ({"aggregation": "seq_mean_token_sum"}, "step.sequences"),
        ({"aggregation": "constant_length"}, "step.sequences"),
        ({"entropy.bonus": 0.1}, "step.tokens"),
    ],
)
def test_a_part_of_a_step_needs_the_denominator_of_the_step(overrides: dict[str, object], lacking: str) -> None:
    part = take(random_batch(8), torch.arange(4))
    objective = with_overrides(GRPO, overrides)
    assert policy_loss(objective, part).value.isfinite()
    with pytest.raises(ValueError, match=f"part of an optimiser step .* set TokenBatch.{lacking}"):
        policy_loss(objective, without(part, lacking))


def test_every_preset_has_a_loss() -> None:
    for name in presets("policy_gradient"):
        value, gradient = value_and_gradient(preset(name, Objective), random_batch(10))
        assert value.isfinite() and gradient.abs().max() > 0, name


# What a batch must be

FOUR_ROWS = random_batch(0, rows=4, width=5)
TOKENS = int(FOUR_ROWS.mask.sum())


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"logp": torch.zeros(4)}, r"logp has shape \[4\]; it must be \[B, T\]"),
        ({"old_logp": torch.zeros(4, 6)}, r"old_logp has shape \[4, 6\]; it must be that of logp, \[4, 5\]"),
        ({"mask": torch.ones(5, 4)}, r"mask has shape \[5, 4\]"),
        ({"mask": torch.full((4, 5), 0.5)}, "values other than 0 and 1"),
        ({"advantages": torch.zeros(5)}, r"advantages has shape \[5\]; it must be \[4\] or \[4, 5\]"),
        ({"groups": torch.zeros(4, 1)}, r"groups has shape \[4, 1\]; it must be \[4\]"),
        ({"step_sequences": 3}, "step.sequences=3, but this micro-batch alone has 4"),
        ({"step_tokens": TOKENS - 1}, f"step.tokens={TOKENS - 1}, but this micro-batch alone has {TOKENS}"),
        ({"step_tokens": 0}, "step.tokens=0; it must be at least 1"),
        ({"step_tokens": 99, "step": StepSize()}, "step is given beside step_sequences or step_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens=0; it must be at least 1"),
        ({"step": StepSize(groups=0)}, "step.groups=0; it must be at least 1"),
        *(
            ({name: torch.zeros(4, 1)}, rf"{name} has shape \[4, 1\]; it must be that of logp, \[4, 5\]")
            for name in ("ref_logp", "sampler_logp", "entropy", "selected", "values", "old_values", "returns")
        ),
        ({"selected": torch.zeros(4, 5)}, "selected is of torch.float32; it must be bool"),
        ({"group_tokens": torch.ones(5)}, r"group_tokens has shape \[5\]; it must be \[4\]"),
        (
            {"group_tokens": FOUR_ROWS.mask.sum(1) - 1},
            "group_tokens has a group with fewer tokens than one of its rows",
        ),
    ],
)
def test_a_batch_that_does_not_fit_together_is_refused(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
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
