from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise, permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evals.tasks.base import Problem
from harness.config.task import Order, TaskSpec
from harness.run.prompts import LEAST_WEIGHT, Curriculum, Prioritised, PromptOrder, Retiring, Uniform, prompt_order

ORDERS = [Uniform, Curriculum, Prioritised]
THINKING = TaskSpec(train="arithmetic", template="modes_digits")
MIXED = THINKING.model_copy(update={"direct_frac": 0.5})
Kind = type[PromptOrder]


def problems(count: int) -> list[Problem]:
    """Difficulties come in pairs, and not in the order of the problems."""
    return [
        Problem(id=f"p{number}", problem="", answer="", difficulty=(number * 7 % count) // 2) for number in range(count)
    ]


def ids(drawn: Sequence[Problem]) -> list[str]:
    return [problem.id for problem in drawn]


def base_draws(order: PromptOrder, steps: range, count: int) -> list[str]:
    return [name for step in steps for name in ids(order.draw(step, count, step / 100))]


class TestUniform:
    @given(st.integers(1, 12), st.integers(1, 15), st.integers(0, 5))
    def test_every_problem_once_an_epoch(self, total: int, count: int, seed: int) -> None:
        pool = problems(total)
        drawn = base_draws(Uniform(pool, seed), range(1, 2 * total + 1), count)
        for start in range(0, len(drawn) - total + 1, total):
            assert sorted(drawn[start : start + total]) == sorted(ids(pool))

    def test_epochs_differ(self) -> None:
        order = Uniform(problems(10), 0)
        assert base_draws(order, range(1, 2), 10) != base_draws(order, range(2, 3), 10)

    def test_a_step_depends_on_nothing_before_it(self) -> None:
        order = Uniform(problems(10), 0)
        assert base_draws(order, range(3, 4), 4) == base_draws(order, range(1, 8), 4)[8:12]


class TestCurriculum:
    @given(st.integers(1, 60), st.integers(1, 8), st.floats(0, 1), st.integers(0, 3))
    def test_a_step_comes_from_the_window_of_its_progress(
        self, total: int, count: int, progress: float, seed: int
    ) -> None:
        pool = problems(total)
        drawn = Curriculum(pool, seed).draw(1, count, progress)
        assert len(drawn) == len(set(ids(drawn))) == min(count, total)
        width = min(total, max(count, total // 10))
        start = math.floor(progress * (total - width))
        difficulties = sorted(problem.difficulty or 0 for problem in pool)[start : start + width]
        # Each difficulty no more often than the window holds it.
        assert Counter(problem.difficulty for problem in drawn) <= Counter(difficulties)

    def test_from_the_easiest_to_the_hardest(self) -> None:
        order = Curriculum(problems(20), 0)
        assert {problem.difficulty for problem in order.draw(1, 2, 0.0)} == {0}
        assert {problem.difficulty for problem in order.draw(9, 2, 1.0)} == {9}

    def test_the_whole_window_is_drawn_from(self) -> None:
        order = Curriculum(problems(100), 0)
        drawn = {name for step in range(1, 200) for name in ids(order.draw(step, 2, 0.5))}
        assert len(drawn) == 10

    def test_the_seed_breaks_ties(self) -> None:
        flat = [Problem(id=f"p{number}", problem="", answer="", difficulty=1) for number in range(40)]
        easiest = [set(ids(Curriculum(flat, seed).draw(1, 4, 0.0))) for seed in (0, 1)]
        assert easiest[0] == set(ids(Curriculum(flat, 0).draw(2, 4, 0.0)))
        assert easiest[0] != easiest[1]


class TestPrioritised:
    RATES: tuple[float, ...] = (0.0, 0.5, 0.75, 1.0)

    def seen(self, seed: int = 0) -> Prioritised:
        """Five problems; the last has not been seen."""
        order = Prioritised(problems(5), seed)
        order.observe([f"p{number}" for number in range(4)], self.RATES)
        return order

    def test_frequencies_are_those_of_drawing_without_replacement(self) -> None:
        """Two of five, against P(i, j) = w_i / W * w_j / (W - w_i) for every ordered pair."""
        weights = [1.0, 0.5, 0.25, LEAST_WEIGHT, 1.0]
        draws = 8_000
        order = self.seen()
        counts = Counter(tuple(ids(order.draw(step, 2, 0.0))) for step in range(1, draws + 1))
        for first, second in permutations(range(5), 2):
            total = sum(weights)
            expected = weights[first] / total * weights[second] / (total - weights[first])
            sd = math.sqrt(expected * (1 - expected) / draws)
            assert counts[f"p{first}", f"p{second}"] / draws == pytest.approx(expected, abs=4.5 * sd)

    def test_the_rate_is_the_mean_over_the_steps_that_saw_the_prompt(self) -> None:
        once, thrice = Prioritised(problems(9), 0), Prioritised(problems(9), 0)
        once.observe(["p3"], [0.5])
        for rate in (0.25, 0.25, 1.0):
            thrice.observe(["p3"], [rate])
        assert base_draws(once, range(1, 50), 2) == base_draws(thrice, range(1, 50), 2)

    def test_the_noise_is_shared_by_arms_whose_rates_differ(self) -> None:
        """The more a prompt is solved the later it comes; the others keep their order among themselves."""
        unseen, solved = Prioritised(problems(9), 0), Prioritised(problems(9), 0)
        solved.observe(["p3"], [1.0])
        later = 0
        for step in range(1, 30):
            before, after = ids(unseen.draw(step, 9, 0.0)), ids(solved.draw(step, 9, 0.0))
            assert [name for name in before if name != "p3"] == [name for name in after if name != "p3"]
            assert before.index("p3") <= after.index("p3")
            later += before.index("p3") < after.index("p3")
        assert later > 20

    def test_continues_from_its_state(self) -> None:
        order, resumed = self.seen(), Prioritised(problems(5), 0)
        assert base_draws(resumed, range(1, 40), 2) != base_draws(order, range(1, 40), 2)
        resumed.load_state_dict(json.loads(json.dumps(order.state_dict())))
        assert base_draws(resumed, range(1, 40), 2) == base_draws(order, range(1, 40), 2)
        resumed.observe(["p0"], [1.0])
        assert order.state_dict() == self.seen().state_dict()


class TestRetiring:
    """Prompts of which nine tenths are solved never come again."""

    def order(self, total: int = 20, kind: Kind = Uniform, retire_at: float = 0.9) -> Retiring:
        return Retiring(problems(total), 0, kind(problems(total), 0), retire_at)

    @pytest.mark.parametrize("kind", [Uniform, Prioritised])
    @settings(max_examples=20)
    @given(solved=st.sets(st.integers(0, 19), max_size=14), seed=st.integers(0, 3))
    def test_a_solved_prompt_never_comes_again(self, kind: Kind, solved: set[int], seed: int) -> None:
        order = Retiring(problems(20), seed, kind(problems(20), seed), 0.9)
        order.draw(1, 4, 0.0)
        order.observe([f"p{number}" for number in range(20)], [float(number in solved) for number in range(20)])
        for step in range(2, 12):
            drawn = ids(order.draw(step, 4, 0.0))
            more = ids(order.draw(step, 4, 0.0, 1, drawn))
            assert len(drawn) == len({*drawn}) == 4 or kind is Uniform
            assert not {f"p{number}" for number in solved} & {*drawn, *more}
            assert not {*drawn} & {*more}

    def test_the_others_are_those_of_an_arm_that_retires_none(self) -> None:
        order, plain = self.order(), Uniform(problems(20), 0)
        assert base_draws(order, range(1, 9), 4) == base_draws(plain, range(1, 9), 4)
        order.observe(["p3", "p5"], [1.0, 1.0])
        for step in range(1, 30):
            expected, drawn = ids(plain.draw(step, 4, 0.0)), ids(order.draw(step, 4, 0.0))
            stays = [name for name in expected if name not in ("p3", "p5")]
            assert drawn[: len(stays)] == stays and len(drawn) == 4
            assert not {"p3", "p5"} & {*drawn}

    def test_the_share_itself_counts_as_float32_has_it(self) -> None:
        order = self.order()
        order.draw(1, 4, 0.0)
        order.observe(["p1", "p2"], torch.tensor([9 / 10, 8 / 10]).tolist())
        assert order.state_dict()["retired"] == ["p1"]
        assert order.metrics() == {"prompts_retired": 1}

    def test_a_steps_worth_of_prompts_stays(self) -> None:
        order = self.order(total=6)
        order.draw(1, 4, 0.0)
        order.observe([f"p{number}" for number in range(6)], [1.0] * 6)
        assert order.state_dict()["retired"] == ["p0", "p1"]
        assert sorted(ids(order.draw(2, 4, 0.0))) == ["p2", "p3", "p4", "p5"]

    @pytest.mark.parametrize("kind", [Uniform, Prioritised])
    def test_continues_from_its_state(self, kind: Kind) -> None:
        order, resumed = self.order(kind=kind), self.order(kind=kind)
        order.draw(1, 4, 0.0)
        order.observe(["p1", "p2", "p7"], [1.0, 0.5, 1.0])
        assert base_draws(resumed, range(2, 40), 4) != base_draws(order, range(2, 40), 4)
        resumed.load_state_dict(json.loads(json.dumps(order.state_dict())))
        assert base_draws(resumed, range(2, 40), 4) == base_draws(order, range(2, 40), 4)


@pytest.mark.parametrize("kind", ORDERS)
class TestEveryOrder:
    def test_is_fixed_by_the_seed(self, kind: Kind) -> None:
        drawn = [base_draws(kind(problems(40), seed), range(1, 9), 4) for seed in (0, 0, 1)]
        assert drawn[0] == drawn[1] != drawn[2]

    @settings(max_examples=30)
    @given(count=st.integers(1, 6), total=st.integers(6, 40), progress=st.floats(0, 1), step=st.integers(1, 9))
    def test_refills_are_other_prompts(self, kind: Kind, count: int, total: int, progress: float, step: int) -> None:
        order = kind(problems(total), 0)
        drawn = ids(order.draw(step, count, progress))
        for round in range(1, 4):
            seen = set(drawn)
            more = ids(order.draw(step, count, progress, round, drawn))
            assert len(more) == min(count, total - len(seen))
            assert not seen & set(more)
            assert len(set(more)) == len(more)
            drawn += more

    def test_refills_differ_by_step_and_round(self, kind: Kind) -> None:
        order = kind(problems(40), 0)
        refills = [tuple(ids(order.draw(step, 4, 0.0, round))) for step in (1, 2) for round in (1, 2)]
        assert len(set(refills)) == 4

    def test_refills_leave_the_other_draws_alone(self, kind: Kind) -> None:
        undisturbed, refilled = kind(problems(40), 0), kind(problems(40), 0)
        for step in range(1, 20):
            expected = ids(undisturbed.draw(step, 4, step / 20))
            assert ids(refilled.draw(step, 4, step / 20)) == expected
            refilled.draw(step, 4, step / 20, 1, expected)


def test_the_order_is_the_one_that_the_spec_names() -> None:
    for kind in ORDERS:
        spec = TaskSpec.model_validate({"train": "arithmetic", "template": "plain", "order": kind.__name__.lower()})
        assert type(prompt_order(spec, problems(4), 0)) is kind
    assert type(prompt_order(spec.model_copy(update={"retire_at": 0.9}), problems(4), 0)) is Retiring


@pytest.mark.parametrize("kind", [Uniform, Curriculum])
def test_orders_that_learn_nothing_ignore_the_rewards(kind: Kind) -> None:
    order, other = kind(problems(40), 0), kind(problems(40), 0)
    other.observe(["p0", "p1"], [1.0, 0.5])
    other.load_state_dict(order.state_dict())
    assert base_draws(order, range(1, 20), 4) == base_draws(other, range(1, 20), 4)


class TestModes:
    @pytest.mark.parametrize("order", ["uniform", "curriculum", "prioritised"])
    def test_the_prompts_are_those_of_one_mode(self, order: Order) -> None:
        """Only the mode is added: an arm that mixes modes sees the problems of one that does not."""
        one, mixed = (
            prompt_order(spec.model_copy(update={"order": order}), problems(12), 3) for spec in (THINKING, MIXED)
        )
        for step in range(1, 9):
            plain, asked = one.draw(step, 4, step / 9), mixed.draw(step, 4, step / 9)
            assert [name.removesuffix(" (direct)") for name in ids(asked)] == ids(plain)
            assert all((problem.mode == "direct") == problem.id.endswith(" (direct)") for problem in asked)
            assert all(problem.mode == "think" for problem in plain)
            for drawn, own in ((plain, one), (asked, mixed)):
                own.observe(ids(drawn), [0.25 * place for place in range(4)])
        assert json.loads(json.dumps(mixed.state_dict())) == one.state_dict()
        again = prompt_order(MIXED.model_copy(update={"order": order}), problems(12), 3)
        again.load_state_dict(one.state_dict())
        assert ids(again.draw(9, 4, 1.0)) == ids(mixed.draw(9, 4, 1.0))

    def test_a_refill_leaves_out_what_was_drawn_in_either_mode(self) -> None:
        order = prompt_order(MIXED, problems(12), 0)
        first = order.draw(1, 8, 0.0)
        assert {problem.mode for problem in first} == {"think", "direct"}
        more = order.draw(1, 8, 0.0, round=1, exclude=ids(first))
        assert len(more) == 4
        assert {problem.id.removesuffix(" (direct)") for problem in [*first, *more]} == {f"p{i}" for i in range(12)}

    def test_a_larger_share_holds_the_smaller_one(self) -> None:
        shares = (0.2, 0.5, 0.9, 1.0)
        direct = []
        for share in shares:
            order = prompt_order(MIXED.model_copy(update={"direct_frac": share}), problems(100), 0)
            asked = {
                (step, one.id) for step in range(1, 41) for one in order.draw(step, 25, 0.0) if one.mode == "direct"
            }
            assert len(asked) / 1000 == pytest.approx(share, abs=0.04)
            direct.append(asked)
        assert all(small <= large for small, large in pairwise(direct))
