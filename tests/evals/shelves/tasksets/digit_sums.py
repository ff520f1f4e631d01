"""A taskset of verifiers without turns: sums of three digits. It has an end, and its agent is told what to do by a
system message."""

import verifiers.v1 as vf

__all__ = ["DigitSumsTaskset"]


class SumData(vf.TaskData):
    answer: int


class SumTask(vf.Task[SumData]):
    @vf.stop
    async def answered(self, trace: vf.Trace) -> bool:
        return bool(trace.num_turns >= 1)

    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply.rpartition("#")[2] == str(self.data.answer))

    @vf.metric
    async def length(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply))


class DigitSumsTaskset(vf.Taskset[SumTask, vf.TasksetConfig]):
    def load(self) -> list[SumTask]:
        digits = range(1, 7)
        return [
            SumTask(SumData(prompt=f"{a}+{b}+{c}=", system_prompt="#", answer=a + b + c), self.config.task)
            for a in digits
            for b in digits
            for c in digits
        ]
