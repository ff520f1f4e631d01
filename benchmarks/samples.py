"""Seconds until the page of samples is drawn, and to write it, with 60,000 samples. Required: 2 s to load, from disk.

    python benchmarks/samples.py --json --save

Records of a sweep of 6 arms and 5 seeds are made up, with texts of some 400 characters and a formula in each. The page
is opened in headless Chromium, which is started anew each time; what counts is from the start of loading to the first
samples on the page. Needs Chromium (`make chromium`).
"""

from __future__ import annotations

import json
import random
import re
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from outcome import arguments, bounds, finish
from pairs import note

from evals.metrics import metric_facts
from harness.records import read_sweep
from harness.records.schema import SCHEMA
from reports.samples import write_sweep_samples

REQUIRED = {"load_s": 2.0}
TASK, ARMS, SEEDS, SAMPLES = "sums", 6, 5, 4
WORDS = ("so", "then", "the sum", "of both", "is what remains", "carry one", "and add it", "to the next digit", "gives")
WATCH = """<script>addEventListener("DOMContentLoaded", () => new MutationObserver(() => {
  if (document.querySelector("#samples article a")) document.documentElement.dataset.drawn ||= performance.now();
}).observe(document.querySelector("#samples"), {childList: true}));</script></head>"""


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--problems", type=int, default=500, help="with 6 arms, 5 seeds and 4 samples of each: 60,000")
    parser.add_argument("--repetitions", type=int, default=5)
    given = parser.parse_args()
    chromium = next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )
    if chromium is None:
        raise SystemExit("no Chromium on this machine: `make chromium` installs it")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        note("making up records")
        make_records(folder / "sweep", given.problems)
        page = folder / "report"
        page.mkdir()
        started_s = time.perf_counter()
        write_sweep_samples(read_sweep(folder / "sweep"), page)
        write_s = time.perf_counter() - started_s
        files = [path for path in page.rglob("*") if path.is_file()]
        watched = page / "watched.html"
        watched.write_text((page / "samples.html").read_text().replace("</head>", WATCH, 1))
        loads_s = []
        for number in range(given.repetitions):
            loads_s.append(load(chromium, watched, folder / f"profile{number}"))
            note(f"{loads_s[-1]:.2f} s")
        outcome: dict[str, Any] = {
            "settings": vars(given),
            "samples": ARMS * SEEDS * SAMPLES * given.problems,
            "load_s": statistics.median(loads_s),
            "all_load_s": loads_s,
            "write_s": write_s,
            "page_kb": (page / "samples.html").stat().st_size / 1e3,
            "index_mb": (page / "samples" / "index.js").stat().st_size / 1e6,
            "all_mb": sum(path.stat().st_size for path in files) / 1e6,
            "files": len(files),
            "required": bounds(at_most=REQUIRED),
        }
    line = f"{outcome['samples']:,} samples: drawn after {outcome['load_s']:.2f} s, written in {write_s:.1f} s, "
    finish("samples", outcome, [line + f"{outcome['all_mb']:.0f} MB in {len(files)} files"], given)


def load(chromium: str, page: Path, profile: Path) -> float:
    """Seconds from the start of loading until the page's script has drawn the first samples."""
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", f"--user-data-dir={profile}"]
    dom = subprocess.run(
        [chromium, *options, "--dump-dom", page.as_uri()], check=True, capture_output=True, text=True, timeout=120
    ).stdout
    drawn = re.search(r'data-drawn="([\d.]+)"', dom)
    if drawn is None:
        raise SystemExit(f"the page drew nothing: {dom[-500:]}")
    return float(drawn[1]) / 1000


def make_records(folder: Path, problems: int) -> None:
    import pyarrow
    import pyarrow.parquet

    names = [f"arm_{number}" for number in range(ARMS)]
    rng = random.Random(0)
    cells: list[dict[str, Any]] = []
    for arm in names:
        for seed in range(SEEDS):
            cell = {"arm": arm, "seed": seed, "hash": f"{len(cells):010x}", "dir": f"{arm}-s{seed}-{len(cells):010x}"}
            cells.append(cell)
            path = folder / "cells" / str(cell["dir"])
            path.mkdir(parents=True)
            (path / "status.json").write_text(json.dumps({"schema": SCHEMA, "state": "done", "step": 100}))
            asked = [
                {
                    "task": TASK,
                    "split": "test",
                    "problem_id": str(i),
                    "prompt": f"What is {i} + {i}?",
                    "answer": str(2 * i),
                }
                for i in range(problems)
            ]
            (path / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked))
            rows = [sample(rng, problem, number) for problem in range(problems) for number in range(SAMPLES)]
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path / "evals.parquet", compression="zstd")
    question = {
        **{"name": "made_up", "kind": "sweep", "schema": SCHEMA, "question": "How long does the page take?"},
        **{"profile": "tiny", "arms": names, "baseline": names[0], "metric": "eval.final.pass@1", "margin_pp": 1.0},
        **{"alpha": 0.05, "seeds": list(range(SEEDS)), "ablate": [], "varied": {}, "cells": cells, "command": ""},
        **{"tasks": [TASK], "k": [1], "gate": {"ok": True, "differs": []}, "warnings": [], "budget_tokens": None},
        **{"metrics": {"pass@1": metric_facts("pass@1")}, "asks": "", "contrasts": [], "evaluation": None},
        **{"held_out": {}},
    }
    (folder / "sweep.json").write_text(json.dumps(question))


def sample(rng: random.Random, problem: int, number: int) -> dict[str, Any]:
    right = rng.random() < 0.6
    text = " ".join(rng.choices(WORDS, k=45)) + f" so it is $\\frac{{{problem}}}{{1}} + {problem} = {2 * problem}$"
    return {
        **{"step": 100, "final": True, "task": TASK, "problem_id": str(problem), "sample": number, "text": text},
        **{"n_tokens": len(text) // 4, "truncated": False, "extracted": str(2 * problem), "correct": right},
        **{"reason": "match" if right else "mismatch"},
        **{"verdicts": json.dumps({"exact": right, "numeric": right or rng.random() < 0.05})},
    }


if __name__ == "__main__":
    main()
