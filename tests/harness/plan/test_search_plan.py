"""What is wrong with a search is said before its first trial."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.errors import GateError, RefusedError
from harness.plan import make_plan
from harness.plan.search_plan import make_search_plan
from tests.harness.tuning.fake_cells import KNOBS, write_search

LR = "train.learning_rate"
CLIP = "objective.rule.clip_high"


@pytest.mark.parametrize(
    ("knobs", "match"),
    [
        ({}, "knobs is {}"),
        ({"train.learning_rat": {"log": [1e-4, 1e-2]}}, r"no knob; did you mean train\.learning_rate"),
        ({LR: {}}, "no range given: give one of float"),
        ({LR: {"log": [1e-4, 1e-2], "float": [0, 1]}}, "float and log given"),
        ({LR: {"float": [1e-2, 1e-4]}}, r"\[0\.01, 0\.0001\], which is empty"),
        ({LR: {"float": [1e-2, 1e-2]}}, "which is empty"),
        ({LR: {"log": [0, 1e-2]}}, "only numbers above 0 have a logarithm"),
        ({LR: {"float": [0, 1], "step": 2}}, "only 1 wide"),
        ({LR: {"log": [0.1, 1], "step": 0.1}}, "step is given with log"),
        ({"rollout.prompts_per_step": {"int": [4, 8], "step": 1.5}}, "whole numbers"),
        ({"train.lr_schedule": {"categorical": ["linear"]}}, "two or more distinct values"),
        ({"train.lr_schedule": {"categorical": ["linear", "linear"]}}, "two or more distinct values"),
        ({LR: {"log": [1e-4, 1e-2], "steps": 3}}, "steps is not a key here"),
        ({LR: {"log": [1e-4, 1e-2], "when": {"train.steps": [4]}}}, "train.steps, which is not searched itself"),
        (KNOBS | {CLIP: {"float": [0.2, 0.4], "when": {"train.updates_per_rollout": [8]}}}, "8, which is never drawn"),
        (
            {
                "rollout.temperature": {"categorical": [0.5, 1.0], "when": {LR: [1e-3]}},
                LR: {"categorical": [1e-3, 1e-2], "when": {"rollout.temperature": [1.0]}},
            },
            "wait for each other",
        ),
        # Of the wrong type for its knob, at either end.
        ({"train.steps": {"float": [2.5, 4.5]}}, "train.steps"),
        ({LR: {"categorical": ["low", "high"]}}, "train.learning_rate is 'low'"),
        ({LR: {"float": [-1, 1e-2]}}, "train.learning_rate is -1"),
        ({"objective.aggregation": {"categorical": ["token_mean", "mean"]}}, "objective.aggregation='mean'"),
        ({"train.optimizer_reset": {"int": [0, 1]}}, "train.optimizer_reset"),
    ],
)
def test_a_range_that_cannot_be_searched_is_refused(tmp_path: Path, knobs: Any, match: str) -> None:
    with pytest.raises(RefusedError, match=match):
        make_search_plan(str(write_search(tmp_path, {"knobs": knobs})))


@pytest.mark.parametrize(
    ("section", "match"),
    [
        ({"objectives": ["eval.final.mean_tokens"]}, "the first is accuracy"),
        ({"objectives": ["eval.final.pass@3"]}, "pass@3"),
        ({"objectives": ["eval.final.maths.pass@1"]}, "maths"),
        ({"objectives": ["eval.final.pass@1", "loss"]}, "the second is another one"),
        ({"objectives": ["eval.final.pass@1", "eval.final.pass@1"]}, "the second is another one"),
        ({"objectives": ["eval.final.pass@1", "eval.final.pass@2"]}, "as its second"),
        (
            {"objectives": ["eval.final.pass@1", "generated_tokens"], "pruner": {"type": "median"}},
            "median with two objectives: Optuna prunes by one only",
        ),
        ({"sampler": {"type": "grid"}}, "sampler.type is 'grid'"),
        ({"pruner": {"type": "hyperband"}}, "pruner.type is 'hyperband'"),
        ({"budget": {"trials": 0}}, "budget.trials is 0"),
    ],
)
def test_a_search_that_cannot_be_run_is_refused(tmp_path: Path, section: Any, match: str) -> None:
    with pytest.raises(RefusedError, match=match):
        make_search_plan(str(write_search(tmp_path, section)))


def test_a_knob_that_acts_nowhere_is_refused(tmp_path: Path) -> None:
    knobs = {CLIP: {"float": [0.2, 0.4]}, LR: KNOBS[LR]}
    with pytest.raises(GateError, match=r"clip_high cannot act anywhere in this search"):
        make_search_plan(str(write_search(tmp_path, {"knobs": knobs})))


def test_a_knob_that_acts_in_a_part_of_the_search_must_be_conditional(tmp_path: Path) -> None:
    knobs = KNOBS | {CLIP: {"float": [0.2, 0.4]}}
    with pytest.raises(GateError, match=r"clip_high cannot act at .*train\.updates_per_rollout=1.*conditional"):
        make_search_plan(str(write_search(tmp_path, {"knobs": knobs})))
    make_search_plan(str(write_search(tmp_path)))


def test_a_searched_knob_cannot_be_set(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=r"--set train\.learning_rate: this knob is searched"):
        make_search_plan(str(write_search(tmp_path)), settings=["train.learning_rate=1e-3"])


def test_a_search_has_one_seed_unless_it_says_otherwise(tmp_path: Path) -> None:
    assert make_search_plan(str(write_search(tmp_path))).seeds == [0]
    assert make_search_plan(str(write_search(tmp_path)), seeds=2).seeds == [0, 1]
    assert make_search_plan(str(write_search(tmp_path, seeds=[4]))).seeds == [4]


def test_each_verb_names_the_other(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=r"is a search: it has no arms\. Use `bench tune"):
        make_plan(str(write_search(tmp_path)))
    with pytest.raises(RefusedError, match="has arms, and nothing to search: use `bench run std_norm`"):
        make_search_plan("std_norm")


def test_a_sweep_has_arms_or_a_search(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="arms and search given"):
        make_search_plan(str(write_search(tmp_path, arms={"a": {}})))


def test_a_condition_on_a_value_within_a_range_can_be_searched(tmp_path: Path) -> None:
    knobs = {"train.epochs": {"int": [1, 4]}, CLIP: {"float": [0.2, 0.4], "when": {"train.epochs": [2, 3]}}}
    make_search_plan(str(write_search(tmp_path, {"knobs": knobs})))


@pytest.mark.parametrize(
    ("section", "match"),
    [
        ({"knobs": {LR: KNOBS[LR], "train.epochs": {"int": [1, 4], "when": {LR: [1e-3]}}}}, "no single value is ever"),
        (
            {"knobs": {"train.epochs": {"int": [2, 6], "step": 2}, LR: KNOBS[LR] | {"when": {"train.epochs": [3]}}}},
            "3, which is never drawn",
        ),
        ({"pruner": {"type": "wilcoxon"}}, "wilcoxon with one seed"),
        ({"knobs": {"train.token_records_max_tokens": {"categorical": [0, 9]}}}, "make no difference"),
    ],
)
def test_what_could_never_act_is_refused(tmp_path: Path, section: Any, match: str) -> None:
    with pytest.raises((RefusedError, GateError), match=match):
        make_search_plan(str(write_search(tmp_path, section)))


def test_a_pruner_along_training_needs_evaluations_there(tmp_path: Path) -> None:
    path = write_search(tmp_path, {"pruner": {"type": "median"}})
    with pytest.raises(RefusedError, match=r"median with eval\.every=0"):
        make_search_plan(str(path), settings=["eval.every=0"])
