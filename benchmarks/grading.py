"""Verdicts per second of the graders, extraction included, on GSM8K-like completions. Required: 2,000 on 2 cores.

python benchmarks/grading.py [--json]

The completions are made up: some lines of working, then an answer in one of the usual forms; a quarter of them wrong
and some without an answer. Each has another number, so nothing is remembered from one to the next. They are graded one
after another by one process, which is what an evaluation does. Beside it, without a bound: expressions, which
math-verify has to compare in its own process, from one thread and from two; and programs, each of which runs against
its unit tests in a process of its own, one after another and as many at once as a cell runs.
"""

from __future__ import annotations

import itertools
import random
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from outcome import arguments, bounds, finish

from evals.graders import grade
from evals.grading.extract import extract_answer
from evals.shelves.code.grading import Trial, outcome_of
from evals.shelves.code.sandbox import AT_ONCE, isolation
from evals.tasks import get_task

REQUIRED_PER_S = 2_000
COMPLETIONS, EXPRESSIONS, PROGRAMS, ROUNDS = 8_000, 400, 60, 3
FORMS = (
    "The answer is \\boxed{{{}}}.",
    "#### {:,}",
    "The answer is {}.",
    "**Answer:** ${:,}.00",
    "$\\boxed{{{:,} \\text{{ dollars}}}}$",
    "So she has {} left.",
)

Pair = tuple[str, str]


def word_problems(seed: int, count: int) -> list[Pair]:
    """(completion, reference) pairs."""
    rng = random.Random(seed)
    pairs = []
    for index in range(count):
        per_box, boxes, eaten = rng.randrange(10, 999), rng.randrange(3, 99), index % 10 + seed % 7
        answer = per_box * boxes - eaten
        working = (
            f"There are {boxes} boxes with {per_box} sweets each, which makes {boxes} * {per_box} = {boxes * per_box} "
            f"sweets.\nShe eats {eaten} of them, so {boxes * per_box} - {eaten} sweets are left.\n"
        )
        written = answer if rng.random() < 0.75 else answer + rng.randrange(1, 20)
        said = "I do not know." if rng.random() < 0.02 else rng.choice(FORMS).format(written)
        pairs.append((working + said, str(answer)))
    return pairs


def expressions(seed: int, count: int) -> list[Pair]:
    """(completion, reference) pairs of polynomials in two ways of writing, half of them equal."""
    rng = random.Random(seed)
    pairs = []
    for index in range(count):
        a, b = rng.randrange(2, 10**6), rng.randrange(2, 10**6)
        pairs.append((f"So it is \\boxed{{{b} + {a}x}}.", f"{a}x + {b + index % 2}"))
    return pairs


def programs(seed: int, count: int) -> list[Pair]:
    """(completion, reference) pairs of the task `programs`: its solutions, each text another one."""
    problems = [problem for split in get_task("programs").splits.values() for problem in split.load()]
    return [
        (f"```python\n# {seed} {index}\n{problem.require_solution()}```", problem.answer)
        for index, problem in zip(range(count), itertools.cycle(problems), strict=False)
    ]


def tested(pairs: Sequence[Pair], at_once: int) -> int:
    """How many programs pass."""
    trials = [Trial(extract_answer(text, "code") or "", reference) for text, reference in pairs]
    with ThreadPoolExecutor(at_once) as threads:
        return sum(outcome.reason == "match" for outcome in threads.map(outcome_of, trials))


def per_second(grade_all: Callable[[Sequence[Pair]], int], rounds: Sequence[Sequence[Pair]]) -> float:
    """Median over the rounds of the verdicts in a second."""
    rates = []
    for pairs in rounds:
        start_s = time.perf_counter()
        grade_all(pairs)
        rates.append(len(pairs) / (time.perf_counter() - start_s))
    return statistics.median(rates)


def main() -> None:
    given = arguments(__doc__ or "").parse_args()

    def one_by_one(grader: str) -> Callable[[Sequence[Pair]], int]:
        return lambda pairs: sum(grade(text, answer, grader).correct for text, answer in pairs)

    def by_two_threads(pairs: Sequence[Pair]) -> int:
        with ThreadPoolExecutor(2) as threads:
            return sum(threads.map(lambda pair: grade(*pair).correct, pairs))

    by_two_threads(expressions(99, 20))  # the workers start
    right = {grader: one_by_one(grader)(word_problems(98, COMPLETIONS)) for grader in ("numeric", "math")}
    outcome = {
        "required": bounds(at_least={"numeric_per_s": REQUIRED_PER_S, "math_per_s": REQUIRED_PER_S}),
        "completions": COMPLETIONS,
        "right_of_them": right["numeric"],
        "numeric_per_s": per_second(one_by_one("numeric"), [word_problems(r, COMPLETIONS) for r in range(ROUNDS)]),
        "math_per_s": per_second(one_by_one("math"), [word_problems(10 + r, COMPLETIONS) for r in range(ROUNDS)]),
        "expressions_per_s": per_second(one_by_one("math"), [expressions(r, EXPRESSIONS) for r in range(ROUNDS)]),
        "expressions_per_s_two_threads": per_second(
            by_two_threads, [expressions(10 + r, EXPRESSIONS) for r in range(ROUNDS)]
        ),
        "code": isolation().account,
        "programs_per_s": per_second(partial(tested, at_once=1), [programs(r, PROGRAMS) for r in range(ROUNDS)]),
        "programs_per_s_at_once": per_second(
            partial(tested, at_once=AT_ONCE), [programs(10 + r, PROGRAMS) for r in range(ROUNDS)]
        ),
        "faults": []
        if right["numeric"] == right["math"] and 0.7 < right["math"] / COMPLETIONS < 0.8
        else [f"of {COMPLETIONS} completions three quarters are right, but the graders accept {right}"],
    }
    lines = [
        "verdicts per second, extraction included",
        f"  numeric, word problems            {outcome['numeric_per_s']:8.0f}",
        f"  math, word problems               {outcome['math_per_s']:8.0f}",
        f"  math, expressions                 {outcome['expressions_per_s']:8.0f}",
        f"  math, expressions, two threads    {outcome['expressions_per_s_two_threads']:8.0f}",
        f"  unit_tests, programs              {outcome['programs_per_s']:8.0f}",
        f"  unit_tests, programs, {AT_ONCE} at once   {outcome['programs_per_s_at_once']:8.0f}",
    ]
    finish("grading", outcome, lines, given)


if __name__ == "__main__":
    main()
