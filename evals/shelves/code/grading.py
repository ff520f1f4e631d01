"""The grader `unit_tests`: a completion is a program, which is correct if its function returns what each test expects.

The reference answer of such a problem is its tests, as one line of JSON. Programs run in the `sandbox`, and only if the
caller allows it by lending a `Tester` (`lent`), which also remembers outcomes (`harness.shelves.code.services`).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

from pydantic import Field, ValidationError

from evals.errors import EvalError
from evals.grading import NO_VERDICT, Grader, Reason, Submission, Verdict, never_compares
from evals.grading.extract import Extraction
from evals.shelves.code.sandbox import AT_ONCE, Program, isolation, run_program
from harness.settings import Settings

NAME = "unit_tests"
MOST_CHARACTERS = 100_000
"""A longer text is not treated as a program."""
_FENCE = re.compile(r"^[ \t]*```[^`\n]*(?:\n|\Z)", re.MULTILINE)


class UnitTest(Settings):
    """A call and its result, both as JSON: a tuple that is returned counts as a list."""

    args: list[Any]
    returns: Any


class FunctionTests(Settings):
    """The tests of a problem, as its reference answer holds them."""

    entry_point: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    tests: list[UnitTest] = Field(min_length=1)


def reference_of(entry_point: object, tests: object) -> str:
    """Return the reference answer that contains these tests. Raises EvalError if they are invalid."""
    try:
        function = FunctionTests.model_validate({"entry_point": entry_point, "tests": tests})
    except ValidationError as error:
        raise EvalError("evals.shelves.code.malformed_tests", fault=_fault_in(error)) from error
    try:
        return json.dumps(function.model_dump(), allow_nan=False)
    except ValueError:
        raise EvalError("evals.shelves.code.tests_with_nan_result") from None


def _fault_in(error: ValidationError) -> str:
    first = error.errors()[0]
    place = ".".join(map(str, first["loc"])) or "the answer"
    return (
        f"{place}: {first['msg']}. A problem whose answer is a program has an `entry_point`, the name of a function, "
        'and `tests`, a list of calls with their results: [{"args": [1, 2], "returns": 3}]'
    )


def _fault(reference: str) -> str | None:
    try:
        FunctionTests.model_validate_json(reference)
    except ValidationError as error:
        return _fault_in(error)
    return None


def extract_code(text: str) -> str | None:
    """Return the last block between fences (```), else the text before a first fence.

    That is all of a completion whose prompt has opened the block.
    """
    outside, *parts = _FENCE.split(text)
    # Text inside and outside fences alternates, so blocks have even indices. A last block that was never closed does
    # not count.
    code = parts[(len(parts) - 2) // 2 * 2] if len(parts) > 1 else outside
    return code if code.strip() else None


CODE = Extraction("code", extract_code, "program")


class Trial(NamedTuple):
    """A program, and the reference answer with its tests."""

    code: str
    reference: str


class UnitTestResult(NamedTuple):
    """The result of running a trial."""

    reason: Reason
    """As in `Verdict`."""
    passed: int
    """The number of tests that passed."""


class Tester(Protocol):
    """Runs programs against their tests."""

    def outcomes(self, asked: Sequence[Trial]) -> list[UnitTestResult]:
        """Return one outcome for each trial, in order. Raises EvalError if programs cannot be contained."""


def outcome_of(asked: Trial) -> UnitTestResult:
    """Run a program. It passes if each call returns the expected value and the limits are kept overall.

    A program that exhausts its time or memory fails the remaining tests. Only a program that idles until the wall-clock
    limit gets no verdict (`timeout`), because a stalled machine looks the same. Raises EvalError if programs cannot be
    contained.
    """
    if len(asked.code) > MOST_CHARACTERS:
        return UnitTestResult("unparsed", 0)
    function = FunctionTests.model_validate_json(asked.reference)
    calls = [test.args for test in function.tests]
    ran = run_program(Program(asked.code, function.entry_point, calls))
    # A program may write extra replies of its own, but no more replies are read than there are calls.
    passed = sum(_returns(reply, test.returns) for reply, test in zip(ran.replies, function.tests, strict=False))
    reason: Reason
    match ran.end:
        case "unreadable":
            reason = "unparsed"
        case "timeout":
            reason = "timeout"
        case "lost":
            reason = "crash"
        case "ended":
            reason = "match" if passed == len(function.tests) else "mismatch"
    return UnitTestResult(reason, passed)


def _returns(reply: bytes, expected: object) -> bool:
    try:
        said = json.loads(reply)
    except (ValueError, RecursionError):  # _sandbox.py writes valid JSON, so the program wrote this itself.
        return False
    return isinstance(said, dict) and "value" in said and same_value(said["value"], expected)


def same_value(value: object, expected: object) -> bool:
    """Compare JSON values like Python's ==, except that True is not 1 and floats may differ by rounding.

    The tolerance is 1e-9 relative to the larger float, and at least 1e-12.
    """
    # bool is a subclass of int in Python, so == would treat True and 1 as equal.
    if isinstance(value, bool) or isinstance(expected, bool):
        return value is expected
    if isinstance(value, float) and isinstance(expected, float):
        return math.isclose(value, expected, rel_tol=1e-9, abs_tol=1e-12)
    if isinstance(value, list) and isinstance(expected, list):
        return len(value) == len(expected) and all(map(same_value, value, expected))
    if isinstance(value, dict) and isinstance(expected, dict):
        return value.keys() == expected.keys() and all(same_value(value[key], expected[key]) for key in expected)
    return value == expected


@dataclass(frozen=True)
class RunsTests(Grader):
    """The grader of programs. A verdict's score is the share of tests that pass, or None if there is no verdict."""

    reads_whole: ClassVar[bool] = True
    runs_code: ClassVar[bool] = True

    def account(self) -> dict[str, Any]:
        """Return the isolation of programs on this machine. Raises EvalError if programs cannot be contained."""
        return {"code": isolation().account}

    def reference_in(self, row: Mapping[str, Any]) -> str:
        """Return a row's columns `entry_point` and `tests` as an answer."""
        return reference_of(row.get("entry_point"), row.get("tests"))

    @property
    def at_once(self) -> int:
        return AT_ONCE

    def verdicts(self, submissions: Sequence[Submission]) -> list[Verdict]:
        """Return a verdict for each submission. Raises EvalError if no tester was lent."""
        # A completion that contains no program gets its verdict without running anything.
        found = [(one, one.extracted) for one in submissions]
        asked = [Trial(code, one.answer) for one, code in found if code is not None]
        outcomes = iter(_tester().outcomes(asked) if asked else ())
        return [
            Verdict(False, None, "unparsed", score=0.0)
            if code is None
            else _verdict(code, next(outcomes), len(FunctionTests.model_validate_json(one.answer).tests))
            for one, code in found
        ]


def _verdict(code: str, outcome: UnitTestResult, tests: int) -> Verdict:
    score = None if outcome.reason in NO_VERDICT else outcome.passed / tests
    return Verdict(outcome.reason == "match", code, outcome.reason, score=score)


unit_tests = RunsTests(
    NAME,
    version=1,
    meaning="its function returns what each unit test expects; runs the model's program (reward.allow_code)",
    compare=never_compares,
    fault=_fault,
)


_lent: list[Tester] = []


@contextmanager
def lent(tester: Tester) -> Iterator[None]:
    """Let programs be run by this tester, in all threads of the process, until the block ends."""
    _lent.append(tester)
    try:
        yield
    finally:
        _lent.remove(tester)


def _tester() -> Tester:
    if not _lent:
        raise EvalError("evals.shelves.code.code_not_allowed", grader=NAME)
    return _lent[-1]
