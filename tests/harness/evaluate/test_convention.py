from __future__ import annotations

from evals.errors import EvalError
from evals.tasks import task_names
from harness.evaluate.convention import PRESETS, Convention
from harness.plan.subject import find_subject
from tests.refusals import refuses


def test_conventions():
    """Frozen: who compares with published numbers relies on them."""
    r1, dapo, greedy = (PRESETS[name] for name in ("r1", "dapo", "greedy"))
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


def test_unknown_preset_names_the_nearest():
    with refuses(EvalError, "evaluate.unknown_preset", preset="gredy", nearest="; did you mean greedy?"):
        Convention.named("gredy", find_subject("builtin:tiny", "torch", "cpu", "float32"))
