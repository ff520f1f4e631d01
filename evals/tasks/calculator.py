"""The sums of `arithmetic`, with a calculator.

A turn that ends with `=` is a call, e.g. `3+5+9=`, and the environment replies with the value of the expression. A turn
with `#` gives the answer and ends the conversation.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from evals.tasks import arithmetic
from evals.tasks.base import Environment, Generated, Problem, Task
from evals.tasks.environment import Reply

MAX_CALL_CHARS = 100
"""A longer call is not computed, because a model's text must not take up a process's time."""
NO_VALUE = "wait"
"""The reply to a turn that is neither a call nor an answer."""
_CALL = re.compile(r"(\d+(?:[+*-]\d+)*)=$")


def value_of(text: str) -> int | None:
    """Return the value of the expression before the `=` at the end of a text, or None if there is none.

    An expression has whole numbers with + - *, where * binds first.
    """
    # Read one character beyond the limit, so that a longer call is refused instead of being cut to a valid one.
    found = _CALL.search(text.rstrip()[-MAX_CALL_CHARS - 1 :])
    if found is None or len(found[0]) > MAX_CALL_CHARS:
        return None
    total = 0
    for sign, product in re.findall(r"([+-]?)(\d+(?:\*\d+)*)", found[1]):
        value = 1
        for factor in product.split("*"):
            value *= int(factor)
        total += -value if sign == "-" else value
    return total


def reply(problem: Problem, said: Sequence[str]) -> Reply:
    """Return the calculator's reply, which has no reward."""
    if "#" in said[-1]:
        return Reply("", done=True)
    value = value_of(said[-1])
    return Reply(NO_VALUE if value is None else str(value))


def _with_calls(source: Generated) -> list[Problem]:
    """Return the problems with solutions that call the calculator once."""
    return [replace(one, solution=f"{one.problem}\n#{one.answer}") for one in source.load()]


def _split(name: str) -> Generated:
    source = arithmetic.TASK.split(name)
    if not isinstance(source, Generated):
        raise TypeError("the sums of arithmetic are generated")
    return Generated(lambda: _with_calls(source), version=source.version)


TASK = Task(
    name="calculator",
    template="plain",
    grader="numeric",
    extract="hash",
    margin_pp=1.0,
    splits={name: _split(name) for name in ("train", "test")},
    environment=Environment(reply, max_turns=4),
)
