"""The task `programs`: every solution passes, and plausible wrong ones do not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evals.errors import EvalError
from evals.shelves.code.grading import Trial, outcome_of
from evals.tasks import get_task
from evals.tasks.base import Problem
from tests.refusals import refuses

TASK = get_task("programs")
PROBLEMS: dict[str, Problem] = {
    problem.id: problem for name in ("train", "test") for problem in TASK.split(name).load()
}

WRONG = {
    "larger_half": "def larger_half(n): return round(n / 2)",
    "initials": "def initials(name): return ''.join(word[0].upper() + '.' for word in name.split(' '))",
    "is_leap": "def is_leap(year): return year % 4 == 0 and year % 100 != 0",
    "clock_angle": "def clock_angle(hour, minute): return float(abs(hour % 12 * 30 + minute / 2 - minute * 6))",
    "digit_root": "def digit_root(n): return sum(map(int, str(n)))",
    "run_lengths": "def run_lengths(text): return [[one, text.count(one)] for one in dict.fromkeys(text)]",
    "second_largest": "def second_largest(numbers): return sorted(numbers)[-2] if len(numbers) > 1 else None",
    "interleave": "def interleave(a, b): return [one for pair in zip(a, b) for one in pair]",
    "caesar": "def caesar(text, shift): return ''.join(chr((ord(c) - 97 + shift) % 26 + 97) for c in text)",
    "balanced": "def balanced(text): return all(text.count(a) == text.count(b) for a, b in ('()', '[]', '{}'))",
    "ways_to_pay": (
        "def ways_to_pay(amount, coins):\n"
        "    ways = [1] + [0] * amount\n"
        "    for paid in range(1, amount + 1):\n"
        "        ways[paid] = sum(ways[paid - coin] for coin in coins if coin <= paid)\n"
        "    return ways[amount]"
    ),
    "edit_distance": "def edit_distance(a, b): return abs(len(a) - len(b)) + sum(x != y for x, y in zip(a, b))",
    "seconds_of": (
        "def seconds_of(time):\n"
        "    hours, minutes, seconds = time.split(':')\n"
        "    return int(hours) * 3600 + int(minutes) * 60 + int(seconds)"
    ),
    "median": "def median(numbers): return float(sorted(numbers)[len(numbers) // 2])",
    "transposed": "def transposed(table): return [[row[i] for row in table] for i in range(len(table))]",
    "collatz_steps": "def collatz_steps(n): return 0 if n == 1 else 1 + collatz_steps(n / 2 if n % 2 else 3 * n + 1)",
    "grouped": (
        "def grouped(words):\n"
        "    groups = {}\n"
        "    for word in words: groups.setdefault(word[0], []).append(word)\n"
        "    return groups"
    ),
    "longest_rise": (
        "def longest_rise(numbers):\n"
        "    best = run = 1 if numbers else 0\n"
        "    for a, b in zip(numbers, numbers[1:]):\n"
        "        run = run + 1 if b > a else 1\n"
        "        best = max(best, run)\n"
        "    return best"
    ),
    "roman": (
        "def roman(n):\n"
        "    written = ''\n"
        "    for value, symbol in ((1000, 'M'), (500, 'D'), (100, 'C'), (50, 'L'), (10, 'X'), (5, 'V'), (1, 'I')):\n"
        "        written += symbol * (n // value)\n"
        "        n %= value\n"
        "    return written"
    ),
    "shortest_path": "def shortest_path(maze): return len(maze) + len(maze[0]) - 2",
}


def test_there_are_twenty_of_graded_difficulty() -> None:
    assert sorted(PROBLEMS) == sorted(WRONG) and len(WRONG) == 20
    for name, count in (("train", 12), ("test", 8)):
        problems = list(TASK.split(name).load())
        difficulties = [problem.difficulty or 0 for problem in problems]
        assert len(problems) == count and difficulties == sorted(difficulties) and set(difficulties) == {1, 2, 3}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(WRONG))
def test_the_solution_passes_and_a_wrong_one_does_not(name: str) -> None:
    problem = PROBLEMS[name]
    assert f"`{name}(" in problem.problem
    assert outcome_of(Trial(problem.require_solution(), problem.answer)).reason == "match"
    wrong = outcome_of(Trial(WRONG[name], problem.answer))
    assert wrong.reason == "mismatch" and wrong.passed < problem.answer.count('"args"')


@pytest.mark.parametrize("name", sorted(WRONG))
def test_no_constant_passes_most_of_the_tests(name: str) -> None:
    """Else the share of tests passed would reward a program that does nothing."""
    returns = [json.dumps(test["returns"]) for test in json.loads(PROBLEMS[name].answer)["tests"]]
    assert max(map(returns.count, returns)) <= len(returns) * 0.6


@pytest.mark.parametrize(
    ("row", "place"),
    [
        ({"entry_point": "f"}, "tests"),
        ({"tests": [{"args": [], "returns": 1}]}, "entry_point"),
        ({"entry_point": "f", "tests": [{"args": 1, "returns": 1}]}, "tests.0.args"),
    ],
)
def test_a_row_without_proper_tests_is_named(row: dict[str, object], place: str, tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"entry_point": "f", "tests": [{"args": [], "returns": 1}]}, row]
    lines = [json.dumps({"problem": f"Problem {number}", **one}) for number, one in enumerate(rows)]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    (tmp_path / "mine.yaml").write_text("name: mine\ngrader: unit_tests\nsplits: {test: {file: rows.jsonl}}\n")
    with refuses(EvalError, "evals.in_row", where=f"{tmp_path / 'rows.jsonl'}, line 2") as raised:
        get_task(str(tmp_path / "mine.yaml")).split("test").load()
    assert str(raised.value.fields["error"]).startswith(f"{place}: ")
