"""TRL's own losses with the settings that we write for it, and ours at the point that we read settings as."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from algorithms import Objective, PreferenceObjective, TokenBatch, advantages, kl_penalties, policy_loss, presets
from algorithms.dialects import DIALECTS, Translation, translate, understand
from algorithms.kl import KlInReward
from algorithms.preference import preference_loss
from algorithms.presets import describe
from tests.algorithms.cases import take
from tests.algorithms.elsewhere.trl_settings import PAIR_SETTINGS, SETTINGS
from tests.algorithms.elsewhere.trl_trainers import (
    LIMIT,
    PairsOfCompletions,
    Rollout,
    pairs,
    pairs_loss,
    policy_gradient_loss,
    rollout,
)

pytestmark = pytest.mark.slow

TRL = DIALECTS.find("trl")
CONFIGS = {config.name: config for config in TRL.configs}
TOLERANCE = 1e-6


@pytest.fixture(scope="module", autouse=True)
def trl_is_there() -> None:
    pytest.importorskip("trl")


def translated(family: str) -> list[Translation]:
    found = [translate(TRL, describe(name).objective) for name in presets() if describe(name).family == family]
    return [one for one in found if not one.lost]


EXPRESSED = translated("policy_gradient")
PAIRS_EXPRESSED = translated("preference")


def our_loss(objective: Objective, given: Rollout, micro_batches: int) -> Tensor:
    mask = given.mask
    token_rewards = None
    if isinstance(objective.kl, KlInReward):
        token_rewards = kl_penalties(objective.kl, given.old_logp, given.ref_logp, objective.kl.beta, mask)
    advantage = advantages(objective, given.rewards.double(), given.groups, mask, token_rewards=token_rewards)
    if objective.overlong.type == "mask_after":
        mask = mask & ~given.truncated[:, None]
    batch = TokenBatch(
        logp=given.logp,
        old_logp=given.old_logp,
        ref_logp=given.ref_logp,
        sampler_logp=given.sampler_logp,
        entropy=given.entropy,
        mask=mask,
        advantages=advantage,
        groups=given.groups,
        max_completion_tokens=LIMIT,
    )
    if micro_batches == 1:
        return policy_loss(objective, batch).value
    parts = torch.arange(len(mask)).view(micro_batches, -1)
    return torch.stack([policy_loss(objective, take(batch, rows, micro_batches)).value for rows in parts]).sum()


def assert_same(ours: Tensor, theirs: Tensor, inputs: list[Tensor]) -> None:
    gradients = [torch.autograd.grad(loss, inputs, allow_unused=True) for loss in (ours, theirs)]
    for our, their, of in zip(*gradients, inputs, strict=True):
        our, their = (torch.zeros_like(of) if one is None else one for one in (our, their))
        torch.testing.assert_close(our, their, rtol=0, atol=TOLERANCE)
    assert any(one is not None and one.abs().max() > 1e-3 for one in gradients[0])
    assert ours.item() == pytest.approx(theirs.item(), abs=TOLERANCE)


@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("translation", EXPRESSED, ids=lambda one: one.written.settings.get("loss_type", "gmpo"))
def test_presets_that_trl_can_express(translation: Translation, micro_batches: int) -> None:
    # GSPO's clip range is so tight that nothing would be left inside.
    given = rollout(5e-4 if translation.written.settings.get("epsilon") == 3e-4 else 0.4)
    theirs = policy_gradient_loss(translation.config.name, translation.written.settings, given, micro_batches)
    assert isinstance(translation.reads_as, Objective)
    assert_same(our_loss(translation.reads_as, given, micro_batches), theirs, [given.logp])
    # The preset itself, which differs by the guard against a division by 0 at most.
    assert isinstance(translation.objective, Objective)
    exact = replace_eps(translation.objective, translation.reads_as)
    torch.testing.assert_close(our_loss(exact, given, micro_batches), theirs, rtol=0, atol=TOLERANCE)


def replace_eps(objective: Objective, other: Objective) -> Objective:
    return objective.model_copy(update={"scale_eps": other.scale_eps})


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_are_what_we_read_them_as(name: str) -> None:
    config, settings = SETTINGS[name]
    understood = understand(TRL, CONFIGS[config], settings)
    assert isinstance(understood.objective, Objective) and not understood.point.outside
    given = rollout()
    theirs = policy_gradient_loss(config, settings, given, 1)
    assert_same(our_loss(understood.objective, given, 1), theirs, [given.logp, given.entropy])


def our_pairs_loss(objective: PreferenceObjective, given: PairsOfCompletions) -> Tensor:
    zero_point = ((given.logp - given.ref_logp) * given.mask).sum(1).mean().detach()
    return preference_loss(
        objective,
        given.logp[:3],
        given.logp[3:],
        given.mask[:3],
        given.mask[3:],
        given.ref_logp[:3],
        given.ref_logp[3:],
        kl_reference=zero_point if objective.link == "kto" else None,
    ).value


@pytest.mark.parametrize("translation", PAIRS_EXPRESSED, ids=lambda one: one.objective.link)
def test_presets_of_pairs_that_trl_can_express(translation: Translation) -> None:
    assert not translation.differs
    given = pairs()
    theirs = pairs_loss(translation.config.name, translation.written.settings, given)
    assert isinstance(translation.objective, PreferenceObjective)
    assert_same(our_pairs_loss(translation.objective, given), theirs, [given.logp])


@pytest.mark.parametrize("name", PAIR_SETTINGS)
def test_settings_of_pairs_are_what_we_read_them_as(name: str) -> None:
    config, settings = PAIR_SETTINGS[name]
    understood = understand(TRL, CONFIGS[config], settings)
    assert isinstance(understood.objective, PreferenceObjective) and not understood.point.outside
    given = pairs()
    assert_same(our_pairs_loss(understood.objective, given), pairs_loss(config, settings, given), [given.logp])


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_the_defaults_and_the_names_are_those_of_the_installed_trl(config: Any) -> None:
    import dataclasses

    import trl
    from trl.experimental import cpo, gmpo, orpo

    places = {"CPOConfig": cpo, "GMPOConfig": gmpo, "ORPOConfig": orpo}
    fields = {one.name: one for one in dataclasses.fields(getattr(places.get(config.name, trl), config.name))}
    assert {name for name in fields if not config.knows(name)} == set()
    for name, default in config.defaults.items():
        field: Any = fields[name]
        theirs = field.default_factory() if field.default is dataclasses.MISSING else field.default
        ignored = config.name == "GMPOConfig" and name == "use_bias_correction_kl"
        assert theirs == default or ignored, name
