"""The prompts of a cell with bench's graders, as a taskset of verifiers. prime-rl draws its prompts from it."""

import json
from pathlib import Path

import verifiers.v1 as vf

from evals import get_task, grade

__all__ = ["BenchTaskset"]


class BenchData(vf.TaskData):
    answer: str
    graded_as: str
    """The name of the task."""


class BenchTask(vf.Task[BenchData]):
    @vf.stop
    async def one_turn(self, trace: vf.Trace) -> bool:
        return trace.num_turns >= 1

    @vf.reward(weight=1.0)
    async def correct(self, trace: vf.Trace) -> float:
        task = get_task(self.data.graded_as)
        return float(grade(trace.last_reply, self.data.answer, task.require_grader(), task.extract).correct)


class BenchTasksetConfig(vf.TasksetConfig):
    prompts: Path = Path("prompts.jsonl")
    graded_as: str = ""


class BenchTaskset(vf.Taskset[BenchTask, BenchTasksetConfig]):
    def load(self) -> list[BenchTask]:
        rows = [json.loads(line) for line in self.config.prompts.read_text().splitlines()]
        known = {"graded_as": self.config.graded_as}
        return [
            BenchTask(BenchData(idx=place, prompt=row["prompt"], answer=row["answer"] or "", **known), self.config.task)
            for place, row in enumerate(rows)
        ]
