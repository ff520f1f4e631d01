"""The program that worker processes run to isolate other people's code.

It is started by its path, so that it imports nothing of this project:

    _worker.py math <memory_bytes> <cpu_limit_s>            math-verify compares expressions
    _worker.py reasoning_gym <memory_bytes> <cpu_limit_s>   reasoning-gym scores answers
    _worker.py problems                                     reasoning-gym makes problems

The first two judge answers. After printing `ready`, they answer each line of JSON on stdin with one word on stdout:
match, mismatch, unparsed or crash. A judgement that exceeds its CPU time kills the process (SIGPROF's default action).
CPU time, unlike wall-clock time, makes the outcome independent of the machine's load.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import json
import os
import pickle
import random
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any

DECIMALS = 12
"""Decimals to which irrational numbers must agree. With math-verify's default of 6, 3.141593 would be pi."""


def main() -> None:
    what, *limits = sys.argv[1:]
    # Whatever a library prints must not end up among the replies.
    replies = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    if what == "problems":
        make_problems(replies)
    else:
        judge({"math": math_verify_judge, "reasoning_gym": reasoning_gym_judge}[what], replies, *limits)


def judge(make_judge: Callable[[], Callable[[dict[str, str]], str]], replies: int, memory: str, cpu_limit: str) -> None:
    """Answer each request on stdin with the outcome of a judge, within limits on memory and CPU time."""
    if sys.platform == "linux":  # macOS does not enforce this limit and refuses to set it.
        resource.setrlimit(resource.RLIMIT_AS, (int(memory), int(memory)))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    outcome_of = make_judge()
    with os.fdopen(replies, "w", encoding="ascii") as stdout:
        print("ready", file=stdout, flush=True)
        for line in sys.stdin.buffer:
            request = json.loads(line)
            signal.setitimer(signal.ITIMER_PROF, float(cpu_limit))
            outcome = outcome_of(request)
            signal.setitimer(signal.ITIMER_PROF, 0)
            print(outcome, file=stdout, flush=True)


def math_verify_judge() -> Callable[[dict[str, str]], str]:
    """Return a judge of requests that have a `candidate` and an `answer`, both in plain LaTeX."""
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse, verify

    # math.py has already removed the units, by rules that leave variables alone.
    normalisation = NormalizationConfig(basic_latex=True, units=False, malformed_operators=True, nits=True)
    target = LatexExtractionConfig(normalization_config=normalisation)

    def read(expression: str) -> list[object]:
        parsed: list[object] = parse(f"${expression}$", [target], fallback_mode="no_fallback", parsing_timeout=None)
        return parsed

    def outcome(request: dict[str, str]) -> str:
        parsed = read(request["candidate"])
        if not parsed:
            return "unparsed"
        answer = read(request["answer"])
        # The answer may be an interval and the candidate `x > 3`.
        same = verify(answer, parsed, float_rounding=DECIMALS, allow_set_relation_comp=True, timeout_seconds=None)
        return "match" if same else "mismatch"

    return outcome


def reasoning_gym_judge() -> Callable[[dict[str, str]], str]:
    """Return a judge of requests that have a `task`, its `config`, an `entry` of the task, and a `candidate`.

    config, entry: pickled and base64-encoded.
    """
    import reasoning_gym  # noqa: F401  # fills the registry
    from reasoning_gym.factory import DATASETS

    @functools.lru_cache(maxsize=8)
    def data_set(task: str, config: str) -> Any:
        return DATASETS[task][0](config=pickle.loads(base64.b64decode(config)))

    def outcome(request: dict[str, str]) -> str:
        entry = pickle.loads(base64.b64decode(request["entry"]))
        try:
            value = data_set(request["task"], request["config"]).score_answer(request["candidate"], entry)
        except Exception:  # noqa: BLE001  # other people's code on what a model wrote: a crash is a verdict, and counted
            return "crash"
        return "match" if value >= 1 else "mismatch"

    return outcome


def make_problems(replies: int) -> None:
    """Make the problems for one request, which is pickled on stdin.

    The request is a task, its configuration, the number of distinct problems, and how many rounds of that many draws
    may be made. The reply is pickled as well: the problems as the package made them, each with its number in the
    stream; fewer if there are no more.

    The process must have a fixed PYTHONHASHSEED. Some data sets iterate over sets of strings or use Python's global
    generator, so the same seed would otherwise give different problems in another process.
    """
    import numpy as np
    import reasoning_gym  # noqa: F401  # fills the registry
    from reasoning_gym.factory import DATASETS

    task, config, wanted, rounds = pickle.load(sys.stdin.buffer)
    random.seed(config.seed)
    np.random.seed(config.seed)
    made: dict[str, tuple[int, dict[str, Any]]] = {}
    for start in range(0, rounds * wanted, wanted):
        # The n-th problem of a data set has the seed `seed + n`. Some data sets do not define problems beyond their
        # size.
        data_set = DATASETS[task][0](config=dataclasses.replace(config, seed=config.seed + start, size=wanted))
        for number in range(wanted):
            entry = data_set[number]
            made.setdefault(entry["question"], (start + number, entry))
            if len(made) == wanted:
                break
        if len(made) == wanted:
            break
    with os.fdopen(replies, "wb") as stdout:
        pickle.dump(list(made.values()), stdout)


if __name__ == "__main__":
    main()
