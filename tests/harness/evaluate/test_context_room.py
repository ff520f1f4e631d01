"""A preset's length gives way to the model's context, the same way whatever is asked for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from evals.prompts import get_template
from evals.sampler import SamplingParams
from evals.tasks.base import Problem
from harness.errors import RefusedError
from harness.models.language_model import LanguageModel
from harness.sampling.conditions import fitted
from tests.refusals import refuses

PROBLEMS = [Problem("short", "1+1=", "2"), Problem("long", "1+1+1+1+1=", "5")]
CONTEXT = 128


def test_the_longest_prompt_and_its_answer_fill_the_context(language_model: LanguageModel) -> None:
    template = get_template("plain")
    longest = len(language_model.encode(template.render(PROBLEMS[1].problem)))
    for asked, other, expected in ((10**6, 0, CONTEXT - longest), (10**6, 20, CONTEXT - longest - 20), (8, 0, 8)):
        found = fitted(SamplingParams(asked, stop=("x",)), language_model, template, PROBLEMS, other)
        assert found == SamplingParams(expected, stop=("x",))


def test_no_room_at_all_is_refused(language_model: LanguageModel) -> None:
    with refuses(
        RefusedError, "sampling.no_room_for_answer", context_tokens=128, between=" and 128 of a thinking budget"
    ):
        fitted(SamplingParams(8), language_model, get_template("plain"), PROBLEMS, other_tokens=CONTEXT)


def test_without_a_known_context_nothing_is_lowered(
    language_model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(language_model.model, "config", SimpleNamespace())
    assert fitted(SamplingParams(10**6), language_model, get_template("plain"), PROBLEMS) == SamplingParams(10**6)
