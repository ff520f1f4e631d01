from __future__ import annotations

import pytest

from algorithms import Coefficients, preset
from harness.training.batch import ControlledCoefficients

ADAPTIVE = {"entropy.adaptive.type": "step_both_ways", "entropy.adaptive.delta": 0.1}


def test_fixed_ones_stay() -> None:
    fixed = ControlledCoefficients(preset("grpo", **{"entropy.bonus": 0.01, "kl.where": "loss", "kl.beta": 0.04}))
    assert fixed.in_force(5.0) == Coefficients(entropy=0.01, kl=0.04)
    fixed.observe_kl(10.0, 256)
    assert fixed.in_force(0.0) == Coefficients(entropy=0.01, kl=0.04)
    assert ControlledCoefficients(preset("grpo")).in_force(1.0) == Coefficients(0.0, 0.0)


def test_the_bonus_is_applied_before_it_is_stepped() -> None:
    """Skywork-OR1 (2505.22312), eq. 3.2: c_0 = 0 is applied in the first step."""
    controlled = ControlledCoefficients(preset("grpo", **ADAPTIVE))
    applied = [controlled.in_force(entropy).entropy for entropy in (0.1, 0.1, 0.3, 0.1)]
    assert applied == pytest.approx([0.0, 0.1, 0.0, 0.1])


def test_kl_follows_its_target() -> None:
    controlled = ControlledCoefficients(
        preset("grpo", **{"kl.where": "loss", "kl.beta": 0.1, "kl.control": "adaptive", "kl.target_nats": 0.05})
    )
    controlled.observe_kl(1.0, 1000)
    assert controlled.in_force(0.0).kl == pytest.approx(0.1 * (1 + 0.2 * 1000 / 10_000))


def test_state_is_carried() -> None:
    objective = preset("grpo", **ADAPTIVE, **{"kl.where": "loss", "kl.control": "adaptive"})
    one, other = ControlledCoefficients(objective), ControlledCoefficients(objective)
    one.in_force(0.0)
    one.observe_kl(3.0, 500)
    other.load_state_dict(one.state_dict())
    assert other.in_force(0.0) == one.in_force(0.0) != ControlledCoefficients(objective).in_force(0.0)
