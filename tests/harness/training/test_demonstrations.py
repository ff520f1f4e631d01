"""Demonstrations in two modes, and with their steps cut."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from evals.tasks import get_task
from harness.config.model import SupervisedColdStart
from harness.errors import RefusedError
from harness.models.language_model import LanguageModel
from harness.models.tiny import tiny_tokenizer
from harness.training.demonstrations import demonstrations, encoded_demonstrations, require_demonstrations
from tests.harness.training import rollouts
from tests.refusals import refuses

MODEL = LanguageModel(rollouts.model(), tiny_tokenizer())
SOLUTIONS = {problem.problem: problem.require_solution() for problem in get_task("arithmetic").split("train").load()}


def recipe(**settings: Any) -> SupervisedColdStart:
    return SupervisedColdStart(**{"data": "solutions:arithmetic", "template": "modes_digits", **settings})


def shown(made: SupervisedColdStart, count: int) -> list[tuple[str, str]]:
    """(prompt, completion) as texts; each completion ends as it should."""
    encoded = list(islice(encoded_demonstrations(MODEL, made), count))
    assert all(one.completion[-1] == MODEL.tokenizer.eos_token_id for one in encoded)
    return [(MODEL.decode(one.prompt), MODEL.decode(one.completion)) for one in encoded]


def way(prompt: str, completion: str) -> str:
    """Which of the three ways a demonstration has; AssertionError for one that has none of them."""
    flag, (problem, equals, cut) = prompt[0], prompt[1:].partition("=")
    steps, mark, answer = SOLUTIONS[problem + equals].partition("#")
    if flag == "#":
        assert (cut, completion) == ("", mark + answer)
        return "direct"
    assert flag == ","
    if not cut:
        assert completion == steps + mark + answer
        return "whole"
    kept = cut.removesuffix("wait#")
    assert kept != cut and kept and steps.startswith(kept) and completion == answer
    return "stopped"


@pytest.mark.slow
@given(st.integers(0, 99), st.floats(0, 0.5), st.floats(0, 0.5))
def test_each_demonstration_is_whole_without_steps_or_with_cut_ones(seed: int, direct: float, stop: float) -> None:
    """The problems and their order are those of a start in one mode."""
    found = shown(recipe(seed=seed, direct_frac=direct, stop_frac=stop), 12)
    ways = {way(*one) for one in found}
    assert direct or "direct" not in ways
    assert stop or "stopped" not in ways
    alone = [problem for problem, _ in islice(demonstrations(recipe(seed=seed)), 12)]
    assert [prompt[1:].partition("=")[0] + "=" for prompt, _ in found] == alone


@pytest.mark.slow
def test_the_shares_are_those_that_were_asked_for() -> None:
    found = Counter(way(*one) for one in shown(recipe(direct_frac=0.5, stop_frac=0.2), 4000))
    assert found["direct"] / 4000 == pytest.approx(0.5, abs=0.03)
    assert found["stopped"] / 4000 == pytest.approx(0.2, abs=0.03)


def test_steps_are_cut_anywhere() -> None:
    """After 1 token, in the middle, and behind the last one."""
    cuts = set()
    for prompt, _ in shown(recipe(stop_frac=1.0), 400):
        problem, _, cut = prompt[1:].partition("=")
        steps = SOLUTIONS[f"{problem}="].partition("#")[0]
        cuts.add((len(cut.removesuffix("wait#")), len(steps)))
    lengths = {length for _, length in cuts}
    assert any({1, length // 2, length} <= {cut for cut, own in cuts if own == length} for length in lengths)


def test_without_shares_everything_is_as_it_was() -> None:
    made = recipe(data="demonstrations:arithmetic", template="plain")
    assert shown(made, 50) == list(islice(demonstrations(made), 50))


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"direct_frac": 0.7, "stop_frac": 0.5}, "add up to 1 at most"),
        ({"direct_frac": 0.5, "template": "plain"}, r"template=plain, which has no \{mode\}"),
        ({"direct_frac": 0.5, "data": "demonstrations:arithmetic"}, "have no steps to leave out"),
        ({"stop_frac": 0.5, "data": "demonstrations:arithmetic"}, "have no steps to leave out"),
    ],
)
def test_shares_that_make_no_sense_are_refused(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        recipe(**settings)


@pytest.mark.parametrize("solution", ["#8", "8", ""])
def test_a_solution_without_steps_is_refused_where_they_are_to_be_left_out(tmp_path: Path, solution: str) -> None:
    rows = [{"problem": "3+5+9=", "solution": "8,17#17"}, {"problem": "3+5=", "solution": solution}]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    require_demonstrations(recipe(data=str(path)))
    for settings in ({"direct_frac": 0.5}, {"stop_frac": 0.1}):
        with refuses(RefusedError, "training.solution_without_steps", problem="'3+5='", end="#"):
            require_demonstrations(recipe(data=str(path), **settings))
    with refuses(RefusedError, "training.no_demonstrations_file"):
        require_demonstrations(recipe(data=str(tmp_path / "nowhere.jsonl")))
