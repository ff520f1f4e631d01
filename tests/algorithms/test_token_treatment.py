from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from algorithms import Objective, TokenBatch, policy_loss, preset, with_overrides
from algorithms.token_treatment import Treatment, treatment
from tests.algorithms.cases import GRPO, objectives, random_batch

# Ratios of five tokens, and of the same five again with the advantage reversed.
RATIOS = torch.tensor([0.5, 0.9, 1.0, 1.15, 3.0], dtype=torch.float64)


def treated(objective: Objective, **fields: object) -> Treatment:
    logp = RATIOS.log().expand(2, 5)
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


@pytest.mark.parametrize(
    ("overrides", "clipped", "masked"),
    [
        ({"rule.clip_low": 0.2, "rule.clip_high": 0.1}, [[3, 4], [0]], [[], []]),
        ({"rule.clip_low": 0.2, "rule.clip_high": 0.3, "rule.dual_clip": 2.0}, [[4], [0, 4]], [[], []]),
        ({"rule.type": "cispo", "rule.weight_min": 0.8, "rule.weight_max": 1.1}, [[0, 3, 4], [0, 3, 4]], [[], []]),
        (
            {"rule.type": "cispo", "rule.weight_min": 0.8, "rule.weight_max": 1.1, "rule.mask": "unified"},
            [[], []],
            [[3, 4], [0]],
        ),
        ({"rule.type": "gmpo", "ratio": "sequence_mean"}, [[4], [0]], [[], []]),
        ({"rule.type": "weighted"}, [[], []], [[], []]),
        ({"rule.type": "sapo"}, [[], []], [[], []]),
    ],
)
def test_by_hand(overrides: dict[str, object], clipped: list[list[int]], masked: list[list[int]]) -> None:
    got = treated(with_overrides(GRPO, overrides))
    assert (places(got.clipped), places(got.masked)) == (clipped, masked)


def test_what_is_selected_is_out_or_alone_in() -> None:
    selected = torch.tensor([[True, False, False, False, True], [False] * 5])
    out = treated(with_overrides(GRPO, {"select.type": "clip_cov"}), selected=selected)
    assert places(out.masked) == [[0, 4], []]
    assert places(out.clipped) == [[], [0]], "beyond the bound, but taken out before"
    alone = treated(with_overrides(GRPO, {"select.type": "top_entropy"}), selected=selected)
    assert places(alone.masked) == [[1, 2, 3], [0, 1, 2, 3, 4]]
    assert not treated(preset("kl_cov"), selected=selected).masked.any()


def test_a_sampler_correction_masks_what_it_weighs_with_0() -> None:
    sampler_logp = torch.tensor([[0.0, -3.0, 0.0, 3.0, 0.0], [0.0] * 5])
    band = {"sampler_correction.type": "token_band", "sampler_correction.weight_max": 2.0}
    assert places(treated(with_overrides(GRPO, band), sampler_logp=sampler_logp).masked) == [[1, 3], []]
    truncate = {"sampler_correction.type": "token_truncate", "sampler_correction.weight_max": 2.0}
    assert not treated(with_overrides(GRPO, truncate), sampler_logp=sampler_logp).masked.any()


def test_padding_is_neither() -> None:
    mask = torch.tensor([[1, 1, 1, 1, 0], [0, 1, 1, 1, 1]])
    got = treated(with_overrides(GRPO, {"rule.clip_high": 0.1}), mask=mask)
    assert places(got.clipped) == [[3], []]


@pytest.mark.parametrize("objective", objectives("token_mean"), ids=lambda objective: objective.rule.type)
def test_what_is_masked_or_clipped_to_nothing_has_no_gradient(objective: Objective) -> None:
    """Of the policy term alone: a token that is masked, or that ppo_clip clips by its own ratio, has no weight."""
    terms = {"kl.where": "none", "sequence_penalty": 0.0, "entropy.bonus": 0.0}
    alone = with_overrides(objective, terms | {"select.type": objective.select.type})
    batch = random_batch(3)
    batch = replace(batch, logp=batch.logp.detach().requires_grad_())
    loss = policy_loss(alone, batch)
    (gradient,) = torch.autograd.grad(loss.value, batch.logp)
    got = treatment(loss.trace)
    assert not (got.clipped & got.masked).any()
    if alone.ratio == "token":
        assert not gradient[got.masked].any()
        # kl_cov's penalty pulls at clipped tokens too.
        if alone.rule.type == "ppo_clip" and alone.select.type != "kl_cov":
            assert not gradient[got.clipped].any()
