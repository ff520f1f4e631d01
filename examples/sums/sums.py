"""Sums of two two-digit numbers behind one worked example: what a small language model can learn on a CPU.

A prompt is `31 + 42 = 73`, a line break, `{a} + {b} =`. Its answer is graded by the last number of the completion, so a
model that adds and then goes on with sums of its own is wrong. `first_number_right` looks at the first number instead:
where only the graded score rises, the model has learned to stop, not to add.
"""

from __future__ import annotations

import random
import re

from evals.metrics import Metric, Samples, mean
from evals.prompts import Template
from evals.tasks.base import Generated, Problem, Task

WORKED = (31, 42)
TRAIN_PROBLEMS, TEST_PROBLEMS = 4096, 512
_NUMBER = re.compile(r"[0-9]+")


def _problems(split: str) -> list[Problem]:
    """All pairs but the worked one, in an order of their own; the splits take them from both ends."""
    pairs = [(a, b) for a in range(10, 100) for b in range(10, 100) if (a, b) != WORKED]
    random.Random(1).shuffle(pairs)
    chosen = pairs[:TRAIN_PROBLEMS] if split == "train" else pairs[-TEST_PROBLEMS:]
    return [Problem(id=f"{a} + {b}", problem=f"{a} + {b} =", answer=str(a + b)) for a, b in chosen]


def _first_number_right(samples: Samples) -> float | None:
    """A problem's id is its sum, so that the row of a sample says what is right. No value for other tasks."""
    right = []
    for row in samples.rows:
        if row["task"] != TASK.name:
            return None
        first = _NUMBER.search(row["text"])
        right.append(first is not None and int(first[0]) == sum(map(int, row["problem_id"].split(" + "))))
    return mean(right)


TEMPLATE = Template(name="worked_sum", version=1, text=f"{WORKED[0]} + {WORKED[1]} = {sum(WORKED)}\n{{problem}}")

TASK = Task(
    name="two_digit_sums",
    template="worked_sum",
    grader="numeric",
    extract="last_number",
    margin_pp=1.0,
    splits={split: Generated(lambda split=split: _problems(split), version=1) for split in ("train", "test")},
)

FIRST_NUMBER_RIGHT = Metric(
    "first_number_right",
    "samples whose first number is the sum, whatever follows",
    "fraction",
    "more",
    _first_number_right,
)
