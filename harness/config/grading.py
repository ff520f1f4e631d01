"""Which graders fit which tasks: what a spec may not combine.

Every problem names the knobs with their values, the rule and the remedy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from evals.graders import get_grader, judge_of, runs_code
from evals.grading import OWN
from evals.grading.asked_model import Asking
from evals.tasks import get_task
from harness.rewards.base import nameable_parts
from harness.rewards.parts.correct import JudgeScore

if TYPE_CHECKING:
    from harness.config.run_spec import RunSpec


def grading_problems(spec: RunSpec) -> Iterator[str]:
    """Yield all problems with the graders of a spec."""
    yield from _own_problems(spec)
    yield from _judge_problems(spec)
    yield from _code_problems(spec)


def _graded(spec: RunSpec) -> dict[str, tuple[str | None, tuple[str, ...]]]:
    """Map each grader knob to its grader and the tasks that it grades."""
    return {
        "reward.grader": (spec.reward.grader, (spec.task.train,)),
        "eval.grader": (spec.eval.grader, spec.eval.tasks),
    }


def _own_problems(spec: RunSpec) -> Iterator[str]:
    for knob, (grader, tasks) in _graded(spec).items():
        without = [task for task in tasks if get_task(task).grader != OWN]
        if grader == OWN and without:
            yield (
                f"{knob}={OWN} with the task{'s' if len(without) > 1 else ''} {', '.join(without)}: only tasks "
                f"whose grader is {OWN} (`bench ls tasks`) have a comparison of their own. Set {knob} to math or "
                "numeric, which compare with the reference answers of all tasks"
            )


def _judge_problems(spec: RunSpec) -> Iterator[str]:
    grader = spec.reward.grader
    scores = judge_of(grader) is not None and get_grader(str(grader)).gives_scores
    if JudgeScore.name in spec.reward.parts and not scores:
        yield (
            f"reward.parts.{JudgeScore.name} with reward.grader={grader}: this grader gives no numbers. "
            "Name a judge file with `right_from`, or leave the part out"
        )
    judges: dict[str, Asking | None] = {
        **{knob: judge_of(grader) for knob, (grader, _) in _graded(spec).items()},
        **spec.reward.asked_judges,
    }
    for knob, judge in judges.items():
        if judge is None:
            continue
        if judge.file.source is not None and spec.train.processes > 1:
            yield (
                f"{knob}={judge.name} with train.processes={spec.train.processes}: a judge with `source` runs in one "
                "process while the others wait. Serve its model at an `address`, or set train.processes to 1"
            )
        if knob == "reward.grader" and "answer" in judge.file.shown and get_task(spec.task.train).grader is None:
            yield (
                f"{knob}={judge.name} with task.train={spec.task.train}: the judge's text shows {{answer}}, and this "
                "task has none. Leave {answer} out of the text, or train on a task with answers"
            )


def _code_problems(spec: RunSpec) -> Iterator[str]:
    """Yield problems with tasks whose answers are programs, and with running these."""
    for knob, (grader, tasks) in _graded(spec).items():
        if grader is None or judge_of(grader) is not None:
            continue
        # A task that asks itself is graded by its own grader, whatever the knob says.
        asked = [task for task in tasks if not get_task(task).asks_itself]
        with_tests = [task for task in asked if runs_code(get_task(task).grader)]
        if runs_code(grader):
            wrong, have, instead = [task for task in asked if task not in with_tests], "have no unit tests", "numeric"
        else:
            wrong, have, instead = with_tests, "have unit tests, and no other rule reads programs", "unit_tests"
        if wrong:
            yield (
                f"{knob}={grader} with {', '.join(wrong)}: the problems of such tasks {have}. Set {knob} to {instead}, "
                "or leave these tasks out"
            )
    if not runs_code(spec.reward.grader):
        for name in (name for name, part in nameable_parts().items() if part.needs_code and name in spec.reward.parts):
            yield (
                f"reward.parts.{name} with reward.grader={spec.reward.grader}: this grader runs no tests. Train on a "
                "task with unit tests, or leave the part out"
            )
    if spec.runs_code and not spec.reward.allow_code:
        graders = " and ".join(knob for knob, (grader, _) in _graded(spec).items() if runs_code(grader))
        yield (
            f"{graders} run programs that the policy writes, on the machine of the cell, and reward.allow_code is "
            "false. Read in docs/howto/code.md what contains them, then set reward.allow_code: true; or take tasks "
            "without unit tests"
        )
