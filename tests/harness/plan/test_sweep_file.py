from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.errors import RefusedError
from harness.plan.sweep_file import SweepFile, load_sweep
from tests.harness.plan.files import QUESTION, write_sweep_file
from tests.refusals import refuses

LEFT_OUT: dict[str, Any] = {"arms": None}


def sweep(**changes: Any) -> SweepFile:
    return SweepFile.model_validate({key: value for key, value in (QUESTION | changes).items() if value is not None})


def refusal(tmp_path: Path, **changes: Any) -> list[str]:
    path = write_sweep_file(tmp_path, **changes)
    with pytest.raises(RefusedError) as caught:
        load_sweep(str(path))
    lines = str(caught.value).splitlines()
    assert all(line.startswith(f"{path}: ") for line in lines)
    return [line.removeprefix(f"{path}: ") for line in lines]


def test_defaults() -> None:
    question = sweep()
    assert question.seed_list == [*range(12)]
    assert question.compare.metric == "eval.final.pass@1"
    assert question.compare.alpha == 0.05
    assert not question.allow_noop


def test_seeds_are_a_count_or_a_list() -> None:
    assert sweep(seeds=2).seed_list == [0, 1]
    assert sweep(seeds=[5, 3]).seed_list == [5, 3]


def test_a_grid_is_a_factorial() -> None:
    grid = {"objective.rule.clip_high": [0.2, 0.28], "objective.scale": ["none", "group_std"]}
    question = sweep(arms=None, grid=grid)
    assert list(question.all_arms) == [
        "clip_high=0.2+scale=none",
        "clip_high=0.2+scale=group_std",
        "clip_high=0.28+scale=none",
        "clip_high=0.28+scale=group_std",
    ]
    assert question.all_arms["clip_high=0.28+scale=none"] == {
        "objective.rule.clip_high": 0.28,
        "objective.scale": "none",
    }


def test_leaving_one_out_puts_each_knob_back_alone() -> None:
    ordinary = {"objective.rule.type": "ppo_clip", "objective.rule.clip_high": 0.2, "task.retire_at": None}
    question = sweep(arms=None, ablate=None, leave_one_out=ordinary)
    assert question.all_arms == {
        "base": {},
        "rule=ppo_clip": {"objective.rule.type": "ppo_clip"},
        "clip_high=0.2": {"objective.rule.clip_high": 0.2},
        "retire_at=null": {"task.retire_at": None},
    }
    assert question.under_test == list(ordinary)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"arms": None}, "arms"),
        ({"leave_one_out": {"train.steps": 1}}, "arms leave_one_out"),
        (LEFT_OUT | {"leave_one_out": {"train.stepz": 1}}, "leave_one_out.train.stepz"),
        (LEFT_OUT | {"leave_one_out": {"train.steps": [1]}}, "leave_one_out.train.steps"),
        (LEFT_OUT | {"leave_one_out": {"algorithm": "grpo"}}, "'algorithm'"),
        (LEFT_OUT | {"leave_one_out": {"objective.rule": "ppo_clip"}}, "'objective.rule'"),
        (LEFT_OUT | {"leave_one_out": {"model.source": "a/b"}}, "leave_one_out 'source=a/b'"),
        (LEFT_OUT | {"leave_one_out": {"eval.temperature": 1.0, "rollout.temperature": 1.0}}, "leave_one_out"),
        (
            LEFT_OUT | {"leave_one_out": {"train.steps": 9}, "compare": {"baseline": "steps=9"}},
            "compare.baseline steps=9 leave_one_out base",
        ),
        ({"grid": {"train.steps": [1, 2]}}, "arms grid"),
        ({"arms": None, "grid": {"train.steps": []}}, "grid.train.steps []"),
        ({"arms": None, "grid": {"train.steps": [1, 1]}}, "grid twice"),
        ({"arms": None, "grid": {"model.source": ["path:a/b"]}}, "grid 'source=path:a/b'"),
        ({"compare": {"baseline": "wihtout"}}, "compare.baseline: 'wihtout'; without"),
        ({"compare": {"alpha": 1.5}}, "compare.alpha 1.5"),
        ({"compare": {"margin_pp": 0}}, "compare.margin_pp 0"),
        ({"compare": {"metrc": "x"}}, "compare.metrc"),
        ({"seeds": 0}, "seeds 0"),
        ({"seeds": [1, 1]}, "seeds [1, 1]"),
        ({"seeds": [-1]}, "seeds [-1]"),
        ({"seeds": []}, "seeds []"),
        ({"name": "a/b"}, "name 'a/b'"),
        ({"name": "cache"}, "name: 'cache'"),
        ({"name": None}, "name default"),
        ({"question": None}, "question default"),
        ({"arms": {"a b": {}}}, "arms.a"),
        ({"arms": {"with": None}}, "arms.with None"),
        ({"ablat": []}, "ablat ablate?"),
        ({"ablate": ["objective.scael"]}, "ablate.0: 'objective.scael'; objective.scale"),
        ({"ablate": ["objective.scale_"]}, "ablate.0: 'objective.scale_'"),
        ({"ablate": [""]}, "ablate.0:"),
        ({"co_changes": {"train.lr": "why"}}, "co_changes.train.lr:"),
        ({"co_changes": {"train.steps": ""}}, "co_changes.train.steps ''"),
        ({"allow_noop": "yes"}, "allow_noop 'yes'"),
    ],
)
def test_a_faulty_file_is_refused_in_one_line(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    (line,) = refusal(tmp_path, **changes)
    assert all(name in line for name in named.split()), line


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    lines = refusal(tmp_path, seeds="many", profile=3, arm={}, compare={"alpha": 0})
    assert {line.split()[0] for line in lines} >= {"profile", "arm", "compare.alpha"}


@pytest.mark.parametrize("entry", ["algorithm", "objective", "objective.rule", "reward.parts.format", "train.steps"])
def test_knobs_sections_and_the_algorithm_can_be_declared(entry: str) -> None:
    assert sweep(ablate=[entry]).ablate == (entry,)
    assert sweep(co_changes={entry: "for a reason"}).co_changes


def test_a_sweep_is_found_by_name_or_path(tmp_path: Path) -> None:
    assert load_sweep("std_norm")[0] == load_sweep(str(load_sweep("std_norm")[1]))[0]
    assert load_sweep(str(write_sweep_file(tmp_path)))[0].name == "mine"


@pytest.mark.parametrize("given", ["std_nrom", "sweepz/std_norm.yaml", "zzzzzz"])
def test_a_sweep_that_is_not_there_names_the_nearest(given: str) -> None:
    with refuses(RefusedError, "plan.no_such_file", what="sweep", given=given) as caught:
        load_sweep(given)
    assert ("std_norm" in str(caught.value.fields["hint"])) == (given != "zzzzzz")
