"""An engine as the sampler of evaluations."""

from __future__ import annotations

import pytest
import torch

from evals.sampler import Draw, SamplingParams
from harness.config.rollout import RolloutSpec
from harness.engines.base import Engine, make_engine
from harness.models.language_model import LanguageModel, load_model
from harness.random_keys import random_key
from harness.sampling.sampler import EngineSampler

PROBLEMS = {"a": "3+5+9=", "b": "9+9+9+9+9=", "c": "2+7+1="}


@pytest.fixture(scope="module")
def language_model() -> LanguageModel:
    return load_model("builtin:tiny")


@pytest.fixture(scope="module")
def engine(language_model: LanguageModel) -> Engine:
    return make_engine(RolloutSpec(engine="torch", max_completion_tokens=40), language_model)


@pytest.fixture
def sampler(engine: Engine, language_model: LanguageModel) -> EngineSampler:
    return EngineSampler(language_model, engine, seed=3)


def draws(*names: str) -> list[Draw]:
    """`a0`: sample 0 of problem a."""
    return [Draw(PROBLEMS[name[0]], name[0], int(name[1])) for name in names]


def test_draws_are_those_of_the_engine(sampler: EngineSampler, engine: Engine, language_model: LanguageModel) -> None:
    names = ["a0", "a1", "b0", "b1"]
    keys = [[random_key(3, "eval", 0, problem, sample) for sample in range(2)] for problem in "ab"]
    prompts = [language_model.encode(PROBLEMS[problem]) for problem in "ab"]
    expected = engine.generate(prompts, torch.tensor(keys), SamplingParams(8))
    drawn = sampler.draw(draws(*names), SamplingParams(8))
    for row, one in enumerate(drawn):
        length = int(expected.lengths[row])
        assert one.text == language_model.decode(expected.tokens[row, :length].tolist())
        assert (one.n_tokens, one.truncated) == (length, bool(expected.truncated[row]))
    assert len({one.truncated for one in drawn}) == 2, "some must be truncated, some not"


def test_samples_do_not_depend_on_what_else_is_missing(sampler: EngineSampler) -> None:
    """Problems that lack unequally many samples, in any order."""
    names = ["a0", "b0", "a1", "c2", "a2", "b1"]
    together = dict(zip(names, sampler.draw(draws(*names), SamplingParams(40)), strict=True))
    for some in (["b1"], ["c2", "a2"], names[::-1]):
        assert sampler.draw(draws(*some), SamplingParams(40)) == [together[name] for name in some]


def test_each_is_told_once_as_it_is_returned(sampler: EngineSampler) -> None:
    told: dict[int, object] = {}
    names = ["a0", "b0", "a1", "c2"]
    drawn = sampler.draw(draws(*names), SamplingParams(40), lambda index, one: told.__setitem__(index, one))
    assert [told[index] for index in range(len(names))] == drawn
    assert len(told) == len(names)


def test_nothing_to_draw(sampler: EngineSampler) -> None:
    assert sampler.draw([], SamplingParams(4)) == []
