"""`trainer.type: command` in a spec: what is refused, what is hashed, and which knobs act on a program."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness import plugins
from harness.config.hashing import training_hash, user_code
from harness.config.knobs import active
from harness.config.resolve import Layer, resolve
from harness.config.run_spec import RunSpec
from harness.config.trainer import hands_over_pairs
from harness.errors import GateError, RefusedError
from harness.plan import make_plan
from harness.plan.gate import check_gate, find_noops
from harness.trainers.contract import ProgramConfig, contract_document
from tests.harness.run.small import SETTINGS, small_spec

COMMAND = {"type": "command", "run": "python train.py --config {config}", "files": ["train.py"]}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    """Two files, of which one imports a module in a package beside it, and is not run by these tests."""
    (tmp_path / "train.py").write_text("import json\nfrom lib import loss\n")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "__init__.py").write_text("")
    (tmp_path / "lib" / "loss.py").write_text("x = 1\n")
    (tmp_path / "unused.py").write_text("x = 1\n")
    plugins.use([], [tmp_path])
    yield tmp_path
    plugins.use([], [])


def settings(given: dict[str, Any]) -> dict[str, Any]:
    return given


def spec_of(trainer: dict[str, Any] | None = None, /, **settings: Any) -> RunSpec:
    base = {knob: value for knob, value in SETTINGS.items() if knob != "algorithm"}
    return resolve([Layer("small", base), Layer("test", {"trainer": COMMAND | (trainer or {}), **settings})], seed=0)


@pytest.mark.parametrize(
    ("trainer", "message"),
    [
        (
            {"run": "python {confg}"},
            r"trainer\.run: run has \{confg\}, and there is no such field; did you mean config",
        ),
        ({"run": "python train.py"}, r"without \{config\} the program does not know what to train"),
        ({"run": "python 'train.py {config}"}, r"which is no command line \(No closing quotation\)"),
        ({"uses": ["train.learning_rte"]}, r"unknown knob 'train\.learning_rte'; did you mean train\.learning_rate"),
        ({"contract": 2}, r"contract is 2, and this version of bench speaks 1: update bench"),
        ({"args": {"rate": {1, 2}}}, r"args\.rate is \{1, 2\}: the config file is JSON"),
        ({"silence_min": 0}, r"trainer\.silence_min is 0: input should be greater than 0"),
        ({"type": "comand"}, r"unknown trainer 'comand'; did you mean command"),
    ],
)
def test_a_faulty_section_is_refused_by_name(trainer: dict[str, Any], message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        spec_of(trainer)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"files": ["trian.py"], "run": "python trian.py {config}"},
            r"there is no file trian\.py in .* Put it beside the sweep file",
        ),
        ({"files": []}, r"trainer\.run starts train\.py, which trainer\.files does not name"),
        ({"files": ["train.py", "/etc/hostname"]}, r"/etc/hostname lies outside of"),
    ],
)
def test_files_that_are_not_there_are_refused_before_anything_runs(files: dict[str, Any], message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        training_hash(spec_of(files))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task.order": "prioritised"}, r"with task\.order=prioritised: the program gets all prompts"),
        ({"task.retire_at": 0.9}, r"with task\.retire_at"),
        ({"task.order": "curriculum", "budget.tokens": 9}, r"curriculum with a budget of tokens"),
        ({"model.lora.type": "lora"}, r"with model\.lora\.type=lora: adapters are the program's own"),
        ({"budget.flops": 1e9}, r"budget\.flops=1e\+09: bench cannot count these"),
        ({"train.processes": 2}, r"train\.processes=2: the program starts its own processes"),
        (
            {"teacher": {"type": "model", "template": "solution_shown"}},
            r"with a teacher, which bench does not hand over",
        ),
    ],
)
def test_what_a_program_cannot_be_handed_is_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        spec_of(**settings)


@pytest.mark.parametrize(
    ("trainer", "pairs", "message"),
    [
        ({}, {"type": "dataset", "data": "pairs.jsonl"}, r"which the program does not read\. Name it in trainer\.uses"),
        ({"uses": ["pairs"]}, {"type": "policy"}, r"rollout\.sampler=policy: bench hands over pairs of the starting"),
    ],
)
def test_pairs_are_handed_over_to_a_program_that_reads_them(
    trainer: dict[str, Any], pairs: dict[str, Any], message: str
) -> None:
    with pytest.raises(RefusedError, match=message):
        spec_of(trainer, algorithm="dpo", pairs=pairs)
    spec = spec_of({"uses": ["pairs"]}, algorithm="dpo", **settings({"rollout.sampler": "initial"}))
    assert hands_over_pairs(spec)
    assert not hands_over_pairs(spec_of(algorithm="dpo"))
    assert "pairs" in contract_document()["config_file"]["properties"] and contract_document()["pairs_row"]


def test_a_program_needs_no_algorithm_unless_it_reads_the_objective() -> None:
    assert "objective.aggregation" not in active(spec_of())
    with pytest.raises(RefusedError, match="no `algorithm` is given"):
        spec_of({"uses": ["objective"]})
    assert active(spec_of({"uses": ["objective"]}, algorithm="grpo"))["objective.scale"] == "group_std"


def test_the_hash_is_that_of_the_program_and_of_what_it_reads(folder: Path) -> None:
    own = training_hash(spec_of())
    assert own == training_hash(spec_of(algorithm="dapo", **settings({"train.learning_rate": 1.0})))  # it reads neither
    assert own == training_hash(spec_of({"silence_min": 5.0, "timeout_h": 1.0, "metrics": {"loss": "l"}}))
    assert own == training_hash(spec_of({"run": "/envs/mine/bin/python train.py --config {config}"}))
    others = [
        spec_of({"run": "python train.py --config {config} --fast"}),
        spec_of({"args": {"type": "x"}}),
        spec_of({"env": {"A": "1"}}),
        spec_of({"uses": ["train.learning_rate"]}),
        spec_of(**settings({"train.steps": 5})),
        small_spec(),
    ]
    assert len({own, *map(training_hash, others)}) == 1 + len(others)
    (folder / "unused.py").write_text("x = 2\n")
    assert training_hash(spec_of()) == own
    (folder / "lib" / "loss.py").write_text("x = 2\n")
    assert training_hash(spec_of()) != own


def test_the_files_and_what_they_import_are_kept_as_they_lie(folder: Path) -> None:
    (program,) = user_code(spec_of())
    assert {str(path) for path, _ in program.laid_out()} == {"train.py", "lib/__init__.py", "lib/loss.py"}
    assert program.changed_files() == []
    (folder / "lib" / "loss.py").unlink()
    assert program.changed_files() == [folder / "lib" / "loss.py"]


def test_the_gate_names_settings_of_programs_and_no_knob_that_none_reads() -> None:
    plain, more = spec_of({"args": {"rank": 8}}), spec_of({"args": {"rank": 16, "extra": True}})
    gate = check_gate({"a": plain, "b": more}, ["trainer.args.rank"], {})
    assert gate.violations == {"trainer.args.extra": {"a": "(not given)", "b": True}}
    assert check_gate({"a": plain, "b": more}, ["trainer.args"], {}).ok
    own = small_spec({"train.learning_rate": 1e-3})
    beside = check_gate({"bench": own, "mine": plain}, ["trainer"], {})
    assert beside.ok and all(knob.startswith("trainer.") for knob in beside.differs)
    assert not check_gate({"bench": own, "mine": plain}, ["train.learning_rate"], {}).ok
    slower = small_spec({"train.learning_rate": 1e-4})
    among_ours = check_gate({"bench": own, "slower": slower, "mine": plain}, ["trainer"], {})
    assert among_ours.violations == {
        "train.learning_rate": {"bench": 1e-3, "slower": 1e-4, "mine": "(not read)"},
    }


def test_a_knob_that_a_program_does_not_read_cannot_be_ablated() -> None:
    arms = {
        "low": spec_of(**settings({"train.learning_rate": 1e-4})),
        "high": spec_of(**settings({"train.learning_rate": 1e-3})),
    }
    (noop,) = find_noops(arms)
    assert noop.refused and "name it under trainer.uses" in noop.reasons["train.learning_rate"]
    reading = {
        arm: spec_of({"uses": ["train"]}, **settings({"train.learning_rate": rate}))
        for arm, rate in (("a", 1e-4), ("b", 1e-3))
    }
    assert find_noops(reading) == []
    assert check_gate(reading, ["train.learning_rate"], {}).differs == ["train.learning_rate"]


def sweep_of(folder: Path, **document: Any) -> str:
    profile = {knob: value for knob, value in SETTINGS.items() if knob != "algorithm"}
    (folder / "profile.yaml").write_text(yaml.safe_dump(profile))
    asked = {"name": "own", "question": "?", "profile": "profile.yaml", "base": {"trainer": COMMAND}, "seeds": 1}
    (folder / "own.yaml").write_text(yaml.safe_dump(asked | document))
    return str(folder / "own.yaml")


def test_settings_of_a_program_are_knobs_of_grids_options_and_searches(folder: Path) -> None:
    plan = make_plan(sweep_of(folder, grid={"trainer.args.rank": [8, 16]}), settings=["trainer.args.alpha=2"])
    plan.require_answerable()
    assert plan.gate.differs == ["trainer.args.rank"]
    assert [spec.trainer.model_dump()["args"] for spec in plan.arms.values()] == [
        {"rank": 8, "alpha": 2},
        {"rank": 16, "alpha": 2},
    ]
    assert any("trained by a program outside of bench" in warning for warning in plan.warnings)
    from harness.plan.search_plan import make_search_plan

    knobs = {"trainer.args.rate": {"log": [1e-4, 1e-2]}}
    search = make_search_plan(sweep_of(folder, search={"knobs": knobs, "budget": {"trials": 2}}))
    assert list(search.search.knobs) == ["trainer.args.rate"]


def test_a_sweep_of_unread_knobs_is_refused(folder: Path) -> None:
    arms = {"low": {"train.learning_rate": 1e-4}, "high": {"train.learning_rate": 1e-3}}
    with pytest.raises(
        GateError, match=r"high and low cannot differ: train\.learning_rate: its program does not read it"
    ):
        make_plan(sweep_of(folder, arms=arms, ablate=["train.learning_rate"])).require_answerable()


def test_the_contract_is_printed_as_a_schema() -> None:
    document = contract_document()
    assert document["contract"] == 1
    assert set(document["config_file"]["properties"]) == set(ProgramConfig.model_fields)
