from __future__ import annotations

import pytest

from algorithms import Objective, preset, presets, with_overrides
from harness.errors import RefusedError
from harness.shelves.replay.arm import find_objective, reason_against
from tests.algorithms.cases import GRPO
from tests.refusals import refuses

FROM_START = {"kl.where": "loss", "kl.reference": "iteration_start"}


def objective(**overrides: object) -> Objective:
    return with_overrides(GRPO, overrides)


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ({"kl.where": "loss"}, "kl.reference=initial"),
        ({"kl.where": "reward", "kl.reference": "refreshed"}, "kl.reference=refreshed"),
        ({"entropy.bonus": 0.1}, "entropy bonus"),
        ({"entropy.adaptive.type": "step_both_ways", "entropy.adaptive.target_nats": 1.0}, "entropy bonus"),
        ({"credit": "steps"}, "credit=steps"),
        ({"select.type": "top_entropy"}, "select.type=top_entropy"),
        ({"baseline": "critic", "scale": "none"}, "baseline=critic"),
        ({"distill.where": "loss"}, "distill.where=loss"),
    ],
)
def test_what_is_not_stored_is_named(overrides: dict[str, object], reason: str) -> None:
    got = reason_against(objective(**overrides), recorded=True)
    assert got is not None
    assert reason in got


def test_a_sampler_correction_needs_the_trainers_log_probs() -> None:
    corrected = objective(**{"sampler_correction.type": "token_band"})
    assert reason_against(corrected, recorded=True) is None
    assert "sampler_correction" in str(reason_against(corrected, recorded=False))


def test_what_needs_the_rollout_alone_can_be_replayed() -> None:
    for overrides in ({}, FROM_START, {"select.type": "clip_cov"}, {"sequence_penalty": 0.1}):
        assert reason_against(objective(**overrides), recorded=False) is None


def test_every_preset_is_found_or_refused_with_a_reason() -> None:
    for name in presets("policy_gradient"):
        assert find_objective(name) == preset(name)
    for pairwise in presets("preference"):
        with refuses(RefusedError, "shelves.replay.learns_from_pairs", algorithm=pairwise):
            find_objective(pairwise)
    with refuses(RefusedError, "bench.unknown_name", name="'dr_gpo'"):
        find_objective("dr_gpo")
