"""Programs against their unit tests: the format of tests, what counts as equal, and who may have them run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evals.errors import EvalError
from evals.evaluate import grade_all
from evals.graders import GRADERS, applicable_graders, grade, rule_beside
from evals.grading.extract import extract_answer
from evals.shelves.code import sandbox
from evals.shelves.code.grading import Trial, UnitTestResult, lent, outcome_of, reference_of, same_value
from evals.shelves.code.sandbox import Limits
from evals.tasks.base import Problem
from tests.refusals import refuses

ADD = reference_of("add", [{"args": [1, 2], "returns": 3}, {"args": [2, 2], "returns": 4}])
UNIT_TESTS = GRADERS.find("unit_tests")
RIGHT = "def add(a, b):\n    return a + b"
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


class Running:
    """Runs whatever it is asked about, and remembers what that was."""

    def __init__(self) -> None:
        self.asked: list[Trial] = []

    def outcomes(self, asked: Sequence[Trial]) -> list[UnitTestResult]:
        self.asked += asked
        return [outcome_of(one) for one in asked]


@pytest.fixture
def running() -> Iterator[Running]:
    with lent(runner := Running()):
        yield runner


@pytest.mark.parametrize(
    ("code", "reason", "score"),
    [
        (RIGHT, "match", 1.0),
        ("def add(a, b):\n    return a * b", "mismatch", 0.5),
        ("def add(a, b):\n    return 'no'", "mismatch", 0.0),
        ("def plus(a, b):\n    return a + b", "mismatch", 0.0),
        ("def add(a, b:", "unparsed", 0.0),
    ],
)
def test_verdicts(code: str, reason: str, score: float, running: Running) -> None:
    verdict = grade(f"So:\n```python\n{code}\n```", ADD, UNIT_TESTS, "code")
    assert (verdict.correct, verdict.reason, verdict.score) == (reason == "match", reason, score)
    assert verdict.extracted == code + "\n"


CHEATS = {
    "equal to everything": """
class Any(int):
    def __eq__(self, other): return True
    def __repr__(self): return "3"
def add(a, b): return Any(0)
""",
    "another comparison": """
import builtins, json, sys
builtins.all = builtins.any = lambda items: True
json.dumps = lambda value: '{"value": true, "correct": true, "passed": 2}'
for module in list(sys.modules.values()):
    module.same_value = module.outcome_of = lambda *given: True
def add(a, b): return None
""",
    "a verdict in its output": """
import os, sys
print("match"), print("2 passed"), sys.stderr.write("OK")
for descriptor in range(1, 32):
    for text in (b"match\\n", b'{"value": true}\\n', b'{"timed_out": false, "passed": 2}\\n'):
        try:
            os.write(descriptor, text)
        except OSError:
            pass
def add(a, b): os._exit(0)
""",
    "an early end": "import os\nos._exit(0)",
    "replies of its own": """
import os
for descriptor in range(3, 32):
    try:
        os.write(descriptor, b'{"value": 3}\\n{"value": 3}\\n{"value": 4}\\n')
    except OSError:
        pass
def add(a, b): os._exit(0)
""",
}


@pytest.mark.parametrize("code", CHEATS.values(), ids=CHEATS)
def test_a_program_earns_nothing_that_it_cannot_return(code: str) -> None:
    outcome = outcome_of(Trial(code, ADD))
    assert outcome.reason == "mismatch" and outcome.passed < 2


def test_the_expected_results_are_in_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even the process that watches over a program knows them."""
    written: list[str] = []
    dumps = json.dumps

    def watched(value: object) -> str:
        written.append(dumps(value))
        return written[-1]

    reference = reference_of("f", [{"args": ["a question"], "returns": "a secret"}])
    monkeypatch.setattr(json, "dumps", watched)
    assert outcome_of(Trial("def f(x): return 'a ' + 'secret'", reference)).reason == "match"
    assert any("a question" in one for one in written)
    assert not any("a secret" in one for one in written)


@settings(max_examples=40)
@given(VALUES)
def test_a_value_equals_what_it_becomes_in_json(value: object) -> None:
    assert same_value(json.loads(json.dumps(value)), value)
    assert not same_value([value], value) and not same_value(value, {"x": value})


@pytest.mark.parametrize(
    ("value", "expected", "equal"),
    [
        (3.0, 3, True),
        (3, 3.0, True),
        (0.1 + 0.2, 0.3, True),
        (0.3001, 0.3, False),
        (float("nan"), 0.0, False),
        (True, 1, False),
        (1, True, False),
        (0, False, False),
        (None, 0, False),
        ("3", 3, False),
        (10**400, 1.5, False),
        ([1, [2]], [1, [2.0]], True),
        ([1, 2], [2, 1], False),
        ([1], [1, 2], False),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ({"a": True}, {"a": 1}, False),
    ],
)
def test_what_counts_as_equal(value: object, expected: object, equal: bool) -> None:
    assert same_value(value, expected) is equal


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("First\n```python\nx = 1\n```\nthen\n```\nx = 2\n```\nDone.", "x = 2\n"),
        ("```py\nx = 1\n```\n```python\nx = 2", "x = 1\n"),
        ("x = 1\n```\nThat is it.", "x = 1\n"),
        ("x = 1", "x = 1"),
        ("Here:\n```python\nx = (", "Here:\n"),
        ("<think>```\nx = 1\n```</think>```\nx = 2\n```", "x = 2\n"),
        ("<think>```\nx = 1\n```", None),
        ("```\n\n```", None),
        ("", None),
        ("```python\nif x:\n\ty = '−１'\n```", "if x:\n\ty = '−１'\n"),
    ],
)
def test_where_the_program_stands(text: str, code: str | None) -> None:
    assert extract_answer(text, "code") == code


@pytest.mark.parametrize(
    ("entry_point", "tests", "message"),
    [
        (None, [{"args": [], "returns": 1}], "entry_point: Input should be a valid string"),
        ("a-b", [{"args": [], "returns": 1}], "entry_point: String should match"),
        ("f", None, "tests: Input should be a valid list"),
        ("f", [], "tests: List should have at least 1 item"),
        ("f", [{"args": 1, "returns": 1}], r"tests\.0\.args: Input should be a valid list"),
        ("f", [{"args": [1]}], r"tests\.0\.returns: Field required"),
        ("f", [{"args": [1], "returns": 1, "expected": 1}], r"tests\.0\.expected: Extra inputs"),
        ("f", [{"args": [], "returns": float("nan")}], "no result equals NaN or infinity"),
    ],
)
def test_what_cannot_be_tests_is_refused(entry_point: object, tests: object, message: str) -> None:
    with pytest.raises(EvalError, match=message):
        reference_of(entry_point, tests)


def test_nothing_is_run_that_nobody_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evals.shelves.code.grading.run_program", lambda program: pytest.fail("it was run"))
    with refuses(EvalError, "evals.shelves.code.code_not_allowed"):
        grade(RIGHT, ADD, UNIT_TESTS, "code")


def test_what_is_no_program_is_not_run(running: Running) -> None:
    assert grade("", ADD, UNIT_TESTS, "code").reason == "unparsed"
    assert running.asked == []
    assert outcome_of(Trial("#" * 100_001, ADD)) == UnitTestResult("unparsed", 0)


def test_programs_are_run_together(running: Running) -> None:
    problems = [Problem(str(number), "Add.", ADD) for number in range(2)]
    graded = grade_all(problems, [RIGHT, "def add(a, b): return 3"], "code", UNIT_TESTS)
    assert [by_grader[UNIT_TESTS.name].score for by_grader in graded] == [1.0, 0.5]
    assert len(running.asked) == 2


def test_no_other_grader_reads_tests_and_this_one_reads_nothing_else() -> None:
    assert applicable_graders(ADD) == []
    assert UNIT_TESTS.name not in applicable_graders("17")
    assert rule_beside(UNIT_TESTS, "exact") is None


def test_a_program_that_waits_gets_no_verdict(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(wall_s=0.3)
    monkeypatch.setattr(sandbox, "Limits", lambda: limits)
    verdict = grade("import time\ndef add(a, b): time.sleep(30)", ADD, UNIT_TESTS, "code")
    assert (verdict.correct, verdict.reason, verdict.score) == (False, "timeout", None)
