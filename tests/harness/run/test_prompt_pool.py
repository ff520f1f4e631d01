from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.tasks import get_task
from evals.tasks.base import Problem
from harness.config.run_spec import RunSpec
from harness.errors import RefusedError
from harness.run.prompts import candidates, require_prompts, training_prompts
from tests.harness.run.small import small_spec
from tests.refusals import refuses

COUNT = 400
FILTER = {"task.filter.type": "pass_rate", "task.filter.samples": 4}


@pytest.fixture(scope="module", autouse=True)
def short_train_split() -> Iterator[None]:
    """The first of arithmetic's problems, made once: these tests load them often."""
    source = get_task("arithmetic").split("train")
    problems = source.load()[:COUNT]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(source), "load", lambda self: problems)
        yield


def few(count: int, settings: dict[str, Any] | None = None) -> RunSpec:
    """A filter that measures a few problems; 4 prompts a step."""
    return small_spec(FILTER | {"task.filter.problems": count} | (settings or {}))


def counted(spec: RunSpec, correct: list[int]) -> dict[str, int]:
    return {problem.id: number for problem, number in zip(candidates(spec), correct, strict=True)}


def kept(spec: RunSpec, correct: list[int]) -> list[int]:
    """Which of the candidates stay, by their place."""
    left = {problem.id for problem in training_prompts(spec, counted(spec, correct))}
    return [place for place, problem in enumerate(candidates(spec)) if problem.id in left]


def refuse(code: str, spec: RunSpec, correct: list[int] | None = None, **fields: Any) -> None:
    """Expect a refusal before anything is measured, or once so many samples of each candidate were correct."""
    with refuses(RefusedError, code, **fields):
        require_prompts(spec) if correct is None else training_prompts(spec, counted(spec, correct))


def test_all_of_the_train_split_in_its_order() -> None:
    assert list(training_prompts(small_spec(), {})) == list(get_task("arithmetic").split("train").load())


class TestPool:
    @pytest.mark.slow
    @given(st.integers(4, 300), st.integers(4, 300), st.integers(0, 3))
    def test_a_larger_pool_holds_the_smaller(self, one: int, other: int, seed: int) -> None:
        small, large = (
            {problem.id for problem in training_prompts(small_spec({"task.pool": size}, seed), {})}
            for size in sorted((one, other))
        )
        assert (len(small), len(large)) == tuple(sorted((one, other)))
        assert small <= large

    def test_is_fixed_by_the_seed_and_no_slice_of_the_problems(self) -> None:
        pools = [training_prompts(small_spec({"task.pool": 50}, seed), {}) for seed in (0, 0, 1)]
        assert pools[0] == pools[1]
        assert len({problem.id for problem in [*pools[0], *pools[2]]}) > 80
        first = {problem.id for problem in get_task("arithmetic").split("train").load()[:50]}
        assert len(first & {problem.id for problem in pools[0]}) < 25

    def test_comes_after_the_filter(self) -> None:
        spec = few(8, {"task.pool": 4})
        assert kept(spec, [0, 1, 0, 1, 4, 2, 4, 3]) == [1, 3, 5, 7]


class TestFilter:
    @pytest.mark.parametrize(
        ("bounds", "expected"),
        [
            ({}, [1, 2, 3]),
            ({"task.filter.highest": 1.0}, [1, 2, 3, 4]),
            ({"task.filter.lowest": 0.0}, [0, 1, 2, 3]),
            ({"task.filter.lowest": 0.25, "task.filter.highest": 0.5}, [1, 2]),
            ({"task.filter.lowest": 0.0, "task.filter.highest": 0.0}, [0]),
        ],
    )
    def test_keeps_what_lies_between_the_bounds(self, bounds: dict[str, float], expected: list[int]) -> None:
        spec = few(5, {"rollout.prompts_per_step": 1} | bounds)
        assert kept(spec, [0, 1, 2, 3, 4]) == expected

    def test_measures_the_same_few_problems_for_all_seeds(self) -> None:
        settings = FILTER | {"task.filter.problems": 50}
        chosen = [candidates(small_spec(settings, seed)) for seed in (0, 1)]
        assert chosen[0] == chosen[1]
        more = candidates(small_spec(FILTER | {"task.filter.problems": 60}))
        assert {problem.id for problem in chosen[0]} <= {problem.id for problem in more}
        first = {problem.id for problem in get_task("arithmetic").split("train").load()[:50]}
        assert len(first & {problem.id for problem in chosen[0]}) < 25

    def test_measures_all_where_there_are_no_more(self) -> None:
        assert len(candidates(few(COUNT + 1))) == len(candidates(small_spec(FILTER))) == COUNT


class TestRefusals:
    def test_pools_and_filters_that_leave_too_few(self) -> None:
        refuse("run.pool_too_large", small_spec({"task.pool": COUNT + 1}), pool=COUNT + 1)
        require_prompts(small_spec({"task.pool": COUNT}))
        refuse("run.pool_too_small", small_spec({"task.pool": 3}), pool=3, needed=4)
        refuse("run.too_many_prompts_per_step", few(3), needed=4)
        refuse("run.pool_too_large", few(8, {"task.pool": 9}), pool=9)
        refuse("run.too_many_prompts_per_step", few(6), [0, 1, 2, 3, 4, 4], needed=4)
        assert len(kept(few(6), [0, 1, 2, 3, 3, 4])) == 4
        refuse("run.pool_too_large", few(8, {"task.pool": 6}), [1, 1, 1, 1, 1, 0, 0, 0], pool=6)

    def test_a_curriculum_without_difficulties(self, monkeypatch: pytest.MonkeyPatch) -> None:
        flat = [Problem(id=str(number), problem="1+1=", answer="2") for number in range(4)]
        monkeypatch.setattr(type(get_task("arithmetic").split("train")), "load", lambda self: flat)
        require_prompts(small_spec())
        refuse("run.problem_without_difficulty", small_spec({"task.order": "curriculum"}))
