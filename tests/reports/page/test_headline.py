"""The sentence that answers the question, and the card that says what was trained."""

from __future__ import annotations

import json
from typing import Any

import pytest

from reports.measure import analyse
from reports.page import write_report
from reports.page.glossary import with_terms
from reports.page.headline import headline
from reports.page.setup import setup_of
from tests.reports.synthetic import write_sweep


def contrast(arm: str, verdict: str, **fields: Any) -> dict[str, Any]:
    numbers = {"difference_pp": 0.5, "low_pp": -0.5, "high_pp": 1.5, "margin_pp": 1.0}
    return {"arm": arm, "baseline": "grpo", "verdict": verdict, "next_step": None, **numbers, **fields}


def step(needed: int | None, seconds: float | None = None, *others: dict[str, Any]) -> dict[str, Any]:
    """What would settle a contrast: so many seeds, or one of the other ways."""
    command = f"bench run loss --seeds {needed}"
    seeds = {"of": "seeds", "now": 5, "needed": needed, "seconds": seconds, "command": command}
    return {"power": 0.8, "ways": [seeds, *others]}


def samples(needed: int | None, seconds: float | None) -> dict[str, Any]:
    command = f"bench run loss --eval-samples {needed}"
    return {"of": "samples", "now": 4, "needed": needed, "seconds": seconds, "command": command}


def report(*contrasts: dict[str, Any], states: str = "done", **sections: Any) -> dict[str, Any]:
    cells = [{"state": "done"}, *({"state": state} for state in states.split())]
    return {
        "contrasts": [*contrasts],
        "interactions": [],
        "screening": [],
        "cells": cells,
        "arms": [{"arm": "grpo"}],
    } | (sections)


@pytest.mark.parametrize(
    ("contrasts", "sentence"),
    [
        ([("a", "better")], "a beats grpo by +0.5 pp [-0.5, +1.5]."),
        ([("a", "equivalent")], "a is equivalent to grpo within ±1 pp: +0.5 pp [-0.5, +1.5]."),
        ([("a", "no_test")], "a against grpo has too few runs for a test (below 3 pairs)."),
        ([("a", "worse"), ("b", "worse")], "No arm beats grpo; 2 are worse (a, b)."),
        ([("a", "better"), ("b", "better"), ("c", "worse")], "a and b beat grpo; c is worse."),
        ([("a", "no_test"), ("b", "no_test")], "No arm has enough runs for a test against grpo (below 3 pairs)."),
        (
            [("a", "better"), ("b", "identical"), ("c", "equivalent"), ("d", "inconclusive")],
            "a beats grpo; c is equivalent within ±1 pp; b is identical; d is undecided at ±1 pp.",
        ),
        ([(name, "inconclusive") for name in "abcde"], "No arm beats grpo; 5 are undecided at ±1 pp."),
    ],
)
def test_one_sentence_says_which_arms_have_which_verdict(contrasts, sentence):
    assert headline(report(*(contrast(*one) for one in contrasts))) == sentence


def test_what_would_settle_all_that_is_open_follows():
    few, many = (contrast(arm, "inconclusive", next_step=step(n)) for arm, n in (("a", 9), ("b", 14)))
    says = "A further look with 9 more seeds would settle each with 80% power: `bench run loss --seeds 14`."
    assert headline(report(few, many)).endswith(says)
    assert headline(report(few)).endswith(
        "with 4 more seeds would settle it with 80% power: `bench run loss --seeds 9`."
    )
    unknown = contrast("d", "inconclusive")
    assert "would settle 2 of them with 80% power" in headline(report(few, many, unknown))
    none = contrast("c", "inconclusive", next_step=step(None))
    assert headline(report(few, none)) == "No arm beats grpo; 2 are undecided at ±1 pp (a, c)."


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        (step(9, 600, samples(8, 20)), step(7, 300, samples(12, 40)), "with 8 more samples of each problem"),
        (step(9, 10, samples(8, 20)), step(7, 5, samples(12, 40)), "with 4 more seeds"),
        (step(9, None, samples(8, None)), step(7, None, samples(5, None)), "with 4 more seeds"),
        (
            step(9, 600, samples(None, None)),
            step(7, 300, samples(5, 1)),
            "with 4 more seeds",
        ),  # samples settle only one
        (step(None, None, samples(8, 20)), step(7, 300, samples(5, 1)), "with 4 more samples of each problem"),
        (step(None, None, samples(5, 20)), step(None, None, samples(5, 1)), "with 1 more sample of each problem"),
        (step(9, 600), step(None, None, samples(8, 20)), None),
    ],
)
def test_the_next_step_is_the_cheapest_that_settles_all(first, second, says):
    sentence = headline(report(*(contrast("a", "inconclusive", next_step=one) for one in (first, second))))
    assert (f"A further look {says} would settle each" in sentence) if says else ("further look" not in sentence)
    assert says is None or ("--eval-samples" in sentence) == ("sample" in says)


def test_an_unfinished_sweep_a_screening_and_a_single_arm_say_so():
    assert headline(report(contrast("a", "better"), states="pending")).startswith("Interim look, 1 of 2 cells: a beats")
    assert headline(report()) == "One arm, grpo: nothing to compare."
    found = {"best": ["a", "b"], "baseline": "grpo", "command": "bench run s", "seeds": 8}
    ranked = report(contrast("a", "better"), screening=[found | {"confirmed_in": None, "contrasts": []}])
    assert headline(ranked) == (
        "A screening ranks and does not judge. Highest means beside grpo: a, b. `bench run s` confirms them on 8 fresh "
        "seeds."
    )
    confirmed = found | {"confirmed_in": "s2", "contrasts": [contrast("a", "worse")]}
    assert headline(report(screening=[confirmed])).startswith("With 8 fresh seeds: a is worse than grpo by")


def test_it_is_in_all_files_of_a_report(tmp_path):
    sweep = write_sweep(tmp_path / "records", {"base": 0.0, "up": 3.0}, seeds=4)
    (row,) = write_report(sweep, tmp_path / "report")["headline"]
    assert row["sentence"].startswith("up beats base by +")
    assert json.loads((tmp_path / "report" / "report.json").read_text())["headline"] == [row]
    assert f"**{row['sentence']}**" in (tmp_path / "report" / "report.md").read_text()
    page = (tmp_path / "report" / "index.html").read_text()
    assert page.index("up beats base by") < page.index('id="results"') < page.index('<figure id="forest"')
    assert page.index('<figure id="forest"') < page.index('<dl id="checks"') < page.index('<ul class="verdicts"')
    assert page.index('<ul class="verdicts"') < page.index('id="setup"')
    assert '<a href="#checks">⚠ needs attention: Graders disagree</a>' in page


SPEC = {
    "model": {"source": "builtin:tiny", "dtype": "float32", "lora": {"type": "none"}},
    "task": {"train": "arithmetic"},
    "rollout": {"prompts_per_step": 32, "samples_per_prompt": 8, "temperature": 1.0, "max_completion_tokens": 40},
    "objective": {"baseline": "group_mean", "scale": "group_std", "rule": {"type": "ppo_clip", "dual_clip": None},
                  "aggregation": "token_mean", "kl": {"where": "none"}},
    "train": {"steps": 120, "learning_rate": 0.0003, "updates_per_rollout": 1},
    "eval": {"tasks": ["arithmetic", "gsm8k"], "problems": 200, "samples": 16, "temperature": 0.7},
    "budget": {"tokens": 120_000},
}  # fmt: skip
START = {"time": "2026-11-23T03:14:59Z", "gpu": None, "processor": "a processor",
         "torch_threads": 1, "packages": {"bench-rl": "0.1.0", "torch": "2.13.0", "vllm": None},
         "model": {"parameters": 230_000, "remarks": ["a", "b"]}}  # fmt: skip


def test_the_card_says_what_was_trained_and_how(tmp_path):
    sweep = write_sweep(tmp_path / "records", {"base": 0.0, "none": 1.0}, seeds=1)
    for cell in sweep.cells:
        scale = "none" if cell.arm == "none" else "group_std"
        spec = SPEC | {"objective": SPEC["objective"] | {"scale": scale}}  # type: ignore[operator]
        (cell.path / "spec.json").write_text(json.dumps(spec))
        (cell.path / "provenance.json").write_text(json.dumps(START))
    setup = setup_of(analyse(sweep))
    entries = dict(setup.entries)
    assert entries["Model"] == "builtin:tiny, 230k parameters, float32"
    assert entries["Data"] == "trained on arithmetic, evaluated on arithmetic, gsm8k"
    assert entries["Algorithm"] == (
        "advantage: reward minus group_mean, scaled by group_std (base) or not scaled (none), ppo_clip, token_mean,"
        " no KL"
    )
    assert entries["Batch"] == (
        "32 prompts × 8 samples = 256 completions a step, 1 update, up to 40 tokens each, temperature 1"
    )
    assert (entries["Learning rate"], entries["Budget"]) == ("0.0003", "120k generated tokens, at most 120 steps")
    assert entries["Evaluation"] == "200 problems × 16 samples, temperature 0.7"
    assert (entries["Hardware"], entries["Versions"]) == ("a processor; 1 thread", "bench-rl 0.1.0, torch 2.13.0")
    assert entries["Dates"] == "first cell began 2026-11-23 03:14:59 UTC"
    assert "train.learning_rate=0.0003\n" in setup.config
    assert "bench-rl 0.1.0" in setup.citation and "year = {2026}" in setup.citation
    write_report(sweep, tmp_path / "report")
    shown = (tmp_path / "report" / "report.md").read_text()
    assert "None;" not in shown and "gpu" not in shown and "['" not in shown


def test_older_records_have_a_shorter_card(tmp_path):
    setup = setup_of(analyse(write_sweep(tmp_path, {"base": 0.0}, seeds=1)))
    assert [name for name, _ in setup.entries] == ["Hardware", "Versions", "Profile"]


def test_a_word_is_explained_once_and_never_inside_a_tag_or_a_name():
    from markupsafe import Markup

    html = with_terms(Markup('<a title="interval">interval</a>, intervals, my_interval, margin'))
    assert html.count("<abbr") == 2
    assert html.startswith('<a title="interval"><abbr title="The differences')
    assert "my_interval" in html and ">margin</abbr>" in html
