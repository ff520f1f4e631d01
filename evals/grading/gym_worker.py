"""The process in which reasoning-gym's scorers run. It is started by its path, so that it imports nothing of ours.

Protocol: after `ready`, for each line `{"task": ..., "config": ..., "entry": ..., "candidate": ...}` on stdin a line
with one word on stdout: match, mismatch or crash. `config` and `entry` are pickled by the parent, in base 64. A score
that exceeds its processor time kills the process (SIGPROF's default action).
"""

from __future__ import annotations

import base64
import functools
import json
import os
import pickle
import resource
import signal
import sys
from typing import Any


def main() -> None:
    memory_bytes, cpu_limit_s = int(sys.argv[1]), float(sys.argv[2])
    if sys.platform == "linux":  # macOS does not enforce this limit and refuses to set it
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Whatever a library prints must not end up among the replies.
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="ascii")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    import reasoning_gym  # noqa: F401  # fills the registry
    from reasoning_gym.factory import DATASETS

    @functools.lru_cache(maxsize=8)
    def data_set(task: str, config: str) -> Any:
        return DATASETS[task][0](config=pickle.loads(base64.b64decode(config)))

    def score(request: dict[str, str]) -> str:
        entry = pickle.loads(base64.b64decode(request["entry"]))
        try:
            value = data_set(request["task"], request["config"]).score_answer(request["candidate"], entry)
        except Exception:  # noqa: BLE001  # other people's code on what a model wrote: a crash is a verdict, and counted
            return "crash"
        return "match" if value >= 1 else "mismatch"

    print("ready", file=replies, flush=True)
    for line in sys.stdin.buffer:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, cpu_limit_s)
        outcome = score(request)
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(outcome, file=replies, flush=True)


if __name__ == "__main__":
    main()
