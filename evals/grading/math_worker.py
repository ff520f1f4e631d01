"""The process in which math-verify runs. It is started by its path, so that it imports nothing but math-verify.

Protocol: after `ready`, for each line `{"candidate": ..., "answer": ...}` on stdin a line with one word on stdout:
match, mismatch or unparsed. A comparison that exceeds its processor time kills the process (SIGPROF's default action);
processor time, unlike wall-clock time, makes the outcome independent of what else the machine does.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys


def main() -> None:
    memory_bytes, cpu_limit_s = int(sys.argv[1]), float(sys.argv[2])
    if sys.platform == "linux":  # macOS does not enforce this limit and refuses to set it
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Whatever a library prints must not end up among the replies.
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="ascii")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    from math_verify import LatexExtractionConfig, parse, verify

    def read(expression: str) -> list[object]:
        latex = expression if "$" in expression else f"${expression}$"
        parsed: list[object] = parse(
            latex, [LatexExtractionConfig()], fallback_mode="no_fallback", parsing_timeout=None
        )
        return parsed

    def compare(candidate: str, answer: str) -> str:
        parsed = read(candidate)
        if not parsed:
            return "unparsed"
        return "match" if verify(read(answer), parsed, timeout_seconds=None) else "mismatch"

    print("ready", file=replies, flush=True)
    for line in sys.stdin.buffer:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, cpu_limit_s)
        outcome = compare(request["candidate"], request["answer"])
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(outcome, file=replies, flush=True)


if __name__ == "__main__":
    main()
