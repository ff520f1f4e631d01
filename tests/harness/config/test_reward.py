from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from algorithms.objective import Credit
from harness import plugins
from harness.config.hashing import base_evaluation_hash, semantic_hash
from harness.config.knobs import active, governor, spec_knobs
from harness.config.reward import parts_with_options, reward_problems, reward_section
from harness.errors import RefusedError
from harness.plan.gate import check_gate
from tests.frozen import frozen
from tests.harness.config.cases import spec
from tests.refusals import refuses

OPTIONS = {
    "reward.format.pattern": "work_hash",
    "reward.kimi_length.from_step": 7,
    "reward.magistral_length.cache_frac": 0.7,
    "reward.magistral_length.penalty": -0.7,
    "reward.language.target": "han",
    "reward.noise.false_positive_rate": 0.7,
    "reward.noise.false_negative_rate": 0.7,
    "reward.random.probability": 0.7,
    "reward.vr_cli.generator": "scratch:tiny",
    "reward.vr_cli.gold": "solution",
    "reward.vr_cli.levels": [[0.1, 0.7]],
    "reward.jepo.bound": "multi_sample",
    "reward.jepo.supervised": 0.7,
    "reward.reward_model.prompts": 70,
    "reward.reward_model.samples_per_prompt": 7,
    "reward.reward_model.label_noise_rate": 0.07,
    "reward.reward_model.steps": 7,
    "reward.reward_model.batch_size": 7,
    "reward.reward_model.learning_rate": 7e-4,
    "reward.reward_model.seed": 7,
    "reward.pairwise.prompts": 70,
    "reward.pairwise.samples_per_prompt": 7,
    "reward.pairwise.label_noise_rate": 0.07,
    "reward.pairwise.template": "judge",
    "reward.pairwise.max_completion_tokens": 70,
    "reward.pairwise.cold_start_steps": 7,
    "reward.pairwise.cold_start_learning_rate": 7e-4,
    "reward.pairwise.batch_size": 7,
    "reward.pairwise.steps": 7,
    "reward.pairwise.samples_per_pair": 7,
    "reward.pairwise.learning_rate": 7e-4,
    "reward.pairwise.judge": str(Path(__file__).with_name("pair_judge.yaml")),
    "reward.pairwise.tie": 0.7,
    "reward.pairwise.seed": 7,
}


REWARD_MODEL = {"reward.parts": {"correct": 0.0, "reward_model": 1.0}}


def part_of(knob: str) -> str:
    return parts_with_options()[knob.split(".")[1]].name


def test_the_table_holds_every_option() -> None:
    options = {knob for knob in spec_knobs() if knob.startswith("reward.") and knob.count(".") == 2}
    assert options == set(OPTIONS)


@pytest.mark.parametrize("knob", OPTIONS)
def test_an_option_is_a_knob_only_with_its_part(knob: str) -> None:
    part = part_of(knob)
    with_part, without = spec({f"reward.parts.{part}": 1.0}), spec({"reward.parts.majority": 1.0})
    assert knob in active(with_part)
    assert (knob in active(without)) == (part == "correct")
    assert governor(knob) == f"reward.parts.{part}"


@pytest.mark.parametrize("knob", OPTIONS)
def test_an_option_changes_the_hash(knob: str) -> None:
    # Where the bound of many samples can be chosen.
    with_part = {f"reward.parts.{part_of(knob)}": 1.0, "objective.baseline": "none", "objective.scale": "none"}
    assert semantic_hash(spec(with_part, {knob: OPTIONS[knob]})) != semantic_hash(spec(with_part))


@pytest.mark.parametrize("knob", [knob for knob in OPTIONS if part_of(knob) != "correct"])
def test_an_option_without_its_part_is_refused_with_the_remedy(knob: str) -> None:
    with refuses(RefusedError, "clash", path="reward") as caught:
        spec({knob: OPTIONS[knob]})
    assert f" reward.parts.{part_of(knob)} " in str(caught.value)


def test_noise_needs_the_part_that_it_is_in() -> None:
    with pytest.raises(ValueError):
        reward_section().model_validate({"parts": {"majority": 1.0}, "noise": {"false_positive_rate": 0.1}})


def test_an_option_at_its_default_does_no_harm() -> None:
    assert spec({"reward.kimi_length.from_step": 1}) == spec()
    resolved = spec()
    assert type(resolved).model_validate_json(resolved.model_dump_json()) == resolved


def test_arms_with_and_without_a_part_differ_in_its_weight_only() -> None:
    arms = {"without": spec(), "with": spec({"reward.parts.kimi_length": 1.0, "reward.kimi_length.from_step": 3})}
    assert check_gate(arms, ["reward.parts"], {}).ok
    other = {"a": spec({"reward.noise.false_positive_rate": 0.1}), "b": spec()}
    assert not check_gate(other, ["reward.parts"], {}).ok
    assert check_gate(other, ["reward.noise"], {}).ok


NOT_ALLOWED: list[dict[str, Any]] = [
    {"reward.noise.false_positive_rate": 1.5},
    {"reward.noise.false_negative_rate": -0.1},
    {"reward.parts.format": 1.0, "reward.format.pattern": "box"},
    {"reward.parts.language": 1.0, "reward.language.target": "en"},
    REWARD_MODEL | {"reward.reward_model.label_noise_rate": 0.5},
    REWARD_MODEL | {"reward.reward_model.prompts": 9},
    REWARD_MODEL | {"reward.reward_model.samples_per_prompt": 1},
    {"reward.parts.kimi_lenght": 1.0},
    {"reward.parts.my.module:": 1.0},
    {"reward.parts.overlong": 1.0},
    {"reward.kimi_length.form_step": 1},
]


def test_what_is_not_allowed_is_told() -> None:
    told = ""
    for settings in NOT_ALLOWED:
        with pytest.raises(RefusedError) as caught:
            spec(settings)
        told += f"{settings}\n    {caught.value}\n"
    frozen("config/rewards", told)


PROCESS = {"correct": 1.0, "process": 0.5}


def problems(parts: dict[str, float], task: str = "arithmetic", credit: Credit = "completion") -> list[str]:
    return list(reward_problems(reward_section()(parts=parts, grader="numeric"), credit, task))


def test_steps_need_a_task_that_has_them() -> None:
    assert problems(PROCESS) == []
    assert len(problems(PROCESS, task="gsm8k")) == 1


@pytest.mark.parametrize("parts", [{"correct": 1.0}, {"correct": 1.0, "process": 0.0}])
def test_credit_for_steps_needs_their_reward(parts: dict[str, float]) -> None:
    assert problems(PROCESS, credit="steps") == problems(parts) == []
    assert len(problems(parts, credit="steps")) == 1


def test_a_function_is_known_by_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    package = tmp_path / "rewards_for_hashing"
    package.mkdir()
    part = "rewards_for_hashing.inner:mine"
    with_function = spec({f"reward.parts.{part}": 0.5})
    assert with_function.reward.parts == {"correct": 1.0, part: 0.5}
    assert active(with_function)[f"reward.parts.{part}"] == 0.5
    assert spec({"reward": {"parts": {part: 0.5}}}) == with_function
    with refuses(RefusedError, "plugins.no_module", name="rewards_for_hashing.inner"):
        semantic_hash(with_function)

    def hashes(source: str) -> tuple[str, str]:
        (package / "inner.py").write_text(source)
        plugins.use([], [tmp_path])  # a new run
        return semantic_hash(with_function), base_evaluation_hash(with_function)

    one, same, other = hashes("def mine(): 1"), hashes("def mine(): 1"), hashes("def mine(): 2")
    assert one == same
    assert one[0] != other[0]
    assert one[1] == other[1] == base_evaluation_hash(spec())
