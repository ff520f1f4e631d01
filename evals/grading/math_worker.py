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

DECIMALS = 12
"""To which numbers that are not rational must agree. With math-verify's own 6, 3.141593 would be pi."""


def main() -> None:
    memory_bytes, cpu_limit_s = int(sys.argv[1]), float(sys.argv[2])
    if sys.platform == "linux":  # macOS does not enforce this limit and refuses to set it
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Whatever a library prints must not end up among the replies.
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="ascii")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse, verify

    # Units are gone already, by rules that leave variables alone (see latex.py).
    normalisation = NormalizationConfig(basic_latex=True, units=False, malformed_operators=True, nits=True)
    target = LatexExtractionConfig(normalization_config=normalisation)

    def read(expression: str) -> list[object]:
        parsed: list[object] = parse(f"${expression}$", [target], fallback_mode="no_fallback", parsing_timeout=None)
        return parsed

    def compare(candidate: str, answer: str) -> str:
        parsed = read(candidate)
        if not parsed:
            return "unparsed"
        # `x > 3` may be given for an interval.
        same = verify(read(answer), parsed, float_rounding=DECIMALS, allow_set_relation_comp=True, timeout_seconds=None)
        return "match" if same else "mismatch"

    print("ready", file=replies, flush=True)
    for line in sys.stdin.buffer:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, cpu_limit_s)
        outcome = compare(request["candidate"], request["answer"])
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(outcome, file=replies, flush=True)


if __name__ == "__main__":
    main()
