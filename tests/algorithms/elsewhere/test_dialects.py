"""What other trainers' settings compute, against numbers that their own code gave; and that nothing is lost on the way
from an objective to settings and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given as for_all
from hypothesis import settings as search
from hypothesis import strategies as st

from algorithms import Objective, TokenBatch, active_knobs, advantages, kl_penalties, preset, presets, with_overrides
from algorithms.dialects import DIALECTS, GUARDS, Config, Dialect, differences, translate, understand
from algorithms.elsewhere.verl import LOSS
from algorithms.elsewhere.verl_terms import ACTOR, ROLLOUT
from algorithms.kl import KlInReward
from algorithms.overrides import AnyObjective, family_of
from algorithms.presets import describe
from harness.errors import RefusedError
from tests.algorithms.cases import value_and_gradient
from tests.algorithms.elsewhere.trl_settings import PAIR_SETTINGS, SETTINGS
from tests.algorithms.points import VALUES, moved, points
from tests.algorithms.test_golden import GOLDEN, VERL_ADVANTAGES, given, golden_batch
from tests.frozen import frozen
from tests.refusals import refuses

ELSEWHERE = json.loads((Path(__file__).parents[2] / "golden" / "elsewhere.json").read_text(encoding="utf-8"))
TOLERANCE = 1e-6


def config(dialect: str, name: str | None = None) -> tuple[Dialect, Config]:
    one = DIALECTS.find(dialect)
    return one, next(config for config in one.configs if name in (None, config.name))


def read(dialect: str, settings: dict[str, Any], name: str | None = None) -> Objective:
    understood = understand(*config(dialect, name), settings)
    assert isinstance(understood.objective, Objective) and not understood.point.outside, understood.point.outside
    return understood.objective


def advantages_of(objective: Objective) -> torch.Tensor:
    groups = torch.tensor([ord(uid) for uid in GOLDEN["inputs"]["uid"]])
    mask = given("mask")
    token_rewards = None
    if isinstance(objective.kl, KlInReward):
        token_rewards = kl_penalties(objective.kl, given("old_logp"), given("ref_logp"), objective.kl.beta, mask)
    return advantages(objective, given("rewards"), groups, mask, token_rewards=token_rewards)


def assert_golden(objective: Objective, batch: TokenBatch, entry: dict[str, Any]) -> None:
    value, gradient = value_and_gradient(objective, batch)
    assert value.item() == pytest.approx(entry["loss"], abs=TOLERANCE)
    torch.testing.assert_close(gradient, torch.tensor(entry["grad"], dtype=torch.float64), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(("ours", "theirs"), [("k1_clamped", "k1"), ("k3_ratio", "k3"), ("of a later version", "k3")])
def test_openrlhf_gets_an_estimator_that_it_has(ours: str, theirs: str) -> None:
    knobs = active_knobs(with_overrides(preset("grpo"), {"kl.where": "loss"})) | {"kl.estimator": ours}
    written = config("openrlhf", "train_ppo_ray")[1].write(knobs)
    assert written.settings["algo.kl.estimator"] == theirs


@pytest.mark.parametrize(
    "entry", ELSEWHERE["openrlhf"], ids=lambda entry: " ".join(map(str, entry["settings"].values()))
)
def test_openrlhf(entry: dict[str, Any]) -> None:
    objective = read("openrlhf", entry["settings"], "train_ppo_ray")
    # A guard of 1e-8 is added to the variance here, and is its least value there: 1e-8 of the advantages.
    found = advantages_of(objective)
    torch.testing.assert_close(found, torch.tensor(entry["advantages"], dtype=torch.float64), rtol=1e-6, atol=TOLERANCE)
    assert_golden(objective, golden_batch(advantages=found), entry)


@pytest.mark.parametrize(
    "entry", ELSEWHERE["prime_rl"], ids=lambda entry: " ".join(map(str, entry["settings"].values()))
)
def test_prime_rl(entry: dict[str, Any]) -> None:
    objective = read("prime-rl", entry["settings"])
    assert_golden(objective, golden_batch(advantages=advantages_of(objective)), entry)


VERL: dict[str, dict[str, Any]] = {
    "ppo_0.2_0.28_c3": {f"{ACTOR}clip_ratio_high": 0.28},
    "ppo_0.2_0.28_c1e9": {f"{ACTOR}clip_ratio_high": 0.28, f"{ACTOR}clip_ratio_c": 1e9},
    "cispo_lo10_hi0.2": {f"{LOSS}loss_mode": "cispo", f"{ACTOR}clip_ratio_low": 10},
    "gpg": {f"{LOSS}loss_mode": "gpg"},
    "gspo_3e-4_4e-4": {
        f"{LOSS}loss_mode": "gspo",
        f"{ACTOR}clip_ratio_low": 3e-4,
        f"{ACTOR}clip_ratio_high": 4e-4,
    },
    "sapo": {f"{LOSS}loss_mode": "sapo"},
}


@pytest.mark.parametrize("entry", [entry for entry in GOLDEN["verl"]["policy"] if entry.split("|")[0] in VERL])
def test_losses_of_verl(entry: str) -> None:
    name, mode = entry.split("|")
    limit = GOLDEN["inputs"]["max_completion_length"]
    settings = {**VERL[name], f"{ACTOR}loss_agg_mode": mode, "algorithm.adv_estimator": "grpo"}
    settings |= {f"{ACTOR}loss_scale_factor": limit, "data.max_response_length": limit}
    assert_golden(read("verl", settings), golden_batch(), GOLDEN["verl"]["policy"][entry])


@pytest.mark.parametrize("entry", sorted(set(VERL_ADVANTAGES) - {"grpo_nostd"}))
def test_estimators_of_verl(entry: str) -> None:
    found = advantages_of(read("verl", {"algorithm.adv_estimator": entry}))
    expected = torch.tensor(GOLDEN["verl"]["adv"][entry], dtype=torch.float64)[:, None] * given("mask")
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE)


LOST = "cannot be expressed"
# Preset -> what the trainer makes of it; the others are lost.
EXPRESSED = {
    "trl": {
        **dict.fromkeys(("grpo", "bnpo", "lite_ppo", "gspo", "sapo", "gmpo"), "the same but for scale_eps"),
        **dict.fromkeys(("dr_grpo", "dpo", "dpo_norm", "ipo", "robust_dpo", "hinge", "rpo", "exo"), "the same"),
        **dict.fromkeys(("kto", "apo_zero", "sppo_hard", "nca", "simpo"), "the same"),
        **dict.fromkeys(("rloo", "ace_reason", "kimi_k1_5"), "the same with one optimiser step per rollout"),
    },
    "verl": {
        **dict.fromkeys(("grpo", "dr_grpo", "gspo", "sapo", "gpg", "opo", "rloo", "ppo"), "the same"),
        **dict.fromkeys(("reinforce_pp", "reinforce_pp_baseline"), "the same"),
        "dapo": "the same but for refill_max_rounds",
        "kimi_k1_5": "the same with one optimiser step per rollout",
    },
    "openrlhf": {
        **dict.fromkeys(("grpo", "gspo"), "the same but for scale_eps"),
        "dapo": "the same but for scale_eps, refill_max_rounds",
        **dict.fromkeys(("dpo", "ipo_sum", "cdpo"), "the same"),
        **dict.fromkeys(("sapo", "gmpo", "kl_cov"), "the same with one optimiser step per rollout"),
    },
    "prime-rl": {"sft": "the same"},
}


@pytest.mark.parametrize("dialect", DIALECTS.names())
def test_what_each_trainer_can_express(dialect: str) -> None:
    one = DIALECTS.find(dialect)
    families = {config.family for config in one.configs}
    verdicts = {
        name: translate(one, describe(name).objective).verdict
        for name in presets()
        if family_of(describe(name).objective) in families
    }
    assert {name: said for name, said in verdicts.items() if said != LOST} == EXPRESSED[dialect]
    if "preference" not in families:
        with refuses(RefusedError, "algorithms.no_trainer_for_feedback"):
            translate(one, preset("dpo"))


def assert_nothing_is_lost(dialect: str, objective: AnyObjective) -> None:
    one = DIALECTS.find(dialect)
    translation = translate(one, objective)
    if not translation.lost and not translation.written.beside:
        assert {*translation.differs} <= GUARDS
        same = with_overrides(objective, {knob: there for knob, (_, there) in translation.differs.items()})
        assert translation.reads_as == same
    understood = understand(one, translation.config, translation.written.settings)
    assert understood.objective == translation.reads_as
    assert with_overrides(describe(understood.start).objective, understood.moves) == understood.objective
    if not translation.point.outside:
        # A trainer can express what it computes.
        back = translate(one, translation.reads_as)
        assert not back.differs and not back.lost


@pytest.mark.slow
@for_all(st.sampled_from(sorted(DIALECTS.names())), points())
@search(max_examples=150, deadline=None)
def test_settings_say_what_they_can_of_any_objective(dialect: str, objective: Objective) -> None:
    assert_nothing_is_lost(dialect, objective)


COMPUTED: list[tuple[str, str, dict[str, Any]]] = [
    *(("trl", name, settings) for name, settings in (*SETTINGS.values(), *PAIR_SETTINGS.values())),
    *(("openrlhf", "train_ppo_ray", entry["settings"]) for entry in ELSEWHERE["openrlhf"]),
    *(("prime-rl", "rl", entry["settings"]) for entry in ELSEWHERE["prime_rl"]),
    *(("verl", "ppo_trainer", settings) for settings in VERL.values()),
    *(
        ("verl", "ppo_trainer", {"algorithm.adv_estimator": "grpo", **settings})
        for settings in (
            {f"{LOSS}loss_mode": "sapo", f"{ACTOR}tau_pos": 2.0},
            {f"{LOSS}loss_mode": "cispo", f"{ACTOR}clip_ratio_low": 0.3, f"{ACTOR}clip_ratio_high": 4.0},
            {f"{ACTOR}use_kl_loss": True, f"{ACTOR}kl_loss_type": "k3+", f"{ACTOR}kl_loss_coef": 0.2},
            {f"{ACTOR}use_kl_loss": True, f"{ACTOR}kl_loss_type": "mse"},
            {"algorithm.use_kl_in_reward": True, "algorithm.kl_penalty": "low_var_kl"},
            {"algorithm.use_kl_in_reward": True, "algorithm.kl_ctrl.type": "adaptive", "algorithm.kl_ctrl.horizon": 99},
            {f"{ROLLOUT}rollout_is": "token", f"{ROLLOUT}rollout_is_threshold": 3.0},
            {f"{ROLLOUT}rollout_is": "sequence", f"{ROLLOUT}rollout_is_threshold": "0.5_4.0"},
            {f"{ROLLOUT}bypass_mode": True},
            {"algorithm.adv_estimator": "gae", "algorithm.lam": 0.9, "critic.cliprange_value": 0.3},
        )
    ),
]


@pytest.mark.parametrize(("dialect", "name", "settings"), COMPUTED)
def test_what_a_trainer_computes_it_can_express(dialect: str, name: str, settings: dict[str, Any]) -> None:
    computed = understand(*config(dialect, name), settings).objective
    translation = translate(DIALECTS.find(dialect), computed)
    assert (translation.verdict, translation.differs) == ("the same", {})


@pytest.mark.slow
@pytest.mark.parametrize("dialect", ["trl", "verl", "openrlhf"])
def test_each_knob_goes_there_and_back(dialect: str) -> None:
    """Around every algorithm that a trainer can express, as far as it can express the neighbour."""
    one = DIALECTS.find(dialect)
    neighbours = {
        found
        for name, said in EXPRESSED[dialect].items()
        if "optimiser step" not in said and isinstance(start := describe(name).objective, Objective)
        for knob, values in VALUES.items()
        if knob in active_knobs(start)
        for value in values
        if (found := moved(start, knob, value)) is not None
    }
    for neighbour in neighbours:
        there = translate(one, neighbour)
        if not there.point.outside:
            assert not translate(one, there.reads_as).differs
    assert len(neighbours) > 50


@pytest.mark.parametrize("dialect", ["trl", "openrlhf"])
@pytest.mark.parametrize("name", presets("preference"))
def test_settings_say_what_they_can_of_pairs(dialect: str, name: str) -> None:
    assert_nothing_is_lost(dialect, describe(name).objective)


@pytest.mark.parametrize(
    ("dialect", "settings", "name", "apart"),
    [
        ("trl", {}, "grpo", {"aggregation", "scale_eps"}),
        ("trl", {"loss_type": "dr_grpo"}, "dr_grpo", {"scale"}),
        ("trl", {"loss_type": "cispo"}, "cispo", {"rule.weight_max", "aggregation", "zero_std", "scale_eps"}),
        ("trl", {"loss_type": "dapo"}, "dapo", {"rule.clip_high", "overlong.type", "zero_std", "scale_eps"}),
        ("verl", {"algorithm.adv_estimator": "grpo"}, "grpo", {"aggregation", "rule.dual_clip"}),
        ("openrlhf", {"algo.advantage.estimator": "dr_grpo"}, "dr_grpo", {"aggregation", "kl.where"}),
    ],
)
def test_what_a_name_makes_one_expect(dialect: str, settings: dict[str, Any], name: str, apart: set[str]) -> None:
    """The setting, or the config's own name where none bears one."""
    understood = understand(*config(dialect), settings)
    said = "=".join(next(iter(settings.items()), ("GRPOConfig",)))
    assert understood.expected == {said: name}
    assert {*differences(describe(name).objective, understood.objective)} == apart
    assert understand(*config("verl"), {"algorithm.adv_estimator": "remax"}).expected == {}


NOT_TAKEN: list[tuple[str, dict[str, Any]]] = [
    ("trl", {"epsilon_hgih": 0.28}),
    ("trl", {"epsilon": "wide"}),
    ("trl", {"loss_type": "ppo"}),
    ("trl", {"scale_rewards": "groups"}),
    ("trl", {"scale_rewards": ["group"]}),
    ("trl", {"epsilon": -0.2}),
    ("verl", {"algorithm.adv_estimater": "grpo"}),
    ("verl", {"algorithm.adv_estimator": "gpro"}),
    ("openrlhf", {"actor.eps_clip_low_high": [0.2]}),
    ("prime-rl", {"trainer.loss.kl_tua": 0.0}),
]


def test_settings_that_a_trainer_would_not_take() -> None:
    said = []
    for dialect, settings in NOT_TAKEN:
        with pytest.raises(RefusedError) as refused:
            understand(*config(dialect), settings)
        said.append(str(refused.value))
    frozen("algorithms/settings_not_taken", "\n".join(said))


@pytest.mark.parametrize(
    ("dialect", "settings", "setting"),
    [
        ("trl", {"loss_type": "vespo"}, "loss_type"),
        ("trl", {"delta": 1.1}, "delta"),
        ("trl", {"beta": 0.1, "importance_sampling_level": "sequence"}, "use_bias_correction_kl"),
        ("verl", {f"{ACTOR}loss_agg_mode": "seq-mean-token-sum-norm"}, f"{ACTOR}loss_scale_factor"),
        ("verl", {f"{LOSS}loss_mode": "dppo_tv"}, f"{LOSS}loss_mode"),
        ("verl", {"algorithm.adv_estimator": "remax"}, "algorithm.adv_estimator"),
        ("verl", {"distillation.enabled": True}, "distillation.enabled"),
        ("openrlhf", {"algo.advantage.estimator": "rloo"}, "algo.kl.use_loss"),
        ("prime-rl", {}, "trainer.loss.dppo_mask_low"),
        ("prime-rl", {"orchestrator.algo.length_penalty.num_turns_weight": 0.2}, "orchestrator.algo.length_penalty"),
    ],
)
def test_what_lies_beyond_the_knobs_is_named(dialect: str, settings: dict[str, Any], setting: str) -> None:
    assert setting in understand(*config(dialect), settings).point.outside
