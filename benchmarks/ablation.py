"""Wall-clock of a whole ablation, start-up included: `bench run` against scripts with TRL, a process for each run.

Two arms (advantages with and without their group's standard deviation) x 3 seeds x 30 steps of the tiny profile. Ours
is one command with two workers, from its start to the written report; it cannot leave out evaluation altogether, so it
evaluates one problem with one sample at both ends. TRL trains the six runs two at a time on one thread each, and one at
a time on two threads; the faster way counts.

    python benchmarks/ablation.py --json
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from outcome import arguments, bounds, finish
from pairs import Entrant, Row, alternate, compare, environment
from trl_settings import BEST_FOR_ABLATION
from workload import Workload, write_prompts

HERE = Path(__file__).parent
REQUIRED = {"ratio": 0.25}
ARMS = {"group_std": "group_std", "no_std": "none"}
"""Name -> objective.scale."""


class Clock:
    """Wall-clock, and CPU time of the processes that have ended since: on a busy machine the steadier of the two."""

    def __init__(self) -> None:
        self._started_s, self._started_cpu_s = time.perf_counter(), _cpu_s()

    def read(self) -> Row:
        return {"seconds": time.perf_counter() - self._started_s, "cpu_seconds": _cpu_s() - self._started_cpu_s}


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def sweep(workload: Workload, seeds: int) -> dict[str, Any]:
    """The sweep file of our side."""
    return {
        "name": "ablation",
        "question": "Does dividing advantages by the reward's standard deviation help?",
        "profile": "profile.yaml",
        "ablate": ["objective.scale"],
        "base": {"algorithm": "grpo"},
        "arms": {name: {} if scale == "group_std" else {"objective.scale": scale} for name, scale in ARMS.items()},
        "seeds": seeds,
        "compare": {"baseline": "group_std"},
    }


def ours(folder: Path, workload: Workload, seeds: int, workers: int) -> Callable[[], Row]:
    """`bench run`, each time into a home of its own, with one thread a worker."""
    profile = workload.settings()
    del profile["algorithm"]
    (folder / "profile.yaml").write_text(yaml.safe_dump(profile), encoding="utf-8")
    file = folder / "ablation.yaml"
    file.write_text(yaml.safe_dump(sweep(workload, seeds)), encoding="utf-8")

    def turn() -> Row:
        with tempfile.TemporaryDirectory() as home:
            command = [sys.executable, "-c", "from harness.cli import main; main()"]
            options = ["run", str(file), "--home", home, "--workers", str(workers)]
            clock = Clock()
            _run([*command, *options], threads=1, ours=True)
            return clock.read() | _rewards(Path(home))

    return turn


def _rewards(home: Path) -> Row:
    """What our cells ended with: the mean reward of their last steps."""
    from harness.records.files import read_jsonl

    cells = sorted(path.parent for path in home.rglob("steps.jsonl"))
    steps = [read_jsonl(cell / "steps.jsonl") for cell in cells]
    return {
        "runs": len(cells),
        "steps": min(map(len, steps)),
        "reward": _mean([rows[-1]["reward/mean"] for rows in steps]),
    }


def theirs(folder: Path, workload: Workload, seeds: int, at_once: int, threads: int) -> Callable[[], Row]:
    """The six scripts, `at_once` of them at a time."""
    commands = []
    for seed in range(seeds):
        prompts = folder / f"prompts-{seed}.jsonl"
        write_prompts(replace(workload, seed=seed), prompts)
        for scale in ARMS.values():
            run = replace(workload, seed=seed, scale=scale)
            commands.append(
                [sys.executable, str(HERE / "trl_grpo.py"), run.to_json(), str(prompts), json.dumps(BEST_FOR_ABLATION)]
            )

    def turn() -> Row:
        clock = Clock()
        with ThreadPoolExecutor(at_once) as pool:
            accounts = [
                json.loads(out.splitlines()[-1]) for out in pool.map(lambda command: _run(command, threads), commands)
            ]
        return clock.read() | {
            "runs": len(accounts),
            "steps": min(account["steps"] for account in accounts),
            "reward": _mean([account["reward_last"] for account in accounts]),
            "start_s": _mean([account["start_s"] for account in accounts]),
        }

    return turn


def _run(command: Sequence[str], threads: int, ours: bool = False) -> str:
    done = subprocess.run(command, env=environment(threads, ours), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:2])} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return done.stdout


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--pairs", type=int, default=5, help="turns of each way")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--workers", type=int, default=2, help="ours")
    given = parser.parse_args()
    workload = Workload(steps=given.steps)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        entrants = [
            Entrant("ours", "bench run", ours(place, workload, given.seeds, given.workers)),
            Entrant("trl", "two at a time, one thread each", theirs(place, workload, given.seeds, 2, 1)),
            Entrant("trl", "one at a time, two threads", theirs(place, workload, given.seeds, 1, 2)),
        ]
        rows = alternate(entrants, given.pairs)
    seconds = {name: [row["seconds"] for row in of_one] for name, of_one in rows.items()}
    comparison = compare({entrant.name: entrant.side for entrant in entrants}, seconds, "ours", "trl")
    outcome: Row = {
        "settings": vars(given) | {"arms": ARMS, "trl": BEST_FOR_ABLATION},
        "ratio": comparison.ratio,
        "ratios": comparison.ratios,
        "seconds": comparison.median_s,
        "cpu_seconds": {name: statistics.median(row["cpu_seconds"] for row in of_one) for name, of_one in rows.items()},
        "fastest": comparison.best,
        "work": {name: of_one[-1] for name, of_one in rows.items()},
        "required": bounds(at_most=REQUIRED),
    }
    done = {name: (of_one[-1]["runs"], of_one[-1]["steps"]) for name, of_one in rows.items()}
    outcome["faults"] = [] if len(set(done.values())) == 1 else [f"runs and steps differ: {done}"]
    lines = [
        f"  {value:.1f} s ({outcome['cpu_seconds'][name]:.1f} s of CPU): {name}"
        for name, value in comparison.median_s.items()
    ]
    lines.append(f"ours takes {comparison.ratio:.2f} of TRL's time")
    finish("ablation", outcome, lines, given)


if __name__ == "__main__":
    main()
