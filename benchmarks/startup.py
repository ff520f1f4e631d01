"""How long `bench --help` takes beyond Python's own start. Budget: 0.5 s.

python benchmarks/startup.py [repetitions]
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

BUDGET_S = 0.5
BARE = [sys.executable, "-c", "pass"]
HELP = [sys.executable, "-c", "import sys; sys.argv = ['bench', '--help']; from harness.cli import main; main()"]


def seconds(command: list[str]) -> float:
    start_s = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start_s


def main(repetitions: int = 10) -> None:
    seconds(HELP)  # writes the bytecode
    # Alternating, so that what else the machine does strikes both alike.
    pairs = [(seconds(BARE), seconds(HELP)) for _ in range(repetitions)]
    bare_s, help_s = (statistics.median(column) for column in zip(*pairs, strict=True))
    beyond_s = statistics.median(with_help - bare for bare, with_help in pairs)
    print(f"python {bare_s:.3f} s, bench --help {help_s:.3f} s: {beyond_s:.3f} s beyond, x{help_s / bare_s:.1f}")
    if beyond_s > BUDGET_S:
        sys.exit(f"over the budget of {BUDGET_S} s")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
