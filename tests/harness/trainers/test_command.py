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
from harness.plan.search_plan import make_search_plan
from harness.trainers.contract import ProgramConfig, contract_document
from tests.harness.run.small import SETTINGS, small_spec
from tests.refusals import refuses

COMMAND = {"type": "command", "run": "python train.py --config {config}", "files": ["train.py"]}
BASE = {knob: value for knob, value in SETTINGS.items() if knob != "algorithm"}
RATES = {arm: {"train.learning_rate": rate} for arm, rate in (("low", 1e-4), ("high", 1e-3))}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    """Two files, of which one imports a module in a package beside it, and is not run by these tests."""
    (tmp_path / "lib").mkdir()
    files = {"train.py": "import json\nfrom lib import loss\n", "lib/__init__.py": "", "lib/loss.py": "x = 1\n"}
    for name, code in (files | {"unused.py": "x = 1\n"}).items():
        (tmp_path / name).write_text(code)
    plugins.use([], [tmp_path])
    yield tmp_path
    plugins.use([], [])


def spec_of(trainer: dict[str, Any] | None = None, settings: dict[str, Any] | None = None) -> RunSpec:
    own = {"trainer": COMMAND | (trainer or {}), **(settings or {})}
    return resolve([Layer("small", BASE), Layer("test", own)], seed=0)


@pytest.mark.parametrize(
    ("trainer", "settings", "named"),
    [
        ({"run": "python {confg}"}, {}, "trainer.run: run has {confg}"),
        ({"run": "python train.py"}, {}, "without {config}"),
        ({"run": "python 'train.py {config}"}, {}, "trainer.run: run"),
        ({"uses": ["train.learning_rte"]}, {}, "'train.learning_rte'; did you mean train.learning_rate"),
        ({"contract": 2}, {}, "contract is 2"),
        ({"args": {"rate": {1, 2}}}, {}, "args.rate is {1, 2}"),
        ({"silence_min": 0}, {}, "trainer.silence_min is 0"),
        ({"type": "comand"}, {}, "'comand'; did you mean command"),
        ({}, {"task.order": "prioritised"}, "task.order=prioritised"),
        ({}, {"task.retire_at": 0.9}, "task.retire_at"),
        ({}, {"task.order": "curriculum", "budget.tokens": 9}, "task.order=curriculum"),
        ({}, {"model.lora.type": "lora"}, "model.lora.type=lora"),
        ({}, {"budget.flops": 1e9}, "budget.flops=1e+09"),
        ({}, {"train.processes": 2}, "train.processes=2"),
        ({}, {"teacher": {"type": "model", "template": "solution_shown"}}, "trainer.type=command with a teacher"),
        ({}, {"algorithm": "dpo", "pairs": {"type": "dataset", "data": "pairs.jsonl"}}, "trainer.uses: [pairs]"),
        ({"uses": ["pairs"]}, {"algorithm": "dpo", "pairs": {"type": "policy"}}, "rollout.sampler=policy"),
        ({"uses": ["objective"]}, {}, "`algorithm`"),
    ],
)
def test_what_a_program_cannot_be_given_is_refused_by_name(
    trainer: dict[str, Any], settings: dict[str, Any], named: str
) -> None:
    with pytest.raises(RefusedError) as refused:
        spec_of(trainer, settings)
    assert named in str(refused.value)


@pytest.mark.parametrize(
    ("files", "code"),
    [
        ({"files": ["trian.py"], "run": "python trian.py {config}"}, "plugins.no_program_file"),
        ({"files": []}, "trainers.program_not_named"),
        ({"files": ["train.py", "/etc/hostname"]}, "plugins.program_outside_folder"),
    ],
)
def test_files_that_are_not_there_are_refused_before_anything_runs(files: dict[str, Any], code: str) -> None:
    with refuses(RefusedError, code):
        training_hash(spec_of(files))


def test_a_program_is_handed_what_it_reads() -> None:
    offline = {"algorithm": "dpo", "rollout.sampler": "initial"}
    assert hands_over_pairs(spec_of({"uses": ["pairs"]}, offline))
    assert not hands_over_pairs(spec_of({}, {"algorithm": "dpo"}))
    assert "objective.aggregation" not in active(spec_of())
    assert active(spec_of({"uses": ["objective"]}, {"algorithm": "grpo"}))["objective.scale"] == "group_std"
    document = contract_document()
    assert document["contract"] == 1 and document["pairs_row"]
    assert set(document["config_file"]["properties"]) == set(ProgramConfig.model_fields)


def test_the_hash_is_that_of_the_program_and_of_what_it_reads(folder: Path) -> None:
    own = training_hash(spec_of())
    same: list[dict[str, Any]] = [
        {"silence_min": 5.0, "timeout_h": 1.0, "metrics": {"loss": "l"}},
        {"run": "/envs/mine/bin/python train.py --config {config}"},
    ]
    assert {training_hash(spec_of(trainer)) for trainer in same} == {own}
    assert training_hash(spec_of({}, {"algorithm": "dapo", "train.learning_rate": 1.0})) == own  # it reads neither
    others = [
        spec_of({"run": "python train.py --config {config} --fast"}),
        spec_of({"args": {"type": "x"}}),
        spec_of({"env": {"A": "1"}}),
        spec_of({"uses": ["train.learning_rate"]}),
        spec_of({}, {"train.steps": 5}),
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
    own, slower = small_spec({"train.learning_rate": 1e-3}), small_spec({"train.learning_rate": 1e-4})
    beside = check_gate({"bench": own, "mine": plain}, ["trainer"], {})
    assert beside.ok and all(knob.startswith("trainer.") for knob in beside.differs)
    assert not check_gate({"bench": own, "mine": plain}, ["train.learning_rate"], {}).ok
    among_ours = check_gate({"bench": own, "slower": slower, "mine": plain}, ["trainer"], {})
    assert among_ours.violations == {"train.learning_rate": {"bench": 1e-3, "slower": 1e-4, "mine": "(not read)"}}


def sweep_of(folder: Path, **document: Any) -> str:
    (folder / "profile.yaml").write_text(yaml.safe_dump(BASE))
    asked = {"name": "own", "question": "?", "profile": "profile.yaml", "base": {"trainer": COMMAND}, "seeds": 1}
    (folder / "own.yaml").write_text(yaml.safe_dump(asked | document))
    return str(folder / "own.yaml")


def test_a_knob_that_a_program_does_not_read_cannot_be_ablated(folder: Path) -> None:
    (noop,) = find_noops({arm: spec_of({}, settings) for arm, settings in RATES.items()})
    assert noop.refused and "trainer.uses" in noop.reasons["train.learning_rate"]
    with pytest.raises(GateError) as refused:
        make_plan(sweep_of(folder, arms=RATES, ablate=["train.learning_rate"])).require_answerable()
    assert "train.learning_rate: " in str(refused.value)
    reading = {arm: spec_of({"uses": ["train"]}, settings) for arm, settings in RATES.items()}
    assert find_noops(reading) == []
    assert check_gate(reading, ["train.learning_rate"], {}).differs == ["train.learning_rate"]


def test_settings_of_a_program_are_knobs_of_grids_options_and_searches(folder: Path) -> None:
    plan = make_plan(sweep_of(folder, grid={"trainer.args.rank": [8, 16]}), settings=["trainer.args.alpha=2"])
    plan.require_answerable()
    assert plan.gate.differs == ["trainer.args.rank"]
    given = [spec.trainer.model_dump()["args"] for spec in plan.arms.values()]
    assert given == [{"rank": rank, "alpha": 2} for rank in (8, 16)]
    assert any("program outside" in warning for warning in plan.warnings)
    knobs = {"trainer.args.rate": {"log": [1e-4, 1e-2]}}
    search = make_search_plan(sweep_of(folder, search={"knobs": knobs, "budget": {"trials": 2}}))
    assert list(search.search.knobs) == ["trainer.args.rate"]
