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
from tests.frozen import frozen
from tests.harness.run.small import SETTINGS
from tests.refusals import refuses

OFFLINE = {"algorithm": "dpo", "rollout.sampler": "initial"}


def spec_of(settings: dict[str, Any] | None = None, trainer: dict[str, Any] | None = None) -> RunSpec:
    own = {"trainer": {"type": "trl", **(trainer or {})}}
    return resolve([Layer("small", SETTINGS), Layer("test", own | (settings or {}))], seed=3)


def test_knobs_become_settings() -> None:
    changes = {"algorithm": "dapo", "objective.zero_std": "keep", "rollout.temperature": 0.7}
    train = {"updates_per_rollout": 2, "epochs": 3, "weight_decay": 0.01, "optimizer.beta2": 0.95}
    found = settings_of(spec_of(changes | {f"train.{name}": value for name, value in train.items()}))
    assert not {"lr_scheduler_type", "warmup_steps"} & set(found)  # the program's own, from bench's schedule
    frozen("shelves/trl_settings", "\n".join(f"{name} = {value!r}" for name, value in sorted(found.items())))


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
    ("settings", "named"),
    [
        ({"algorithm": "dapo"}, "objective.zero_std='refill'"),
        ({"objective.baseline": "leave_one_out"}, "objective.baseline='leave_one_out'"),
        ({"objective.pass_k": 2}, "objective.pass_k=2"),
        ({"algorithm": "rloo", "train.epochs": 2}, "objective.ratio='token'"),
        ({"algorithm": "rloo", "train.updates_per_rollout": 2}, "objective.aggregation"),
        ({**OFFLINE, "algorithm": "simpo"}, "CPOConfig"),
        ({"rollout.staleness_steps": 1}, "rollout.staleness_steps=1"),
        ({"algorithm": "rft", "rollout.sampler": "initial"}, "rollout.sampler='initial'"),
        ({"rollout.staged": {"type": "at_step", "first_tokens": 8, "step": 2}}, "rollout.staged.type='at_step'"),
        ({"rollout.stop": ["\n"]}, "rollout.stop=('\\n',)"),
        ({"train.optimizer.type": "sgd"}, "train.optimizer.type=sgd"),
        ({"train.optimizer_reset": "per_rollout"}, "train.optimizer_reset='per_rollout'"),
        ({"reward.parts.own_logp": 0.1}, "reward.parts.own_logp"),
        ({**OFFLINE, "train.epochs": 2}, "train.epochs=2"),
        ({**OFFLINE, "rollout.temperature": 0.5}, "rollout.temperature=0.5"),
        ({"algorithm": "dpo"}, "rollout.sampler=policy"),
        ({"trainer.args.loss_type": "dapo"}, "trainer.args.loss_type"),
        ({"trainer.args.num_generations": 4}, "trainer.args.num_generations"),
        ({"trainer.args.multi_objective_aggregation": "x"}, "trainer.args.multi_objective_aggregation"),
        ({"trainer.args.generation_kwargs": {"temperature": 0.3}}, "trainer.args.generation_kwargs"),
        ({"trainer.args.optim": "adafactor"}, "trainer.args.optim"),
        ({"trainer.args.use_peft": True}, "trainer.args.use_peft"),
        ({"trainer.args.output_dir": "/tmp"}, "trainer.args.output_dir"),
        ({"trainer.args.cast_lm_head_fp32": True}, "did you mean cast_lm_head_to_fp32"),
        ({"trainer.launch": "accelerate"}, "accelerate_config=None"),
    ],
)
def test_what_trl_cannot_express_is_refused_by_name(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(RefusedError) as refused:
        spec_of(settings)
    assert named in str(refused.value)


def test_what_cannot_act_or_says_nothing_of_a_knob_is_not_refused() -> None:
    """With one optimiser step per rollout the ratio is 1, wherever it is clipped."""
    assert settings_of(spec_of({"algorithm": "rloo"}))["epsilon"] == 0.2
    assert active(spec_of({"trainer.args.run_name": "a"}))["trainer.args.run_name"] == "a"


def test_a_missing_or_another_trl_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = TrlTrainer()
    trainer.require_installed()

    def version(name: str) -> str:
        return "1.17.0"

    monkeypatch.setattr(metadata, "version", version)
    with refuses(RefusedError, "shelves.trl.version_differs", found="1.17.0", version=VERSION):
        trainer.require_installed()

    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with refuses(RefusedError, "shelves.trl.not_installed"):
        trainer.require_installed()


def test_accelerate_starts_it_with_a_config_file_that_is_hashed(tmp_path: Path) -> None:
    config = tmp_path / "two.yaml"
    launched = {"launch": "accelerate", "accelerate_config": "two.yaml"}

    def launch(document: str, settings: dict[str, Any] | None = None, **changes: str) -> RunSpec:
        config.write_text(document)
        return spec_of(settings, launched | changes)

    plugins.use([], [tmp_path])
    try:
        spec = launch("num_processes: 2\n")
        assert isinstance(spec.trainer, TrlTrainer)
        assert spec.trainer.argv("CONFIG", "", 0)[1:] == [
            *("-m", "accelerate.commands.launch", "--config_file", "two.yaml"),
            *("-m", "harness.shelves.trl.program", "CONFIG"),
        ]
        assert spec.trainer.folder() == str(tmp_path)
        before = training_hash(spec)
        assert before != training_hash(spec_of())
        assert training_hash(launch("num_processes: 4\n")) != before
        for document, settings, changes, named in (
            ("num_processes: 3\n", {}, {}, "rollout.prompts_per_step=4 with 3 processes"),
            ("num_processes: many\n", {}, {}, "num_processes is 'many'"),
            ("num_processes: [\n", {}, {}, "two.yaml: "),
            ("", {}, {"accelerate_config": "tow.yaml"}, "accelerate_config=tow.yaml"),
            ("num_processes: 2\n", OFFLINE, {}, "launch=accelerate"),
        ):
            with pytest.raises(RefusedError) as refused:
                launch(document, settings, **changes)
            assert named in str(refused.value)
    finally:
        plugins.use([], [])
