"""Comparing mathematical expressions by math-verify, in a process of its own."""

from __future__ import annotations

import sys

from evals.grading import Reason
from evals.grading.worker_process import CPU_LIMIT_S, WALL_LIMIT_S, WorkerProcess

MEMORY_BYTES = 1 << 30
# Longer texts are not answers. A request of this length fits a pipe's buffer, so writing it never waits for the worker.
MAX_CHARACTERS = 5_000


class MathProcess(WorkerProcess):
    """The worker in which math-verify runs."""

    def __init__(self, cpu_limit_s: float = CPU_LIMIT_S, wall_limit_s: float = WALL_LIMIT_S) -> None:
        hint = (
            f"the grader 'math' needs math-verify: run `{sys.executable} -c 'import math_verify'` to see what is "
            "missing, or use the grader 'numeric'"
        )
        super().__init__("math_worker.py", hint, MEMORY_BYTES, cpu_limit_s, wall_limit_s)

    def compare(self, candidate: str, answer: str) -> Reason:
        """Whether a candidate equals the answer mathematically, both in LaTeX. Raises EvalError if no worker starts."""
        if len(candidate) + len(answer) > MAX_CHARACTERS:
            return "unparsed"
        return self.ask({"candidate": candidate, "answer": answer})


PROCESS = MathProcess()
PROCESS.keep()
