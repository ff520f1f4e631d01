"""A reward part of the user's own: `module:function`, imported also from the current working directory."""

from __future__ import annotations

import ast
import hashlib
import importlib
import math
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from numbers import Real
from pathlib import Path

from harness.errors import RefusedError, nearest
from harness.rewards.attempt import Attempt, RewardContext, RewardPart


def is_reference(name: str) -> bool:
    """Whether the name of a part is `module:function`, perhaps with dots in the module."""
    module, colon, function = name.partition(":")
    return bool(colon) and all(part.isidentifier() for part in [*module.split("."), function])


def source_digest(reference: str) -> str:
    """blake2b of the file that holds the function, which is read but not run. What it imports does not count.

    Raises RefusedError if there is no such file, if it is no Python, or if it does not define the function.
    """
    function = reference.rpartition(":")[2]
    path = _source_file(reference)
    source = path.read_bytes()
    try:
        names = _names(ast.parse(source))
    except SyntaxError as error:
        raise RefusedError(f"reward.parts.{reference}: {path} is no Python ({error}).") from None
    if function not in names and "*" not in names:
        raise RefusedError(f"reward.parts.{reference}: {path} defines no {function}{nearest(function, names)}")
    return hashlib.blake2b(source, digest_size=20).hexdigest()


def load_function(reference: str) -> RewardPart:
    """The function as a reward part. What it gives back is checked: one number an attempt, finite or NaN.

    Raises RefusedError if it cannot be imported or is no function.
    """
    module, _, name = reference.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        function = getattr(importlib.import_module(module), name, None)
    except ImportError as error:
        raise RefusedError(f"reward.parts.{reference}: {module} cannot be imported ({error}).") from error
    if not callable(function):
        raise RefusedError(
            f"reward.parts.{reference}: {name} is no function of {module}. Give a function (group, context) -> list of "
            "numbers."
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


def _source_file(reference: str) -> Path:
    """Where the module is, found without importing it or the packages that hold it."""
    names = reference.partition(":")[0].split(".")
    path: Sequence[str] = [str(Path.cwd()), *sys.path]
    spec = None
    for depth in range(1, len(names) + 1):
        spec = PathFinder.find_spec(".".join(names[:depth]), path)
        path = list(spec.submodule_search_locations or []) if spec else []
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise RefusedError(
            f"reward.parts.{reference}: there is no module {'.'.join(names)} in {Path.cwd()} or among the installed "
            "ones. Run bench where its file is, or install it."
        )
    return Path(spec.origin)


def _names(tree: ast.Module) -> set[str]:
    """Names that a file binds somewhere; `*` among them if it imports what cannot be known without running it."""
    nodes = list(ast.walk(tree))
    return (
        {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
        | {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        | {node.asname or node.name for node in nodes if isinstance(node, ast.alias)}
    )
