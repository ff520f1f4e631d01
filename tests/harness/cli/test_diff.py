from __future__ import annotations

import itertools
from typing import get_args

import pytest

from algorithms import active_knobs, preset, presets
from algorithms.overrides import Family
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
    assert bench("diff", "grpo", "dr_grpo").out.splitlines() == [
        "knob                   grpo                 dr_grpo",
        "objective.scale        group_std            none",
        "objective.scale_ddof   1                    (absent)",
        "objective.scale_eps    1e-06                (absent)",
        "objective.aggregation  seq_mean_token_mean  constant_length",
    ]


def test_what_needs_a_second_step_is_said_once_for_each_reason(bench: Bench) -> None:
    document = bench("diff", "grpo", "dapo", "--json").document
    assert list(document["cannot_act_in_one_step"]) == ["objective.rule.clip_high"]
    lines = bench("diff", "grpo", "sapo").out.splitlines()
    notes = [line for line in lines if line.startswith("cannot act: ")]
    assert [note.split(": ")[1] for note in notes] == [
        "objective.rule.type",
        "objective.rule.clip_low, objective.rule.clip_high",
        "objective.rule.dual_clip",
        "objective.rule.temperature_positive, objective.rule.temperature_negative",
    ]
    assert notes[1].endswith("ratio is 1, inside any clip range")


def test_a_value_of_none_is_not_an_absent_knob(bench: Bench) -> None:
    lines = [line.split() for line in bench("diff", "grpo", "kl_cov").out.splitlines()]
    assert ["objective.rule.dual_clip", "none", "(absent)"] in lines


def test_the_second_can_be_moved(bench: Bench) -> None:
    moved = bench("diff", "grpo", "grpo", "--set", "objective.rule.clip_high=0.28", "--json").document
    assert moved["second"] == "grpo with rule.clip_high=0.28"
    assert moved["differs"] == [{"knob": "objective.rule.clip_high", "first": 0.2, "second": 0.28}]


def test_equal_ones(bench: Bench) -> None:
    result = bench("diff", "grpo", "grpo")
    assert (result.code, result.out) == (0, "grpo and grpo are the same: all knobs are equal\n")
    assert bench("diff", "grpo", "grpo", "--json").document["differs"] == []
    there = ["--set", "objective.scale=none", "--set", "objective.aggregation=constant_length"]
    assert "are the same" in bench("diff", "dr_grpo", "grpo", *there).out


def test_across_families_all_knobs_differ_and_none_is_said_not_to_act(bench: Bench) -> None:
    document = bench("diff", "dpo", "grpo", "--json").document
    knobs = {f"objective.{knob}" for name in ("dpo", "grpo") for knob in active_knobs(preset(name))}
    assert {row["knob"] for row in document["differs"]} == knobs
    assert all("(absent)" in (row["first"], row["second"]) for row in document["differs"])
    assert document["cannot_act_in_one_step"] == {}
    assert "cannot act" not in bench("diff", "grpo", "dpo").out


def test_two_preference_algorithms(bench: Bench) -> None:
    assert bench("diff", "dpo", "simpo").out.splitlines() == [
        "knob                 dpo      simpo",
        "objective.logp       sum      mean",
        "objective.reference  initial  none",
        "objective.beta       0.1      2.0",
        "objective.margin     0.0      1.0",
        "objective.ld_alpha   1.0      (absent)",
    ]
    there = ["--set", "objective.label_smoothing=0.1", "--set", "objective.smoothing=robust"]
    assert "are the same" in bench("diff", "robust_dpo", "dpo", *there).out


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
    ("words", "says"),
    [
        (("gpro", "grpo"), "unknown algorithm 'gpro'; did you mean"),
        (("grpo", "std_norm"), "unknown algorithm 'std_norm'; did you mean dpo_norm? `bench ls algorithms` lists all."),
        (("grpo",), "missing argument 'second'"),
        (("grpo", "dr_grpo", "--set", "objective.scael=none"), "unknown objective knob 'scael'; did you mean scale"),
    ],
)
def test_mistakes(bench: Bench, words: tuple[str, ...], says: str) -> None:
    result = bench("diff", *words)
    assert (result.code, result.out) == (2, "")
    assert says in result.err


def test_help_has_an_example(bench: Bench) -> None:
    assert "Example: bench diff grpo dr_grpo" in bench("diff", "--help").out
