"""A taskset of verifiers with turns: guess a number from 1 to 9. To a guess, `#4`, the environment says `+` if the
number is larger and `w` if it is lower; `wait` if there is no guess."""

import itertools
import random
from collections.abc import Iterator

import verifiers.v1 as vf

__all__ = ["HigherLowerEnv", "HigherLowerTaskset"]


def guess_in(reply: str) -> int | None:
    """The number behind the last `#`."""
    _, mark, guess = reply.rpartition("#")
    return int(guess) if mark and guess.isdecimal() and len(guess) < 4 else None


class NumberData(vf.TaskData):
    number: int


class NumberTask(vf.Task[NumberData]):
    @vf.reward
    async def found(self, trace: vf.Trace) -> float:
        return float(guess_in(trace.last_reply) == self.data.number)

    @vf.reward(weight=0.25)
    async def nearness(self, trace: vf.Trace) -> float:
        guesses = [guess_in(message.content) for message in trace.assistant_messages]
        known = [guess for guess in guesses if guess is not None]
        return max(0.0, 1 - abs(known[-1] - self.data.number) / 8) if known else 0.0


class HigherLowerConfig(vf.TasksetConfig):
    first: int = 1
    last: int = 9


class HigherLowerEnv(vf.SingleAgentEnv):
    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        async with agents.agent.interaction(task) as interaction:
            segment = await interaction.turn()
            while not segment.terminated:
                guess = guess_in(segment.last_reply)
                if guess == task.data.number:
                    break
                answer = "wait" if guess is None else "+" if guess < task.data.number else "w"
                segment = await interaction.turn(answer)


class HigherLowerTaskset(vf.Taskset[NumberTask, HigherLowerConfig]):
    INFINITE = True

    def load(self) -> Iterator[NumberTask]:
        rng = random.Random(7)
        first, last = self.config.first, self.config.last
        for seed in itertools.count():
            number = rng.randint(first, last)
            yield NumberTask(
                NumberData(name=f"game {seed}", prompt=f"{first},{last}=", number=number), self.config.task
            )
