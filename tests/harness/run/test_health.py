from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.run.health import health_flags
from tests.harness.run.small import trained


def steps(first: dict[str, float], last: dict[str, float], between: int = 0) -> list[dict[str, Any]]:
    usual = {"entropy/full": 1.0, "len/mean": 10.0, "len/truncated_frac": 0.0}
    return [usual | first] * 5 + [usual] * between + [usual | last] * 5


@pytest.mark.parametrize(
    ("first", "last", "flags"),
    [
        ({}, {}, []),
        ({}, {"entropy/full": 0.11}, []),
        ({}, {"entropy/full": 0.09}, ["entropy_collapse"]),
        ({"entropy/full": 2.0}, {"entropy/full": 0.19}, ["entropy_collapse"]),
        ({}, {"len/mean": 30.0}, []),
        ({}, {"len/mean": 30.1}, ["length_blowup"]),
        ({}, {"len/truncated_frac": 0.5}, []),
        ({}, {"len/truncated_frac": 0.51}, ["truncation"]),
        ({"len/truncated_frac": 0.9}, {}, []),
        (
            {},
            {"entropy/full": 0.0, "len/mean": 99.0, "len/truncated_frac": 0.99},
            ["entropy_collapse", "length_blowup", "truncation"],
        ),
    ],
)
def test_flags(first: dict[str, float], last: dict[str, float], flags: list[str]) -> None:
    assert health_flags(steps(first, last), diverged=False) == flags
    assert health_flags(steps(first, last, between=7), diverged=True) == ["nan", *flags]


def test_a_window_is_averaged() -> None:
    rows = steps({}, {})
    rows[-1] = rows[-1] | {"len/mean": 100.0}  # a mean of 28 over the last five
    assert health_flags(rows, diverged=False) == []


def test_too_short_to_tell() -> None:
    assert health_flags(steps({}, {"entropy/full": 0.0})[1:], diverged=False) == []
    assert health_flags([], diverged=True) == ["nan"]


def test_steps_that_learned_from_nothing_have_no_say() -> None:
    """All groups were dropped: there is no entropy in those rows, perhaps in a whole window."""
    none = {"entropy/full": None}
    rows = steps({}, {"entropy/full": 0.05})
    assert health_flags([row | none if index == 8 else row for index, row in enumerate(rows)], False) == [
        "entropy_collapse"
    ]
    assert health_flags([row | none for row in rows], diverged=False) == []


SOUND: dict[str, Any] = {
    **{"entropy/full": 1.0, "len/mean": 10.0, "len/truncated_frac": 0.0, "reward/mean": 0.5, "reward/unscored": 0},
    **{"reward/correct": 0.5, "grad_norm": 0.3, "kl/exact_start": 0.01},
}
BROKEN = [
    ("no_gradient", {"grad_norm": 0.0}),
    ("no_gradient", {"grad_norm": None}),
    ("no_reward", {"reward/mean": None, "reward/unscored": 16}),
    ("all_truncated", {"len/truncated_frac": 1.0}),
    ("one_token", {"len/mean": 1.0}),
]


@pytest.mark.parametrize(("flag", "broken"), BROKEN)
def test_a_third_of_the_steps_from_the_second_on_is_enough(flag: str, broken: dict[str, Any]) -> None:
    def flags(*are_broken: bool) -> list[str]:
        return health_flags([SOUND | broken if is_broken else SOUND for is_broken in are_broken], diverged=False)

    assert flags(False, True) == flags(False, False, True, False) == [flag]
    assert flags(True) == flags(True, False, False) == flags(False, True, False, False, False) == []


@pytest.mark.parametrize(
    ("flag", "key", "first", "last", "sound"),
    [
        ("score_collapse", "reward/correct", 0.5, 0.04, 0.06),
        ("policy_collapse", "kl/exact_start", 0.0, 3.1, 2.9),
    ],
)
def test_what_collapsed_is_seen_in_the_last_third(flag: str, key: str, first: float, last: float, sound: float) -> None:
    def flags(*values: float) -> list[str]:
        return health_flags([SOUND | {key: value} for value in values], diverged=False)

    assert flags(first, last) == flags(first, first, first, first, last, last) == [flag]
    assert flags(first, sound) == flags(first, last, last, last, first, first) == flags(last) == []


def test_a_task_that_was_never_solved_has_no_score_to_lose() -> None:
    rows = [SOUND | {"reward/correct": 0.05}, SOUND | {"reward/correct": 0.0}]
    assert health_flags(rows, diverged=False) == []


def test_a_score_that_is_lost_in_the_last_steps_is_seen_in_the_final_evaluation() -> None:
    rows = [SOUND | {"reward/correct": 0.5}] * 30 + [SOUND | {"reward/correct": 0.0}] * 4
    assert health_flags(rows, False, 0.4) == health_flags(rows, False) == []
    assert health_flags(rows, False, 0.04) == ["score_collapse"]
    assert health_flags([SOUND | {"reward/correct": 0.05}], False, 0.0) == []


def test_a_cell_is_judged_by_its_final_evaluation_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[float | None] = []

    def judge(steps: Any, diverged: bool, final_score: float | None) -> list[str]:
        judged.append(final_score)
        return []

    monkeypatch.setattr("harness.run.cell.health_flags", judge)
    cell = trained(tmp_path, {"train.steps": 1, "eval.every": 0})
    assert judged == [cell.read_scores()[-1]["metrics"]["avg@n"]]


@pytest.mark.slow
def test_a_learning_rate_of_1e30_is_flagged(tmp_path: Path) -> None:
    """The first step leaves weights that draw every token alike: finite, so nothing diverges, and no gradient."""
    settings = {"train.learning_rate": 1e30, "train.warmup_steps": 0, "train.steps": 3, "eval.every": 0}
    cell = trained(tmp_path, settings)
    assert {"score_collapse", "policy_collapse", "no_gradient"} <= set(cell.flags)


@pytest.mark.slow
def test_a_reward_that_is_nan_for_all_is_flagged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "unscorable.py").write_text("def never(group, context):\n    return [float('nan')] * len(group)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    cell = trained(tmp_path, {"reward.parts": {"unscorable:never": 1.0}, "train.steps": 2, "eval.every": 0})
    assert {"no_reward", "no_gradient"} <= set(cell.flags)
