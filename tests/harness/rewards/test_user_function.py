from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import plugins
from harness.errors import RefusedError
from harness.rewards.total import is_reference, load_function, source_digest
from tests.harness.rewards.attempts import attempt, context, rewarded, same
from tests.refusals import refuses

Write = Callable[[str], str]
_number = itertools.count()


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a module of a new name into the working directory and gives that name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    plugins.use([], [])  # from here on modules are looked for in the working directory

    def module(source: str) -> str:
        name = f"reward_of_mine_{next(_number)}"
        (tmp_path / f"{name}.py").write_text(source)
        return name

    return module


SHORT = """
def short(group, context):
    return [-attempt.n_tokens / context.max_completion_tokens for attempt in group]
"""


@pytest.mark.parametrize("name", ["module:function", "package.module:function", "_m1:f_2"])
def test_a_reference_is_module_and_function(name: str) -> None:
    assert is_reference(name)


@pytest.mark.parametrize("name", ["correct", "module:", ":function", "a..b:c", "a:b:c", "a-b:c", "a:b.c", "my mod:f"])
def test_other_names_are_none(name: str) -> None:
    assert not is_reference(name)


def test_a_function_of_ones_own_is_a_part_like_any_other(write: Write) -> None:
    part = f"{write(SHORT)}:short"
    groups = [[attempt("42", n_tokens=10), attempt("41", n_tokens=50)]]
    total, parts = rewarded(groups, context({"correct": 1.0, part: 2.0}))
    assert parts[part] == pytest.approx([-0.1, -0.5])
    assert total == pytest.approx([0.8, -1.0])


def test_a_function_within_a_package(write: Write, tmp_path: Path) -> None:
    module = write("raise RuntimeError('run only when it is imported')")
    (tmp_path / module).mkdir()
    (tmp_path / module / "__init__.py").write_text("")
    (tmp_path / module / "inner.py").write_text("from .other import f")
    (tmp_path / module / "other.py").write_text("def f(group, context): return [3.0] * len(group)")
    assert source_digest(f"{module}.inner:f")
    assert load_function(f"{module}.inner:f")([attempt()], context()) == [3.0]


def test_a_reward_may_be_nan_and_any_number(write: Write) -> None:
    module = write("import numpy\ndef f(group, context): return [True, 2, numpy.float32(0.5), float('nan')]")
    assert same(load_function(f"{module}:f")([attempt()] * 4, context()), [1.0, 2.0, 0.5, math.nan])


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("return [1.0]", r"returned 1 values for a group of 2 attempts: return a list of 2 numbers"),
        ("return 1.0", r"returned float for a group of 2 attempts"),
        ("return None", r"returned NoneType for a group of 2"),
        ("return [1.0, None]", r"returned None: a reward must be a finite number"),
        ("return [1.0, '2']", r"returned '2': a reward must be a finite number"),
        ("return [1.0, float('inf')]", r"returned inf: a reward must be a finite number, or float\('nan'\)"),
    ],
)
def test_what_is_no_reward_is_refused(write: Write, body: str, says: str) -> None:
    module = write(f"def f(group, context):\n    {body}")
    with pytest.raises(RefusedError, match=rf"reward\.parts\.{module}:f {says}"):
        load_function(f"{module}:f")([attempt(), attempt()], context())


def test_what_cannot_be_imported_is_refused(write: Write) -> None:
    with refuses(RefusedError, "plugins.no_module", name="nowhere_to_be_found"):
        load_function("nowhere_to_be_found:f")
    module = write("import nowhere_to_be_found")
    with pytest.raises(
        RefusedError,
        match=rf"{module} cannot be imported \(ModuleNotFoundError: No module named 'nowhere",
    ):
        load_function(f"{module}:f")


@pytest.mark.parametrize("source", ["f = 3", "def g(group, context): ..."])
def test_what_is_no_function_is_refused(write: Write, source: str) -> None:
    with refuses(RefusedError, "rewards.not_a_function", name="f"):
        load_function(f"{write(source)}:f")


def test_the_source_is_read_but_not_run(write: Write) -> None:
    module = write("raise RuntimeError('was run')\ndef f(group, context): ...")
    assert source_digest(f"{module}:f")


def test_the_digest_is_that_of_the_source(write: Write) -> None:
    one, same_, other = write(SHORT), write(SHORT), write(SHORT.replace("-", "+"))
    assert source_digest(f"{one}:short") == source_digest(f"{same_}:short") != source_digest(f"{other}:short")


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("def shrot(group, context): ...", "defines no short; did you mean shrot?"),
        ("short(", "is not valid Python"),
    ],
)
def test_a_plan_refuses_a_file_without_the_function(write: Write, source: str, says: str) -> None:
    with pytest.raises(RefusedError) as caught:
        source_digest(f"{write(source)}:short")
    assert says in str(caught.value)


@pytest.mark.parametrize("source", ["short = print", "from builtins import print as short", "from builtins import *"])
def test_a_name_can_be_bound_in_many_ways(write: Write, source: str) -> None:
    assert source_digest(f"{write(source)}:short")


def test_a_helper_beside_the_function_counts_for_the_digest(write: Write, tmp_path: Path) -> None:
    module = write("import helper_of_mine\n" + SHORT)
    (tmp_path / "helper_of_mine.py").write_text("x = 1")
    before = source_digest(f"{module}:short")
    (tmp_path / "helper_of_mine.py").write_text("x = 2")
    plugins.use([], [tmp_path])  # a new run
    assert source_digest(f"{module}:short") != before
