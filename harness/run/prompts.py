"""The prompts of training: their pool, their order, the teacher's version of them, and the completion limit.

Every random choice is a function of the seed and the step and, for the order `prioritised`, of the success rates so
far. A resumed cell therefore uses the same prompts as an uninterrupted one.

The pool consists of the problems of the train split that pass the filter, at most `task.pool` of them. A teacher may
get a different prompt than the policy. If the completion limit is staged, it is that of the current stage.
"""

from __future__ import annotations

import heapq
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from evals.prompts import Message, Template
from evals.tasks import get_task
from evals.tasks.base import Problem
from harness.config.rollout import RolloutSpec, StagedAtStep, StagedOnConvergence
from harness.config.run_spec import RunSpec
from harness.config.task import Order, PassRateFilter, TaskSpec
from harness.errors import RefusedError
from harness.random_keys import SEED_OF_ALL_CELLS, permutation, random_key, uniform
from harness.records.files import read_json
from harness.training.states import LimitState, OrderState

LEAST_WEIGHT = 0.05
"""The least weight of a prompt in the order `prioritised`.

A prompt that is always solved still has a twentieth of the weight of a prompt that never is, so that the policy's
forgetting becomes visible.
"""
RATE_ROUNDING = 1e-6
"""The tolerance for success rates in float32, in which nine of ten is slightly less than 0.9."""


def teacher_prompt(template: Template, problem: Problem) -> str | list[Message]:
    """Return the teacher's prompt for a problem.

    Raises EvalError if the prompt shows a solution and the problem has none.
    """
    solution = {"solution": problem.require_solution()} if template.shows_solution else {}
    return template.ask(problem, **solution)


class PromptOrder(ABC):
    """The prompts of each step, from a pool of problems with distinct ids.

    Orders that do not depend on rewards give the same prompts to all arms with the same seed.
    """

    def __init__(self, problems: Sequence[Problem], seed: int) -> None:
        self._problems, self._seed = problems, seed

    @abstractmethod
    def draw(
        self, step: int, count: int, progress: float, round: int = 0, exclude: Collection[str] = ()
    ) -> list[Problem]:
        """Return the prompts of a step (from 1), or the prompts of a refill of its batch.

        count: how many prompts to return. If fewer are left, a refill returns all of those.
        progress: the fraction of the run that is done, in [0, 1].
        round: 0 for the step's own prompts, from 1 on the number of the refill.
        exclude: the ids of the step's prompts so far, which a refill must not return.

        A refill uses separate random numbers and does not change the prompts of later steps. So an arm with refills and
        an arm without them continue with the same prompts, and stay paired.
        """

    def observe(self, problem_ids: Iterable[str], success_rates: Iterable[float]) -> None:  # noqa: B027
        """Take note of the fraction of each prompt's completions that were correct.

        Called once per step, after its draws.
        """

    def metrics(self) -> dict[str, float]:
        """Return the order's metrics for steps.jsonl after a step."""
        return {}

    def state_dict(self) -> OrderState:
        return {}

    def load_state_dict(self, state: OrderState) -> None:  # noqa: B027
        """Continue from the state of an order over the same problems."""


def prompt_order(spec: TaskSpec, problems: Sequence[Problem], seed: int) -> PromptOrder:
    """Return the order that `task.order` names, with the effects of `task.retire_at` and `task.direct_frac`.

    Raises RefusedError for a curriculum if a problem has no difficulty.
    """
    kinds: dict[Order, type[PromptOrder]] = {
        "uniform": Uniform,
        "curriculum": Curriculum,
        "prioritised": Prioritised,
    }
    order = kinds[spec.order](problems, seed)
    if spec.retire_at is not None:
        order = Retiring(problems, seed, order, spec.retire_at)
    return InModes(order, seed, spec.direct_frac) if spec.direct_frac else order


def places_of_step(total: int, seed: int, step: int, count: int) -> list[int]:
    """Return the indices that a step (from 1) takes from a pool of `total`.

    Each index occurs once per epoch, in an order reshuffled each epoch. A step may continue into the next epoch.
    """
    # Prompts are numbered through the whole run. Number `at` is in epoch at // total, at position at % total.
    return [_epoch(total, seed, at // total)[at % total] for at in range((step - 1) * count, step * count)]


class Uniform(PromptOrder):
    """Every prompt once per epoch, reshuffled each epoch. A step may continue into the next epoch."""

    def draw(
        self, step: int, count: int, progress: float, round: int = 0, exclude: Collection[str] = ()
    ) -> list[Problem]:
        if round:
            return _drawn(self._problems, random_key(self._seed, "data", step, "refill", round), count, exclude)
        places = places_of_step(len(self._problems), self._seed, step, count)
        return [self._problems[place] for place in places]


class Curriculum(PromptOrder):
    """From easy to hard: a window slides over the problems, sorted by difficulty, as the run progresses.

    At progress p, a step samples without replacement from the W problems that begin at index p * (P - W) of all P. W is
    a tenth of P, or the number that the step needs if that is larger. Problems of equal difficulty are in an order
    determined by the seed.
    """

    def __init__(self, problems: Sequence[Problem], seed: int) -> None:
        shuffled = [problems[index] for index in permutation(len(problems), random_key(seed, "data", example="ties"))]
        super().__init__(sorted(shuffled, key=_difficulty), seed)

    def draw(
        self, step: int, count: int, progress: float, round: int = 0, exclude: Collection[str] = ()
    ) -> list[Problem]:
        total = len(self._problems)
        # The window must have room for the refills, in addition to the prompts that the step has used.
        width = min(total, max(count + len(exclude), total // 10))
        start = int(progress * (total - width))
        key = random_key(self._seed, "data", step, "curriculum", round)
        return _drawn(self._problems[start : start + width], key, count, exclude)


class Prioritised(PromptOrder):
    """Prompts that the policy fails are used more often (Kimi k1.5, 2501.12599, section 2.3.4).

    A step samples without replacement, with probabilities proportional to 1 - the prompt's success rate, but at least
    LEAST_WEIGHT. The success rate is the mean over the steps that trained on the prompt, and 0 for an unused prompt.
    Arms differ in their success rates and so in their prompts, but the noise behind the choice is the same.
    """

    def __init__(self, problems: Sequence[Problem], seed: int) -> None:
        super().__init__(problems, seed)
        self._successes: dict[str, float] = {}
        self._visits: dict[str, int] = {}

    def draw(
        self, step: int, count: int, progress: float, round: int = 0, exclude: Collection[str] = ()
    ) -> list[Problem]:
        def arrival(problem: Problem) -> float:
            """Return an exponential variable whose rate is the prompt's weight.

            The first `count` to arrive are a sample without replacement with probabilities proportional to the weights
            (Efraimidis and Spirakis, 2006).
            """
            key = random_key(self._seed, "data", step, problem.id, round)
            # The key is signed. Adding one half keeps the value away from 0, where the log is infinite.
            uniform = (key + 2**63 + 0.5) / 2**64
            return -math.log(uniform) / self._weight(problem.id)

        excluded = frozenset(exclude)
        return heapq.nsmallest(count, (p for p in self._problems if p.id not in excluded), key=arrival)

    def observe(self, problem_ids: Iterable[str], success_rates: Iterable[float]) -> None:
        for problem_id, success_rate in zip(problem_ids, success_rates, strict=True):
            self._successes[problem_id] = self._successes.get(problem_id, 0.0) + success_rate
            self._visits[problem_id] = self._visits.get(problem_id, 0) + 1

    def state_dict(self) -> OrderState:
        return {"successes": dict(self._successes), "visits": dict(self._visits)}

    def load_state_dict(self, state: OrderState) -> None:
        self._successes, self._visits = dict(state["successes"]), dict(state["visits"])

    def _weight(self, problem_id: str) -> float:
        visits = self._visits.get(problem_id, 0)
        return max(LEAST_WEIGHT, 1 - self._successes[problem_id] / visits) if visits else 1.0


class Retiring(PromptOrder):
    """Another order, in which solved prompts are retired (no positive resampling: ScaleRL, 2510.13786).

    A prompt is solved if at least a fraction of `retire_at` of its completions in a step are correct. A retired prompt
    is replaced as the other order would refill the step, so the remaining prompts are the same as in an arm that
    retires none. At least as many prompts stay as a step takes. `TaskSpec` refuses a curriculum, whose window the
    retired prompts would widen.
    """

    def __init__(self, problems: Sequence[Problem], seed: int, order: PromptOrder, retire_at: float) -> None:
        super().__init__(problems, seed)
        self._order, self._retire_at = order, retire_at
        self._retired: set[str] = set()
        self._in_a_step = 1

    def draw(
        self, step: int, count: int, progress: float, round: int = 0, exclude: Collection[str] = ()
    ) -> list[Problem]:
        if not round:
            self._in_a_step = count
        drawn = self._order.draw(step, count, progress, round, [*exclude, *self._retired])
        kept = [problem for problem in drawn if problem.id not in self._retired]
        if len(kept) == len(drawn):
            return kept
        # All retired prompts and those of this step are excluded, so every replacement is unretired and new to the
        # step.
        seen = [*exclude, *self._retired, *(problem.id for problem in kept)]
        return kept + self._order.draw(step, len(drawn) - len(kept), progress, round + 1, seen)

    def observe(self, problem_ids: Iterable[str], success_rates: Iterable[float]) -> None:
        ids, rates = list(problem_ids), list(success_rates)
        self._order.observe(ids, rates)
        for problem_id, rate in zip(ids, rates, strict=True):
            solved = rate > self._retire_at - RATE_ROUNDING
            # Enough prompts for a step must remain.
            if solved and len(self._problems) - len(self._retired) > self._in_a_step:
                self._retired.add(problem_id)

    def metrics(self) -> dict[str, float]:
        return {"prompts_retired": len(self._retired)}

    def state_dict(self) -> OrderState:
        return {"retired": sorted(self._retired), "order": self._order.state_dict()}

    def load_state_dict(self, state: OrderState) -> None:
        self._retired = set(state["retired"])
        self._order.load_state_dict(state["order"])


class InModes(PromptOrder):
    """The prompts of another order, of which some ask for the answer at once and the others for steps first.

    The mode of each prompt is determined by seed and step, independently of other prompts. Arms with the same share use
    a prompt in the same mode. If the share is increased, every direct prompt stays direct. A problem in direct mode has
    a separate id in the records.
    """

    ASKED_DIRECTLY = " (direct)"

    def __init__(self, order: PromptOrder, seed: int, direct_frac: float) -> None:
        super().__init__(order._problems, seed)
        self._order, self._direct_frac = order, direct_frac

    def draw(
        self, step: int, count: int, progress: float, round: int = 0, exclude: Collection[str] = ()
    ) -> list[Problem]:
        drawn = self._order.draw(step, count, progress, round, self._own_ids(exclude))
        return [self._in_mode(problem, step) for problem in drawn]

    def _in_mode(self, problem: Problem, step: int) -> Problem:
        # The random number does not depend on the share, so a larger share keeps every direct prompt direct.
        if uniform(random_key(self._seed, "data", step, f"mode/{problem.id}")) >= self._direct_frac:
            return problem
        return replace(problem, id=problem.id + self.ASKED_DIRECTLY, mode="direct")

    def observe(self, problem_ids: Iterable[str], success_rates: Iterable[float]) -> None:
        self._order.observe(self._own_ids(problem_ids), success_rates)

    def metrics(self) -> dict[str, float]:
        return self._order.metrics()

    def state_dict(self) -> OrderState:
        return self._order.state_dict()

    def load_state_dict(self, state: OrderState) -> None:
        self._order.load_state_dict(state)

    def _own_ids(self, ids: Iterable[str]) -> list[str]:
        return [one.removesuffix(self.ASKED_DIRECTLY) for one in ids]


def _difficulty(problem: Problem) -> float:
    if problem.difficulty is None:
        raise RefusedError("run.problem_without_difficulty", problem=problem.id)
    return problem.difficulty


def _drawn(problems: Sequence[Problem], key: int, count: int, exclude: Collection[str]) -> list[Problem]:
    excluded = frozenset(exclude)
    shuffled = (problems[index] for index in permutation(len(problems), key))
    return list(itertools.islice((problem for problem in shuffled if problem.id not in excluded), count))


# Two entries are cached, because a step may continue into the next epoch.
@lru_cache(maxsize=2)
def _epoch(count: int, seed: int, epoch: int) -> list[int]:
    return permutation(count, random_key(seed, "data", step=epoch))


def candidates(spec: RunSpec) -> Sequence[Problem]:
    """Return the problems whose pass rates the filter needs. Without a filter, return the complete train split."""
    problems = get_task(spec.task.train).split("train").load()
    count = spec.task.filter.problems if isinstance(spec.task.filter, PassRateFilter) else None
    if count is None or count >= len(problems):
        return problems
    return random_subset(problems, count, random_key(SEED_OF_ALL_CELLS, "data", example="filter"))


def require_prompts(spec: RunSpec) -> None:
    """Raise RefusedError for faults that no pass rates could fix.

    Such faults are too few problems, and problems that have no difficulty to sort by.
    """
    problems = candidates(spec)
    filtered = spec.task.filter.type != "none"
    have = f"task.filter measures {len(problems)}" if filtered else f"there are {len(problems)}"
    prompt_order(spec.task, _pool(spec, problems, f"{have} training prompts of {spec.task.train}"), spec.seed)


def read_correct_counts(path: Path) -> dict[str, int]:
    """Return the number of correct samples of the filter, by problem id.

    `harness.run.stages.pass_rates` writes the file.
    """
    return dict(read_json(path))


def training_prompts(spec: RunSpec, correct_counts: Mapping[str, int]) -> Sequence[Problem]:
    """Return the problems that a cell trains on.

    correct_counts: maps a problem id to the number of correct samples; not used without a filter.
    Raises RefusedError if there are fewer problems than the pool or a step needs.
    """
    problems, wanted = candidates(spec), spec.task.filter
    if not isinstance(wanted, PassRateFilter):
        return _pool(spec, problems, f"there are {len(problems)} training prompts of {spec.task.train}")
    kept = [problem for problem in problems if wanted.keeps(correct_counts[problem.id])]
    have = (
        f"task.filter keeps {len(kept)} of the {len(problems)} training prompts of {spec.task.train} that it measured: "
        f"those with a pass rate from {wanted.lowest} to {wanted.highest}"
    )
    return _pool(spec, kept, have)


def _pool(spec: RunSpec, problems: Sequence[Problem], have: str) -> Sequence[Problem]:
    pool, needed = spec.task.pool, spec.rollout.prompts_per_step
    widen = ", or have task.filter measure or keep more" if spec.task.filter.type != "none" else ""
    if pool is not None and pool > len(problems):
        raise RefusedError("run.pool_too_large", pool=pool, have=have, widen=widen)
    if pool is not None and pool < needed:
        raise RefusedError("run.pool_too_small", pool=pool, needed=needed)
    if len(problems) < needed:
        raise RefusedError("run.too_many_prompts_per_step", needed=needed, have=have, widen=widen)
    return problems if pool is None else random_subset(problems, pool, random_key(spec.seed, "data", example="pool"))


def random_subset(problems: Sequence[Problem], count: int, key: int) -> list[Problem]:
    """Return a random subset. With the same key, a larger subset contains every smaller one."""
    return [problems[index] for index in permutation(len(problems), key)[:count]]


class CompletionLimit:
    """The limit on completion tokens, which may be staged.

    `tokens` is the limit of the coming step. If it is staged, it rises once from first_tokens to max_completion_tokens.
    Otherwise it is max_completion_tokens throughout.
    """

    def __init__(self, spec: RolloutSpec) -> None:
        self._staged = spec.staged
        self._last_tokens = spec.max_completion_tokens
        self._recent_rewards: list[float] = []
        self.tokens = spec.max_completion_tokens if spec.staged.type == "none" else spec.staged.first_tokens

    def observe(self, step: int, mean_reward: float) -> None:
        """Take note of the mean reward of a step's completions. Called after every step (from 1).

        A mean of NaN, from a step in which nothing could be scored, is ignored in the test for convergence.
        """
        if self.tokens == self._last_tokens:
            return
        match self._staged:
            case StagedAtStep():
                is_over = step + 1 >= self._staged.step
            case StagedOnConvergence():
                is_over = self._has_converged(self._staged, mean_reward)
        if is_over:
            self.tokens = self._last_tokens
            self._recent_rewards = []

    def _has_converged(self, rule: StagedOnConvergence, mean_reward: float) -> bool:
        window = rule.window_steps
        if not math.isnan(mean_reward):
            self._recent_rewards = [*self._recent_rewards, mean_reward][-2 * window :]
        if len(self._recent_rewards) < 2 * window:
            return False
        before, last = self._recent_rewards[:window], self._recent_rewards[window:]
        # This is the gain from one window's mean to the next. Both windows have the same length.
        return (math.fsum(last) - math.fsum(before)) / window < rule.min_gain

    def state_dict(self) -> LimitState:
        return {"tokens": self.tokens, "recent_rewards": list(self._recent_rewards)}

    def load_state_dict(self, state: LimitState) -> None:
        self.tokens, self._recent_rewards = state["tokens"], list(state["recent_rewards"])
