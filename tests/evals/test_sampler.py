from __future__ import annotations

import pytest

from evals.errors import EvalError
from evals.sampler import PRESETS, get_preset, ks_of
from evals.tasks import task_names


def test_conventions():
    """Frozen: who compares with published numbers relies on them."""
    r1, dapo, greedy = (get_preset(name) for name in ("r1", "dapo", "greedy"))
    assert (r1.temperature, r1.top_p, r1.max_completion_tokens) == (0.6, 0.95, 32_768)
    assert (dapo.temperature, dapo.top_p, dapo.max_completion_tokens) == (1.0, 0.7, 20_480)
    assert (greedy.temperature, greedy.top_p) == (0.0, 1.0)
    assert [r1.samples_of(task) for task in ("aime24", "aime25", "amc23", "math500", "gsm8k", "of_my_own")] == [
        64,
        64,
        64,
        4,
        1,
        1,
    ]
    assert {dapo.samples_of(task) for task in task_names()} == {32}
    assert {greedy.samples_of(task) for task in task_names()} == {1}


def test_tasks_that_presets_name_are_there():
    assert {task for preset in PRESETS.values() for task in preset.samples_by_task} <= set(task_names())


@pytest.mark.parametrize(
    ("n", "ks"),
    [
        (1, (1,)),
        (2, (1, 2)),
        (3, (1, 3)),
        (4, (1, 2, 4)),
        (6, (1, 2, 6)),
        (32, (1, 2, 4, 8, 16, 32)),
        (64, (1, 2, 4, 8, 16, 32, 64)),
    ],
)
def test_ks_double_up_to_half_of_the_samples(n, ks):
    assert ks_of(n) == ks


def test_unknown_preset_names_the_nearest():
    with pytest.raises(EvalError, match=r"unknown sampling preset 'gredy'; did you mean greedy\? There are r1, "):
        get_preset("gredy")
