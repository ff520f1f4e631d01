"""A reward part of the user's own: a function that `reward.parts` names by `module:function`."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Sequence
from numbers import Real

from harness import plugins
from harness.errors import RefusedError, nearest
from harness.rewards.base import PARTS, Attempt, RewardContext


def is_reference(name: str) -> bool:
    """Whether the name of a part is `module:function`, perhaps with dots in the module."""
    module, colon, function = name.partition(":")
    return bool(colon) and all(part.isidentifier() for part in [*module.split("."), function])


def source_digest(part: str) -> str | None:
    """The digest of a part's module and of what that imports beside it; None for a shipped part. Nothing is executed.

    Raises RefusedError if a function's module is missing, is not valid Python, or does not define the function.
    """
    if not is_reference(part):
        source = PARTS.source(part)
        return None if source is None else source.digest
    module, _, function = part.partition(":")
    source = plugins.source_of(module, f"reward.parts.{part}")
    names = _names(ast.parse(source.contents[module]))
    if function not in names and "*" not in names:
        raise RefusedError(f"reward.parts.{part}: {source.path} defines no {function}{nearest(function, names)}")
    return source.digest


def load_function(reference: str) -> Callable[[Sequence[Attempt], RewardContext], list[float]]:
    """The function, whose results are checked: one number for each attempt, finite or NaN.

    Raises RefusedError if it cannot be imported or is not a function.
    """
    module, _, name = reference.partition(":")
    function = getattr(plugins.imported(module, f"reward.parts.{reference}"), name, None)
    if not callable(function):
        raise RefusedError(
            f"reward.parts.{reference}: {name} is not a function of {module}. Give a function (group, context) -> list "
            "of numbers."
        )

    def checked(group: Sequence[Attempt], context: RewardContext) -> list[float]:
        return _numbers(reference, function(group, context), len(group))

    return checked


def _numbers(reference: str, given: object, count: int) -> list[float]:
    values = given if isinstance(given, list | tuple) else None
    if values is None or len(values) != count:
        what = type(given).__name__ if values is None else f"{len(values)} values"
        raise RefusedError(
            f"reward.parts.{reference} gave {what} for a group of {count} attempts: give a list of {count} numbers, in "
            "the order of the attempts."
        )
    for value in values:
        if not isinstance(value, Real) or math.isinf(value):
            raise RefusedError(
                f"reward.parts.{reference} gave {value!r}: a reward is a finite number, or float('nan') for an attempt "
                "that cannot be scored."
            )
    return [float(value) for value in values]


def _names(tree: ast.Module) -> set[str]:
    """Names that a file binds somewhere; `*` among them if it imports what cannot be known without running it."""
    nodes = list(ast.walk(tree))
    return (
        {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
        | {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        | {node.asname or node.name for node in nodes if isinstance(node, ast.alias)}
    )
