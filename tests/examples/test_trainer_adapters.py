"""The adapters of other trainers, with a stand-in for each trainer that keeps to its settings and files but learns
nothing. What verl itself says to the settings is in test_verl.py."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from algorithms import Objective, preset, presets, with_overrides
from algorithms.dialects import Config, Dialect, understand
from algorithms.elsewhere.prime_rl import PRIME_RL, RL
from algorithms.elsewhere.verl import PPO_TRAINER, VERL
from harness import plugins
from harness.config.resolve import Layer, resolve
from harness.config.run_spec import RunSpec
from harness.models.start import StartingPoint
from harness.plan import make_plan
from harness.records import CellRecord
from harness.records.files import append_jsonl, write_json
from harness.run.sweep import cell_job
from harness.run.worker import run_job
from tests.algorithms.cases import value_and_gradient
from tests.algorithms.test_golden import given, golden_batch
from tests.examples.adapters import EXAMPLES, load
from tests.harness.run.small import SETTINGS
from tests.harness.run.test_worker import ignore

ADAPTERS = ("verl", "prime_rl")
STAND_INS = Path(__file__).parent / "stand_ins"
STEPS = {"train.steps": 6, "train.checkpoint_every": 2, "eval.every": 4, "eval.samples": 1, "eval.curve_samples": 1}
DRAWN_TOKENS = 40
"""A step: 4 prompts, 4 samples, 2.5 tokens on average."""


def sweep_of(adapter: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((EXAMPLES / adapter / "sweep.yaml").read_text(encoding="utf-8"))
    return found


def spec_of(adapter: str, settings: dict[str, Any] | None = None, mode: str | None = None) -> RunSpec:
    """The small spec with the shipped sweep's objective and trainer, which finds a stand-in instead of the trainer."""
    plugins.use([], [EXAMPLES / adapter])
    sweep = sweep_of(adapter)
    (shipped,) = (arm["trainer"] for arm in sweep["arms"].values() if "trainer" in arm)
    trainer = {
        **shipped,
        "run": "{python} train.py {config}",
        "env": {"PYTHONPATH": f"{STAND_INS}:{EXAMPLES.parents[1]}"},
        "args": {"overrides": [f'+stand_in="{mode}"'] if mode else []},
    }
    layers = [Layer("small", SETTINGS | STEPS), Layer("sweep", sweep["base"]), Layer("trainer", {"trainer": trainer})]
    return resolve([*layers, Layer("test", settings or {})], seed=1)


@pytest.fixture(autouse=True)
def _without_plugins() -> Iterator[None]:
    yield
    plugins.use([], [])


def run(spec: RunSpec, home: Path) -> tuple[CellRecord, str, str]:
    """The cell in a home, as a job in this process; its state and the reason."""
    record = CellRecord.at(home / "s" / "cells" / "theirs-s1-0123456789")
    if not record.path.exists():
        record.path.mkdir(parents=True)
        write_json(record.path / "spec.json", spec.model_dump(mode="json"))
    state, reason = run_job(cell_job(record, spec, home), home, StartingPoint(), ignore)
    return record, state, str(reason)


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_an_adapter_is_short_and_its_sweep_plans(adapter: str) -> None:
    assert (EXAMPLES / adapter / "train.py").read_text(encoding="utf-8").count("\n") <= 150
    plan = make_plan(str(EXAMPLES / adapter / "sweep.yaml"))
    assert {cell.arm for cell in plan.cells} == {"bench", adapter}


@pytest.mark.slow
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_a_cell_that_another_trainer_trains_is_a_cell_although_the_trainer_died(adapter: str, tmp_path: Path) -> None:
    """It resumes from its checkpoint of step 2, and no row shows that it ever stopped."""
    cell, state, reason = run(spec_of(adapter, mode="dies"), tmp_path)
    assert state == "refused"
    assert "code 9" in reason and "  CUDA" in reason
    cell, state, reason = run(spec_of(adapter, mode="dies"), tmp_path)
    assert (state, cell.step, cell.generated_tokens, cell.flags) == ("done", 6, 6 * DRAWN_TOKENS, []), reason
    assert [start["from_step"] for start in cell.read_starts()] == [0, 2]
    rows = cell.read_steps()
    assert [row["generated_tokens"] for row in rows] == [DRAWN_TOKENS * step for step in range(1, 7)]
    assert rows[1]["reward/mean"] == 0.2 and rows[1]["grad_norm"] == 0.5
    assert [(row["step"], row["final"]) for row in cell.read_scores()] == [(4, False), (6, True)]


@pytest.mark.slow
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_a_budget_of_tokens_ends_a_trainer_and_so_does_a_gradient_that_it_hides(adapter: str, tmp_path: Path) -> None:
    cell, state, reason = run(spec_of(adapter, {"budget.tokens": 2 * DRAWN_TOKENS + 1}), tmp_path / "budget")
    assert (state, cell.step, cell.generated_tokens) == ("done", 3, 3 * DRAWN_TOKENS), reason
    cell, state, reason = run(spec_of(adapter, mode="diverges"), tmp_path / "diverges")
    assert (state, cell.step, cell.flags) == ("done", 2, ["nan"]), reason
    found = re.findall(r"(?:actor|optim)/grad_norm is (\w+) at step (\d+)", str(cell.reason))
    assert found == [("nan", "3")]


def test_a_setting_of_ones_own_that_bench_decides_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"overrides": ["data.shuffle=true"]}
    append_jsonl(tmp_path / "prompts.jsonl", PROMPTS)
    given = {"args": own, "output": str(tmp_path), "prompts": str(tmp_path / "prompts.jsonl")}
    write_json(tmp_path / "config.json", config_of(spec_of("verl")) | given)
    monkeypatch.setattr("sys.argv", ["train.py", str(tmp_path / "config.json")])
    with pytest.raises(SystemExit) as left:
        load("verl").main()
    assert "data.shuffle=true" in str(left.value)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"objective.scale": "group_std"}, ": scale"),
        ({"objective.aggregation": "constant_length"}, ": aggregation"),
        ({"objective.kl": {"where": "loss"}}, ": kl.where"),
        ({"train.epochs": 2}, "train.epochs=2"),
    ],
)
def test_what_prime_rl_cannot_do_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(SystemExit) as left:
        prime_rl_settings(changes)
    assert named in str(left.value)


# Preset -> the names under which verl has its advantages and its policy loss, or what it lacks.
IN_VERL = {
    **dict.fromkeys(("kd", "gkd", "opd"), "distill.where"),
    **{"sft": "bench bench", "reinforce": "bench gpg", "rft": "bench gpg", "opo": "opo gpg", "gpg": "gpg gpg"},
    **{name: f"{estimator} vanilla" for name, estimator in {"rloo": "rloo", "ppo": "gae", "lite_ppo": "bench"}.items()},
    **{"reinforce_pp": "reinforce_plus_plus vanilla"},
    **{"reinforce_pp_baseline": "reinforce_plus_plus_baseline vanilla"},
    **{"grpo": "grpo vanilla", "dr_grpo": "grpo vanilla", "gspo": "grpo gspo", "sapo": "grpo sapo"},
    **{"gmpo": "grpo bench", "kimi_k1_5": "grpo bench"},
    **{"brpo": "baseline", "bnpo": "aggregation", "dapo": "zero_std", "ace_reason": "overlong.type"},
    **dict.fromkeys(("magistral", "scalerl"), "aggregation, scale, zero_std"),
    **{"skywork_or1": "entropy.adaptive.type, zero_std", "cispo": "aggregation, zero_std"},
    **dict.fromkeys(("clip_cov", "kl_cov"), "actor_rollout_ref.actor.policy_loss.loss_mode, zero_std"),
}


@pytest.mark.parametrize("name", presets("policy_gradient"))
def test_what_verl_is_told_of_each_algorithm(name: str) -> None:
    objective = preset(name, Objective)
    try:
        settings = load("verl").objective_settings(objective, updates=2, limit_tokens=512)
    except SystemExit as left:
        assert str(left).rpartition(": ")[2] == IN_VERL[name]
        return
    names = [settings["algorithm.adv_estimator"], settings["actor_rollout_ref.actor.policy_loss.loss_mode"]]
    assert " ".join(names) == IN_VERL[name]
    if "bench" not in names:
        assert read_back(VERL, PPO_TRAINER, settings) == objective


def test_the_soft_punishment_of_long_completions_is_verls() -> None:
    objective = with_overrides(preset("dapo", Objective), {"zero_std": "keep"})
    settings = load("verl").objective_settings(objective, updates=1, limit_tokens=512)
    log = settings.pop("+reward.reward_kwargs.overlong_buffer_cfg.log")
    assert settings["reward.reward_manager.name"] == "dapo" and log is False
    bare = {name.removeprefix("+"): value for name, value in settings.items()}
    soft = read_back(VERL, PPO_TRAINER, bare).overlong
    assert soft.type == "soft" and soft.cache_frac == pytest.approx(0.2, abs=1e-3) and soft.factor == 1.0


def read_back(dialect: Dialect, config: Config, settings: dict[str, Any]) -> Objective:
    understood = understand(dialect, config, settings)
    assert isinstance(understood.objective, Objective) and not understood.point.outside
    return understood.objective


def test_the_settings_of_prime_rl_are_names_of_its_schema() -> None:
    """As far as algorithms/elsewhere/prime_rl.txt lists them: its own package of settings is in no index."""
    settings = prime_rl_settings()
    RL.require_known(settings)
    text = "\n".join(PRIME_RL.line(*pair) for pair in settings.items())
    assert tomllib.loads(text)["trainer"]["loss"]["type"] == "custom"


PROMPTS = [{"prompt": [{"role": "user", "content": "1 + 1"}], "tokens": [1, 2, 3]}]


def config_of(spec: RunSpec) -> dict[str, Any]:
    """Build the config file that an adapter is started with."""
    from harness.config.knobs import active

    return {
        "knobs": {knob: value for knob, value in active(spec).items() if not knob.startswith("trainer.")},
        "budget": {"steps": 3, "generated_tokens": None, "trained_tokens": None},
        **{"model": "/models/start", "output": "/cells/one", "resume": "/cells/one/step-2", "done": {"step": 2}},
        **{"seed": 3, "checkpoint_every": 2, "evaluate_every": 0, "prompts": "/cells/prompts.jsonl"},
    }


def prime_rl_settings(changes: dict[str, Any] | None = None) -> dict[str, Any]:
    found: dict[str, Any] = load("prime_rl").settings_of(config_of(spec_of("prime_rl", changes)), PROMPTS)
    return found


@pytest.mark.parametrize(
    "changes",
    [
        {"rule.type": "ppo_clip", "rule.clip_high": 0.1},
        {"rule.type": "ppo_clip", "ratio": "sequence_mean", "rule.clip_low": 3e-4, "rule.clip_high": 4e-4},
        {"rule.type": "cispo", "rule.weight_max": 1.2},
        {"rule.type": "ppo_clip", "sequence_penalty": 0.3},
    ],
)
def test_the_loss_in_prime_rl_is_the_objectives(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(STAND_INS)
    monkeypatch.syspath_prepend(EXAMPLES / "prime_rl")
    from bench_loss import bench_loss  # type: ignore[import-not-found]
    from prime_rl.trainer.rl.loss import LossInputs  # type: ignore[import-not-found]

    base = {"aggregation": "token_mean", "sampler_correction.type": "in_ratio"}
    objective = with_overrides(preset("dr_grpo", Objective), base | changes)
    settings = load("prime_rl").objective_settings(objective)
    knobs = settings["trainer.loss.kwargs.objective"]
    logp, mask = given("logp").requires_grad_(), given("mask").bool()
    sums = [
        bench_loss(LossInputs(logp[row], given("rollout_logp")[row], given("adv")[row], mask[row]), knobs).loss
        for row in range(len(mask))
    ]
    loss = torch.stack(sums).sum() / mask.sum()
    (found,) = torch.autograd.grad(loss, logp)
    value, gradient = value_and_gradient(objective, golden_batch())
    assert loss.item() == pytest.approx(value.item(), abs=1e-9)
    torch.testing.assert_close(found, gradient, rtol=0, atol=1e-9)
