"""Taking turns."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pairs import Contestant, ContestantError, Entrant, Row, alternate, compare

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SCRIPT = f"""
import sys, time
sys.path.insert(0, {str(BENCHMARKS)!r})
from pairs import StepTurns
turns = StepTurns(warmup_steps=2, steps_a_turn=30, measured=lambda first, last: {{"steps": [first, last]}})
print("chatter of a library")
for step in range(1, 100):
    until_s = time.process_time() + 0.01
    while time.process_time() < until_s:
        pass
    turns.after_step(step)
"""


@pytest.mark.slow
def test_a_process_works_only_in_its_turn() -> None:
    with Contestant([sys.executable, "-c", SCRIPT], threads=1) as contestant:
        first, second = contestant.turn(), contestant.turn()
    assert contestant.ready == {}
    assert [first["steps"], second["steps"]] == [[3, 32], [33, 62]]
    # The time of one step: a whole turn takes 30 times 10 ms of the CPU.
    assert 0.01 <= first["seconds"] < 0.3
    assert 0.01 <= first["cpu_seconds"] < 0.3


def test_one_that_ends_early_is_heard() -> None:
    with pytest.raises(ContestantError, match="no such thing"):
        Contestant([sys.executable, "-c", "raise SystemExit('no such thing')"], threads=1)


def test_the_order_turns_around_each_round() -> None:
    order: list[str] = []

    def entrant(name: str) -> Entrant:
        def turn() -> Row:
            order.append(name)
            return {"seconds": 1.0}

        return Entrant("side", name, turn)

    rows = alternate([entrant("a"), entrant("b")], rounds=3)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert {name: len(of_one) for name, of_one in rows.items()} == {"a": 3, "b": 3}


def test_names_are_distinct() -> None:
    one = Entrant("side", "a", lambda: {})
    with pytest.raises(ValueError, match="one name"):
        alternate([one, one], rounds=1)


def test_the_best_of_each_side_is_compared_round_by_round() -> None:
    seconds = {"ours": [1.0, 2.0, 1.0], "slow": [9.0, 9.0, 1.0], "fast": [4.0, 4.0, 5.0]}
    sides = {"ours": "ours", "slow": "trl", "fast": "trl"}
    comparison = compare(sides, seconds, "ours", "trl")
    assert comparison.best == {"ours": "ours", "trl": "fast"}
    assert comparison.ratios == [0.25, 0.5, 0.2]
    assert comparison.ratio == 0.25
