from __future__ import annotations

import itertools
from typing import get_args

import pytest

from algorithms import active_knobs, preset, presets
from algorithms.overrides import Family
from tests.frozen import frozen
from tests.harness.cli.conftest import Bench


def test_only_the_knobs_that_differ(bench: Bench) -> None:
    result = bench("diff", "grpo", "dr_grpo", "--json", "--home", "anywhere")
    assert (result.code, result.err) == (0, "")
    assert result.document == {
        "first": "grpo",
        "second": "dr_grpo",
        "differs": [
            {"knob": "objective.scale", "first": "group_std", "second": "none"},
            {"knob": "objective.scale_ddof", "first": 1, "second": "(absent)"},
            {"knob": "objective.scale_eps", "first": 1e-06, "second": "(absent)"},
            {"knob": "objective.aggregation", "first": "seq_mean_token_mean", "second": "constant_length"},
        ],
        "cannot_act_in_one_step": {},
    }


def test_for_people_it_is_an_aligned_table(bench: Bench) -> None:
    pairs = [("grpo", "dr_grpo"), ("grpo", "sapo"), ("dpo", "simpo"), ("grpo", "grpo")]
    frozen("cli/diff", "\n".join(f"$ bench diff {a} {b}\n{bench('diff', a, b).out}" for a, b in pairs))


def test_what_needs_a_second_step_is_said_once_for_each_reason(bench: Bench) -> None:
    document = bench("diff", "grpo", "dapo", "--json").document
    assert list(document["cannot_act_in_one_step"]) == ["objective.rule.clip_high"]


def test_a_value_of_none_is_not_an_absent_knob(bench: Bench) -> None:
    lines = [line.split() for line in bench("diff", "grpo", "kl_cov").out.splitlines()]
    assert ["objective.rule.dual_clip", "none", "(absent)"] in lines


def test_the_second_can_be_moved(bench: Bench) -> None:
    moved = bench("diff", "grpo", "grpo", "--set", "objective.rule.clip_high=0.28", "--json").document
    assert moved["second"] == "grpo with rule.clip_high=0.28"
    assert moved["differs"] == [{"knob": "objective.rule.clip_high", "first": 0.2, "second": 0.28}]


def test_equal_ones(bench: Bench) -> None:
    for first, second, *moved in (
        ("grpo", "grpo"),
        ("dr_grpo", "grpo", "objective.scale=none", "objective.aggregation=constant_length"),
        ("robust_dpo", "dpo", "objective.label_smoothing=0.1", "objective.smoothing=robust"),
    ):
        there = [word for setting in moved for word in ("--set", setting)]
        assert bench("diff", first, second, *there, "--json").document["differs"] == []


def test_across_families_all_knobs_differ_and_none_is_said_not_to_act(bench: Bench) -> None:
    document = bench("diff", "dpo", "grpo", "--json").document
    knobs = {f"objective.{knob}" for name in ("dpo", "grpo") for knob in active_knobs(preset(name))}
    assert {row["knob"] for row in document["differs"]} == knobs
    assert all("(absent)" in (row["first"], row["second"]) for row in document["differs"])
    assert document["cannot_act_in_one_step"] == {}


@pytest.mark.slow
@pytest.mark.parametrize("family", get_args(Family))
def test_every_pair_of_presets(bench: Bench, family: Family) -> None:
    for first, second in itertools.combinations(presets(family), 2):
        rows = bench("diff", first, second, "--json").document["differs"]
        a, b = active_knobs(preset(first)), active_knobs(preset(second))
        assert {row["knob"].removeprefix("objective.") for row in rows} == {
            knob for knob in a | b if a.get(knob, "(absent)") != b.get(knob, "(absent)")
        }


@pytest.mark.parametrize(
    ("words", "code", "fields"),
    [
        (("gpro", "grpo"), "bench.unknown_name", {"noun": "algorithm", "name": "'gpro'"}),
        (("grpo", "std_norm"), "bench.unknown_name", {"noun": "algorithm", "name": "'std_norm'"}),
        (("grpo", "dr_grpo", "--set", "objective.scael=none"), "unknown", {"path": "objective.scael"}),
    ],
)
def test_mistakes(bench: Bench, words: tuple[str, ...], code: str, fields: dict[str, str]) -> None:
    bench("diff", *words).refused(code, **fields)
