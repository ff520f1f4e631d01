"""A task in Python: sums of two numbers of two digits, e.g. `47+38=`. `task.train: two_digit_sums` trains on it.

A task whose problems are rows of a file or of a data set on the hub needs no Python: see `evals/tasks/gsm8k.yaml`.
"""

from __future__ import annotations

from evals import Problem, Task
from evals.tasks.base import Generated


def sums(split: str) -> list[Problem]:
    """Return the problems of a split, always in the same order. Every seventh sum is held out for the test."""
    pairs = [(a, b) for a in range(10, 100) for b in range(10, 100)]
    return [
        Problem(
            id=f"{a}+{b}",  # identifies the problem in records and in the key of its samples' noise
            problem=f"{a}+{b}=",
            answer=str(a + b),  # the reference that graders compare with
            difficulty=(a % 10 + b % 10 > 9) + (a + b > 99),  # number of carries; task.order=curriculum sorts by it
        )
        for number, (a, b) in enumerate(pairs)
        if (number % 7 == 0) == (split == "test")
    ]


two_digit_sums = Task(
    name="two_digit_sums",
    template="plain",  # the prompt is the problem alone; `bench ls templates` lists others
    extract="hash",  # the answer follows the last `#` of a completion
    grader="numeric",
    margin_pp=1.0,  # differences of less than one percentage point do not matter
    # Raise the version whenever the problems of a split change.
    splits={
        "train": Generated(lambda: sums("train"), version=1),
        "test": Generated(lambda: sums("test"), version=1),
    },
)
