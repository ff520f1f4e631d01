"""`trainer.type: trl` in a spec: TRL's settings for bench's knobs, and what is refused by name."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from harness import plugins
from harness.config.hashing import training_hash
from harness.config.knobs import active
from harness.config.resolve import Layer, resolve
from harness.config.run_spec import RunSpec
from harness.errors import RefusedError
from harness.shelves.trl.trainers import VERSION, ProgramArguments, TrlTrainer, settings_of
from tests.harness.run.small import SETTINGS
from tests.refusals import refuses

OFFLINE = {"algorithm": "dpo", "rollout.sampler": "initial"}


def spec_of(settings: dict[str, Any] | None = None, trainer: dict[str, Any] | None = None) -> RunSpec:
    own = {"trainer": {"type": "trl", **(trainer or {})}}
    return resolve([Layer("small", SETTINGS), Layer("test", own | (settings or {}))], seed=3)


def test_knobs_become_settings() -> None:
    """Written out: what a difference between the arms would be looked for in."""
    spec = spec_of(
        {
            "algorithm": "dapo",
            "objective.zero_std": "keep",
            "train.updates_per_rollout": 2,
            "train.epochs": 3,
            "train.weight_decay": 0.01,
            "train.optimizer.beta2": 0.95,
            "rollout.temperature": 0.7,
        }
    )
    found = settings_of(spec)
    expected = {
        "loss_type": "dapo",
        "scale_rewards": "group",
        "epsilon": 0.2,
        "epsilon_high": 0.28,
        "beta": 0.0,
        "importance_sampling_level": "token",
        "mask_truncated_completions": False,
        "num_generations": 4,
        "num_iterations": 3,
        "max_completion_length": 32,
        "temperature": 0.7,
        "top_k": 0,
        "top_p": 1.0,
        "learning_rate": 3e-4,
        "weight_decay": 0.01,
        "max_grad_norm": 1.0,
        "adam_beta1": 0.9,
        "adam_beta2": 0.95,
        "adam_epsilon": 1e-8,
        "max_steps": 4 * 2 * 3,
        "logging_steps": 2 * 3,
        "seed": 3,
        "disable_dropout": True,
        "shuffle_dataset": False,
        "use_vllm": False,
        "bf16": False,
    }
    assert {name: found.get(name) for name in expected} == expected
    assert not {"lr_scheduler_type", "warmup_steps"} & set(found)  # the program's own, from bench's schedule


@pytest.mark.parametrize(
    ("settings", "trainer", "expected"),
    [
        ({"algorithm": "rloo"}, "RLOOTrainer", {"beta": 0.05, "normalize_advantages": False}),
        (OFFLINE, "DPOTrainer", {"loss_type": ["sigmoid"], "beta": 0.1, "max_length": None}),
        ({**OFFLINE, "algorithm": "ipo", "objective.beta": 0.3}, "DPOTrainer", {"loss_type": ["ipo"], "beta": 0.3}),
        ({**OFFLINE, "algorithm": "kto"}, "KTOTrainer", {"loss_type": "kto", "desirable_weight": 1.0}),
        ({"algorithm": "dr_grpo"}, "GRPOTrainer", {"loss_type": "dr_grpo", "scale_rewards": "none"}),
    ],
)
def test_each_algorithm_has_its_trainer(settings: dict[str, Any], trainer: str, expected: dict[str, Any]) -> None:
    spec = spec_of(settings)
    assert isinstance(spec.trainer, TrlTrainer)
    given = ProgramArguments.model_validate(spec.trainer.arguments(spec))
    assert given.trainer == trainer
    assert {name: given.settings[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"algorithm": "dapo"}, r"objective\.zero_std='refill': TRL's GRPOTrainer uses 'keep'"),
        ({"objective.baseline": "leave_one_out"}, r"with objective\.baseline='leave_one_out'"),
        ({"objective.pass_k": 2}, r"with objective\.pass_k=2"),
        ({"algorithm": "rloo", "train.epochs": 2}, r"with objective\.ratio='token': TRL's RLOOTrainer uses 'sequence_"),
        ({**OFFLINE, "algorithm": "simpo"}, r"nearest to this objective is TRL's experimental CPOConfig"),
        ({"rollout.staleness_steps": 1}, r"with rollout\.staleness_steps=1: TRL has nothing like it"),
        (
            {"algorithm": "rft", "rollout.sampler": "initial"},
            r"with rollout\.sampler='initial': TRL has nothing like it",
        ),
        ({"rollout.staged": {"type": "at_step", "first_tokens": 8, "step": 2}}, r"rollout\.staged\.type='at_step'"),
        ({"rollout.stop": ["\n"]}, r"with rollout\.stop=\('\\n',\)"),
        ({"train.optimizer.type": "sgd"}, r"train\.optimizer\.type=sgd: only AdamW is the same in both"),
        ({"train.optimizer_reset": "per_rollout"}, r"train\.optimizer_reset='per_rollout'"),
        ({"reward.parts.own_logp": 0.1}, r"reward\.parts\.own_logp, which the sampler must report,"),
        ({**OFFLINE, "train.epochs": 2}, r"train\.epochs=2: with pairs, an optimiser step takes all pairs"),
        ({**OFFLINE, "rollout.temperature": 0.5}, r"rollout\.temperature=0\.5: .* log-probs at temperature 1"),
        ({"algorithm": "dpo"}, r"rollout\.sampler=policy: bench hands over pairs of the starting policy's completions"),
    ],
)
def test_what_trl_cannot_express_is_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        spec_of(settings)


def test_what_cannot_act_is_not_refused() -> None:
    """With one optimiser step per rollout the ratio is 1, wherever it is clipped."""
    assert settings_of(spec_of({"algorithm": "rloo"}))["epsilon"] == 0.2
    with pytest.raises(RefusedError, match=r"objective\.aggregation"):
        spec_of({"algorithm": "rloo", "train.updates_per_rollout": 2})


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"loss_type": "dapo"}, r"trainer\.args\.loss_type: bench sets this of GRPOConfig by its own knobs"),
        ({"num_generations": 4}, r"trainer\.args\.num_generations: bench sets"),
        ({"multi_objective_aggregation": "x"}, r"trainer\.args\.multi_objective_aggregation: bench sets"),
        ({"generation_kwargs": {"temperature": 0.3}}, r"trainer\.args\.generation_kwargs: bench sets"),
        ({"optim": "adafactor"}, r"trainer\.args\.optim: bench sets"),
        ({"use_peft": True}, r"trainer\.args\.use_peft: GRPOConfig has no such setting"),
        ({"output_dir": "/tmp"}, r"trainer\.args\.output_dir: bench sets"),
        ({"cast_lm_head_fp32": True}, r"GRPOConfig has no such setting; did you mean cast_lm_head_to_fp32"),
    ],
)
def test_args_are_settings_that_say_nothing_of_a_knob(args: dict[str, Any], message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        spec_of(trainer={"args": args})
    assert active(spec_of(trainer={"args": {"run_name": "a"}}))["trainer.args.run_name"] == "a"


def test_a_missing_or_another_trl_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = TrlTrainer()
    trainer.require_installed()

    def version(name: str) -> str:
        return "1.17.0"

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(RefusedError, match=rf"TRL 1\.17\.0 is installed, but bench writes settings for {VERSION}"):
        trainer.require_installed()

    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with refuses(RefusedError, "shelves.trl.not_installed"):
        trainer.require_installed()


def test_accelerate_starts_it_with_a_config_file_that_is_hashed(tmp_path: Path) -> None:
    config = tmp_path / "two.yaml"
    config.write_text("num_processes: 2\n")
    plugins.use([], [tmp_path])
    try:
        launched = {"launch": "accelerate", "accelerate_config": "two.yaml"}
        spec = spec_of(trainer=launched)
        assert isinstance(spec.trainer, TrlTrainer)
        words = spec.trainer.argv("CONFIG", "", 0)[1:]
        assert words == [
            *("-m", "accelerate.commands.launch", "--config_file", "two.yaml"),
            *("-m", "harness.shelves.trl.program", "CONFIG"),
        ]
        assert spec.trainer.folder() == str(tmp_path)
        before = training_hash(spec)
        assert before != training_hash(spec_of())
        config.write_text("num_processes: 4\n")
        assert training_hash(spec) != before
        for document, message in (
            ("num_processes: 3\n", r"rollout\.prompts_per_step=4 with 3 processes \(two\.yaml\)"),
            ("num_processes: many\n", r"num_processes is 'many' there"),
            ("num_processes: [\n", r"two\.yaml: is not valid YAML: "),
        ):
            config.write_text(document)
            with pytest.raises(RefusedError, match=message):
                spec_of(trainer=launched)
        with pytest.raises(RefusedError, match=r"there is no such file beside the sweep file"):
            spec_of(trainer={**launched, "accelerate_config": "tow.yaml"})
        with pytest.raises(RefusedError, match=r"launch=accelerate with accelerate_config=None"):
            spec_of(trainer={"launch": "accelerate"})
        config.write_text("num_processes: 2\n")
        with pytest.raises(RefusedError, match=r"launch=accelerate with an algorithm on pairs"):
            spec_of(OFFLINE, launched)
    finally:
        plugins.use([], [])
